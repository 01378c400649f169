"""AdamW with gradient clipping and weight averaging; a GPU does all three in one pass over memory."""

from typing import Any

import torch
from torch import Tensor, nn

from trellis.config import TrainConfig
from trellis.kernels.optional import installed
from trellis.learning.average import WeightAverage

CLIP_EPSILON = 1e-6  # as in torch


class AdamW(torch.optim.AdamW):
    """torch's AdamW with a method `update` that also limits the norm of the gradient and updates the average of the
    weights. The norm is that of `clipped`, by default of the weights."""

    def __init__(
        self, weights: list[nn.Parameter], config: TrainConfig, clipped: list[nn.Parameter] | None = None
    ) -> None:
        choices: dict[str, Any] = {"betas": (config.beta1, config.beta2), "weight_decay": config.weight_decay}
        on_gpu = weights[0].is_cuda
        if on_gpu:  # with a learning rate on the device
            choices |= {"fused": True, "capturable": True}
        super().__init__(weights, torch.tensor(config.lr, device=weights[0].device) if on_gpu else config.lr, **choices)
        single = all(weight.dtype is torch.float32 and weight.is_contiguous() for weight in weights)
        self.kernels = installed("kernels.adamw.triton") if on_gpu and single else None
        self.tables: dict[tuple[int, ...], Any] = {}
        self.clipped = clipped or weights

    @property
    def weights(self) -> list[nn.Parameter]:
        return [weight for group in self.param_groups for weight in group["params"]]

    def update(self, max_norm: float, average: WeightAverage | None) -> Tensor:
        """Take one step with clipped gradients; returns the norm of the gradients before clipping."""
        if self.kernels is not None:
            return self.fused_update(max_norm, average)
        norm = nn.utils.clip_grad_norm_(self.clipped, max_norm)
        self.step()
        if average:
            average.update(self.weights)
        return norm

    @torch.no_grad()
    def fused_update(self, max_norm: float, average: WeightAverage | None) -> Tensor:
        """`update` by a kernel that clips the gradients when it reads them."""
        learned = [weight for weight in self.weights if weight.grad is not None]
        grads = [weight.grad.contiguous() for weight in learned if weight.grad is not None]
        limited = [weight.grad.contiguous() for weight in self.clipped if weight.grad is not None]
        norm = torch.stack(torch._foreach_norm(limited)).norm()
        state = [self.state[weight] or self.begin(weight) for weight in learned]
        torch._foreach_add_([here["step"] for here in state], 1)
        firsts, seconds, steps = ([here[key] for here in state] for key in ("exp_avg", "exp_avg_sq", "step"))
        averages = [average.averages[weight] for weight in learned] if average else learned
        share = average.share[learned[0].device, torch.float32] if average else None
        group = self.param_groups[0]
        hyper = self.kernels.Hyper(*group["betas"], group["eps"], group["weight_decay"])  # type: ignore[union-attr]
        rows = self.kernels.Rows(learned, grads, firsts, seconds, steps, averages)  # type: ignore[union-attr]
        scale = ((norm + CLIP_EPSILON) / max_norm).clamp(min=1.0)
        self.kernels.update(rows, self.table(learned), group["lr"], scale, share, hyper)  # type: ignore[union-attr]
        unused = [weight for weight in self.weights if weight.grad is None]
        if average and unused:
            moved = [average.averages[weight] for weight in unused]
            self.kernels.average(unused, moved, self.table(unused), share)  # type: ignore[union-attr]
        return norm

    def table(self, weights: list[nn.Parameter]) -> Any:
        """The table that divides these weights among the programs of a kernel, made once."""
        sizes = tuple(weight.numel() for weight in weights)
        if sizes not in self.tables:
            self.tables[sizes] = self.kernels.programs(sizes, weights[0].device)  # type: ignore[union-attr]
        return self.tables[sizes]

    def begin(self, weight: nn.Parameter) -> dict[str, Tensor]:
        """The initial state of a parameter, as in torch."""
        self.state[weight] = {
            "step": torch.zeros((), device=weight.device),
            "exp_avg": torch.zeros_like(weight),
            "exp_avg_sq": torch.zeros_like(weight),
        }
        return self.state[weight]
