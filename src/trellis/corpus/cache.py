"""The cache folder: encoded corpora, downloads, generated texts, word classes and samples of teachers.

It can be deleted at any time."""

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from trellis.storage import explained

ROOMS = "corpora", "sources", "classes", "samples"


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
    paths = sorted(path for folder in folders if folder.is_dir() for path in folder.iterdir())
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
    return entries


@contextmanager
def new_entry(target: Path, intact: Callable[[Path], bool]) -> Iterator[Path]:
    """Yield an empty folder that becomes `target` if the block exits without an error.

    If another process has written an intact `target` in the meantime, that one is kept; a damaged one is replaced.
    """
    with writing(target.parent):
        target.parent.mkdir(parents=True, exist_ok=True)
        workshop = Path(tempfile.mkdtemp(prefix=".building-", dir=target.parent))
        try:
            made = workshop / "new"
            made.mkdir()
            yield made
            if target.exists() and not intact(target):
                target.rename(workshop / "broken")
            if not target.exists():
                _rename_unless_there(made, target)
        finally:
            shutil.rmtree(workshop, ignore_errors=True)


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
