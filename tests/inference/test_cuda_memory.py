"""Cards with little memory, by limiting the share that the process may use; skipped where there is no GPU."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator

import pytest
import torch

from trellis.corpus import Vocabulary
from trellis.devices import fitting_memory
from trellis.emissions import Categorical, Partition
from trellis.engines import optional_engine
from trellis.errors import TrellisError
from trellis.families.hmm.config import HMMConfig
from trellis.families.hmm.model import HMM
from trellis.inference import discrete
from trellis.learning.em import expect
from trellis.parts import Parts
from trellis.transitions import Dense
from trellis.types import Batch, Belief, Potentials

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU")
CLOSE = {"rtol": 1e-5, "atol": 1e-4}
GIB = 1 << 30


@pytest.fixture
def limit() -> Iterator[Callable[[float], None]]:
    """Limits the memory to some GiB more than what is in use."""

    def more(gib: float) -> None:
        release()
        used, total = torch.cuda.memory_reserved(), torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, (used + gib * GIB) / total))

    yield more
    torch.cuda.set_per_process_memory_fraction(1.0)
    release()


def release() -> None:
    graphed = optional_engine("graphed")
    if graphed is not None:
        graphed.memory_of.cache_clear()
    gc.collect()
    torch.cuda.empty_cache()


def parts(states: int, symbols: int = 50) -> Parts:
    generator = torch.Generator(device="cuda").manual_seed(0)
    shapes = (states,), (states, states), (states, symbols)
    start, matrix, emission = (torch.rand(shape, generator=generator, device="cuda").softmax(-1) for shape in shapes)
    return Parts(start, Dense(matrix), Categorical(emission.T.log().contiguous(), None, states))


def tokens(batch: int, steps: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator(device="cuda").manual_seed(1)
    drawn = torch.randint(50, (batch, steps), generator=generator, device="cuda")
    return drawn, torch.full((batch,), steps, device="cuda")


@torch.no_grad()
def test_counts_of_a_batch_in_pieces_are_those_of_the_batch(limit: Callable[[float], None]) -> None:
    model, (words, lengths) = parts(1024), tokens(512, 128)  # 0.5 GiB for the passes
    whole, _ = expect(model, words, lengths)
    limit(0.3)
    in_pieces, _ = expect(model, words, lengths)
    for one, other in zip(in_pieces, whole, strict=True):
        torch.testing.assert_close(one, other, **CLOSE)


@torch.no_grad()
def test_a_sequence_that_does_not_fit_is_refused_with_the_figure(limit: Callable[[float], None]) -> None:
    model, (words, lengths) = parts(4096), tokens(1, 64)
    limit(0.1)
    with pytest.raises(
        TrellisError, match=r"64 steps over 4,096 states needs 0\.\d GiB of GPU memory, which are not free"
    ):
        expect(model, words, lengths)


@torch.no_grad()
def test_viterbi_needs_no_memory_for_all_sequences_at_once(limit: Callable[[float], None]) -> None:
    model, (words, lengths) = parts(1024), tokens(512, 4)  # scores of all sequences at once: at least 2 GiB
    prior = Belief(model.start.expand(512, -1))
    limit(1.5)
    path, score = discrete.viterbi(prior, model.transition, Potentials(model.emission.table, words), lengths)
    some = Potentials(model.emission.table, words[:5])
    few, of_few = discrete.viterbi(Belief(prior.probs[:5]), model.transition, some, lengths[:5])
    assert path[:5].equal(few)
    torch.testing.assert_close(score[:5], of_few)


def test_a_training_step_that_does_not_fit_is_refused_with_the_figure(limit: Callable[[float], None]) -> None:
    words = ["<eos>", "<unk>", *map(str, range(998))]
    config = HMMConfig(states=16384, params="neural", dim=64)
    partition = Partition(torch.arange(1000) % 64, [256] * 64)
    model = HMM.build(Vocabulary(words, [1] * 1000), config, True, 0, partition).to("cuda").train()
    drawn = torch.randint(1000, (256, 32), device="cuda")
    fresh = torch.ones(256, dtype=torch.bool, device="cuda")
    batch = Batch(drawn, torch.full((256,), 32, device="cuda"), fresh, True, True)
    limit(0.2)
    with (
        pytest.raises(TrellisError, match=r"does not fit in the memory of the GPU.*(GiB|MiB).*; use fewer"),
        fitting_memory("A training step", "use fewer sequences"),
    ):
        model.log_likelihood(batch, None)[0].backward()
