"""The neural parameterisation: residual nets over embeddings of states and words.

    p(z_0)    ∝ exp(a . f_start(e_z0))          p(z' | z) ∝ exp(f_move(e_z) . e'_z'), or another kernel of the two
    p(x | z)  ∝ exp(f_emit(e_z) . w_x + b_x)    over the words that z can emit
Here e are embeddings of states (e' as targets), w those of words, f are nets, and a and b_x are learned weights.
Only the parameters of states that a dropout sample keeps are computed.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from trellis.emissions import Categorical, Partition
from trellis.errors import TrellisError
from trellis.families.hmm.config import HMMConfig
from trellis.families.hmm.parameters.base import WHOLE, Support, WordParams, normalised, restored_support
from trellis.families.hmm.parameters.dropout import Draw
from trellis.families.hmm.parameters.kernels import KERNELS
from trellis.families.hmm.parameters.nets import Residual, Spelling
from trellis.kernels.lse import Known, logsumexp_of_states
from trellis.kernels.mask import Mask
from trellis.kernels.pairs import set_logits
from trellis.kernels.rows import pick, pick_both, take, times
from trellis.kernels.streams import side_by_side
from trellis.models.restoring import rebuilt
from trellis.options import build
from trellis.parts import Parts
from trellis.transitions import Dense, DenseEntry, Entry, Softmax, Transition
from trellis.transitions.softmax import SoftmaxEntry

ROLES = ("in", "out", "start", "emission")
TYINGS = {  # the embedding table of each role of a state
    "all": (0, 0, 0, 0),
    "in-out": (0, 0, 1, 2),
    "but-out": (0, 1, 0, 0),
    "none": (0, 1, 2, 3),
}
TILE = 64  # words of a class whose logits are computed together
PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16}
SETTINGS = ("dim", "tying", "factored", "spelling", "depth", "net_dropout", "init_std", "precision", "kernel")


class Embedding(nn.Module):
    """State embeddings [K, d]; if factored, half of each is shared by its class."""

    def __init__(self, num_states: int, dim: int, partition: Partition | None, init_std: float) -> None:
        super().__init__()
        classes = 0 if partition is None else partition.num_classes
        self.own = nn.Parameter(init_std * torch.randn(num_states, dim // 2 if classes else dim))
        self.shared = nn.Parameter(init_std * torch.randn(classes, dim - dim // 2)) if classes else None

    def forward(self, ids: Tensor | None, state_class: Tensor | None) -> Tensor:
        """Embeddings of the states `ids` [n], or of all: [n, d]."""
        own = self.own if ids is None else pick(self.own, ids)
        if self.shared is None or state_class is None:
            return own
        return torch.cat([own, take(self.shared, state_class if ids is None else state_class[ids])], -1)

    def both(self, ids: Tensor | None, state_class: Tensor | None, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """The embeddings of the states `ids`, which are ascending (all if None), and the same in the precision
        `dtype`."""
        if self.shared is None and ids is not None and dtype is not self.own.dtype:
            return pick_both(self.own, ids, dtype)
        found = self(ids, state_class)
        return found, found.to(dtype)


class ClassLogits(nn.Module):
    """Logits q_z . w_x [V, k] of words and the states of their class, computed in tiles of words per class."""

    words: Tensor  # [N * TILE]: the words in tile order, repeated to fill the last tile of a class
    slots: Tensor  # [V]: the position of each word among them
    tile_class: Tensor  # [N]

    def __init__(self, word_class: Tensor) -> None:
        super().__init__()
        order = word_class.argsort(stable=True)
        sizes = word_class.bincount()
        tiles = (sizes + TILE - 1) // TILE
        first_tile, first_word = tiles.cumsum(0) - tiles, sizes.cumsum(0) - sizes
        sorted_class = word_class[order]
        slots = first_tile[sorted_class] * TILE + torch.arange(len(order)) - first_word[sorted_class]
        words = order.new_zeros(int(tiles.sum()) * TILE)
        words[slots] = order
        place = torch.empty_like(order)
        place[order] = slots
        self.register_buffer("words", words, persistent=False)
        self.register_buffer("slots", place, persistent=False)
        self.register_buffer("tile_class", torch.arange(len(tiles)).repeat_interleave(tiles), persistent=False)

    def forward(self, states: Tensor, words: Tensor, partition: Partition, dtype: torch.dtype) -> Tensor:
        """States [K, d], words [V, d] -> [V, k]."""
        tiles = pick(words.to(dtype), self.words, self.slots).view(-1, TILE, words.shape[1])
        logits = set_logits(tiles, partition.groups(self.tile_class).arrange(states), None, self.tile_class, dtype)
        return pick(logits.flatten(0, 1), self.slots)


def every_logit(states: Tensor, words: Tensor, support: Tensor | None, dtype: torch.dtype) -> Tensor:
    """q_z . w_x at the support [V, k], gathered from all logits [V, K]. This is for models that are small enough to
    compute all logits."""
    low = None if dtype is words.dtype else states.detach().to(dtype).T
    logits = times(words, states.to(words.dtype).T, low)
    return logits if support is None else logits.gather(1, support)


class NeuralParams(WordParams):
    """Residual nets over embeddings of states and words, with the formulas in the module docstring."""

    kind = "neural"
    drops: ClassVar[tuple[str, ...]] = ("state", "unstructured")
    keys: tuple[str, ...] = SETTINGS
    state_class: Tensor | None

    def __init__(self, words: Sequence[str], config: HMMConfig, support: Support = None, seed: int = 0) -> None:
        super().__init__()
        if config.factored and not isinstance(support, Partition):
            raise TrellisError('model.factored needs classes of states; use model.emission = "brown" or "cloned".')
        self.num_states, self.choices = config.states, {name: getattr(config, name) for name in self.keys}
        self.set_support(support)
        self.rough = support is None and config.precision == "bfloat16"  # all terms of the recursions are positive
        dim, nets = config.dim, (config.dim, config.depth, config.net_dropout)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.roles = dict(zip(ROLES, TYINGS[config.tying], strict=True))
            shared = self.partition if config.factored else None
            self.embeddings = nn.ModuleList(
                Embedding(self.num_states, dim, shared, config.init_std) for _ in range(max(self.roles.values()) + 1)
            )
            self.nets = nn.ModuleDict({name: Residual(*nets) for name in ("start", "move", "say")})
            self.start_weight = nn.Linear(dim, 1)
            self.words = nn.Parameter(torch.randn(len(words), dim) / dim**0.5)
            self.word_bias = nn.Parameter(torch.zeros(len(words)))
            self.spelling = Spelling(words, dim, config.init_std) if config.spelling else None
        self.register_buffer("state_class", shared.state_class() if shared else None, persistent=False)
        self.class_logits = ClassLogits(self.partition.word_class) if self.partition else None

    @classmethod
    def new(cls, words: Sequence[str], config: HMMConfig, support: Support, seed: int) -> Self:
        return cls(words, config, support, seed)

    @torch.no_grad()
    def shift_word_logits(self, scores: Tensor) -> None:
        self.word_bias.add_(scores)

    def embed(self, role: str, ids: Tensor | None = None) -> Tensor:
        """Embeddings of states in one role: [n, d]."""
        return self.embeddings[self.roles[role]](ids, self.state_class)

    def embed_roles(self, ids: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """Embeddings of states as sources and targets of transitions, and as emitters. Each table is read once. Inputs
        of nets have the dtype `self.dtype`."""
        low: dict[int, tuple[Tensor, Tensor]] = {}
        for role in ("in", "emission"):
            table = self.roles[role]
            if table not in low:
                low[table] = self.embeddings[table].both(ids, self.state_class, self.dtype)  # type: ignore[operator]
        after = low[self.roles["out"]][0] if self.roles["out"] in low else self.embed("out", ids)
        return low[self.roles["in"]][1], after, low[self.roles["emission"]][1]

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of matrix products: low precision only in training on a GPU, for parameters in float32."""
        low = self.training and self.words.is_cuda and self.words.dtype is torch.float32
        return PRECISIONS[str(self.choices["precision"])] if low else self.words.dtype

    def touched_rows(self, draw: Draw) -> dict[nn.Parameter, Tensor]:
        return {} if draw.ids is None else {embedding.own: draw.ids for embedding in self.embeddings}  # type: ignore[misc]

    def parts(self, draw: Draw = WHOLE) -> Parts:
        before, after, emitting = self.embed_roles(draw.ids)
        transition, emission = side_by_side(
            lambda: self.transition_between(before, after, draw),
            lambda states: self.emission(states, draw),
            given=emitting,
            made=lambda emission: emission.table,
        )
        entry = partial(self.entry, after=after, draw=draw, transition=transition)
        return Parts(lambda: self.start(draw), transition, emission, entry, draw.ids)

    def start(self, draw: Draw) -> Tensor:
        logits = self.start_weight(self.nets["start"](self.embed("start", draw.ids))).squeeze(-1)
        return draw.starts(logits).softmax(-1)

    @torch.no_grad()
    def entry(self, ids: Tensor, after: Tensor, draw: Draw, transition: Transition | None = None) -> Entry:
        """Transitions from the states `ids` [R] of the full model into the kept states, whose embeddings are `after`.

        They advance a carried distribution and have no gradient. On a GPU, known normalisers are taken from
        `transition`."""
        known, same_queries = None, draw.step is None and not self.choices["net_dropout"]
        if isinstance(transition, Softmax) and transition.keys.is_cuda and draw.ids is not None and same_queries:
            known = Known(draw.ids, transition.log_norm, self.num_states, transition.low)
        return self.entry_from(ids, self.embed("in", ids), after.detach(), draw, known)

    def transition_between(self, before: Tensor, after: Tensor, draw: Draw) -> Transition:
        """Transitions between the states kept by the draw, embedded as `before` and `after`."""
        operands = self.queries(before), after, self.mask(draw.ids, draw)
        if self.kernel != "softmax":
            return Dense(self.probabilities(*operands))
        low = before.detach() if self.roles["in"] == self.roles["out"] else None  # the same embeddings
        return Softmax(*operands, self.dtype, low)

    def entry_from(self, ids: Tensor, before: Tensor, after: Tensor, draw: Draw, known: Known | None) -> Entry:
        """Transitions from the states `ids` [R], embedded as `before`, into those kept by the draw."""
        queries, mask = self.queries(before), self.mask(ids, draw)
        if self.kernel != "softmax":
            return DenseEntry(self.probabilities(queries, after, mask))
        if known is None:
            return SoftmaxEntry(queries, after, mask, self.dtype)
        return SoftmaxEntry(queries, after, mask, self.dtype, known.keys, logsumexp_of_states(queries, ids, known))

    @property
    def kernel(self) -> str:
        return str(self.choices["kernel"])

    def queries(self, before: Tensor) -> Tensor:
        return self.nets["move"](before.to(self.dtype))

    def mask(self, rows: Tensor | None, draw: Draw) -> Mask | None:
        """The mask of dropped transitions from the states `rows` (all if None)."""
        everything = torch.arange(self.num_states, device=self.words.device)
        return draw.mask(*(everything if ids is None else ids for ids in (rows, draw.ids)))

    def probabilities(self, queries: Tensor, after: Tensor, mask: Mask | None) -> Tensor:
        """Transition probabilities of a dense kernel: [R, K]."""
        logits = KERNELS[self.kernel](queries.to(after.dtype), after)
        return (logits if mask is None else logits.masked_fill(~mask.keeps(), -torch.inf)).softmax(-1)

    def emission(self, emitting: Tensor, draw: Draw) -> Categorical:
        """The emission of the states kept by the draw, embedded as `emitting`."""
        states = self.nets["say"](emitting.to(self.dtype))
        words = self.words if self.spelling is None else self.words + self.spelling()
        partition = draw.partition or self.partition
        if partition is not None and self.class_logits is not None:
            logits = self.class_logits(states, words, partition, self.dtype)
        else:
            logits = every_logit(states, words, self.support, self.dtype)
        return normalised(logits + self.word_bias.unsqueeze(-1), partition or self.support, len(states))

    def settings(self) -> dict[str, Any]:
        return super().settings() | self.choices

    @classmethod
    def restore(cls, words: list[str], settings: Mapping[str, Any], tensors: dict[str, Tensor]) -> Self:
        known = {name: settings[name] for name in cls.keys if name in settings}
        support = restored_support(tensors, len(words), int(settings["states"]))
        emission = "cloned" if isinstance(support, Partition) else "full"
        own = {"states": settings["states"], "emission": emission, "params": cls.kind}
        config = build(HMMConfig, own | known, "model.")
        return rebuilt(lambda: cls(words, config, support), tensors)
