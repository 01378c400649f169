"""Kalman passes that miss observations, compiled where numba is installed; no gradients, and on the CPU only."""

from functools import partial

from torch import Tensor

from trellis.kernels import team
from trellis.kernels.optional import installed

kernels = partial(installed, "kernels.kalman.numba")


def compiled(*given: Tensor) -> bool:
    """Whether steps that have to be taken one by one can be taken by compiled code."""
    return all(part.device.type == "cpu" and not part.requires_grad for part in given) and kernels() is not None


def share(kernel: str, items: int, *arguments: Tensor) -> None:
    """Call a kernel with tensors that it fills, on as many threads as there are items for.

    Each has a BLAS of one thread: the products are small, and on busy cores several would wait for each other."""
    arrays = [argument.contiguous().numpy() for argument in arguments]
    with team.OneBlasThread():
        team.share(getattr(kernels(), kernel), team.size(items), *arrays)
