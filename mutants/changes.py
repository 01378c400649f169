"""Small bugs: one changed comparison, operator, constant, condition, return, slice bound or deleted statement."""

from __future__ import annotations

import ast
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

PLACES = (
    "inference",
    "learning",
    "storage.py",
    "corpus",
    "models/tagger.py",
    "tasks/tagging.py",
    "families/crf",
    "families/hmm_tagger",
)
COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.Pow: ast.Mult,
    ast.MatMult: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
}
UNCHANGED_KEYWORDS = {"strict", "stacklevel", "flush", "non_blocking", "help"}  # checks, hints and messages
Change = ast.stmt | ast.expr  # the node that is replaced
DELETED = (ast.Expr, ast.AugAssign, ast.Raise, ast.Continue, ast.Break, ast.Delete)


@dataclass(frozen=True)
class Mutant:
    """One change of one file of the package."""

    file: str  # relative to the package
    first: int  # line of the statement
    line: int
    imported: bool  # whether it is executed on import, outside all functions
    kind: str
    start: int  # bytes [start, end) of the source are replaced by `text`
    end: int
    text: str

    def applied(self, source: bytes) -> bytes:
        return source[: self.start] + self.text.encode() + source[self.end :]


def files(package: Path) -> list[Path]:
    """The files to mutate."""
    found = [package / place for place in PLACES if (package / place).exists()]
    return sorted(file for place in found for file in (place.rglob("*.py") if place.is_dir() else [place]))


def shuffled(package: Path, seed: int) -> Iterator[Mutant]:
    """All mutants that still compile, in random order."""
    every = [mutant for file in files(package) for mutant in changes(package, file)]
    random.Random(seed).shuffle(every)
    yield from (mutant for mutant in every if _compiles(mutant.applied((package / mutant.file).read_bytes())))


def changes(package: Path, file: Path) -> Iterator[Mutant]:
    """All mutants of a file; some may not compile."""
    source = file.read_bytes()
    offsets = [0]
    for line in source.splitlines(keepends=True):
        offsets.append(offsets[-1] + len(line))
    for node, kind, text, first, imported in _changes(ast.parse(source)):
        start = offsets[node.lineno - 1] + node.col_offset
        end = offsets[(node.end_lineno or node.lineno) - 1] + (node.end_col_offset or 0)
        if source[start:end] != text.encode():
            yield Mutant(str(file.relative_to(package)), first, node.lineno, imported, kind, start, end, text)


def _compiles(source: bytes) -> bool:
    try:
        return bool(compile(source, "mutant", "exec", dont_inherit=True))
    except SyntaxError:
        return False


def _changes(tree: ast.AST, first: int = 1, imported: bool = True) -> Iterator[tuple[Change, str, str, int, bool]]:
    """(node, kind of change, replacement, line of its statement, whether it is executed on import)."""
    for child in _executed(tree):
        if isinstance(child, ast.stmt):
            first = min([child.lineno, *(one.lineno for one in getattr(child, "decorator_list", []))])
            yield from ((*change, first, imported) for change in _of_statement(child))
        elif isinstance(child, ast.expr):
            yield from ((*change, first, imported) for change in _of_expression(child))
        yield from _changes(child, first, imported and not isinstance(child, ast.FunctionDef | ast.Lambda))


def _executed(node: ast.AST) -> Iterator[ast.AST]:
    """The children of a node without annotations, decorators, base classes and strings."""
    if isinstance(node, ast.JoinedStr):
        return
    skipped = {"annotation", "returns", "decorator_list", "bases", "type_params", "type_comment"}
    for name, value in ast.iter_fields(node):
        if name in skipped or (isinstance(node, ast.keyword) and node.arg in UNCHANGED_KEYWORDS):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield child


def _of_statement(node: ast.stmt) -> Iterator[tuple[Change, str, str]]:
    text_alone = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    element = isinstance(node, ast.Assign) and not isinstance(node.targets[0], ast.Name | ast.Tuple)
    if (isinstance(node, DELETED) and not text_alone) or element:
        yield node, "deleted statement", "pass"
    if isinstance(node, ast.Return) and node.value is not None and not _is_falsy(node.value):
        yield node, "return", "return None"
    if isinstance(node, ast.If | ast.While):
        yield node.test, "condition", f"(not ({ast.unparse(node.test)}))"
    if isinstance(node, ast.AugAssign) and type(node.op) in OPERATORS:
        changed = ast.AugAssign(node.target, OPERATORS[type(node.op)](), node.value)
        yield node, "arithmetic", ast.unparse(changed)


def _of_expression(node: ast.expr) -> Iterator[tuple[Change, str, str]]:
    for kind, changed in _replacements(node):
        yield node, kind, ast.unparse(changed) if isinstance(changed, ast.Slice) else f"({ast.unparse(changed)})"


def _replacements(node: ast.expr) -> Iterator[tuple[str, ast.expr]]:
    if isinstance(node, ast.Compare) and type(node.ops[0]) in COMPARISONS:
        yield "comparison", ast.Compare(node.left, [COMPARISONS[type(node.ops[0])](), *node.ops[1:]], node.comparators)
    elif isinstance(node, ast.BinOp) and type(node.op) in OPERATORS and not _text(node.left, node.right):
        yield "arithmetic", ast.BinOp(node.left, OPERATORS[type(node.op)](), node.right)
    elif isinstance(node, ast.BoolOp):
        yield "boolean", ast.BoolOp(ast.Or() if isinstance(node.op, ast.And) else ast.And(), node.values)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.USub | ast.Invert):
        yield "boolean" if isinstance(node.op, ast.Not) else "arithmetic", node.operand
    elif isinstance(node, ast.IfExp):
        yield "condition", ast.IfExp(node.test, node.orelse, node.body)
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield "constant", ast.Constant(not node.value)
    elif isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        yield "constant", ast.Constant(node.value + 1)
    elif isinstance(node, ast.Slice):
        yield from (("slice bound", bound) for bound in _bounds(node))


def _bounds(node: ast.Slice) -> Iterable[ast.Slice]:
    if node.lower is not None:
        yield ast.Slice(None, node.upper, node.step)
    if node.upper is not None:
        yield ast.Slice(node.lower, None, node.step)


def _text(*nodes: ast.expr) -> bool:
    """Whether an operand is a text: two of them are joined, not added."""
    joined = any(isinstance(node, ast.JoinedStr) for node in nodes)
    return joined or any(isinstance(node, ast.Constant) and isinstance(node.value, str) for node in nodes)


def _is_falsy(node: ast.expr) -> bool:
    """Whether a value is written out and false, so that None in its place would often do the same."""
    return ast.unparse(node) in ("None", "False", "0", "0.0", "''", "()", "[]", "{}")
