"""Device selection, and random numbers that are identical on every device."""

import operator
import os
import platform
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from trellis import distributed
from trellis.errors import TrellisError

LARGEST = 2**63 - 1  # of an integer
FORKED = (
    "This process was forked from one that had used the GPU, which CUDA does not support; start it with the method "
    '"spawn" or "forkserver", or load the model with device="cpu".'
)


class Forked:
    """Whether this process was forked from one that had used the GPU."""

    used_gpu = lost_gpu = False

    @classmethod
    def before(cls) -> None:
        cls.used_gpu = torch.cuda.is_initialized()

    @classmethod
    def after(cls) -> None:
        cls.lost_gpu |= cls.used_gpu


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=Forked.before, after_in_child=Forked.after)


def usable(device: torch.device) -> torch.device:
    """The device of a model; raises if it is a GPU that this process cannot use because it was forked."""
    if Forked.lost_gpu and device.type == "cuda":
        raise TrellisError(FORKED)
    return device


def choose_device(device: str | torch.device) -> str:
    """Resolve a device name; auto selects the GPU if available. Kernels are launched on the current GPU, so a GPU with
    a number becomes the current one."""
    name = str(device)
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() and not Forked.lost_gpu else "cpu"
    if name == "cpu":
        return name
    if name != "cuda" and not re.fullmatch(r"cuda:\d+", name):
        raise TrellisError(f"device is {name!r}; use auto, cpu or cuda.")
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise TrellisError(f'device is {name!r}, but torch finds no GPU; use device = "auto" or "cpu".')
    if Forked.lost_gpu:
        raise TrellisError(FORKED)
    if name.startswith("cuda:") and int(name[5:]) >= torch.cuda.device_count():
        raise TrellisError(f"device is {name!r}, but torch finds {torch.cuda.device_count()} GPUs (from cuda:0).")
    name = _own_gpu() if name == "cuda" else name
    if name != "cuda":
        torch.cuda.set_device(name)
    return name


def _own_gpu() -> str:
    """The GPU of this process: cuda or, if several processes share a machine, one for each."""
    if distributed.size() == 1:
        return "cuda"
    if (number := distributed.local_rank()) >= (count := torch.cuda.device_count()):
        raise TrellisError(
            f"This machine has {count} GPUs: start at most {count} processes on it, or use device = cpu."
        )
    return f"cuda:{number}"


@contextmanager
def fitting_memory(what: str, advice: str) -> Iterator[None]:
    """A context that turns an out-of-memory error of a GPU into one sentence."""
    try:
        yield
    except torch.cuda.OutOfMemoryError as error:
        more = re.search(r"allocate ([\d.]+ \w+)", str(error))
        total = re.search(r"capacity of ([\d.]+ \w+)", str(error))
        card = f", which has {total[1]}" if total else ""
        last = f" (the last request was for {more[1]})" if more else ""
        raise TrellisError(f"{what} does not fit in the memory of the GPU{card}{last}; {advice}.") from error


def check_memory(needed: int, what: str, advice: str, device: str | torch.device = "cpu") -> None:
    """Raise if something needs more bytes than the machine, or the GPU, has."""
    if needed > (has := total_memory(str(device))):
        where = "machine" if str(device) == "cpu" else "GPU"
        sizes = f"at least {in_words(needed)} of memory; the {where} has {in_words(has)}"
        raise TrellisError(f"{what} needs {sizes}: {advice}.")


def total_memory(device: str = "cpu") -> int:
    """The bytes of memory of a GPU, or those of the machine that this process may use."""
    if device != "cpu":
        return torch.cuda.get_device_properties(device).total_memory
    limits = [Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes")]
    found = [int(path.read_text()) for path in limits if path.exists() and path.read_text().strip().isdecimal()]
    if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        found.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    return min(found, default=sys.maxsize)


def in_words(size: float) -> str:
    """A number of bytes as text.

    >>> in_words(3.6e9)
    '3.6 GB'
    """
    for unit in ("B", "kB", "MB", "GB", "TB", "PB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} EB"


def describe_device(device: str) -> str:
    """The processor that a device name refers to, for reports."""
    if device.startswith("cuda"):
        return torch.cuda.get_device_name(device)
    threads = torch.get_num_threads()
    return f"{processor()}, {threads} thread{'s' * (threads != 1)}"


def processor() -> str:
    """The model of the CPU, or its architecture where the system does not name it."""
    info = Path("/proc/cpuinfo")
    found = re.search(r"^model name\s*:\s*(.+)$", info.read_text(errors="replace"), re.M) if info.exists() else None
    return found.group(1).strip() if found else platform.processor() or platform.machine() or "CPU"


def check_integer(value: Any, what: str, least: int = 1, most: int = LARGEST) -> int:
    """The value as an int; raises if it is not an integer in this range."""
    found = None if isinstance(value, bool) or not hasattr(value, "__index__") else operator.index(value)
    if found is None or not least <= found <= most:
        written = str(value)[:40] if not isinstance(value, int) or abs(value) <= LARGEST else "too large"
        limit = f"of at least {least}" if most == LARGEST else f"from {least} to {most:,}"
        raise TrellisError(f"The {what} is {written}; pass an integer {limit}.")
    return found


def seeded(seed: Any) -> torch.Generator:
    """A CPU generator of random numbers."""
    return torch.Generator().manual_seed(check_integer(seed, "seed", least=0))


class Draws:
    """Uniform numbers for `copies` of every sequence of a batch. The numbers of one sequence do not depend on the other
    sequences."""

    def __init__(self, seed: int, lengths: list[int], copies: int) -> None:
        self.lengths, self.copies = lengths, copies
        self.generators = {length: seeded(seed) for length in lengths}

    def draw(self) -> Tensor:
        """The next numbers: [sequences, copies, T], zero in the padding."""
        found = {n: torch.rand((self.copies, n), generator=g, dtype=torch.float64) for n, g in self.generators.items()}
        return torch.stack([pad(found[n], (0, max(self.lengths) - n)) for n in self.lengths])


def draw_uniform(
    shape: tuple[int, ...], device: torch.device, generator: torch.Generator | Draws | None = None
) -> Tensor:
    """Uniform float64 numbers in [0, 1), from a CPU generator, so that they are the same on every device."""
    if isinstance(generator, Draws):
        return generator.draw().view(shape).to(device)
    source = device if generator is None else generator.device
    pinned = source.type == "cpu" and device.type == "cuda"  # so that copying does not wait for the GPU
    found = torch.rand(shape, generator=generator, dtype=torch.float64, device=source, pin_memory=pinned)
    return found.to(device, non_blocking=pinned)


def together(arrays: Sequence[np.ndarray], device: torch.device) -> list[Tensor]:
    """Copies of several arrays of integers or bool on a device, with a single transfer."""
    arrays = [array if array.dtype == bool else np.asarray(array, np.int64) for array in arrays]
    starts = np.cumsum([0, *(-(-array.nbytes // 8) * 8 for array in arrays)]).tolist()
    pinned = device.type == "cuda"  # so that copying does not wait for the GPU
    buffer = torch.empty(starts.pop(), dtype=torch.uint8, pin_memory=pinned)
    for start, array in zip(starts, arrays, strict=True):
        buffer.numpy()[start : start + array.nbytes] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    moved, found = buffer.to(device, non_blocking=pinned), list[Tensor]()
    for start, array in zip(starts, arrays, strict=True):
        kind = torch.bool if array.dtype == bool else torch.int64
        found.append(moved[start : start + array.nbytes].view(kind).view(array.shape))
    return found
