"""Kalman recursions with missing observations, compiled by numba if installed; CPU only, without gradients."""

from functools import partial

from torch import Tensor

from trellis.kernels import team
from trellis.kernels.optional import installed

kernels = partial(installed, "kernels.kalman.numba")


def compiled(*given: Tensor) -> bool:
    """Whether the recursions can run in compiled code: on a CPU, without gradients, if numba is installed."""
    return all(part.device.type == "cpu" and not part.requires_grad for part in given) and kernels() is not None


def share(kernel: str, items: int, *arguments: Tensor) -> None:
    """Call a kernel with tensors that it fills, on up to as many threads as there are items.

    Each thread uses single-threaded BLAS: the products are small, and multithreaded BLAS would contend for cores."""
    arrays = [argument.contiguous().numpy() for argument in arguments]
    with team.OneBlasThread():
        team.share(getattr(kernels(), kernel), team.size(items), *arrays)
