"""A partition of words and states into classes: the words of a class are emitted by its states."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from trellis.types import Groups


class Partition(nn.Module):
    """C classes of states and words: class c has sizes[c] consecutive states, and the words x with word_class[x] = c.

    `windows` [C, k] lists k states per class, where k is the size of the largest class: first the states of the class,
    then the states that follow them. `own` [C, k] marks the states of the class, and is None if all classes have the
    same size."""

    word_class: Tensor  # [V]
    words: Tensor  # [V]: ordered by class
    begins: Tensor  # [C + 1]: where each class begins in `words`, and the end
    sizes: Tensor  # [C]
    windows: Tensor
    own: Tensor | None
    members: Tensor  # [K]: index of each state in the flattened windows

    def __init__(self, word_class: Tensor, sizes: Sequence[int]) -> None:
        super().__init__()
        self.counts = tuple(int(size) for size in sizes)
        self.num_classes, self.num_states, self.live = len(self.counts), sum(self.counts), max(self.counts)
        size = torch.tensor(self.counts)
        within = torch.arange(self.live)
        own = within < size[:, None]
        self.register_buffer("word_class", word_class)
        self.register_buffer("words", word_class.argsort(stable=True), persistent=False)
        counts = word_class.bincount(minlength=self.num_classes)
        self.register_buffer("begins", nn.functional.pad(counts.cumsum(0), (1, 0)), persistent=False)
        self.register_buffer("sizes", size)
        self.register_buffer("windows", ((size.cumsum(0) - size)[:, None] + within) % self.num_states, persistent=False)
        self.register_buffer("own", None if bool(own.all()) else own, persistent=False)
        self.register_buffer("members", own.flatten().nonzero().flatten(), persistent=False)
        self.thinner: dict[float, Partition] = {}

    @property
    def support(self) -> Tensor:
        """The states of each word: [V, k]."""
        return self.windows[self.word_class]

    @property
    def allowed(self) -> Tensor | None:
        """Mask of the states that can emit each word: [V, k]; None if all can."""
        return None if self.own is None else self.own[self.word_class]

    def groups(self, rows: Tensor) -> Groups:
        """The live states of steps whose observed words have the classes `rows` [...]: one set of states per class."""
        return Groups(self.windows, rows, self.own is None)

    def state_class(self) -> Tensor:
        """The class of each state: [K]."""
        return torch.arange(self.num_classes, device=self.sizes.device).repeat_interleave(
            self.sizes, output_size=self.num_states
        )

    def thinned(self, rate: float) -> Partition:
        """The partition with a fraction `rate` of the states of each class removed; at least one remains."""
        if rate not in self.thinner:
            sizes = [max(1, round(size * (1 - rate))) for size in self.counts]
            self.thinner = {rate: Partition(self.word_class, sizes).to(self.sizes.device)}
        return self.thinner[rate]

    def choose(self, scores: Tensor, thin: Partition) -> Tensor:
        """The states with the highest scores [K] of each class, in ascending order: [K']. Of each class, as many states
        are chosen as it has in the partition `thin`."""
        by_class = scores[self.windows]
        if self.own is not None:
            by_class = by_class.masked_fill(~self.own, -1)
        chosen = by_class.topk(thin.live, sorted=thin.own is not None).indices
        if thin.own is None:
            return self.windows.gather(1, chosen.sort().values).flatten()
        return self.windows.gather(1, chosen).flatten()[thin.members].sort().values
