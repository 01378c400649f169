"""A pretended GPU: its tensors keep their numbers on the CPU, but will not be mixed with tensors of the CPU or given to
NumPy. So code that forgets to say where its tensors belong fails on a machine without a GPU too."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any, NoReturn
from unittest import mock

import torch
import torch._dynamo  # before anything is pretended: torch loads it when it is first needed
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from trellis.engines import replay
from trellis.kernels import optional

THERE, ITS_NAME_INSIDE = torch.device("cuda", 0), torch.device("meta")  # torch accepts meta tensors without a GPU
MOVES = {"_to_copy", "copy_"}
INDEXING = {"index", "index_put", "index_put_", "_index_put_impl_"}  # torch takes indices from the CPU
FROM_NUMBERS = {torch.tensor, torch.as_tensor}
PINNED = "pin_memory"


class Elsewhere(Tensor):
    """A tensor of the pretended GPU."""

    device = property(lambda self: THERE)
    is_cuda = property(lambda self: True)
    inner: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor) -> Elsewhere:
        made = Tensor._make_wrapper_subclass(
            cls, inner.shape, strides=inner.stride(), storage_offset=inner.storage_offset(), dtype=inner.dtype,
            device=ITS_NAME_INSIDE, requires_grad=inner.requires_grad,
        )  # fmt: skip
        made.inner = inner
        return made

    def tolist(self) -> Any:
        return self.inner.tolist()

    def cpu(self, *_: Any, **__: Any) -> Tensor:
        return self.to("cpu")

    def data_ptr(self) -> int:
        return self.inner.data_ptr()

    def __deepcopy__(self, memo: Any) -> Elsewhere:
        return Elsewhere(self.inner.clone())

    def numpy(self, *_: Any, **__: Any) -> NoReturn:
        raise TypeError("a tensor of the GPU was given to NumPy")

    __array__ = numpy

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        return compute(func, args, kwargs or {})


def compute(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """An operation on the numbers within, its answer on the device of what was given."""
    name, tensors = func.overloadpacket.__name__, [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
    there = [x for x in tensors if isinstance(x, Elsewhere)]
    here = [x for x in tensors if not isinstance(x, Elsewhere) and x.dim() > 0]
    indexed = name in INDEXING and isinstance(args[0], Elsewhere)
    if there and here and name not in MOVES and not indexed:
        raise RuntimeError(f"{name} of tensors on two devices: {[(type(x).__name__, tuple(x.shape)) for x in tensors]}")
    device = kwargs.get("device")
    goes = device.type != "cpu" if device is not None else bool(there)
    answer = func(*tree_map(within, args), **tree_map(within, kwargs))
    same = {id(x.inner): x for x in there}

    def outside(value: Any) -> Any:
        if id(value) in same:
            return same[id(value)]
        return Elsewhere(value) if goes and isinstance(value, Tensor) else value

    return answer if name == "copy_" and not isinstance(args[0], Elsewhere) else tree_map(outside, answer)


def within(value: Any) -> Any:
    if isinstance(value, torch.device):
        return torch.device("cpu")
    return value.inner if isinstance(value, Elsewhere) else value


class Operations(TorchDispatchMode):
    """Tensors that are made on, or brought to, the pretended GPU."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        return compute(func, args, kwargs or {})


class Names(TorchFunctionMode):
    """Calls it by its name inside before torch looks for a real one, whose driver would pin memory."""

    def __torch_function__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        if func is torch.device:
            return func(*args, **kwargs or {})
        args, kwargs = (
            tuple(map(renamed, args)),
            {key: renamed(value) for key, value in (kwargs or {}).items() if key != PINNED},
        )
        if func in FROM_NUMBERS and kwargs.get("device") == ITS_NAME_INSIDE:
            return func(*args, **kwargs | {"device": "cpu"}).to(ITS_NAME_INSIDE)
        return func(*args, **kwargs)


def renamed(value: Any) -> Any:
    is_there = isinstance(value, torch.device | str) and str(value).startswith("cuda")
    return ITS_NAME_INSIDE if is_there else value


@contextmanager
def pretended_gpu() -> Iterator[None]:
    """torch sees a GPU, for which there are no compiled kernels and no graphs."""
    import_module = optional.import_module

    def without_triton(name: str) -> ModuleType:
        if name.endswith(".triton"):
            raise ImportError(name)
        return import_module(name)

    optional.installed.cache_clear()
    try:
        with (
            mock.patch("torch.cuda.is_available", return_value=True),
            mock.patch("torch.cuda.device_count", return_value=1),
            mock.patch("torch.cuda.mem_get_info", return_value=(1 << 33, 1 << 33)),
            mock.patch("torch.cuda.get_device_properties", return_value=mock.Mock(total_memory=1 << 33)),
            mock.patch("torch.cuda.is_current_stream_capturing", return_value=False),
            mock.patch("torch.cuda.Event"),
            mock.patch("torch.cuda.current_stream"),
            mock.patch("torch.cuda.set_device"),
            mock.patch("torch.backends.cudnn.is_acceptable", return_value=False),
            mock.patch.object(optional, "import_module", without_triton),
            mock.patch.object(replay, "on_gpu", return_value=False),
            Operations(),
            Names(),
        ):
            yield
    finally:
        optional.installed.cache_clear()
