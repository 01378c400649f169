"""Atomic file writes, and tensors in the safetensors format."""

import importlib.util
import json
import math
import os
import secrets
import shutil
import tempfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from io import BufferedReader
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import torch
from torch import Tensor

from trellis.errors import TrellisError

PARTIAL = ".partial"
LOCK = ".lock"
BUILDING = ".building-"  # prefix of temporary folders

DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U64": torch.uint64,
    "U32": torch.uint32,
    "U16": torch.uint16,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
DTYPE_NAMES = {dtype: name for name, dtype in DTYPES.items()}
MAX_HEADER = 100_000_000  # bytes, as in the safetensors specification
CHECKSUM = "crc32"


def as_path(path: Any) -> Path:
    """A path given as a string or a path."""
    try:
        return Path(path)
    except TypeError:
        raise TrellisError(f"A path must be a string or a pathlib.Path, not {type(path).__name__}.") from None


def confined(folder: Path, name: Any) -> Path:
    """The path of a file that is named in another file. Raises unless it is inside the folder of that other file."""
    path = folder / str(name)
    if not isinstance(name, str) or not path.resolve().is_relative_to(folder.resolve()):
        raise TrellisError(f"The file in {folder} names {name!r}, which is not in that folder; it was not opened.")
    return path


@contextmanager
def atomic_write(path: str | Path) -> Iterator[BinaryIO]:
    """Yield a binary file that atomically replaces `path`, synced to disk, if the block exits without an error."""
    path = Path(path)
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise TrellisError(f"{path} is a device, not a regular file; choose another output path.")
    partial = path.parent / f".{path.name}.{secrets.token_hex(4)}{PARTIAL}"
    try:
        with explained(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            with partial.open("xb") as file:
                yield file
            _sync_file(partial)
            os.replace(partial, path)
            _sync_folder(path.parent)
    finally:
        with suppress(OSError):
            partial.unlink(missing_ok=True)


def write_text(path: str | Path, text: str) -> None:
    """Write a UTF-8 text file atomically."""
    with atomic_write(path) as file:
        file.write(text.encode())


@contextmanager
def claimed(folder: Path, wait: bool = False) -> Iterator[None]:
    """Lock a folder against other processes. With `wait`, wait until they have released it. The lock is released when
    the process ends, however it ends."""
    try:
        import fcntl
    except ImportError:  # not Unix: no file locks
        yield
        return
    with explained(folder):
        folder.mkdir(parents=True, exist_ok=True)
        file = (folder / LOCK).open("w")
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except OSError as error:
            raise TrellisError(f"Another process is using {folder}; wait, or choose another folder.") from error
        yield


def clear_partial(folder: str | Path) -> None:
    """Remove unfinished files of killed processes under `folder`. No other process may be writing there."""
    for partial in Path(folder).rglob(f".*{PARTIAL}"):
        partial.unlink(missing_ok=True)


@contextmanager
def workshop(folder: Path) -> Iterator[Path]:
    """Create a temporary folder inside `folder`, and remove the temporary folders of killed processes there."""
    with ExitStack() as open_files:
        with claimed(folder, wait=True):
            for left in folder.glob(f"{BUILDING}*"):
                remove_abandoned(left)
            made = Path(tempfile.mkdtemp(prefix=BUILDING, dir=folder))
            open_files.callback(shutil.rmtree, made, ignore_errors=True)
            open_files.enter_context(claimed(made))
        yield made


def remove_abandoned(made: Path) -> None:
    """Remove a temporary folder unless a process is using it."""
    if importlib.util.find_spec("fcntl") is not None:
        with suppress(TrellisError), claimed(made):
            shutil.rmtree(made, ignore_errors=True)


def save_tensors(
    path: str | Path, tensors: Mapping[str, Tensor | np.ndarray], metadata: Mapping[str, str] | None = None
) -> None:
    """Write named tensors and string metadata to a safetensors file, atomically and with a checksum."""
    with atomic_write(path) as file:
        write_tensors(file, tensors, metadata)


def write_tensors(
    file: BinaryIO, tensors: Mapping[str, Tensor | np.ndarray], metadata: Mapping[str, str] | None = None
) -> None:
    """Write named tensors and string metadata to an open file, with a checksum, in the format of `save_tensors`."""
    if CHECKSUM in (metadata or {}):
        raise TrellisError(f"The metadata cannot have the key {CHECKSUM!r}: the checksum of the file has that name.")
    arrays = {name: _as_tensor(name, value) for name, value in tensors.items()}
    arrays = dict(sorted(arrays.items(), key=lambda item: (-item[1].element_size(), item[0])))
    header: dict[str, Any] = {"__metadata__": {key: str(value) for key, value in (metadata or {}).items()}}
    end = 0
    for name, array in arrays.items():
        begin, end = end, end + array.numel() * array.element_size()
        header[name] = {"dtype": DTYPE_NAMES[array.dtype], "shape": list(array.shape), "data_offsets": [begin, end]}
    checksum = _header_checksum(header)
    for array in arrays.values():
        checksum = zlib.crc32(_bytes(array), checksum)
    header["__metadata__"][CHECKSUM] = f"{checksum:08x}"
    encoded = json.dumps(header).encode()
    encoded += b" " * (-len(encoded) % 8)
    file.write(len(encoded).to_bytes(8, "little") + encoded)
    for array in arrays.values():
        file.write(_bytes(array))


def load_tensors(path: str | Path, device: str | torch.device = "cpu", checked: bool = False) -> dict[str, Tensor]:
    """Read every tensor of a safetensors file and verify its checksum. If `checked`, a file without a checksum
    is rejected.

    Files from other programs have no checksum."""
    with _opened(path) as (file, header):
        if checked and header.checksum is None:
            raise ValueError("it has no checksum")
        checksum, tensors = header.checksum_start, {}
        for name, entry in header.entries.items():
            array = torch.empty(entry["shape"], dtype=DTYPES[entry["dtype"]])
            file.readinto(_bytes(array))
            checksum = zlib.crc32(_bytes(array), checksum)
            tensors[name] = array.to(device)
        if header.checksum not in (None, f"{checksum:08x}"):
            raise ValueError("checksum mismatch")
        return tensors


def read_metadata(path: str | Path) -> dict[str, str]:
    """Read the metadata strings without reading the tensors."""
    with _opened(path) as (_, header):
        return header.metadata


def check_schema(what: object, found: object, ours: int, advice: str = "create it again") -> None:
    """Raise if a file has the schema of a different version of Trellis."""
    if str(found) == str(ours):
        return
    newer = str(found).isdecimal() and int(str(found)) > ours
    age, advice = ("a newer", "upgrade Trellis") if newer else ("an older", advice)
    raise TrellisError(f"{what} has schema {found}, from {age} Trellis (this version reads {ours}); {advice}.")


class _Header(NamedTuple):
    """The parsed JSON header of a safetensors file. The entries are sorted by their position in the file."""

    entries: dict[str, dict[str, Any]]
    metadata: dict[str, str]
    checksum: str | None
    checksum_start: int  # the CRC-32 of the header, with which that of the file begins


@contextmanager
def _opened(path: str | Path) -> Iterator[tuple[BufferedReader, _Header]]:
    """Open a safetensors file at its first data byte; any problem with it raises one TrellisError."""
    try:
        with Path(path).open("rb") as file:
            yield file, _read_header(file, os.fstat(file.fileno()).st_size)
    except OSError as error:
        raise TrellisError(f"Cannot read {path}: {error.strerror or error}.") from error
    except (ValueError, LookupError, TypeError, AttributeError, RuntimeError, OverflowError, MemoryError) as error:
        raise TrellisError(
            f"{path} is truncated, damaged or not a safetensors file ({error}); restore a copy or write it again."
        ) from error


def _read_header(file: BufferedReader, size: int) -> _Header:
    """Parse the header and check it against the file size, before any memory is allocated."""
    length = int.from_bytes(file.read(8), "little")
    if not 2 <= length <= min(MAX_HEADER, size - 8):
        raise ValueError("no header")
    header = json.loads(file.read(length))
    metadata = header.get("__metadata__", {})
    if not all(isinstance(value, str) for value in metadata.values()):
        raise ValueError("metadata that is not text")
    checksum = metadata.pop(CHECKSUM, None)
    start = _header_checksum(header)
    header.pop("__metadata__", None)
    entries = dict(sorted(header.items(), key=lambda item: item[1]["data_offsets"]))
    end = 0
    for name, entry in entries.items():
        begin, stop = entry["data_offsets"]
        width = DTYPES[entry["dtype"]].itemsize
        if begin != end or stop != begin + math.prod(entry["shape"]) * width or min(entry["shape"], default=0) < 0:
            raise ValueError(f"tensor {name!r} has invalid offsets")
        end = stop
    if 8 + length + end != size:
        raise ValueError(f"{size} bytes, but the header implies {8 + length + end}")
    return _Header(entries, metadata, checksum, start)


def _header_checksum(header: dict[str, Any]) -> int:
    return zlib.crc32(json.dumps(header).encode())


def _as_tensor(name: str, value: Tensor | np.ndarray) -> Tensor:
    """A contiguous CPU tensor with a dtype that the format supports."""
    if name == "__metadata__":
        raise TrellisError("A tensor cannot be called '__metadata__': the file format reserves that name.")
    if isinstance(value, np.ndarray) and value.dtype.kind in "fiub" and value.dtype.itemsize <= 8:
        native = value.astype(value.dtype.newbyteorder("="), copy=False)
        value = torch.from_numpy(np.require(native, requirements=["C", "W"]))
    if not isinstance(value, Tensor) or value.dtype not in DTYPE_NAMES:
        kind = getattr(value, "dtype", type(value).__name__)
        raise TrellisError(f"Tensor {name!r} has dtype {kind}, which cannot be saved; use one of {', '.join(DTYPES)}.")
    return value.detach().cpu().contiguous()


def _bytes(array: Tensor) -> memoryview:
    """A writable byte view of a contiguous CPU tensor, without a copy."""
    return array.reshape(-1).view(torch.uint8).numpy().data if array.numel() else memoryview(bytearray())


@contextmanager
def explained(where: object, advice: str = "check the folder, its permissions and the free space") -> Iterator[None]:
    """Turn an OS error while writing into a one-line TrellisError."""
    try:
        yield
    except OSError as error:
        raise TrellisError(f"Cannot write {where}: {error.strerror or error}; {advice}.") from error


def _sync_file(path: Path) -> None:
    """Flush the contents of a file to disk."""
    with path.open("rb") as file:
        os.fsync(file.fileno())


def _sync_folder(path: Path) -> None:
    """Flush directory entries to disk, if the system supports it."""
    with suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
