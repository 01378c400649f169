"""Softmax over the words of each class, against one log_softmax per class."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from trellis.emissions import Partition
from trellis.kernels import classes
from trellis.testing.close import assert_close

CLASSES = torch.tensor([2, 0, 2, 1, 1, 2, 4, 0])  # class 3 has no word
PARTITION = Partition(CLASSES, [3, 3, 3, 3, 3])
TOLERANCE = 1e-5


def table(columns: int, dtype: torch.dtype) -> Tensor:
    """Logits far apart; the first column of class 1 is impossible."""
    logits = 30 * torch.randn(len(CLASSES), columns, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    logits[CLASSES == 1, 0] = -torch.inf
    return logits.to(dtype)


def expected(logits: Tensor) -> Tensor:
    out = logits.clone()
    for c in CLASSES.unique():
        out[c == CLASSES] = logits[c == CLASSES].log_softmax(0).nan_to_num(-torch.inf, neginf=-torch.inf)
    return out


def test_every_class_sums_to_one() -> None:
    logits = table(3, torch.float64)
    assert_close(classes.class_log_softmax(logits, CLASSES, PARTITION.words, PARTITION.begins), expected(logits))


def test_gradients() -> None:
    logits = table(3, torch.float64)[:, 1:].requires_grad_()
    assert torch.autograd.gradcheck(lambda x: classes.by_adding(x, CLASSES, 5), [logits])


@pytest.mark.parametrize("columns", [1, 3, 40])
def test_triton(columns: int) -> None:
    triton = pytest.importorskip("trellis.kernels.classes.triton", reason="Triton is not installed")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    logits = table(columns, torch.float32).to(device).requires_grad_()
    weights = torch.randn(logits.shape, generator=torch.Generator().manual_seed(4)).to(device)
    ours = triton.ClassLogSoftmax.apply(logits, PARTITION.words.to(device), PARTITION.begins.to(device))
    reference = logits.detach().cpu().double().requires_grad_()
    theirs = classes.by_adding(reference, CLASSES, 5)
    assert_close(ours.cpu().double(), theirs, TOLERANCE)
    (ours * weights).masked_fill(ours == -torch.inf, 0.0).sum().backward()
    (theirs * weights.cpu()).masked_fill(theirs == -torch.inf, 0.0).sum().backward()
    assert logits.grad is not None
    assert reference.grad is not None
    assert_close(logits.grad.cpu().double(), reference.grad, TOLERANCE)
