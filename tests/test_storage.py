"""Storage: the safetensors package reads what we write and the reverse; no damage and no kill goes unnoticed."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import example, given, strategies as st
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from trellis.errors import TrellisError
from trellis.storage import (
    DTYPES,
    as_path,
    atomic_write,
    claimed,
    clear_partial,
    load_tensors,
    read_metadata,
    save_tensors,
)

SHAPES = [(), (0,), (1,), (3, 0, 2), (5, 3), (2, 1, 4)]


class HalfWay(Exception):  # noqa: N818
    """Raised inside a block that writes."""


def every_dtype() -> dict[str, torch.Tensor]:
    """One tensor of each dtype and shape, with arbitrary bytes inside."""
    generator = torch.Generator().manual_seed(0)
    return {
        f"{name}.{shape}": torch.randint(0, 2, shape, generator=generator).to(dtype)
        if name.startswith(("U", "B"))
        else (torch.randn(shape, generator=generator) * 9).to(dtype)
        for name, dtype in DTYPES.items()
        for shape in SHAPES
    }


def assert_same(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> None:
    assert left.keys() == right.keys()
    for name, tensor in left.items():
        assert tensor.dtype == right[name].dtype, name
        assert torch.equal(tensor, right[name]), name


def test_safetensors_reads_ours(tmp_path: Path) -> None:
    tensors = every_dtype()
    save_tensors(tmp_path / "t.safetensors", tensors, {"maker": "trellis", "π": "3"})
    assert_same(tensors, load_file(tmp_path / "t.safetensors"))
    with safe_open(tmp_path / "t.safetensors", "pt") as file:
        assert file.metadata().items() >= {"maker": "trellis", "π": "3"}.items()


def test_we_read_safetensors(tmp_path: Path) -> None:
    tensors = every_dtype()
    save_file(tensors, tmp_path / "t.safetensors", {"maker": "them"})
    assert_same(tensors, load_tensors(tmp_path / "t.safetensors"))
    assert read_metadata(tmp_path / "t.safetensors") == {"maker": "them"}


@given(
    st.dictionaries(
        st.text(max_size=8).filter(lambda name: name != "__metadata__"), st.lists(st.floats(width=32)), max_size=4
    ),
    st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=3),
)
@example({}, {})  # the header is the whole file
def test_round_trip(tmp_path_factory: pytest.TempPathFactory, values: dict, metadata: dict) -> None:
    path = tmp_path_factory.getbasetemp() / "round.safetensors"
    save_tensors(path, {name: np.array(value, dtype=np.float32) for name, value in values.items()}, metadata)
    loaded = load_tensors(path)
    assert loaded.keys() == values.keys()
    assert all(loaded[k].numpy().tobytes() == np.array(v, dtype=np.float32).tobytes() for k, v in values.items())
    assert read_metadata(path) == metadata


def test_awkward_arrays_are_saved_by_value(tmp_path: Path) -> None:
    frozen = np.arange(6.0).reshape(2, 3)
    frozen.flags.writeable = False
    arrays = {"transposed": frozen.T, "frozen": frozen, "big": frozen.astype(">f8"), "table": np.array(7)}
    save_tensors(tmp_path / "t", {**arrays, "view": torch.arange(6).view(2, 3).t()})
    loaded = load_tensors(tmp_path / "t")
    assert all(np.array_equal(loaded[name].numpy(), value) for name, value in arrays.items())
    assert torch.equal(loaded["view"], torch.arange(6).view(2, 3).t())


@pytest.mark.parametrize(
    ("name", "value"),
    [("z", torch.zeros(2, dtype=torch.complex64)), ("s", np.array(["a"])), ("__metadata__", torch.ones(1)), ("l", [1])],
)
def test_what_cannot_be_saved_is_named(tmp_path: Path, name: str, value: torch.Tensor) -> None:
    with pytest.raises(TrellisError, match=name):
        save_tensors(tmp_path / "t", {name: value})
    assert list(tmp_path.iterdir()) == []


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("saved") / "whole.safetensors"
    save_tensors(path, {"a": torch.randn(3, 4), "b": torch.arange(3)}, {"note": "whole"})
    return path


@given(fraction=st.floats(0, 1, exclude_max=True))
def test_truncation_is_an_error(saved: Path, fraction: float) -> None:
    whole, cut = saved.read_bytes(), saved.with_name("cut")
    cut.write_bytes(whole[: int(fraction * len(whole))])
    with pytest.raises(TrellisError, match="cut is truncated"):
        load_tensors(cut)


@given(position=st.integers(0, 10_000), bit=st.integers(0, 7))
def test_no_flipped_bit_changes_the_tensors_silently(saved: Path, position: int, bit: int) -> None:
    data = bytearray(saved.read_bytes())
    data[position % len(data)] ^= 1 << bit
    (flipped := saved.with_name("flipped")).write_bytes(data)
    try:
        loaded = load_tensors(flipped)
    except TrellisError:
        return
    assert_same(loaded, load_tensors(saved))  # only padding or the checksum's own key was hit


HEADERS = [
    [],
    {"a": 3},
    {"a": {"dtype": "F128", "shape": [1], "data_offsets": [0, 16]}},
    {"a": {"dtype": "F32", "shape": [-1, -1], "data_offsets": [0, 4]}},
    {"a": {"dtype": "F32", "shape": [0, 10**30], "data_offsets": [0, 0]}},
    {"a": {"dtype": "F32", "shape": [10**12], "data_offsets": [0, 4 * 10**12]}},
    {"a": {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]}},
    {"a": {"dtype": "F32", "shape": None, "data_offsets": [0, 4]}},
]


@pytest.mark.parametrize("header", HEADERS, ids=range(len(HEADERS)))
def test_foreign_headers_are_errors(tmp_path: Path, header: object) -> None:
    encoded = json.dumps(header).encode()
    (tmp_path / "f").write_bytes(len(encoded).to_bytes(8, "little") + encoded)
    with pytest.raises(TrellisError, match="not a safetensors file"):
        load_tensors(tmp_path / "f")


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 a zip file, say, or a pickle", b"\x02" + bytes(7) + b"[["])
def test_foreign_files_are_errors(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "f").write_bytes(content)
    for read in (load_tensors, read_metadata):
        with pytest.raises(TrellisError, match="not a safetensors file"):
            read(tmp_path / "f")


def test_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(TrellisError, match=r"Cannot read .*nowhere"):
        load_tensors(tmp_path / "nowhere")


def test_a_failed_write_leaves_the_old_file_alone(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "file"
    with atomic_write(path) as file:
        file.write(b"old")
    with suppress(HalfWay), atomic_write(path) as file:
        file.write(b"new")
        raise HalfWay
    assert path.read_bytes() == b"old"
    assert [item.name for item in path.parent.iterdir()] == ["file"]


def test_a_full_disk_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(TrellisError, match="No space left"), atomic_write(tmp_path / "file") as file:
        file.write(b"x")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_in_the_way_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(TrellisError, match="directory"), atomic_write(tmp_path) as file:
        file.write(b"x")


WRITER = """
import sys
from pathlib import Path
from trellis.storage import atomic_write
root = Path(sys.argv[1])
for number in range(10**9):
    text = str(number) * 50_000
    with atomic_write(root / "file") as file:
        file.write(text.encode())
    print(number, flush=True)
"""


def assert_whole(text: str) -> None:
    assert text
    assert text == text[: len(text) // 50_000] * 50_000


def test_kill_at_any_moment_leaves_whole_content(tmp_path: Path) -> None:
    """Writers are read all the while and killed at random moments: what is there is whole, and junk goes away."""
    delays = np.random.default_rng(0).uniform(0.1, 0.2, size=3)
    for delay in delays:
        writer = subprocess.Popen([sys.executable, "-c", WRITER, tmp_path], stdout=subprocess.PIPE)
        assert writer.stdout is not None
        assert writer.stdout.readline()
        deadline = time.monotonic() + delay
        while time.monotonic() < deadline:
            assert_whole((tmp_path / "file").read_text())
        writer.send_signal(signal.SIGKILL)
        writer.communicate()
        assert_whole((tmp_path / "file").read_text())
    clear_partial(tmp_path)
    assert {item.name for item in tmp_path.iterdir()} == {"file"}


def test_the_name_of_the_checksum_is_reserved(tmp_path: Path) -> None:
    with pytest.raises(TrellisError, match="the checksum of the file has that name"):
        save_tensors(tmp_path / "t.safetensors", {"x": torch.zeros(2)}, {"crc32": "00000000"})
    assert not (tmp_path / "t.safetensors").exists()


def test_a_checksum_can_be_demanded(tmp_path: Path) -> None:
    save_file({"x": torch.zeros(2)}, tmp_path / "t.safetensors")
    assert load_tensors(tmp_path / "t.safetensors")["x"].tolist() == [0.0, 0.0]
    with pytest.raises(TrellisError, match="it has no checksum"):
        load_tensors(tmp_path / "t.safetensors", checked=True)


@pytest.mark.parametrize(
    ("shape", "offsets", "size"),
    [
        ([2], [4, 12], 12),  # a gap before the tensor
        ([2], [0, 12], 12),  # more bytes than the shape has
        ([-1, -2], [0, 8], 8),  # a negative shape of the right size
    ],
)
def test_offsets_and_shapes_match(tmp_path: Path, shape: list[int], offsets: list[int], size: int) -> None:
    header = json.dumps({"x": {"dtype": "F32", "shape": shape, "data_offsets": offsets}}).encode()
    (tmp_path / "t").write_bytes(len(header).to_bytes(8, "little") + header + bytes(size))
    with pytest.raises(TrellisError, match="tensor 'x' has invalid offsets"):
        load_tensors(tmp_path / "t")


def test_metadata_that_are_not_text(tmp_path: Path) -> None:
    header = b'{"__metadata__": {"format": ["x"]}}      '
    (tmp_path / "t.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    with pytest.raises(TrellisError, match="metadata that is not text"):
        read_metadata(tmp_path / "t.safetensors")


def test_devices_are_not_replaced(tmp_path: Path) -> None:
    """A pipe stands for a device: if this test failed as root, it would replace /dev/null."""
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(TrellisError, match="pipe is a device"), atomic_write(tmp_path / "pipe"):
        pass
    assert [path.is_fifo() for path in tmp_path.iterdir()] == [True]


def test_what_is_no_path() -> None:
    with pytest.raises(TrellisError, match=r"must be a string or a pathlib\.Path, not int"):
        as_path(1)


def test_without_file_locks_nothing_is_claimed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with claimed(tmp_path), pytest.raises(TrellisError, match="Another process is using"), claimed(tmp_path):
        pass
    monkeypatch.setitem(sys.modules, "fcntl", None)
    with claimed(tmp_path), claimed(tmp_path):
        assert tmp_path.exists()


@pytest.mark.parametrize("name", ["a", "ab", "abc", "abcd", "abcde", "abcdef", "abcdefg", "abcdefgh"])
def test_tensors_begin_at_a_multiple_of_eight_bytes(tmp_path: Path, name: str) -> None:
    save_tensors(tmp_path / "x", {name: torch.ones(3)})
    assert int.from_bytes((tmp_path / "x").read_bytes()[:8], "little") % 8 == 0
