"""The model p(x) = sum_z p(z) prod_t p(x_t | z)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from trellis.config import RunConfig
from trellis.corpus import Corpus, Vocabulary
from trellis.learning.base import GradientModel
from trellis.models.base import LanguageModel, Saved
from trellis.models.restoring import rebuilt
from trellis.types import Batch


class Mixture(GradientModel, LanguageModel):
    """A mixture of unigram models. Its state before token t is log p(z, x_<t) [B, K]."""

    family = "mixture"
    __repr__ = LanguageModel.__repr__

    def __init__(self, vocab: Vocabulary, components: int) -> None:
        super().__init__()
        self.vocab = vocab
        self.weights = nn.Parameter(torch.zeros(components))
        self.words = nn.Parameter(torch.randn(len(vocab), components))

    def start(self, batch: int) -> Tensor:
        return self.weights.log_softmax(0).expand(batch, -1)

    def reset(self, state: Tensor, where: Tensor) -> Tensor:
        return torch.where(where[:, None], self.start(len(where)), state[: len(where)])

    def score(self, tokens: Tensor, state: Tensor, lengths: Tensor | None = None) -> tuple[Tensor, Tensor]:
        steps = self.words.log_softmax(0)[tokens]  # [B, T, K]
        if lengths is not None:
            outside = torch.arange(tokens.shape[1], device=tokens.device) >= lengths[:, None]
            steps = steps.masked_fill(outside[..., None], 0.0)
        joint = state[:, None] + torch.cat([torch.zeros_like(steps[:, :1]), steps.cumsum(1)], 1)
        return joint.logsumexp(-1).diff(dim=1), joint[:, -1]

    def forecast(self, state: Tensor) -> Tensor:
        return (state.log_softmax(-1)[:, None] + self.words.log_softmax(0)).logsumexp(-1)

    def log_likelihood(self, batch: Batch, state: Any) -> tuple[Tensor, None]:
        return self.score(batch.tokens, self.start(len(batch.tokens)), batch.lengths)[0].sum(dtype=torch.float64), None

    def settings(self) -> dict[str, Any]:
        return {"components": len(self.weights)}

    def tensors(self) -> dict[str, Tensor]:
        return {name: value.detach() for name, value in self.state_dict().items()}

    @classmethod
    def restore(cls, saved: Saved) -> Mixture:
        return rebuilt(lambda: cls(saved.vocab, saved.settings["components"]), saved.tensors).eval()


def build(run: RunConfig, corpus: Corpus) -> Mixture:
    return Mixture(corpus.vocab, run.model.components)
