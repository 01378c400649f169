"""The Triton kernels compile for a GPU, whether or not there is one."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytest.importorskip("triton", reason="Triton is not installed")

SCRIPT = """
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from trellis.kernels.adamw import triton as adamw
from trellis.kernels.classes import triton as classes
from trellis.kernels.draws import triton as draws
from trellis.kernels.edges import triton as edges
from trellis.kernels.estimates import triton as estimates
from trellis.kernels.inside import triton as inside
from trellis.kernels.lse import known
from trellis.kernels.lse import triton as lse
from trellis.kernels.mask import triton as mask
from trellis.kernels.norm import triton as norm
from trellis.kernels.pairs import triton as pairs
from trellis.kernels.picks import triton as picks
from trellis.kernels.scan import dense, ends, resident
from trellis.kernels.scan import triton as scan
from trellis.kernels.segments import triton as segments
from trellis.kernels.thin import triton as thin


def compile(kernel, types, constants, **options):
    names = kernel.arg_names
    signature = {name: "constexpr" if name in constants else types.get(name, "*fp32") for name in names}
    values = {(names.index(name),): value for name, value in constants.items()}
    made = triton.compile(ASTSource(kernel, signature, values), target=GPUTarget("cuda", 90, 32), options=options)
    print(kernel.__name__, made.metadata.shared)


block = {"K": 200, "WIDTH": 256, "ROWS": 128, "LOGITS": True}
compile(scan.forward_kernel, {"lengths": "*i64", "T": "i32"}, block | {"TINY": 1e-38}, num_warps=16)
compile(scan.adjoint_kernel, {"lengths": "*i64", "T": "i32"}, block | {"PAIRS": True}, num_warps=16)
tile = {"K": 200, "WIDTH": 256}
types = {"lengths": "*i64", "T": "i32", "blocks": "*bf16"}
compile(resident.forward_kernel, types, tile | {"TINY": 1e-38}, num_warps=16, num_stages=1)
compile(resident.adjoint_kernel, types, tile, num_warps=16, num_stages=1)

vectors = {"queries": "*bf16", "keys": "*bf16", "row_keys": "*i64", "column_keys": "*i64"}
vectors |= {"threshold": "i64", "R": "i32", "listed": "*i32", "count": "*i32"}
sizes = {"S": 1000, "DIM": 256, "MASKED": True}
tile = {"ROWS": 64, "COLUMNS": 64, "PART": 1024, "MEAN": True, "LARGEST": lse.LARGEST}
compile(lse.forward_kernel, vectors, sizes | tile | {"LISTED": False}, num_warps=4, num_stages=2)
some = sizes | tile | {"MEAN": False, "MASKED": False, "LISTED": True, "ROWS": 128}
compile(lse.forward_kernel, vectors, some, num_warps=8, num_stages=3)
compile(lse.backward_kernel, vectors, sizes | {"R": 1000, "ROWS": 64, "COLUMNS": 128}, num_warps=8, num_stages=3)
compile(lse.join_kernel, {"R": "i32", "PARTS": "i32"}, {"SIZE": 256})
names = dict.fromkeys(["table", "listed", "slots", "count"], "*i32") | {"names": "*i64", "ids": "*i64"}
names |= {"R": "i32", "K": "i32", "PARTS": "i32"}
compile(known.mark_kernel, names, {"SIZE": 256})
compile(known.list_kernel, names, {"SIZE": 4096}, num_warps=16)
compile(known.spread_kernel, names, {"SIZE": 256})
compile(lse.scale_kernel, {"R": "i32", "x": "*bf16", "out": "*bf16"}, {"DIM": 256, "ROWS": 16})

strides = ["left_set", "left_row", "left_inner", "right_set", "right_inner", "right_column", "A", "B", "C"]
types = dict.fromkeys(strides, "i32") | {"right": "*bf16", "out": "*bf16", "rows": "*i64", "columns": "*i64"}
choices = {"GATHER_LEFT": True, "GATHER_RIGHT": True, "NORMED": True, "SIDE": 128, "INNER": 64, "STEPS": 2}
compile(pairs.product_kernel, types, choices, num_warps=8)
types |= {"members": "*i32", "counts": "*i32", "left": "*bf16"} | dict.fromkeys(["M", "G", "N", "span"], "i32")
tile = {"ROWS": 128, "COLUMNS": 256, "INNER": 64, "STEPS": 2, "CHUNK": pairs.CHUNK, "GROUPS": 128}
compile(pairs.sum_kernel, types, tile, **pairs.SUM)
compile(pairs.chunks_kernel, types, {"CHUNK": pairs.CHUNK, "GROUPS": 128, "SIZE": 4096})
compile(pairs.weigh_kernel, types | {"blocks": "*bf16", "left": "*fp32", "right": "*fp32"}, {"SIDE": 128}, num_warps=8)
compile(pairs.members_kernel, {"index": "*i64", "members": "*i32", "counts": "*i32", "M": "i32"}, {"SIZE": 1024})
rows = {"index": "*i64", "N": "i32", "D": "i32", "values": "*bf16"}
compile(segments.add_kernel, rows, {"WIDTH": 32, "SCANNED": 2048, "ADDED": 256}, num_warps=8)
compile(segments.add_sorted_kernel, rows | {"order": "*i64"}, {"WIDTH": 1024})
rows = {"index": "*i64", "low": "*bf16", "low_grads": "*bf16"} | dict.fromkeys(["N", "K", "D"], "i32")
compile(picks.pick_kernel, rows, {"ROWS": 8, "WIDTH": 256}, num_warps=4)
compile(picks.spread_kernel, rows, {"STEPS": 16, "ROWS": 8, "WIDTH": 256}, num_warps=4)

names = {"SEED": 3, "PURPOSE": 0x9E3779B9, "ROWS": 0x9E3779B9, "SIZE": 1024}
compile(mask.keys_kernel, {"step": "*i64", "ids": "*i64", "out": "*i64", "N": "i32"}, names)

compile(mask.choose_kernel, {"step": "*i64", "out": "*i64", "N": "i32", "KEPT": "i32"}, names | {"SIZE": 256})

several = dict.fromkeys(["weights", "grads", "firsts", "seconds", "steps", "averages"], ("*fp32", "*fp32"))
types = several | {"sizes": ("i32", "i32"), "tensors": "*i32", "blocks": "*i32"}
numbers = {"BETA1": 0.9, "BETA2": 0.99, "EPSILON": 1e-8, "DECAY": 0.1, "LOG1": -0.15, "LOG2": -0.01}
compile(adamw.update_kernel, types, numbers | {"COUNT": 2, "AVERAGED": True, "SIZE": 2048})
compile(adamw.average_kernel, types, {"COUNT": 2, "SIZE": 2048})

words = {"words": "*i64", "begins": "*i64", "K": "i32"}
compile(classes.forward_kernel, words, {"WORDS": 64, "COLUMNS": 32}, num_warps=4)
compile(classes.backward_kernel, words, {"WORDS": 64, "COLUMNS": 32}, num_warps=4)

rows = {"N": "i32", "D": "i32", "x": "*bf16", "y": "*bf16", "out": "*bf16", "grads": "*bf16", "d_sum": "*bf16"}
tile = {"ROWS": 16, "WIDTH": 256, "EPSILON": 1e-5}
compile(norm.forward_kernel, rows, tile, num_warps=8)
compile(norm.backward_kernel, rows, tile, num_warps=8)

types = dict.fromkeys(["x", "matrix", "out"], "*bf16") | dict.fromkeys(["t", "B", "T", "K"], "i32")
types |= dict.fromkeys(["stride", "steps", "padded", "padded_batch"], "i32")
types |= {"last": "*i32", "keys": "*i32", "inside": "*i32", "rows": "*i64", "order": "*i64", "one": "fp32"}
largest = {"NB": 64, "BM": 128, "BN": 64, "BK": 64, "TINY": 1e-38}
compile(dense.forward_kernel, types, largest, num_warps=8, num_stages=3)
compile(dense.backward_kernel, types, largest, num_warps=8, num_stages=3)
types |= {"x": "*fp32", "rows": "i32"}
compile(dense.split_kernel, types, {"ORDER": (3, 2, 1, 2, 1, 1), "SCALED": True, "BLOCK": 512})
types |= {"rows": "*i64", "lengths": "*i64", "out": "*fp32", "parts": "*bf16"}
compile(dense.pairs_kernel, types | {"count": "i32"}, {"LOW": tl.bfloat16, "BLOCK": 64, "ROWS": 32})
compile(dense.load_kernel, types, {"BLOCK": 512})
compile(dense.smooth_kernel, types, {"BLOCK": 512, "TINY": 1e-38})
compile(dense.visits_kernel, types, {"ROWS": 16, "BLOCK": 256, "TINY": 1e-38})
types = {"out": "*bf16", "lengths": "*i32", "last": "*i32"} | dict.fromkeys(["B", "K", "T", "N"], "i32")
compile(ends.first_kernel, types, {"NB": 32, "BLOCK": 64})
compile(ends.norms_kernel, types, {"NB": 32, "STEPS": 16, "BLOCK": 512, "TINY": 1e-38})
compile(ends.gains_kernel, types, {"NB": 32, "STEPS": 16, "TINY": 1e-38})

spans = dict.fromkeys(["length", "width", "batch", "rank"], "i32")
compile(inside.join_kernel, spans, {"SPLITS": 128, "RANKS": 1024}, num_warps=4)
compile(inside.spread_kernel, spans, {"RANKS": inside.RANKS}, num_warps=4)

types = {"pseudocount": "fp32", "V": "i32", "N": "i32"}
compile(estimates.rows_kernel, types, {"KEEP": True, "BLOCK": 1024})
compile(estimates.log_columns_kernel, types, {"ROWS": 4, "BLOCK": 256})
compile(estimates.sums_kernel, types, {"SUMMED": estimates.SUMMED, "ROWS": 4, "BLOCK": 256})

types = dict.fromkeys(["begins", "target", "label"], "*i64") | dict.fromkeys(["scales", "levels"], "*fp64")
types |= {"may_end": "*i64", "K": "i32"}
for relaxed in (False, True):
    compile(edges.joined_kernel, types, {"RELAXED": relaxed, "SIZE": edges.SIZE}, num_warps=16)
types = dict.fromkeys(["R", "K", "NUMBER"], "i32")
compile(thin.times_kernel, types, {"VECTORS": 4, "ROWS": 16, "COLUMNS": thin.COLUMNS})
compile(thin.times_kernel, types, {"VECTORS": 8, "ROWS": 8, "COLUMNS": thin.COLUMNS})
compile(thin.dot_kernel, types, {"DOWN": True, "VECTORS": 16} | thin.TILE, **thin.STAGES)
compile(thin.dot_kernel, types, {"DOWN": False, "VECTORS": 64} | thin.TILE, **thin.STAGES)

names = ["steps", "states", "classes", "chosen", "place", "after", "label", "target", "proposed", "found"]
types = dict.fromkeys(names, "*i64") | {"accepting": "*i1"}
names = ["uniform", "alpha", "scales", "peaks", "weights", "tops", "sums"]
types |= dict.fromkeys(names, "*fp64")
names = ["K", "V", "N", "T", "S", "C", "D", "J", "least", "most", "end", "n", "none", "by_row", "by_draw"]
types |= dict.fromkeys(names, "i32")
for masked in (False, True):
    compile(draws.sum_kernel, types, {"MASKED": masked, "SIZE": draws.SIZE})
compile(draws.search_kernel, types, {"BLOCKS": 64, "SIZE": draws.SIZE})
compile(draws.search_kernel, types | {"weights": "*fp32"}, {"BLOCKS": 64, "SIZE": draws.SIZE})
compile(draws.proposal_kernel, types, {"SIZE": draws.SIZE})
for draw in (4, 64):
    compile(draws.acceptance_kernel, types, {"DRAWS": draw, "SIZE": draws.CELLS // draw}, num_warps=8)
compile(draws.state_kernel, types, {"SIZE": draws.SIZE})
compile(draws.choice_kernel, types, {"SIZE": draws.SIZE})
"""
SHARED_MEMORY = 227 * 1024  # bytes that a program of such a GPU may have


def test_kernels_compile() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run([sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    shared = [int(line.split()[1]) for line in done.stdout.splitlines()]
    assert len(shared) == 59
    assert max(shared) <= SHARED_MEMORY
