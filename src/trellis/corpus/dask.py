"""Sums computed by dask, on the threads of this machine or on the machines of a `dask.distributed.Client`.

A task is repeated if its machine is lost. Results do not depend on the order in which tasks end."""

from collections.abc import Callable, Iterable
from functools import partial, reduce
from operator import add, call
from typing import Any, TypeVar

from trellis.errors import TrellisError

A = TypeVar("A")
B = TypeVar("B")


def total_with_dask(count: Callable[[A], B | None], items: Iterable[A], plus: Callable[[Any, Any], Any] = add) -> B:
    """Add up count(item) over the items, in their order. Results that are None are left out. Needs the extra
    `dask`."""
    try:
        from dask import compute, delayed
    except ImportError as error:
        raise TrellisError("Counting on several machines needs dask: pip install 'trellis-hmm[dask]'.") from error
    work = delayed(count)  # one node of the graph, so that what it refers to is sent to each machine once
    parts: list[Any] = [delayed(call)(work, item) for item in items]
    if not parts:
        raise TrellisError("There is nothing to count; pass at least one file.")
    while len(parts) > 1:
        both = partial(_sum, plus=plus)
        parts = [delayed(reduce)(both, parts[begin : begin + 2]) for begin in range(0, len(parts), 2)]
    total = compute(parts[0])[0]
    if total is None:
        raise TrellisError("There is nothing to count: the files contain no words.")
    return total


def _sum(one: Any, other: Any, plus: Callable[[Any, Any], Any]) -> Any:
    if one is None or other is None:
        return other if one is None else one
    return plus(one, other)
