"""Rebuild a model from a file without trusting the file.

The settings of a small file may describe a model of any size. While modules are built from these settings, the number
and size of new tensors are therefore limited by the contents of the file."""

import math
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_parameter_registration_hook
from torch.overrides import TorchFunctionMode

LARGEST = 1 << 20  # a size, or a number of elements, that is harmless in a file of any size
NORMALISED = 1e-2  # the largest error of a sum of probabilities, for parameters of any precision
M = TypeVar("M", bound=nn.Module)


def check_settings(settings: Any, tensors: Mapping[str, Tensor]) -> None:
    """Raise ValueError unless the settings are a JSON object with finite numbers. An integer must not exceed the
    number of elements of the largest tensor, or LARGEST if this is more."""
    if not isinstance(settings, dict):
        raise ValueError("the settings are not a JSON object")
    most = max(LARGEST, *(t.numel() for t in tensors.values()), 0)
    for number in _numbers(settings):
        if not (abs(number) <= most if isinstance(number, int) else math.isfinite(number)):
            raise ValueError("the settings contain a number that is too large for the tensors of the file")


def check_finite(tensors: Mapping[str, Tensor]) -> None:
    """Raise ValueError if a number is infinite or NaN."""
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
            raise ValueError(f"the tensor {name!r} contains numbers that are infinite or NaN")


def check_distribution(name: str, probs: Tensor) -> None:
    """Raise ValueError unless the tensor [n] contains probabilities that sum to one."""
    if probs.dim() != 1 or not bool((probs >= 0).all()) or abs(float(probs.sum()) - 1) > NORMALISED:
        raise ValueError(f"the tensor {name!r} is not a distribution")


def check_numbers(name: str, numbers: Sequence[Any]) -> None:
    """Raise ValueError unless all values are non-negative numbers."""
    if not all(type(number) in (int, float) and number >= 0 for number in numbers):
        raise ValueError(f"the {name} are not numbers of at least zero")


def check_labels(name: str, labels: Any) -> list[str]:
    """Labels from a file; raises ValueError unless they are distinct strings."""
    if not isinstance(labels, list) or not all(isinstance(one, str) for one in labels):
        raise ValueError(f"the {name} are not strings")
    if len(set(labels)) != len(labels):
        raise ValueError(f"the {name} are not distinct")
    return labels


def check_indices(name: str, indices: Tensor, shape: tuple[int, ...], low: int, high: int) -> None:
    """Raise ValueError unless the tensor has this shape and integers in [low, high)."""
    if indices.dtype not in (torch.int32, torch.int64):
        raise ValueError(f"the tensor {name!r} does not contain integers")
    if tuple(indices.shape) != shape:
        raise ValueError(f"the tensor {name!r} has the shape {list(indices.shape)}, not {list(shape)}")
    if indices.numel() and not low <= int(indices.min()) <= int(indices.max()) < high:
        raise ValueError(f"the tensor {name!r} contains numbers outside [{low}, {high})")


def check_shapes(expected: Mapping[str, tuple[int, ...]], tensors: Mapping[str, Tensor]) -> None:
    """Raise ValueError unless the tensors have exactly these names and shapes."""
    if different := sorted(expected.keys() ^ tensors.keys()):
        raise ValueError(f"the file and the settings differ in the tensor {different[0]!r}")
    for name, shape in expected.items():
        if tuple(tensors[name].shape) != tuple(shape):
            raise ValueError(
                f"the tensor {name!r} has the shape {list(tensors[name].shape)}, but the settings imply {list(shape)}"
            )


def rebuilt(build: Callable[[], M], tensors: Mapping[str, Tensor]) -> M:
    """The module that `build` returns, with the tensors of a file. These must match the state dict of the module
    exactly."""
    with Budget(tensors):
        module = build()
    expected = module.state_dict()
    check_shapes({name: tuple(value.shape) for name, value in expected.items()}, tensors)
    floating = {name for name, value in expected.items() if value.is_floating_point()}
    dtypes = {tensors[name].dtype for name in floating}
    wrong = [name for name in expected if tensors[name].is_floating_point() != (name in floating)]
    if wrong or len(dtypes) > 1:
        raise ValueError(f"the tensors have unexpected types: {', '.join(wrong or map(str, dtypes))}")
    module.to(dtype=next(iter(dtypes), None)).load_state_dict(tensors)
    return module


class Budget(TorchFunctionMode):
    """Raises ValueError if new tensors have far more elements than the tensors of a file, or if modules have far more
    parameters than the file has tensors."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.elements = 2 * sum(t.numel() for t in tensors.values()) + LARGEST
        self.parameters = 2 * len(tensors) + 16  # some may be replaced
        self.thread = threading.get_ident()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in FACTORIES:
            self.elements -= FACTORIES[func](*args, **kwargs)
            self.check(self.elements)
        return func(*args, **kwargs)

    def register(self, module: nn.Module, name: str, value: nn.Parameter) -> None:
        """A hook that torch calls whenever a parameter is registered with a module, in any thread."""
        if threading.get_ident() == self.thread:
            self.parameters -= 1
            self.check(self.parameters)

    def check(self, left: int) -> None:
        if left < 0:
            raise ValueError("the settings imply a larger model than the file contains")

    def __enter__(self) -> Any:
        self.handle = register_module_parameter_registration_hook(self.register)
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        self.handle.remove()
        super().__exit__(*error)


def _elements(*args: Any, size: Any = None, **kwargs: Any) -> int:
    """The number of elements that torch.empty(*args, size=size) creates."""
    sizes = size if size is not None else args[0] if isinstance(args[0], Sequence) else args
    return math.prod(sizes)


FACTORIES: dict[Any, Callable[..., int]] = dict.fromkeys((torch.empty, torch.zeros, torch.ones), _elements)
FACTORIES |= dict.fromkeys((torch.rand, torch.randn, torch.full), _elements)
FACTORIES |= {torch.arange: lambda *bounds, **_: int(max(bounds)), torch.eye: lambda n, *m, **_: n * max((n, *m))}


def _numbers(value: Any) -> Iterator[float]:
    """The numbers in a JSON value."""
    if isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _numbers(inner)
    elif isinstance(value, int | float):
        yield value
