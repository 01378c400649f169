"""Softmax over the words of each class; dispatched."""

from __future__ import annotations

import torch
from torch import Tensor

from trellis.emissions import Partition
from trellis.kernels.engines import installed
from trellis.kernels.rows import take


def class_log_softmax(logits: Tensor, partition: Partition) -> Tensor:
    """Each column over the words of a class: logits [V, k] -> [V, k]; a column that is all -inf stays so."""
    engine = installed("classes") if logits.is_cuda and logits.dtype is torch.float32 else None
    if engine is None:
        return by_adding(logits, partition)
    return engine.class_log_softmax(logits, partition.words, partition.begins)


def by_adding(logits: Tensor, partition: Partition) -> Tensor:
    """The reference."""
    index, empty = partition.word_class, logits.new_full((partition.num_classes, logits.shape[1]), -torch.inf)
    top = empty.scatter_reduce(0, index[:, None].expand_as(logits), logits.detach(), "amax")
    shift = top.masked_fill(top == -torch.inf, 0.0)
    total = torch.zeros_like(shift).index_add(0, index, (logits - shift[index]).exp())
    return logits - take(total.where(total > 0, 1.0).log() + shift, index)
