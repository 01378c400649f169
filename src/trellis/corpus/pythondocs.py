"""A built-in corpus: the documentation in the standard library of the running Python interpreter."""

import ast
import hashlib
import importlib
import importlib.machinery
import importlib.util
import inspect
import platform
import re
import sys
import sysconfig
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from trellis.corpus.cache import is_intact, new_entry
from trellis.progress import progress

FORMAT = 1  # increment when the rules below change
SHARES = {"test": 0.05, "valid": 0.05}  # shares of the documents; the rest is training data
LEFT_OUT = {"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__"}
LEAST_PROSE = 0.5  # minimum share of words among the tokens of a paragraph
LEAST_WORDS = 3

_STATEMENTS = ast.stmt, ast.excepthandler, ast.match_case
_DOCUMENTED = ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef
_COMMENT = re.compile(r"(?:^[ \t]*#[ #].*\n|^[ \t]*#\n){2,}", re.MULTILINE)
_COMMENT_SIGN = re.compile(r"^[ \t]*#+ ?", re.MULTILINE)
_PARAGRAPH_END = re.compile(r"\n\s*\n")
_LIST_ITEM = re.compile(r"\n\s*(?:[-*•+]|\d+[.)])\s+")
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?=[A-Z\"'(`*\[])")
_CODE = re.compile(r"^\s*(?:>>>|\.\.\. |[$#%] |\w+ = |def |class |import |from \w+ import )", re.MULTILINE)
_MARKUP = re.compile(r"[`*|]+|:\w+:(?=`)|^[-=~^\"+#]{3,}$|0x[0-9a-f]{6,}", re.MULTILINE)
_TOKEN = re.compile(r"(\b[A-Za-z]+(?:'[a-z]+)?\b)|\w+|[^\w\s]")


def describe_python() -> str:
    """A description of the corpus, with the version of the interpreter."""
    return f"the documentation inside {platform.python_implementation()} {platform.python_version()}"


def python_docs(folder: Path) -> Path:
    """Write train.txt, valid.txt and test.txt to a subfolder, and return its path. Each line is a sentence; a blank
    line separates documents.

    Each module or help topic is a document; a hash of its name determines its split.
    """
    identity = f"{FORMAT} {sys.version} {sys.platform} {sysconfig.get_path('stdlib')}"
    digest = hashlib.sha256(identity.encode()).hexdigest()[:8]
    target = folder / f"python-docs-{platform.python_version()}-{digest}"
    if not is_intact(target):
        with new_entry(target) as made:
            _write_splits(made)
    return target


def _write_splits(folder: Path) -> None:
    seen: set[str] = set()
    texts: dict[str, list[str]] = {split: [] for split in ("train", *SHARES)}
    with progress("reading the Python documentation", unit="documents") as bar:
        for name, docstrings in sorted(_documents().items()):
            sentences = [sentence for docstring in docstrings for sentence in _sentences(docstring, seen)]
            if sentences:
                texts[_split_of(name)].append("\n".join(sentences) + "\n")
            bar.advance()
    for split, documents in texts.items():
        (folder / f"{split}.txt").write_text("\n".join(documents), encoding="utf-8")


def _split_of(name: str) -> str:
    """The split of the document with this name. Each split has a part of the interval [0, 1); the hash of the name
    falls into one of these parts."""
    point = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big") / 2**64
    for split, share in SHARES.items():
        if point < share:
            return split
        point -= share
    return "train"


def _sentences(docstring: str, seen: set[str]) -> Iterator[str]:
    """The prose of a docstring, reflowed, one sentence at a time; paragraphs in `seen` are skipped."""
    for paragraph in _PARAGRAPH_END.split(inspect.cleandoc(docstring)):
        for item in _LIST_ITEM.split("\n" + paragraph):
            text = " ".join(_MARKUP.sub(" ", item).split())
            if text not in seen and not _CODE.search(item) and _is_prose(text):
                seen.add(text)
                yield from _SENTENCE_END.split(text)


def _is_prose(text: str) -> bool:
    words = [match.group(1) for match in _TOKEN.finditer(text)]
    count = sum(word is not None for word in words)
    return count >= max(LEAST_WORDS, LEAST_PROSE * len(words))


def _documents() -> dict[str, list[str]]:
    """Docstrings by module or topic, in a fixed order."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # old sources have invalid escapes, old modules are deprecated
        return _from_sources() | _from_compiled_modules() | _from_help_topics()


def _from_sources() -> dict[str, list[str]]:
    """Docstrings and comments of the library's Python files, parsed but not imported."""
    root = Path(sysconfig.get_path("stdlib"))
    return {_module_name(path.relative_to(root)): list(_docs_of_file(path)) for path in _python_files(root)}


def _python_files(folder: Path) -> Iterator[Path]:
    """The .py files under a folder, excluding tests and installed packages."""
    for path in sorted(folder.iterdir()):
        if path.is_dir() and path.name not in LEFT_OUT:
            yield from _python_files(path)
        elif path.suffix == ".py":
            yield path


def _module_name(path: Path) -> str:
    return ".".join(path.with_suffix("").parts).removesuffix(".__init__")


def _docs_of_file(path: Path) -> Iterator[str]:
    """The docstrings of a Python file, then its comments of at least two lines."""
    try:
        source = path.read_text("utf-8")
        tree = ast.parse(source)
    except (SyntaxError, ValueError):  # templates and samples with deliberate errors
        return
    yield from _docstrings(tree)
    yield from (_COMMENT_SIGN.sub("", comment) for comment in _COMMENT.findall(source))


def _docstrings(node: ast.AST) -> Iterator[str]:
    """The docstrings of a node and of its nested statements."""
    if isinstance(node, _DOCUMENTED):
        yield ast.get_docstring(node, clean=False) or ""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, _STATEMENTS):
            yield from _docstrings(child)


def _from_compiled_modules() -> dict[str, list[str]]:
    """Docstrings of the extension modules, including builtins."""
    documents = {}
    for name in sorted(sys.stdlib_module_names):
        if not name.startswith(("_test", "_xx", "xx")) and _is_compiled(name):
            try:
                documents[f"{name} (compiled)"] = list(_docstrings_of_module(importlib.import_module(name)))
            except ImportError:  # its system library is not installed
                continue
    return documents


def _is_compiled(name: str) -> bool:
    spec = importlib.util.find_spec(name)
    extensions = tuple(importlib.machinery.EXTENSION_SUFFIXES)
    return spec is not None and (spec.origin == "built-in" or str(spec.origin).endswith(extensions))


def _docstrings_of_module(module: ModuleType) -> Iterator[str]:
    """The docstrings of a module, its functions and classes, and their members."""
    yield inspect.getdoc(module) or ""
    for _, value in sorted(vars(module).items()):
        if isinstance(value, type) or inspect.isbuiltin(value):
            yield _own_doc(value)
        if isinstance(value, type):
            yield from (_own_doc(member) for _, member in sorted(vars(value).items()))


def _own_doc(value: object) -> str:
    """The docstring of a function, class or member. A docstring that a plain value inherits from its class does not
    count."""
    documented = isinstance(value, type) or inspect.isroutine(value) or inspect.isdatadescriptor(value)
    doc = getattr(value, "__doc__", None) if documented else None
    return doc if isinstance(doc, str) else ""


def _from_help_topics() -> dict[str, list[str]]:
    """The text that help("TOPIC") prints."""
    from pydoc_data.topics import topics

    return {f"{name} (topic)": [text] for name, text in topics.items()}
