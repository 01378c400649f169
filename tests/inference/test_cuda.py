"""The same answers on a GPU as on a CPU; skipped where there is no GPU."""

from __future__ import annotations

from typing import Any

import torch

from trellis.config import TrainConfig
from trellis.constraints import Alphabet, banned, contains
from trellis.corpus import Vocabulary
from trellis.emissions import Categorical, Partition
from trellis.emissions.classed import Likelihoods
from trellis.families.factorial.config import FHMMTrainConfig
from trellis.families.factorial.model import FHMM
from trellis.families.factorial.variational_em import StepwiseVariationalLearner
from trellis.families.hmm.config import HMMConfig
from trellis.families.hmm.model import HMM
from trellis.families.hmm.parameters import NeuralParams
from trellis.inference import discrete
from trellis.inference.constrained import Product
from trellis.inference.constrained_lattice import Span
from trellis.inference.constrained_lengths import length_probs
from trellis.inference.constrained_sampling import sample
from trellis.inference.constrained_search import most_probable_path, most_probable_tokens
from trellis.inference.guided import sample_next
from trellis.inference.queries import Chain
from trellis.learning.gradient import GradientLearner
from trellis.transitions import Dense, LowRank, Softmax, Transition
from trellis.types import Batch, Belief, Potentials

try:
    import pytest

    pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU")
except ImportError:  # a GPU machine without pytest calls the functions itself
    pass

HALF_PRECISION = 0.03
SINGLE_PRECISION = 1e-3
CLOSE = {"rtol": 1e-10, "atol": 1e-10}


def chain(device: str) -> tuple[Belief, Dense, Potentials, torch.Tensor]:
    """20 ragged sequences of 9 steps over 6 states and 11 symbols, some of them missing."""
    generator = torch.Generator().manual_seed(0)
    matrix = torch.rand(6, 6, generator=generator, dtype=torch.float64).softmax(-1)
    table = torch.rand(11, 6, generator=generator, dtype=torch.float64).log()
    rows = torch.randint(-1, 11, (20, 9), generator=generator)
    prior = torch.rand(20, 6, generator=generator, dtype=torch.float64).softmax(-1)
    lengths = torch.randint(1, 10, (20,), generator=generator)
    return (
        Belief(prior.to(device)),
        Dense(matrix.to(device)),
        Potentials(table.to(device), rows.to(device)),
        lengths.to(device),
    )


def test_inference_agrees() -> None:
    here, there = chain("cpu"), chain("cuda")
    for function in (discrete.score, discrete.filter, discrete.smooth, discrete.viterbi, discrete.counts):
        for ours, theirs in zip(flat(function(*here)), flat(function(*there)), strict=True):
            torch.testing.assert_close(theirs.cpu(), ours, **CLOSE)


def flat(value: object) -> list[torch.Tensor]:
    """The tensors inside nested tuples."""
    if isinstance(value, torch.Tensor):
        return [value]
    return [tensor for item in value for tensor in flat(item)] if isinstance(value, tuple) else []


def test_gradients_agree() -> None:
    gradients = []
    for device in ("cpu", "cuda"):
        prior, transition, potentials, lengths = chain(device)
        table, matrix = potentials.table.requires_grad_(), transition.matrix.requires_grad_()
        total = discrete.log_likelihood(prior, Dense(matrix), Potentials(table, potentials.rows), lengths).sum()
        gradients.append([g.cpu() for g in torch.autograd.grad(total, (table, matrix))])
    for ours, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(theirs, ours, **CLOSE)


def test_samples_are_valid_paths() -> None:
    prior, transition, potentials, lengths = chain("cuda")
    path = discrete.sample_posterior(prior, transition, potentials, lengths)
    inside = torch.arange(9, device="cuda") < lengths[:, None]
    assert bool(((path >= 0) == inside).all())
    assert bool((path < 6).all())


def large(device: str) -> tuple[float, torch.Tensor]:
    """log p of a batch under a neural HMM with state dropout, and the gradient of the words' vectors."""
    words = ["<eos>", "<unk>", *map(str, range(60))]
    config = HMMConfig(states=512, params="neural", dim=32, dropout="state", init_std=0.5)
    partition = Partition(torch.arange(len(words)) % 8, [64] * 8)
    model = HMM.build(Vocabulary(words, [1] * len(words)), config, True, 0, partition).to(device).train()
    tokens = torch.randint(len(words), (4, 9), generator=torch.Generator().manual_seed(1))
    batch = Batch(tokens, torch.full((4,), 9), torch.ones(4, dtype=torch.bool), True, True).to(torch.device(device))
    _, state = model.log_likelihood(batch, None)
    log_likelihood, _ = model.log_likelihood(batch._replace(fresh=~batch.fresh, all_fresh=False), state)
    log_likelihood.backward()
    assert isinstance(model.params, NeuralParams)
    assert model.params.words.grad is not None
    return log_likelihood.item(), model.params.words.grad.cpu()


def test_large_hmms_agree() -> None:
    (here, gradient), (there, other) = large("cpu"), large("cuda")
    assert abs(here - there) < HALF_PRECISION * abs(here)
    assert float((gradient - other).norm()) < HALF_PRECISION * float(gradient.norm())


def test_the_mean_field_and_the_scores_of_a_factorial_hmm() -> None:
    words = ["<eos>", *(f"w{n}" for n in range(40))]
    generator = torch.Generator().manual_seed(5)
    tokens, lengths = torch.randint(41, (9, 12), generator=generator), torch.randint(1, 13, (9,), generator=generator)
    batch, answers = Batch(tokens, lengths, torch.ones(9, dtype=torch.bool)), []
    for device in ("cpu", "cuda"):
        model = FHMM.new(Vocabulary(words, [1] * 41), (3, 1, 4)).to(device)
        there = batch.to(torch.device(device))
        with torch.no_grad():
            scores, _ = model.score(there.tokens, model.start(9), there.lengths)
            inferred, path = model.infer(there), model.best_path(batch.tokens, batch.lengths)[0]
        learner = StepwiseVariationalLearner(model, FHMMTrainConfig())
        for given in (batch, Batch(tokens[:, :1], torch.ones_like(lengths), batch.fresh), batch):
            result = learner.step(given)  # a batch on the CPU
        learned = torch.as_tensor(result.log_likelihood), model.params.words.detach(), *model.params.transitions
        answers.append([scores, inferred.bound, *inferred.field, path, *learned])
    for here, there in zip(*answers, strict=True):
        torch.testing.assert_close(there.cpu(), here, rtol=SINGLE_PRECISION, atol=SINGLE_PRECISION)


def learner_of() -> GradientLearner:
    words = ["<eos>", "<unk>", *map(str, range(1500))]
    choices = {"dropout": "state", "init_std": 0.5, "factored": True, "emission": "cloned"}
    config = HMMConfig(states=512, params="neural", dim=32, **choices)
    partition = Partition(torch.arange(len(words)) % 8, [64] * 8)
    model = HMM.build(Vocabulary(words, [1] * len(words)), config, True, 0, partition).to("cuda")
    return GradientLearner(model, TrainConfig(learner="gradient", lr=1e-2, average=0.9, weight_decay=0.1), 100)


def test_a_resumed_run_is_bit_identical() -> None:
    """Also although the first run is a CUDA graph by then, and the resumed one is not yet."""
    tokens = torch.randint(1502, (4, 14, 9), generator=torch.Generator().manual_seed(1))
    fresh = torch.zeros(4, dtype=torch.bool)
    batches = [Batch(tokens[:, n], torch.full((4,), 9), fresh | (n == 0), True, n == 0) for n in range(14)]
    first, again = learner_of(), learner_of()
    for batch in batches[:10]:
        first.step(batch)
    tensors = {name: value.cpu().clone() for name, value in first.state_tensors().items()}
    again.restore(tensors, first.state_json())
    for batch in batches[10:]:
        one, other = first.step(batch), again.step(batch)
        assert float(one.log_likelihood) == float(other.log_likelihood)
    ours, theirs = first.state_tensors(), again.state_tensors()
    assert [name for name in ours if not torch.equal(ours[name], theirs[name])] == []


LOW_RANK = [
    {"band": 16, "feature_dropout": 0.25},  # all states live
    {"band": 16, "partition": True, "dropout": "state"},  # blocks of live states
    {"features": 8, "partition": True},  # through the features
    {"band": 16, "dropout": "state", "feature_dropout": 0.25},  # a part of all states live
]


def low_rank(device: str, choices: dict[str, object]) -> list[float]:
    """log p of batches while a low-rank HMM learns, more steps than it takes to become a CUDA graph."""
    words = ["<eos>", "<unk>", *map(str, range(60))]
    given: dict[str, object] = {"states": 256, "params": "lowrank", "dim": 16, "features": 64, "precision": "float32"}
    partition = Partition(torch.arange(len(words)) % 8, [32] * 8) if "partition" in choices else None
    given |= {name: value for name, value in choices.items() if name != "partition"}
    config = HMMConfig(**given)
    model = HMM.build(Vocabulary(words, [1] * len(words)), config, True, 0, partition).to(device)
    learner = GradientLearner(model, TrainConfig(learner="gradient", lr=1e-3), 100)
    tokens = torch.randint(len(words), (4, 9), generator=torch.Generator().manual_seed(1))
    first = Batch(tokens, torch.full((4,), 9), torch.ones(4, dtype=torch.bool), True, True)
    onward = first._replace(fresh=~first.fresh, all_fresh=False)
    return [float(learner.step(batch).log_likelihood) for batch in (first, *[onward] * 9)]


def test_low_rank_hmms_learn_alike() -> None:
    for choices in LOW_RANK:
        for here, there in zip(low_rank("cpu", choices), low_rank("cuda", choices), strict=True):
            assert abs(here - there) < HALF_PRECISION * abs(here)


def constrained_parts(kind: str, device: str) -> Chain:
    """A chain of 8 states and 6 words; every kind of transition and emission that constraints treat differently."""
    generator = torch.Generator().manual_seed(0)
    matrix, prior, table, small = (
        torch.rand(*shape, generator=generator).double() for shape in ((8, 8), (1, 8), (6, 8), (8, 3))
    )
    support: torch.Tensor | Partition | None = None
    if kind == "partition":
        support = Partition(torch.tensor([0, 1, 0, 1, 0, 1]), [4, 4]).to(device)
        ids = support.support.cpu()
    elif kind == "support":
        ids = torch.stack([torch.randperm(8, generator=generator)[:6] for _ in range(6)])
        support = ids.to(device)
    else:
        ids = torch.arange(8).expand(6, -1)
    weights = table.gather(-1, ids)
    weights /= torch.zeros(8).double().index_add_(0, ids.flatten(), weights.flatten())[ids]
    transition: Transition = Dense((matrix / matrix.sum(-1, keepdim=True)).to(device))
    if kind == "partition":
        transition = Softmax(*(part.to(device) for part in (small - 0.5, small.flip(0))))
    elif kind == "support":
        left, right = small / small.sum(-1, keepdim=True), small.flip(0) / small.sum(0)
        transition = LowRank(left.to(device), right.to(device))
    return Chain(
        Belief((prior / prior.sum()).to(device)), transition, Categorical(weights.log().to(device), support, 8)
    )


def test_constraints() -> None:
    for kind in ("dense", "partition", "support"):
        for span in (Span(2, 7, 0), Span(7, 7, None)):
            here, there = (constrained_values(kind, span, device) for device in ("cpu", "cuda"))
            for one, other in zip(here[:2], there[:2], strict=True):
                assert one.tokens == other.tokens
                assert abs(one.log_prob - other.log_prob) < CLOSE["atol"]
            assert here[2] == there[2]
            for one, other in zip(here[3], there[3], strict=True):
                assert other.cpu().exp().allclose(one.exp(), **CLOSE)


def constrained_values(kind: str, span: Span, device: str) -> tuple[Any, Any, list[Any], list[torch.Tensor]]:
    """The best tokens, the best path, samples, and tensors to compare."""
    automaton = (contains("1 2") & banned("3 3")).compile(Alphabet.of_ids(6, 0))
    product = Product(constrained_parts(kind, device), automaton, span)
    first = product.begin()
    position = product.read(product.begin(3), torch.tensor([1, 2, 3], device=device))[0]
    draw, other = torch.Generator().manual_seed(1), torch.rand(3, 6, generator=torch.Generator().manual_seed(2)).log()
    samples = [sample(product, position, draw) for _ in range(4)]  # often enough for CUDA graphs
    samples += [sample_next(product, position, other.to(device), 1.0, draw).tolist() for _ in range(12)]
    assert device == "cpu" or bool(product.graphs) == isinstance(product.moves, Dense)
    values = [product.log_prob(position), product.next_tokens(position), length_probs(product, first)]
    values.append(product.corrections(position))
    return most_probable_tokens(product, first), most_probable_path(product, first), samples, values


def test_preparation_of_constraints() -> None:
    """In single precision, with a matrix that is large enough for compiled products: directly, captured and replayed
    for other keywords; against a CPU."""
    chains = {device: random_parts(1024, 500, device) for device in ("cpu", "cuda")}
    likelihoods = {device: Likelihoods.of(chain.emission) for device, chain in chains.items()}
    alphabet = Alphabet.of_ids(500, 0)
    for span in (Span(0, 12, 0), Span(12, 12, None)):
        for count in (0, 1, 2, 4, 6):
            for first in (1, 7, 13, 19):
                words = contains(str(first))
                for word in range(first + 1, first + count):
                    words &= contains(str(word))
                automaton = (words if count else banned(str(first))).compile(alphabet)
                here, there = (Product(chains[d], automaton, span, likelihoods[d]) for d in ("cpu", "cuda"))
                one, other = (product.log_prob(product.begin()) for product in (here, there))
                assert other.cpu().allclose(one, rtol=1e-4)
                assert there.messages.scales.cpu().allclose(here.messages.scales, rtol=1e-4, atol=1e-3)
                assert there.messages.values.cpu().allclose(here.messages.values, rtol=1e-2, atol=1e-6)
    assert max(graph.calls for graph in likelihoods["cuda"].graphs.values()) >= 4


def random_parts(states: int, words: int, device: str) -> Chain:
    generator = torch.Generator().manual_seed(3)
    matrix = torch.rand(states, states, generator=generator).square()
    table = torch.rand(words, states, generator=generator).square() + 1e-3
    prior = torch.full((1, states), 1 / states, device=device)
    emission = Categorical((table / table.sum(0)).log().to(device), None, states)
    return Chain(Belief(prior), Dense((matrix / matrix.sum(-1, keepdim=True)).to(device)), emission)
