"""The inside algorithm of a grammar in rank space, for all spans of one width, and its adjoint.

The chart of B sentences of up to L words has a row for every span, sorted by width: row `begin(L, d) + i` is the span
of d words from word i. A chart [S, B, R] has S = L (L + 1) / 2 rows, so that a width is one contiguous block. The value
of a span is exp(scales) [S, B] times its entry; an impossible span has the scale -inf and the entry 0."""

from functools import partial
from types import ModuleType

import torch
from torch import Tensor

from trellis.kernels import team
from trellis.kernels.optional import installed

compiled = partial(installed, "kernels.inside.numba")


def begin(length: int, width: int) -> int:
    """The first row of the spans of a width, which is between 1 and L + 1."""
    return (width - 1) * (2 * length - width + 2) // 2


def block(length: int, width: int) -> slice:
    """The rows of the spans of a width."""
    return slice(begin(length, width), begin(length, width + 1))


def on_cpu(chart: Tensor) -> bool:
    """Whether the compiled functions are used: the chart is on a CPU, and numba is installed."""
    return chart.device.type == "cpu" and compiled() is not None


def on_gpu(chart: Tensor) -> ModuleType | None:
    """The Triton kernels, or None if they cannot be used for this chart."""
    kernels = installed("kernels.inside.triton") if chart.is_cuda else None
    return kernels if kernels and chart.shape[-1] <= kernels.MOST else None


def join(left: Tensor, right: Tensor, scales: Tensor, inside: Tensor, length: int, width: int) -> None:
    """Compute the values of the spans of a width d from those of narrower spans: sum_k left[i, i + k] * right[i + k, i
    + d]. They are scaled to a maximum of one and written to `inside`; the logarithms of the scales go to `scales`."""
    if on_cpu(left):
        rows = (length - width + 1) * left.shape[1]
        arrays = [chart.numpy() for chart in (left, right, scales, inside)]
        team.share(compiled().join, team.size(rows), *arrays, length, width)  # type: ignore[union-attr]
        return
    if (kernels := on_gpu(left)) is not None:
        kernels.join(left, right, scales, inside, length, width)
        return
    now = block(length, width)
    inside[now], scales[now] = joined(left, right, scales, length, width)


def spread(
    left: Tensor, right: Tensor, scales: Tensor, outer: Tensor, left_adjoint: Tensor, right_adjoint: Tensor,
    length: int, width: int,
) -> None:  # fmt: skip
    """The adjoint of `join`, for the spans of a width. They are left and right parts of wider spans, whose adjoints are
    in `outer`. The contributions of the wider spans are added to `left_adjoint` and `right_adjoint`."""
    if on_cpu(left):
        rows = (length - width + 1) * left.shape[1]
        arrays = [chart.numpy() for chart in (left, right, scales, outer, left_adjoint, right_adjoint)]
        team.share(compiled().spread, team.size(rows), *arrays, length, width)  # type: ignore[union-attr]
        return
    if (kernels := on_gpu(left)) is not None:
        kernels.spread(left, right, scales, outer, left_adjoint, right_adjoint, length, width)
        return
    for wider in range(width + 1, length + 1):
        above = block(length, wider)
        known, top = scales[above] > -torch.inf, finite(scales[above])
        first, last = (pairs(length, wider)[k - 1] for k in (width, wider - width))  # this width is left, or right
        for adjoint, here, other, chart in (
            (left_adjoint, first[0], first[1], right), (right_adjoint, last[1], last[0], left),
        ):  # fmt: skip
            factor = (scales[here] + scales[other] - top).exp().where(known, 0.0)
            adjoint[here] += outer[above] * factor.unsqueeze(-1) * chart[other]


def joined(left: Tensor, right: Tensor, scales: Tensor, length: int, width: int) -> tuple[Tensor, Tensor]:
    """`join` in plain torch: the values [n, B, R] and scales [n, B] of the spans of a width."""
    weights = torch.stack([scales[one] + scales[other] for one, other in pairs(length, width)])
    top = weights.amax(0)
    factors = (weights - finite(top)).exp()
    total = torch.zeros_like(left[block(length, width)])
    for (one, other), factor in zip(pairs(length, width), factors, strict=True):
        total.addcmul_(left[one] * factor.unsqueeze(-1), right[other])
    peak = total.amax(-1)
    return total / peak.masked_fill(peak <= 0, 1.0).unsqueeze(-1), top + peak.log()


def pairs(length: int, width: int) -> list[tuple[slice, slice]]:
    """For every split of the spans of a width, the rows of their left and right parts."""
    count = length - width + 1
    begins = ((begin(length, k), begin(length, width - k) + k) for k in range(1, width))
    return [(slice(one, one + count), slice(other, other + count)) for one, other in begins]


def finite(scales: Tensor) -> Tensor:
    """The scales, with 0 for -inf."""
    return scales.masked_fill(scales == -torch.inf, 0.0)
