"""The cache folder: encoded corpora, downloads, generated texts, word classes and samples of teachers.

It can be deleted at any time."""

import json
import logging
import os
import shutil
import zlib
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from trellis.storage import LOCK, explained, workshop, write_text

ROOMS = "corpora", "sources", "classes", "samples"
CHECKSUMS = "checksums.json"  # in each entry: the size and checksum of every file
BLOCK = 1 << 20
TRUSTED = "trusted.txt"  # the texts that the user has named, one JSON string per line

logger = logging.getLogger(__name__)


class CacheEntry(NamedTuple):
    """One entry of the cache."""

    name: str
    size: int  # bytes
    path: Path
    date: datetime


def cache_folder(cache: Path | None = None) -> Path:
    """The given folder, or $TRELLIS_CACHE, or trellis/ in the user's cache directory."""
    if cache or os.environ.get("TRELLIS_CACHE"):
        return Path(cache or os.environ["TRELLIS_CACHE"]).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "trellis"


def cache_entries(cache: Path | None = None) -> list[CacheEntry]:
    """The entries of the cache, sorted by name."""
    folders = [cache_folder(cache) / room for room in ROOMS]
    paths = sorted(path for folder in folders if folder.is_dir() for path in folder.iterdir() if path.name != LOCK)
    return [
        CacheEntry(f"{path.parent.name}/{path.name}", _size(path), path, datetime.fromtimestamp(path.stat().st_mtime))
        for path in paths
    ]


def clear_cache(cache: Path | None = None) -> list[CacheEntry]:
    """Remove and return every entry, including unfinished ones."""
    entries = cache_entries(cache)
    with writing(cache_folder(cache)):
        for entry in entries:
            shutil.rmtree(entry.path) if entry.path.is_dir() else entry.path.unlink()
        (cache_folder(cache) / TRUSTED).unlink(missing_ok=True)
    return entries


def trust_source(source: str) -> None:
    """Record that the user has named this text. It may then be read again later, even if only a model file names it."""
    if not is_trusted(source):
        with suppress(OSError):
            file = cache_folder() / TRUSTED
            file.parent.mkdir(parents=True, exist_ok=True)
            with file.open("a", encoding="utf-8") as lines:
                lines.write(_resolved(source) + "\n")


def is_trusted(source: str) -> bool:
    """Whether the user has named this text before."""
    try:
        return _resolved(source) in (cache_folder() / TRUSTED).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeError):
        return False


def _resolved(source: str) -> str:
    return json.dumps(str(Path(source).expanduser().resolve()))


@contextmanager
def new_entry(target: Path) -> Iterator[Path]:
    """Yield an empty folder that becomes `target`, with checksums of its files, if the block exits without an error.

    If another process has written an intact `target` in the meantime, that one is kept. A damaged `target` is
    replaced.
    """
    if target.exists() and not is_intact(target):
        logger.warning("%s is damaged, or was written by an older version; it is created again.", target)
    with writing(target.parent), workshop(target.parent) as made_in:
        made = made_in / "new"
        made.mkdir()
        yield made
        files = {path.name: [path.stat().st_size, _checksum(path)] for path in sorted(made.iterdir())}
        write_text(made / CHECKSUMS, json.dumps({"files": files, "checksum": _json_checksum(files)}))
        if target.exists() and not is_intact(target):
            target.rename(made_in / "broken")
        if not target.exists():
            _rename_unless_there(made, target)


def is_intact(folder: Path) -> bool:
    """Whether every file of an entry has its recorded size and checksum. A file is checked once per process, and again
    if it changes."""
    try:
        recorded = json.loads((folder / CHECKSUMS).read_text(encoding="utf-8"))
        files = recorded["files"]
        return recorded["checksum"] == _json_checksum(files) and all(
            _is_recorded(folder / name, *values) for name, values in files.items()
        )
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return False


def _is_recorded(path: Path, size: int, checksum: int) -> bool:
    found = path.stat()
    return found.st_size == size and _known_checksum(path, found.st_ino, size, found.st_mtime_ns) == checksum


@lru_cache(1 << 12)
def _known_checksum(path: Path, *state: int) -> int:
    """The checksum of a file in this state (inode, size, time of change)."""
    return _checksum(path)


def _checksum(path: Path) -> int:
    checksum = 0
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            checksum = zlib.crc32(block, checksum)
    return checksum


def _json_checksum(value: object) -> int:
    return zlib.crc32(json.dumps(value).encode())


def writing(folder: Path) -> AbstractContextManager[None]:
    """Turn an OS error while writing to the cache into a one-line TrellisError."""
    return explained(f"in the cache {folder}", "free some space or set TRELLIS_CACHE")


def _rename_unless_there(made: Path, target: Path) -> None:
    try:
        made.rename(target)
    except OSError:
        if not target.exists():
            raise


def _size(path: Path) -> int:
    """Size in bytes of a file, or of all files under a folder."""
    files = [path, *path.rglob("*")] if path.is_dir() else [path]
    return sum(file.stat().st_size for file in files if file.is_file())
