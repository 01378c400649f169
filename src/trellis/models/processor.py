"""A logits processor of the package `transformers`: an HMM guides the texts that `generate` writes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from trellis.devices import check_integer, seeded
from trellis.errors import TrellisError
from trellis.inference.guided import sample_next
from trellis.inference.prefixes import Prefix

if TYPE_CHECKING:
    from trellis.models.guide import Guide

Tokens = tuple[int, ...]


class Processor:
    """Adds the corrections of a guide to the scores of every text that has not ended.

    The tokens of the first call are the prompts. Rows are looked up by their tokens, so beams and reordered batches
    work. Tokens of a prompt that are not in the HMM's vocabulary are skipped."""

    def __init__(self, guide: Guide, pad: int | None, attention_mask: Tensor | None, seed: int | None = None) -> None:
        self.guide, self.size, self.end = guide, guide.product.num_symbols, guide.product.span.end
        self.pad = None if pad is None else check_integer(pad, "id of the padding", least=0)
        self.mask = None if attention_mask is None else checked_mask(attention_mask)
        self.generator = None if seed is None else seeded(seed)
        self.width = 0  # of the prompts, with padding
        self.contexts: dict[Tokens, Tokens] = {}  # the tokens of each prompt, with padding -> without

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        rows = [tuple(row) for row in input_ids.tolist()]
        if not self.contexts:
            self.contexts, self.width = self.read_prompts(rows), input_ids.shape[1]
        self.check(rows, scores)
        going = [i for i, row in enumerate(rows) if self.end not in row[self.width :]]
        if not going:
            return scores
        index = torch.tensor(going, device=scores.device)
        found = self.guided([rows[i] for i in going], scores[index].log_softmax(-1))
        impossible = found.amax(-1) == -torch.inf
        if input_ids.shape[1] == self.width and bool(impossible.any()):
            row = going[int(impossible.int().argmax())]
            raise TrellisError(f"No text after the prompt in row {row} can satisfy the constraint under both models.")
        allowed = slice(self.size) if self.end is None else self.end  # beams of score -inf may end
        found[impossible, allowed] = 0.0
        return scores.index_copy(0, index, found)

    def check(self, rows: Sequence[Tokens], scores: Tensor) -> None:
        """Raise if this call does not belong to the first one, or if the guided model does not fit the guide."""
        most = self.guide.product.span.most
        if any(row[: self.width] not in self.contexts for row in rows):
            raise TrellisError("A processor is for one call of generate; create a new one for each call.")
        if scores.shape[1] < self.size:
            raise TrellisError(
                f"The guided model has {scores.shape[1]:,} tokens, but the HMM has {self.size:,}; both need the same "
                "token ids."
            )
        if self.end is None and len(rows[0]) >= self.width + most:
            raise TrellisError(
                f"The guide is for streams of exactly {most:,} tokens; pass max_new_tokens={most} to generate, or "
                "another `most` to the guide."
            )

    def guided(self, rows: Sequence[Tokens], log_probs: Tensor) -> Tensor:
        """The scores of the next tokens, -inf for those that the HMM does not have."""
        found = torch.full_like(log_probs, -torch.inf)
        known = [i for i, row in enumerate(rows) if max(row[self.width :], default=0) < self.size]
        prefixes = [Prefix(rows[i][self.width :], self.contexts[rows[i][: self.width]]) for i in known]
        find = self.corrected if self.generator is None else self.sampled
        if known:
            found[known, : self.size] = find(prefixes, log_probs[known, : self.size])
        return found

    def corrected(self, prefixes: Sequence[Prefix], log_probs: Tensor) -> Tensor:
        """The scores of all tokens, plus the logarithms of their corrections."""
        return log_probs + self.guide.corrections(prefixes).to(log_probs)

    @torch.no_grad()
    def sampled(self, prefixes: Sequence[Prefix], log_probs: Tensor) -> Tensor:
        """Sample the next token of each text, and return scores: zero for this token, -inf for all others."""
        product, alpha = self.guide.product, self.guide.alpha
        words = log_probs.to(product.device)
        tokens = sample_next(product, self.guide.positions(prefixes), words, alpha, self.generator).to(log_probs.device)
        chosen = torch.arange(log_probs.shape[1], device=tokens.device) == tokens.unsqueeze(-1)
        return torch.zeros_like(log_probs).masked_fill(~chosen, -torch.inf)

    def read_prompts(self, rows: Sequence[Tokens]) -> dict[Tokens, Tokens]:
        """The tokens of each prompt without padding, by those with padding."""
        found = dict[Tokens, Tokens]()
        for row, seen in zip(rows, self.seen(rows), strict=True):
            context = tuple(token for token, real in zip(row, seen, strict=True) if real and token < self.size)
            if found.setdefault(row, context) != context:
                raise TrellisError(
                    "Two prompts have the same tokens, but different attention masks; generate their texts in separate "
                    "calls."
                )
        return found

    def seen(self, rows: Sequence[Tokens]) -> Iterator[Sequence[bool]]:
        """For each row, which of its tokens are not padding."""
        if self.mask is None:
            for row in rows:
                first = next((i for i, token in enumerate(row) if token != self.pad), len(row))
                yield [i >= first for i in range(len(row))]
            return
        copies = len(rows) // len(self.mask)  # adjacent copies of a prompt, such as beams
        firsts = [rows[i - i % copies] for i in range(copies * len(self.mask))]
        if firsts != list(rows) or len(self.mask[0]) != len(rows[0]):
            given, shape = ([len(table), len(table[0])] for table in (self.mask, rows))
            raise TrellisError(
                f"The attention mask of shape {given} does not fit the prompts, which have the shape {shape}; pass the "
                "same mask to the processor and to generate."
            )
        for i in range(len(rows)):
            yield self.mask[i // copies]


def checked_mask(mask: Any) -> list[list[bool]]:
    """The rows of an attention mask."""
    if not isinstance(mask, Tensor) or mask.ndim != 2 or not len(mask):
        shape = f"one of the shape {list(mask.shape)}" if isinstance(mask, Tensor) else f"{type(mask).__name__}"
        raise TrellisError(f"The attention mask must be a tensor [prompts, tokens], not {shape}.")
    return mask.bool().tolist()
