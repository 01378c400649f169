"""Neural parameters against their formulas, whole and under dropout; the loss against dense algebra on all states."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from corpora import STATES, SUPPORTS, split, vocabulary
from trellis.config import TrainConfig
from trellis.corpus import Streams
from trellis.errors import TrellisError
from trellis.families.hmm.config import HMMConfig
from trellis.families.hmm.model import HMM, LARGEST_BLOCKS
from trellis.families.hmm.parameters import Draw, NeuralParams, Params, TableParams
from trellis.families.hmm.parameters.base import WHOLE
from trellis.families.hmm.parameters.nets import Residual
from trellis.families.hmm.parameters.neural import TYINGS
from trellis.families.hmm.states import estimate_long_run
from trellis.inference import discrete
from trellis.inference.carry import Carry
from trellis.learning.gradient import GradientLearner
from trellis.models.base import Saved
from trellis.testing.close import assert_close
from trellis.types import Batch, Belief

VOCABULARY = vocabulary()
WORDS, DIM = len(VOCABULARY), 4
EVERY_SUPPORT = pytest.mark.parametrize("support", SUPPORTS)
CLASSED = pytest.mark.parametrize("support", ["even", "uneven"])
EVERY_KIND = pytest.mark.parametrize("kind", ["neural", "table"])


def config(**choices: Any) -> HMMConfig:
    emission = "cloned" if choices.get("factored") else "full"
    return HMMConfig(states=STATES, params="neural", emission=emission, dim=DIM, init_std=1.0, **choices)


def neural(support: str, **choices: Any) -> NeuralParams:
    params = NeuralParams(VOCABULARY.words, config(**choices), SUPPORTS[support]).double()
    params.shift_word_logits(torch.linspace(-1, 1, WORDS, dtype=torch.float64))
    return params


def model(kind: str, support: str, dropout: str = "none", rate: float = 0.5) -> HMM:
    choices = HMMConfig(states=STATES, params=kind, dim=DIM, init_std=1.0, dropout=dropout, dropout_rate=rate)
    return HMM.build(VOCABULARY, choices, True, 3, SUPPORTS[support]).double()


def allowed(params: Params) -> Tensor:
    """Which state may emit which word, [V, K] bool."""
    if params.partition is not None:
        return params.partition.word_class[:, None] == params.partition.state_class()
    if params.support is None:
        return torch.ones(WORDS, STATES, dtype=torch.bool)
    return torch.zeros(WORDS, STATES, dtype=torch.bool).scatter(1, params.support, True)


def logits_of(params: Params) -> tuple[Tensor, Tensor, Tensor]:
    """The logits of start [K], transition [K, K] and emission [V, K] (-inf where not allowed), by their formulas."""
    emit = torch.full((WORDS, STATES), -torch.inf, dtype=torch.float64)
    if isinstance(params, TableParams):
        mine = allowed(params)
        sets = torch.arange(STATES).expand(WORDS, -1) if params.sets is None else params.sets
        emit = emit.scatter(1, sets, params.emission_logits)
        return params.start_logits, params.transition_logits, emit.masked_fill(~mine, -torch.inf)
    assert isinstance(params, NeuralParams)
    vectors = {role: params.embed(role) for role in params.roles}
    start = params.start_weight(params.nets["start"](vectors["start"])).squeeze(-1)
    move = params.nets["move"](vectors["in"]) @ vectors["out"].T
    words = params.words if params.spelling is None else params.words + params.spelling()
    say = words @ params.nets["say"](vectors["emission"]).T + params.word_bias[:, None]
    return start, move, say.masked_fill(~allowed(params), -torch.inf)


@EVERY_SUPPORT
@pytest.mark.parametrize("choices", [{}, {"tying": "none"}, {"spelling": True}, {"depth": 2}], ids=str)
def test_parts_follow_their_formulas(support: str, choices: dict[str, Any]) -> None:
    params = neural(support, **choices)
    start, move, say = logits_of(params)
    assert_close(params.parts().start, start.softmax(-1))
    assert_close(params.parts().transition.dense(), move.softmax(-1))
    used = allowed(params).any(0)
    assert_close(params.parts().emission.dense()[:, used], say.log_softmax(0)[:, used])
    assert (params.parts().emission.dense()[:, ~used] == -torch.inf).all()


WEIGHTS = {  # of transitions, by their formulas
    "normAbsLin": lambda q, k: (q @ k.T).abs(),
    "sigmoid": lambda q, k: 1 / (1 + (-q @ k.T).exp()),
    "relu": lambda q, k: (1 + (q @ k.T).exp()).log(),
    "rbf": lambda q, k: (-(q[:, None] - k).square().sum(-1) / 2).exp(),
}


@EVERY_SUPPORT
@pytest.mark.parametrize("kernel", WEIGHTS)
def test_other_kernels_of_transitions(kernel: str, support: str) -> None:
    hmm = HMM.build(VOCABULARY, config(kernel=kernel), True, 3, SUPPORTS[support]).double()
    params = hmm.params
    assert isinstance(params, NeuralParams)
    weights = WEIGHTS[kernel](params.nets["move"](params.embed("in")), params.embed("out"))
    assert_close(params.parts().transition.dense(), weights / weights.sum(-1, keepdim=True))
    ids = torch.tensor([0, 2, 5])
    kept = weights[:, ids] / weights[:, ids].sum(-1, keepdim=True)
    entry = params.entry(torch.tensor([4, 1]), params.embed("out", ids), Draw(ids))
    assert_close(entry.matrix, kept[[4, 1]])
    again = NeuralParams.restore(VOCABULARY.words, params.settings(), params.state_dict())
    assert_close(again.parts().transition.dense(), params.parts().transition.dense())
    tokens = torch.randint(WORDS, (2, 6), generator=torch.Generator().manual_seed(1))
    batch = Batch(tokens, torch.tensor([6, 6]), torch.ones(2, dtype=torch.bool), True, True)
    learner = GradientLearner(hmm, TrainConfig(learner="gradient", lr=0.02), 20)
    reached = [float(learner.step(batch).log_likelihood) for _ in range(20)]
    assert reached[-1] > reached[0]


@pytest.mark.parametrize(
    ("kind", "kernel", "sentence"),
    [("neural", "sigmoids", "did you mean 'sigmoid'"), ("lowrank", "sigmoid", "feature_map")],
)
def test_kernels_that_cannot_be(kind: str, kernel: str, sentence: str) -> None:
    with pytest.raises(TrellisError, match=sentence):
        HMM.build(VOCABULARY, HMMConfig(states=STATES, params=kind, kernel=kernel), True, 0, None)


def test_a_rate_without_an_end_of_training() -> None:
    hmm = HMM.build(VOCABULARY, config(dropout="state", dropout_end=0.2), True, 3, SUPPORTS["even"])
    GradientLearner(hmm, TrainConfig(learner="gradient"), 10)
    with pytest.raises(TrellisError, match=r"set train\.epochs or max_steps"):
        GradientLearner(hmm, TrainConfig(learner="gradient"))


@pytest.mark.parametrize("tying", TYINGS)
def test_tied_roles_share_a_table(tying: str) -> None:
    params = neural("even", tying=tying)
    groups = TYINGS[tying]
    assert len(params.embeddings) == len(set(groups))
    assert torch.equal(params.embed("in"), params.embed("out")) == (groups[0] == groups[1])


@CLASSED
def test_factored_embeddings_are_half_their_classs(support: str) -> None:
    params = neural(support, factored=True)
    vectors, state_class = params.embed("in"), SUPPORTS[support].state_class()
    for a in range(STATES):
        for b in range(STATES):
            assert torch.equal(vectors[a, DIM // 2 :], vectors[b, DIM // 2 :]) == bool(state_class[a] == state_class[b])
    assert sum(p.numel() for p in params.parameters()) < sum(p.numel() for p in neural(support).parameters())


def test_words_of_one_spelling_begin_alike() -> None:
    params = neural("even", spelling=True)
    assert params.spelling is not None
    vectors = params.spelling()
    assert vectors.shape == (WORDS, DIM)
    assert not torch.equal(vectors[0], vectors[1])


def test_residual_layers() -> None:
    net = Residual(DIM, 2).double()
    with torch.no_grad():
        net.scales.uniform_()
        net.shifts.uniform_()
    x = expected = torch.randn(3, DIM, dtype=torch.float64)
    for first, second, scale, shift in zip(net.inner, net.outer, net.scales, net.shifts, strict=True):
        inner = expected + torch.relu(second(torch.relu(first(expected))))
        centred = inner - inner.mean(-1, keepdim=True)
        expected = centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt() * scale + shift
    assert_close(net(x), expected)


@pytest.mark.parametrize("support", ["even", "uneven", "full"])
@EVERY_KIND
def test_a_draw_of_states_is_the_model_over_them(kind: str, support: str) -> None:
    hmm = model(kind, support, "state")
    drawn = hmm.dropout.draw(hmm.params.partition)
    assert drawn is not None
    ids = drawn.ids
    assert ids is not None
    start, move, say = logits_of(hmm.params)
    assert_close(hmm.params.parts(drawn).start, start[ids].softmax(-1))
    assert_close(hmm.params.parts(drawn).transition.dense(), move[ids][:, ids].softmax(-1))
    assert_close(hmm.params.parts(drawn).emission.dense(), say.log_softmax(0)[:, ids])


@EVERY_SUPPORT
@EVERY_KIND
def test_unstructured_dropout_leaves_out_single_transitions(kind: str, support: str) -> None:
    hmm = model(kind, support, "unstructured", 0.3)
    drawn = hmm.dropout.draw(None)
    assert drawn is not None
    start, move, _ = logits_of(hmm.params)
    states = torch.arange(STATES)
    mask = drawn.mask(states, states)
    assert mask is not None
    assert_close(hmm.params.parts(drawn).transition.dense(), move.masked_fill(~mask.keeps(), -torch.inf).softmax(-1))
    begin = hmm.params.parts(drawn).start
    assert_close(begin, torch.where(begin > 0, start.softmax(-1), 0.0) / start.softmax(-1)[begin > 0].sum())


def dense_loss(hmm: HMM, tokens: Tensor, dropped: Draw, before: Tensor | None) -> tuple[Tensor, Tensor]:
    """log p(tokens [B, T]) and the last belief [B, K], by eqs. (5) and (6) on all states, nothing sparse."""
    start, move, say = logits_of(hmm.params)
    keep, pairs = torch.ones(STATES, dtype=torch.bool), torch.ones(STATES, STATES, dtype=torch.bool)
    states = torch.arange(STATES)
    if dropped.ids is not None:
        keep = torch.zeros(STATES, dtype=torch.bool).index_fill(0, dropped.ids, True)
    mask = dropped.mask(states, states)
    pairs = pairs if mask is None else mask.keeps()
    matrix = move.masked_fill(~(keep & pairs), -torch.inf).softmax(-1)
    entry = matrix if before is None or dropped.ids is None else matrix.detach()
    emit = torch.where(allowed(hmm.params), say.log_softmax(0), -torch.inf).exp().nan_to_num(0.0)
    if before is None:
        begin = dropped.starts(start).masked_fill(~keep, -torch.inf).softmax(-1).expand(len(tokens), -1)
    else:
        begin = before @ entry
    total, belief = torch.zeros((), dtype=torch.float64), begin
    for t in range(tokens.shape[1]):
        joint = (belief if t == 0 else belief @ matrix) * emit[tokens[:, t]]
        total = total + joint.sum(-1).log().sum()
        belief = joint / joint.sum(-1, keepdim=True)
    return total, belief


@EVERY_KIND
@pytest.mark.parametrize("support", ["sets", "even", "uneven", "full"])
@pytest.mark.parametrize("dropout", ["none", "state", "unstructured"])
def test_the_loss_and_its_gradients_are_those_of_dense_algebra(kind: str, support: str, dropout: str) -> None:
    if dropout == "state" and support == "sets":
        with pytest.raises(TrellisError, match="State dropout needs disjoint classes"):
            model(kind, support, dropout)
        return
    hmm = model(kind, support, dropout, 0.25)
    tokens = torch.randint(WORDS, (2, 10), generator=torch.Generator().manual_seed(1))
    state: Carry | None = None
    before: Tensor | None = None
    for part in tokens.split(5, 1):
        twin = model(kind, support, dropout, 0.25)
        twin.dropout.load_state_dict(hmm.dropout.state_dict())
        dropped = twin.dropout.draw(twin.params.partition) or WHOLE
        begins = state is None
        batch = Batch(part, torch.tensor([5, 5]), torch.full((2,), begins), True, begins)
        ours, state = hmm.log_likelihood(batch, state)
        expected, belief = dense_loss(hmm, part, dropped, before)
        assert_close(ours, expected)
        weights = list(hmm.parameters())
        found = torch.autograd.grad(ours, weights, allow_unused=True)
        wanted = torch.autograd.grad(expected, weights, allow_unused=True)
        for one, other in zip(found, wanted, strict=True):
            if not (dropout == "state" and kind == "table" and not begins):  # tables learn from the first move too
                assert_close(torch.zeros(()) if one is None else one, torch.zeros(()) if other is None else other)
        before = belief.detach()
        state = hmm.state_from_tensors({k: v.detach() for k, v in hmm.state_to_tensors(state).items()})
        full = torch.zeros(2, STATES, dtype=torch.float64)
        ids = torch.arange(STATES).expand(2, -1) if state.belief.ids is None else state.belief.ids
        assert_close(full.scatter_add(1, ids, state.belief.probs), before)


@pytest.mark.parametrize("lengths", [[5, 5], [3, 5], [0, 4]])
@pytest.mark.parametrize("support", ["even", "uneven", "full"])
def test_ragged_batches_under_dropout(support: str, lengths: list[int]) -> None:
    hmm = model("neural", support, "state", 0.25)
    tokens = torch.randint(WORDS, (2, 5), generator=torch.Generator().manual_seed(1))
    _, state = hmm.log_likelihood(Batch(tokens, torch.tensor([5, 5]), torch.tensor([True, True]), True, True), None)
    seen = hmm.dropout.draws.clone()
    ragged = Batch(tokens, torch.tensor(lengths), torch.tensor([True, False]))
    together, after = hmm.log_likelihood(ragged, state)
    total = 0.0
    for row, length in enumerate(lengths):
        if length:
            hmm.dropout.draws.copy_(seen)
            mine = Carry(type(state.belief)(*(x[row : row + 1] for x in state.belief)), state.fresh[row : row + 1])
            one = Batch(tokens[row : row + 1, :length], torch.tensor([length]), ragged.fresh[row : row + 1])
            total += hmm.log_likelihood(one, mine)[0].item()
    assert together.item() == pytest.approx(total, abs=1e-9)
    assert after.fresh.tolist() == [length == 0 and row == 0 for row, length in enumerate(lengths)]


@EVERY_KIND
@EVERY_SUPPORT
def test_settings_and_tensors_make_the_model_again(kind: str, support: str) -> None:
    hmm = model(kind, support).eval()
    again = HMM.restore(Saved(VOCABULARY, hmm.settings(), hmm.tensors()))
    assert_close(again.params.parts().transition.dense(), hmm.params.parts().transition.dense())
    assert_close(again.params.parts().emission.dense().exp(), hmm.params.parts().emission.dense().exp())
    assert again.log_prob("the cat sees") == hmm.log_prob("the cat sees")


@EVERY_SUPPORT
def test_scoring_in_pieces_is_scoring_at_once(support: str, monkeypatch: pytest.MonkeyPatch) -> None:
    hmm = model("neural", support).eval()
    tokens = torch.randint(WORDS, (3, 11), generator=torch.Generator().manual_seed(2))
    lengths = torch.tensor([11, 0, 4])
    with torch.no_grad():
        whole, state = hmm.score(tokens, hmm.start(3), lengths)
        monkeypatch.setitem(LARGEST_BLOCKS, "cpu", 100)
        monkeypatch.setattr("trellis.families.hmm.model.LARGEST_BELIEFS", 25)
        pieces, again = hmm.score(tokens, hmm.start(3), lengths)
        assert_close(pieces, whole)
        assert_close(hmm.forecast(again), hmm.forecast(state))
        assert_close(hmm.forecast(state).exp().sum(-1), torch.ones(3))


@pytest.mark.parametrize(
    ("support", "choices", "sentence"),
    [
        ("even", {"tying": "al"}, "did you mean 'all'"),
        ("full", {"factored": True}, "model.factored needs classes"),
        ("even", {"precision": "half"}, "choose from bfloat16, float32"),
        ("even", {"net_dropout": 1.0}, r"must be in \[0, 1\)"),
    ],
)
def test_choices_that_do_not_go_together(support: str, choices: dict[str, Any], sentence: str) -> None:
    with pytest.raises(TrellisError, match=sentence):
        neural(support, **choices)


@pytest.mark.parametrize(
    ("support", "choices", "rough"),
    [("full", {}, True), ("full", {"precision": "float32"}, False), ("even", {}, False)],
)
def test_recursions_over_all_states_are_in_tf32_on_a_gpu(support: str, choices: dict[str, Any], rough: bool) -> None:
    assert HMM(VOCABULARY, neural(support, **choices)).rough is rough


def test_tables_have_no_embeddings_to_factor() -> None:
    with pytest.raises(TrellisError, match="needs embeddings"):
        HMMConfig(emission="brown", factored=True)


@EVERY_SUPPORT
def test_a_settled_model_begins_sentences_as_texts_do(support: str) -> None:
    hmm = model("neural", support).eval()
    text = split()
    hmm.visits, hmm.ending = estimate_long_run(hmm, Streams(text, 1, 10_000))
    with torch.no_grad():
        filtered = discrete.filter(*problem(hmm, torch.from_numpy(text.tokens).long()[None])).probs[0]
    ids = hmm.parts().emission.support
    names = torch.arange(STATES) if ids is None else ids[VOCABULARY.eos]
    ends = filtered[torch.from_numpy(text.tokens) == VOCABULARY.eos].sum(0)
    assert hmm.ending is not None
    assert_close(hmm.ending, ends / ends.sum())
    assert_close(hmm.occupancy().sum(), torch.ones(()))
    assert float(hmm.occupancy()[names].sum()) >= float(ends.sum()) / len(text.tokens) - 1e-9
    again = HMM.restore(Saved(VOCABULARY, hmm.settings(), hmm.tensors()))
    assert again.log_prob("the cat") == hmm.log_prob("the cat")
    assert again.num_parameters() == sum(p.numel() for p in hmm.params.parameters())


def problem(hmm: HMM, tokens: Tensor) -> tuple[Any, ...]:
    start, transition, emission = hmm.parts()
    return Belief(start.expand(len(tokens), -1)), transition, emission.potentials(tokens)
