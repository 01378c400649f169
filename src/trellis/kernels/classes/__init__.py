"""Softmax over the words of each class, by Triton or torch."""

import torch
from torch import Tensor

from trellis.kernels.optional import installed
from trellis.kernels.rows import take


def class_log_softmax(logits: Tensor, word_class: Tensor, words: Tensor, begins: Tensor) -> Tensor:
    """The log-softmax of each column of logits over the words of each class: [V, k] -> [V, k]. If a column is -inf for
    all words of a class, it is unchanged.

    `word_class` [V] is the class of each word, `words` [V] are the words ordered by class, and `begins` [C + 1] is the
    position of each class in `words`."""
    engine = installed("kernels.classes.triton") if logits.is_cuda and logits.dtype is torch.float32 else None
    if engine is None:
        return by_adding(logits, word_class, len(begins) - 1)
    return engine.ClassLogSoftmax.apply(logits, words, begins)


def by_adding(logits: Tensor, word_class: Tensor, num_classes: int) -> Tensor:
    """The reference implementation in torch."""
    empty = logits.new_full((num_classes, logits.shape[1]), -torch.inf)
    top = empty.scatter_reduce(0, word_class[:, None].expand_as(logits), logits.detach(), "amax")
    shift = top.masked_fill(top == -torch.inf, 0.0)
    total = torch.zeros_like(shift).index_add(0, word_class, (logits - shift[word_class]).exp())
    return logits - take(total.where(total > 0, 1.0).log() + shift, word_class)
