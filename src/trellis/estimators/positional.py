"""Choose which constructor arguments of a dataclass are positional, and in which order."""

from collections.abc import Callable
from functools import wraps
from inspect import Parameter, signature
from typing import Any, TypeVar

Class = TypeVar("Class", bound=type)


def positional(names: str) -> Callable[[Class], Class]:
    """A class decorator: the arguments `names` may be passed by position, in this order; all others only by keyword."""
    order = names.split()

    def decorate(cls: Class) -> Class:
        init = vars(cls)["__init__"]
        given = signature(init)
        self, *fields = given.parameters.values()
        first = [given.parameters[name].replace(kind=Parameter.POSITIONAL_OR_KEYWORD) for name in order]
        others = [field.replace(kind=Parameter.KEYWORD_ONLY) for field in fields if field.name not in order]

        @wraps(init)
        def __init__(self: Any, *args: Any, **options: Any) -> None:  # noqa: N807
            if len(args) > len(order):
                raise TypeError(f"{cls.__name__} takes at most {len(order)} positional arguments, not {len(args)}.")
            init(self, **dict(zip(order, args, strict=False)), **options)

        vars(__init__)["__signature__"] = given.replace(parameters=[self, *first, *others])
        setattr(cls, "__init__", __init__)  # noqa: B010
        return cls

    return decorate
