"""The POS HMM against every path of states and tags; learning, files, and the text face."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise, product

import numpy as np
import pytest
import torch

from corpora import SUPPORTS, split, vocabulary
from taggers import TAGS, paths, symbol, tagger
from trellis.config import TaggedDataConfig, TrainConfig, run_config
from trellis.corpus import Sentences
from trellis.corpus.lexicon import Lexicon
from trellis.corpus.tagged import Tagged, read_splits
from trellis.errors import TrellisError
from trellis.families.hmm_tagger import fit
from trellis.families.hmm_tagger.config import HMMTaggerConfig
from trellis.families.hmm_tagger.model import SURENESS, HMMTagger
from trellis.families.hmm_tagger.views import HMMTaggerViews
from trellis.learning.em import EMLearner
from trellis.models.files import load, save_model
from trellis.testing.close import assert_close
from trellis.types import Batch

EVERY = pytest.mark.parametrize("support", SUPPORTS.values(), ids=SUPPORTS)
SENTENCES = [  # words and tags, some or all of them missing
    ([1, 2, 4, 0], [1, None, 3, 0]),
    ([5, -1, 3, 0], [None, None, 2, 0]),
    ([1, 6, 0], [None, None, None]),
]
STEP, SLACK = 1e-6, 1e-5  # of finite differences


def batch(sentences=SENTENCES) -> Batch:
    lengths = [len(words) for words, _ in sentences]
    tokens = torch.zeros(len(sentences), max(lengths), dtype=torch.int64)
    for row, (words, tags) in zip(tokens, sentences, strict=True):
        for t, (word, tag) in enumerate(zip(words, tags, strict=True)):
            row[t] = word if word < 0 else symbol(word, tag)
    return Batch(tokens, torch.tensor(lengths), torch.ones(len(sentences), dtype=torch.bool))


def untagged() -> list[tuple[list[int], list[None]]]:
    return [([word for word in words if word >= 0], [None] * sum(w >= 0 for w in words)) for words, _ in SENTENCES]


@EVERY
def test_the_joint_likelihood_of_words_and_some_tags(support) -> None:
    model = tagger(support)
    expected = sum(np.log(paths(model, *sentence).likelihood) for sentence in SENTENCES)
    assert_close(model.log_likelihood(batch(), None)[0], np.array(expected))


def test_states_begin_with_their_tags() -> None:
    state_tags = torch.tensor([0, 1, 1, 2, 3, 3])
    config = HMMTaggerConfig(states=len(state_tags))
    tags = HMMTagger.assemble(Lexicon(vocabulary(), TAGS), config, 0, None, state_tags).parts().emission.tags
    expected = torch.full((len(TAGS), len(state_tags)), -SURENESS)
    assert_close(tags, expected.scatter(0, state_tags.unsqueeze(0), 0.0).log_softmax(0))


@EVERY
def test_expected_counts(support) -> None:
    model = tagger(support)
    counts, _ = model.counts(batch(), None)
    by_word, by_tag = model.parts().emission.split_statistics(counts.emission)
    words = torch.zeros(7, model.num_states, dtype=torch.float64)
    tags = torch.zeros(len(TAGS), model.num_states, dtype=torch.float64)
    moves = np.zeros((model.num_states, model.num_states))
    for sentence in SENTENCES:
        every = paths(model, *sentence)
        moves += every.pairs().sum(0)
        for word, tag, visits in zip(*sentence, torch.from_numpy(every.smoothed()), strict=True):
            if word >= 0:
                words[word] += visits
            if tag is not None:
                tags[tag] += visits
    states = model.params.parts().emission.support
    assert_close(by_word, words if states is None else words.gather(1, states))
    assert_close(by_tag, tags)
    assert_close(counts.transition, moves)


@EVERY
def test_the_marginals_of_tags(support) -> None:
    model, sentences = tagger(support), untagged()
    actual = model.tag_marginals(batch(sentences))
    tags = model.parts().emission.tags.exp().detach().numpy()
    for row, sentence in zip(actual, sentences, strict=True):
        assert_close(row[: len(sentence[0])], paths(model, *sentence).smoothed() @ tags.T)


@EVERY
def test_the_best_tags_are_those_of_the_best_path_of_states_and_tags(support) -> None:
    model, sentences = tagger(support), untagged()
    actual = model.best_tags(batch(sentences))
    tags = model.parts().emission.tags.exp().detach().numpy()[1:]  # no word has the tag of the end
    for row, (words, missing) in zip(actual, sentences, strict=True):
        every = paths(model, words, missing)
        weights = {}
        for said in product(range(len(tags)), repeat=len(words)):
            joint = every.weights * np.prod([tags[y][every.states[:, t]] for t, y in enumerate(said)], 0)
            weights[said] = joint.max()
        best = max(weights, key=lambda said: weights[said])
        assert row[: len(words)].tolist() == [y + 1 for y in best]


@EVERY
def test_gradients_by_finite_differences(support) -> None:
    model, text = tagger(support), batch()
    model.log_likelihood(text, None)[0].backward()
    for weight in (model.params.tag_logits, model.params.words.emission_logits, model.params.words.transition_logits):
        place = (1, 1)
        gradient, ends = weight.grad[place], []
        with torch.no_grad():
            for step in (STEP, -2 * STEP):
                weight[place] += step
                ends.append(model.log_likelihood(text, None)[0])
            weight[place] += STEP
        assert_close((ends[0] - ends[1]) / (2 * STEP), gradient, SLACK)


@EVERY
def test_em_never_makes_the_text_less_likely(support) -> None:
    """A text whose tags follow from the words, two in three of them missing."""
    text = split()
    symbols = text.tokens + 7 * (text.tokens % len(TAGS) + 1) * (np.arange(len(text.tokens)) % 3 == 0)
    learner, totals = EMLearner(tagger(support).requires_grad_(False), replace(TrainConfig(), pseudocount=0.0)), []
    for _ in range(10):
        batches = Sentences(text._replace(tokens=symbols), 64, shuffle=False)
        totals.append(sum(float(learner.step(batch).log_likelihood) for batch in batches))
        learner.end_epoch()
    assert all(after >= before - 1e-9 for before, after in pairwise(totals))
    assert totals[-1] > totals[0] + 1


def test_one_state_per_tag_counts_like_the_classic_tagger() -> None:
    text = [([1, 2, 4, 0], [1, 2, 3, 0]), ([5, 2, 0], [1, 2, 0]), ([1, 4, 0], [1, 2, 0])]
    model = tagger(states=len(TAGS), hard_tags=True)
    model.params.assign(torch.arange(len(TAGS)), 0.0)
    learner = EMLearner(model.requires_grad_(False), replace(TrainConfig(), pseudocount=0.0))
    learner.step(batch(text))
    learner.end_epoch()
    start, transition, emission = model.parts()
    assert_close(start, np.array([0.0, 1, 0, 0]))
    assert_close(transition.dense()[1], np.array([0.0, 0, 1, 0]))
    assert_close(transition.dense()[2], np.array([2 / 3, 0, 0, 1 / 3]))
    assert_close(emission.dense().exp()[:, 1], np.array([0, 2 / 3, 0, 0, 0, 1 / 3, 0]))
    assert_close(emission.dense().exp()[:, 2], np.array([0, 0, 2 / 3, 0, 1 / 3, 0, 0]))
    assert_close(emission.tags.exp(), np.eye(len(TAGS)))


def test_a_word_is_backed_by_its_kind() -> None:
    model = tagger(backoff=0.5)
    model.params.kinds.copy_(torch.tensor([-1, 6, 6, 6, 6, 6, -1]))
    visits = torch.rand(7, 9, dtype=torch.float64)
    expected = visits.clone()
    expected[1:6] += 0.5 * visits[6] / visits[6].sum()
    assert_close(model.params.backed(visits), expected)


def test_backing_keeps_to_the_states_of_a_word() -> None:
    model = tagger(SUPPORTS["even"], backoff=0.5)
    model.params.kinds.copy_(torch.tensor([-1, 6, 6, 6, 6, 6, -1]))
    visits = torch.rand(7, 3, dtype=torch.float64)
    changed = (model.params.backed(visits) != visits).any(1)
    assert changed.tolist() == [False, False, True, True, False, False, False]


@pytest.mark.parametrize("params", ["table", "neural"])
def test_a_file_gives_back_the_same_tagger(params: str, tmp_path) -> None:
    model = tagger(SUPPORTS["even"], params=params, dim=4, backoff=0.25).float().eval()
    save_model(tmp_path / "model.safetensors", model)
    again = load(tmp_path)
    assert again.settings() == model.settings()
    torch.testing.assert_close(again.tag_marginals(batch()), model.tag_marginals(batch()), rtol=0, atol=0)
    sentences = [["the", "cat"], ["a", "dog", "sees", "pigs"]]
    for decode in ("marginal", "viterbi"):
        assert again.tag(sentences, decode=decode) == model.tag(sentences, decode=decode)
        assert [len(tags) for tags in model.tag(sentences, decode=decode)] == [2, 4]


@pytest.mark.parametrize(("dropout", "support"), [("state", "even"), ("unstructured", "full")])
def test_dropout_leaves_a_smaller_tagger(dropout: str, support: str) -> None:
    model = tagger(SUPPORTS[support], params="neural", dim=4, dropout=dropout, dropout_rate=0.4).train()
    draws = [float(model.log_likelihood(batch(SENTENCES[:1]), None)[0].detach()) for _ in range(3)]
    assert len(set(draws)) > 1
    assert np.isfinite(draws).all()


def test_text_without_tags_is_read_as_by_any_hmm() -> None:
    model = tagger()
    expected = paths(model, [1, 2, 0], [None] * 3).likelihood
    assert model.log_prob("the cat") == pytest.approx(np.log(expected))
    assert sum(p for _, p in model.predict("the", n=7)) == pytest.approx(1.0)
    assert model.infill("the ___ sees").best.startswith("the ")


def test_what_cannot_be_tagged() -> None:
    model = tagger()
    assert model.tag([["the"], []])[1] == []
    with pytest.raises(TrellisError, match="decode"):
        model.tag([["the"]], decode="best")
    with pytest.raises(TrellisError, match="Unknown tag 'X'; the model's tags are D, N, V"):
        model.lexicon.symbols(["the"], ["X"])
    assert model.tag([]) == []


SHARED = SUPPORTS["sets"][torch.tensor([0, 1, 0, 3, 4, 5, 6])]  # words 2 and 0 have the same states


@pytest.mark.parametrize("support", [*SUPPORTS.values(), SHARED], ids=[*SUPPORTS, "shared sets"])
def test_words_borrow_from_their_kinds(support) -> None:
    """Word 2 has the kind 0, word 3 the kind 1, no other word has a kind."""
    model = tagger(support, params="table", backoff=2.0)
    params = model.params
    params.kinds = torch.tensor([-1, -1, 0, 1, -1, -1, -1])
    visits = torch.rand(params.words.emission_logits.shape, generator=torch.Generator().manual_seed(0)).double()
    states = params.words.sets
    expected = visits.clone()
    for word, kind in ((2, 0), (3, 1)):
        if states is None or bool((states[word] == states[kind]).all()):
            expected[word] += 2.0 * visits[kind] / visits[kind].sum()
    assert_close(params.backed(visits), expected)
    params.backoff = 0.0
    assert params.backed(visits) is visits


def test_the_m_step_of_tags_is_the_share_of_their_counts() -> None:
    params = tagger().params
    counts = torch.rand(len(TAGS), params.num_states, generator=torch.Generator().manual_seed(1)).double()
    params.maximise_tags(counts)
    assert_close(params.tag_logits.softmax(0), counts / counts.sum(0))


def test_counts_give_states_tags_that_they_did_not_have() -> None:
    params = tagger(hard_tags=True).params
    params.assign(torch.zeros(params.num_states, dtype=torch.int64), SURENESS)
    counts = torch.rand(len(TAGS), params.num_states, generator=torch.Generator().manual_seed(1)).double()
    params.maximise_tags(counts)
    assert_close(params.tag_logits.softmax(0), counts / counts.sum(0))


def test_a_state_without_counts_keeps_its_tags() -> None:
    params = tagger().params
    old = params.tag_logits.softmax(0)
    counts = torch.ones(len(TAGS), params.num_states, dtype=torch.float64)
    counts[:, 2] = 0.0
    params.maximise_tags(counts)
    assert_close(params.tag_logits.softmax(0)[:, 2], old[:, 2])
    assert_close(params.tag_logits.softmax(0)[:, 1], torch.full((len(TAGS),), 1 / len(TAGS)).double())


@pytest.mark.parametrize(("every", "blind", "kept"), [(0, True, 1), (1, False, 1), (2, False, 2)])
def test_the_text_of_a_run(every: int, blind: bool, kept: int) -> None:
    options = {"untagged": "rest", "valid_fraction": 0.25, "test_fraction": 0.25}
    options |= {} if every == 1 else {"tagged_every": every}  # the default
    data = Tagged([["a", "b"]] * 40, [["X", "Y"]] * 40)
    texts = fit.read(run_config({"model": {"family": "hmm-tagger"}, "data": options}), data)
    whole = len(read_splits(TaggedDataConfig(valid_fraction=0.25, test_fraction=0.25), data)["train"])
    assert (texts.blind, len(texts["train"]), len(texts.untagged)) == (
        blind,
        -(-whole // kept),
        whole - -(-whole // kept),
    )


def test_rare_words_move_to_the_class_of_their_kind() -> None:
    """Also if the kind is the first word of the vocabulary."""
    lexicon = Lexicon.choose([["b", "c", "d"]], [["x", "x", "y"]], rare=1, common=3)
    words = lexicon.vocab.words
    assert words[0] == "<kind a:>"
    moved = fit.with_kinds(torch.arange(len(words)), lexicon, rare=1).tolist()
    assert dict(zip(words, moved, strict=True)) == {
        word: 0 if word in "bcd" else number for number, word in enumerate(words)
    }


@EVERY
def test_tags_with_probability_zero_stay_impossible(support) -> None:
    model = tagger(support, hard_tags=True)
    model.params.assign(torch.arange(model.num_states) % len(TAGS), 1.0)
    tags = model.parts().emission.tags
    right = torch.nn.functional.one_hot(torch.arange(model.num_states) % len(TAGS), len(TAGS)).T.bool()
    assert (tags[~right] == -torch.inf).all()
    assert (tags[right] == 0).all()


@EVERY
def test_the_tags_of_the_explorer(support) -> None:
    model, words = tagger(support), ["the", "cat", "sees"]
    labels, probs = HMMTaggerViews(model).marginals(words)
    symbols = torch.from_numpy(model.lexicon.symbols(words))[None]
    batch = Batch(symbols, torch.tensor([4]), torch.ones(1, dtype=torch.bool))
    expected = model.tag_marginals(batch)[0, :3]
    assert labels == TAGS[1:]
    assert_close(probs, expected[:, 1:] / expected[:, 1:].sum(-1, keepdim=True))
