"""Fetch a public file, checked and whole or not at all."""

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
TIMEOUT = 30.0  # seconds without an answer


def download(url: str, sha256: str, path: Path) -> None:
    """Put what `url` gives at `path`, provided that its SHA-256 sum is the one expected."""
    digest = hashlib.sha256()
    with atomic_write(path) as file:
        for block in _content(url, path.name):
            digest.update(block)
            file.write(block)
        if digest.hexdigest() != sha256:
            raise TrellisError(f"{url} is not the expected file: its SHA-256 sum differs; it was not kept.")


def unzip(archive: Path, path: Path) -> None:
    """Put the file called `path.name` in an archive at `path`, and remove the archive."""
    try:
        with zipfile.ZipFile(archive) as members, members.open(path.name) as packed, atomic_write(path) as file:
            shutil.copyfileobj(packed, file)
    except (zipfile.BadZipFile, KeyError) as error:
        raise TrellisError(f"{archive} does not hold the file {path.name}: {error}; remove it.") from error
    archive.unlink()


def _content(url: str, name: str) -> Iterator[bytes]:
    """The bytes behind an address, as many as the server announced."""
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
                raise TrellisError(f"The download of {url} broke off after {received:,} of {size:,} bytes; try again.")
    except (OSError, HTTPException) as error:
        reason = getattr(error, "reason", None) or error
        raise TrellisError(
            f"Cannot download {url}: {reason}; check the network, or put it in $TRELLIS_DATA."
        ) from error
