"""Dynamic evaluation (Krause et al. 2018): the weights adapt to the text, by a gradient step after each segment.

A segment is scored before the step that learns from it, so the probabilities of all texts still sum to one.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from trellis.corpus import Split
from trellis.corpus.batches import Batches, Documents, Streams
from trellis.errors import TrellisError
from trellis.learning.base import GradientModel
from trellis.models.base import LanguageModel
from trellis.tasks.lm import in_text_order
from trellis.types import Batch

SEGMENT = 32  # tokens scored before each step
CHOSEN_ON = 1 << 14  # tokens of the validation set on which rate and decay are chosen
SAMPLED = 100  # training segments from which the scale of the gradients is estimated
SEGMENTS: dict[str, Callable[[Split], Batches]] = {  # by the order of the model's training batches; all in text order
    "streams": lambda split: Streams(split, 1, SEGMENT),
    "documents": lambda split: Documents(split, 1, SEGMENT, shuffle=False),
    "sentences": lambda split: Documents(split._replace(documents=split.sentences), 1, SEGMENT, shuffle=False),
}


class Adaptation(NamedTuple):
    """After each segment: weight ← weight − rate · gradient / scale − decay · (weight − trained weight).

    The gradient is that of the segment's mean negative log-likelihood per token. `gradient_scales` computes the
    scale."""

    rate: float = 0.0
    decay: float = 0.0


STATIC = Adaptation()
RATES, DECAYS = (1e-4, 3e-4, 1e-3, 3e-3), (1e-3, 1e-2)  # tried on the validation set


class Dynamic:
    """A model whose weights adapt to the text that it reads. Its trained weights are restored after each text."""

    def __init__(self, model: LanguageModel, train: Split) -> None:
        if not isinstance(model, GradientModel):
            raise TrellisError(f"A model of the family {model.family} has no gradient: no dynamic evaluation.")
        self.model, self.weights = model, [weight for weight in model.parameters() if weight.requires_grad]
        self.read = SEGMENTS[model.about.get("order", "sentences")]
        self.trained = [weight.detach().clone() for weight in self.weights]
        self.scales = self.gradient_scales(train)

    def gradient_scales(self, train: Split) -> list[Tensor]:
        """The root mean square r of each weight's gradient over segments of the training text, plus the mean of r over
        the tensor. The mean keeps weights with few nonzero gradients from taking large steps."""
        batches = self.read(train)
        every = max(1, len(batches) // SAMPLED)
        squares, count = [torch.zeros_like(weight) for weight in self.weights], 0
        for _, _, gradients in islice(self.segments(islice(batches, 0, None, every)), SAMPLED):
            count += 1
            for square, gradient in zip(squares, gradients, strict=True):
                square += gradient**2
        roots = [(square / count).sqrt() for square in squares]
        return [root + root.mean().clamp(min=torch.finfo(root.dtype).tiny) for root in roots]

    def segments(self, batches: Iterable[Batch]) -> Iterator[tuple[Batch, Tensor, Sequence[Tensor]]]:
        """Yield each batch with log p of its tokens [B, T] and the gradients of its loss."""
        model, state = self.model, self.model.start(1)
        for batch in batches:
            batch = batch.to(model.device)
            with torch.enable_grad(), without_cudnn():
                log_probs, after = model.score(batch.tokens, model.reset(state, batch.fresh), batch.lengths)
                loss = -log_probs.sum() / batch.lengths.sum()
                gradients = torch.autograd.grad(loss, self.weights, materialize_grads=True)
            tensors = model.state_to_tensors(after)
            state = model.state_from_tensors({name: value.detach() for name, value in tensors.items()})
            yield batch, log_probs.detach(), gradients

    def log_probs(self, split: Split, how: Adaptation) -> np.ndarray:
        """log p of every token of a text, in text order: [tokens]."""

        def adapting(_: LanguageModel, batches: Iterable[Batch]) -> Iterator[tuple[Batch, Tensor]]:
            for batch, log_probs, gradients in self.segments(batches):
                yield batch, log_probs
                self.step(gradients, how)

        try:
            return in_text_order(self.model, self.read(split), adapting)
        finally:
            self.restore()

    @torch.no_grad()
    def step(self, gradients: Sequence[Tensor], how: Adaptation) -> None:
        """Adapt the weights. A weight whose change would not be finite stays as it is."""
        for weight, gradient, scale, trained in zip(self.weights, gradients, self.scales, self.trained, strict=True):
            change = how.rate * gradient / scale + how.decay * (weight - trained)
            weight.sub_(torch.where(change.isfinite(), change, 0.0))

    @torch.no_grad()
    def restore(self) -> None:
        for weight, trained in zip(self.weights, self.trained, strict=True):
            weight.copy_(trained)

    def choose(self, valid: Split) -> Adaptation:
        """Choose the rate, then the decay, by the likelihood of the beginning of a text."""

        text = beginning(valid, CHOSEN_ON)

        def best(choices: Iterable[Adaptation]) -> Adaptation:
            return max(choices, key=lambda how: self.log_probs(text, how).sum())

        rate = best([STATIC, *(Adaptation(rate) for rate in RATES)]).rate
        return best(Adaptation(rate, decay) for decay in (0.0, *DECAYS)) if rate else STATIC


@contextmanager
def without_cudnn() -> Iterator[None]:
    """A context in which recurrent networks do not use cuDNN, whose gradients require training mode (with dropout)."""
    enabled, torch.backends.cudnn.enabled = torch.backends.cudnn.enabled, False
    try:
        yield
    finally:
        torch.backends.cudnn.enabled = enabled


def beginning(split: Split, tokens: int) -> Split:
    """The first tokens of a split."""
    size = min(tokens, split.tokens.size)
    sentences, documents = (np.append(ends[ends < size], size) for ends in (split.sentences, split.documents))
    return Split(split.tokens[:size], sentences, documents)
