"""Atomic, checksum-verified downloads of public files."""

import hashlib
import shutil
import zipfile
from collections.abc import Iterator
from http.client import HTTPException
from pathlib import Path
from urllib.request import Request, urlopen

from trellis.errors import TrellisError
from trellis.progress import progress
from trellis.storage import atomic_write

BLOCK = 1 << 16
TIMEOUT = 30.0  # seconds without a response


def download(url: str, sha256: str, path: Path) -> None:
    """Download `url` to `path`; raises if its SHA-256 checksum is not the expected one."""
    digest = hashlib.sha256()
    with atomic_write(path) as file:
        for block in _content(url, path.name):
            digest.update(block)
            file.write(block)
        if digest.hexdigest() != sha256:
            raise TrellisError(f"{url} is not the expected file: its SHA-256 checksum differs; it was discarded.")


def unzip(archive: Path, path: Path) -> None:
    """Extract the file named `path.name` from an archive to `path`, and delete the archive."""
    try:
        with zipfile.ZipFile(archive) as members, members.open(path.name) as packed, atomic_write(path) as file:
            shutil.copyfileobj(packed, file)
    except (zipfile.BadZipFile, KeyError) as error:
        raise TrellisError(f"{archive} does not contain {path.name}: {error}; delete it and try again.") from error
    archive.unlink()


def _content(url: str, name: str) -> Iterator[bytes]:
    """The bytes at a URL; raises if fewer bytes arrive than the server announced."""
    try:
        with urlopen(Request(url, headers={"User-Agent": "trellis"}), timeout=TIMEOUT) as response:
            size = int(response.headers.get("Content-Length") or 0)
            received = 0
            with progress(f"download {name}", size or None, "bytes") as bar:
                while block := response.read(BLOCK):
                    received += len(block)
                    bar.advance(len(block))
                    yield block
            if received < size:
                raise TrellisError(f"The download of {url} stopped after {received:,} of {size:,} bytes; try again.")
    except (OSError, HTTPException) as error:
        reason = getattr(error, "reason", None) or error
        raise TrellisError(
            f"Cannot download {url}: {reason}; check the network, or put the file in $TRELLIS_DATA."
        ) from error
