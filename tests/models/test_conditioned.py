"""Constraints on the sentences of a model, from Python and on the command line."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import trellis
from running import run
from trellis.constraints import anything, banned, begins, contains, ends, exactly, length, regex, template
from trellis.emissions import Categorical
from trellis.errors import TrellisError
from trellis.families.hmm.parameters.given import PartsParams
from trellis.inference.constrained_sampling import sample
from trellis.models.conditioned import sample_each
from trellis.testing.problems import distributions, seeded
from trellis.transitions import Dense

CLOSE = 1e-5
SENTENCES = ["the cat sees the dog", "a dog sees a cat", "the dog runs", "a cat runs , and the dog sees"] * 15


@pytest.fixture(scope="module")
def model() -> Any:
    return trellis.train(SENTENCES, states=6, epochs=10, device="cpu", tokenizer="words").model.double()  # type: ignore[attr-defined]


@pytest.fixture(scope="module", params=["sentences", "streams"])
def either(request: pytest.FixtureRequest) -> Any:
    """A model of sentences, and one of running text, whose sentences begin after <eos>."""
    return trellis.train(SENTENCES, states=5, epochs=5, device="cpu", order=request.param).model


def test_samples_satisfy_the_constraint(either: Any) -> None:
    found = either.constrain(contains("sees") & banned("a") & regex("[tc].*"), 3, 9)
    for text in found.sample(50):
        words = text.split()
        assert "sees" in words
        assert "a" not in words
        assert text[0] in "tc"
        assert 3 <= len(words) <= 9
    assert found.sample(5, seed=1) == found.sample(5, seed=1) != found.sample(5, seed=2)


def test_all_sentences_have_the_probability_of_the_model(either: Any) -> None:
    text = "the dog runs"
    one = either.constrain(template("the dog runs"), most=5)
    np.testing.assert_allclose(one.log_prob(), either.log_prob(text), rtol=CLOSE)
    assert one.best() == (text, pytest.approx(either.log_prob(text), rel=CLOSE), True)
    assert one.sample(2) == [text] * 2
    every = either.constrain(anything(), most=20)
    np.testing.assert_allclose(every.prob + every.prob_longer, 1.0, rtol=CLOSE)


@pytest.mark.parametrize("most", [0, 1, 2, 3, 6])
@pytest.mark.parametrize("prompt", ["", "the", "the dog", "the dog sees a cat"])
def test_sentences_are_possible_impossible_or_too_long(either: Any, most: int, prompt: str) -> None:
    with_cat, without = (either.constrain(c, most=most) for c in (contains("cat"), ~contains("cat")))
    parts = [with_cat.log_prob(prompt), without.log_prob(prompt), without.log_prob_longer(prompt)]
    np.testing.assert_allclose(np.exp(parts).sum(), 1.0, rtol=CLOSE)


def test_very_long_sentences_have_a_log_probability(either: Any) -> None:
    """It falls by the same amount with every word, far below the smallest float32."""
    logs = [either.constrain(anything(), most=most).log_prob_longer() for most in (1000, 2000, 3000)]
    np.testing.assert_allclose(logs[2] - logs[1], logs[1] - logs[0], rtol=CLOSE)
    assert logs[0] < -150


def test_infilling_is_a_template(model: Any) -> None:
    for text in ("the ___ sees ___ dog", "___ cat ___", "a ___ ___ and the ___"):
        filled = model.infill(text, complete=True, n=3)
        found = model.constrain(template(text), most=10)
        assert found.best().text == filled.best
        np.testing.assert_allclose(found.best().log_prob, filled.log_prob, rtol=1e-9)
        prompt = text.split("___")[0].strip()
        ranked = [(word, p) for word, p in found.predict(prompt, 3)]
        assert [word for word, _ in ranked] == [word for word, _ in filled.gaps[0]]
        np.testing.assert_allclose([p for _, p in ranked], [p for _, p in filled.gaps[0]], rtol=1e-8)


def test_a_prompt_is_the_beginning_of_the_sentence(model: Any) -> None:
    found, whole = (
        model.constrain(contains("cat"), most=12),
        model.constrain(contains("cat") & begins("the dog"), most=12),
    )
    before = model.token_log_probs("the dog")[:-1].sum()
    np.testing.assert_allclose(found.log_prob("the dog") + before, whole.log_prob(), rtol=1e-9)
    assert all(text.startswith("the dog") and "cat" in text for text in found.sample(10, "the dog"))
    one, other = found.best("the dog"), whole.best()
    assert one.text == other.text
    assert one.log_prob == pytest.approx(other.log_prob, rel=1e-9)
    text, path = found.viterbi("the dog")
    assert text.startswith("the dog")
    assert whole.viterbi()[1].log_prob <= path.log_prob <= one.log_prob  # the states of the prompt are summed out
    assert len(path.states) == len(model.vocab.split(text)) - 2 + 1
    assert found.expected_length("the dog") == pytest.approx(whole.expected_length(), rel=1e-9)


def test_the_viterbi_sentence_has_the_viterbi_path_of_the_model(model: Any) -> None:
    text, path = model.constrain(contains("cat") & contains("runs"), most=8).viterbi()
    np.testing.assert_allclose(path.log_prob, model.viterbi(text).log_prob, rtol=1e-9)
    assert path.states[:-1].tolist() == model.viterbi(text).states.tolist()


def test_running_text(either: Any) -> None:
    found = either.constrain(contains("runs <eos> the"), most=6, complete=False)
    assert found.span == (6, 6, None)
    tokens = sample(found.product, found.product.begin(20), torch.Generator().manual_seed(0))
    assert all(len(row) == 6 and found.automaton.accepts(row) for row in tokens)


def test_the_only_completion_of_a_stream_is_proved(either: Any) -> None:
    text = "the dog"
    best = either.constrain(contains("dog"), most=2, complete=False).best(text)
    assert best == (text, pytest.approx(float(either.token_log_probs(text)[:2].sum()), rel=CLOSE), True)


def test_streams_have_no_smallest_length(model: Any) -> None:
    with pytest.raises(TrellisError, match="A stream has exactly 5 words; leave out `least`, which is 2"):
        model.constrain(contains("cat"), least=2, most=5, complete=False)
    with pytest.raises(TrellisError, match="A stream has exactly 100 words"):
        model.constrain(contains("cat"), least=2, complete=False)
    with pytest.raises(TrellisError, match="The largest number of words is 0; pass an integer from 1 to"):
        model.constrain(contains("cat"), most=0, complete=False)
    assert model.constrain(contains("cat"), least=5, most=5, complete=False).span == (5, 5, None)


def test_no_log_probability_exceeds_zero() -> None:
    """One sentence is certain given the constraint; in float32, its probability is rounded in two ways."""
    model = trellis.load("demo")
    texts = ["return a list object.", "return the name of the file.", "see also the module of this function.",
             "this method returns a string.", "the default is the name of the module"]  # fmt: skip
    for text in texts:
        found = model.constrain(exactly(text), most=20)
        (one,) = found.samples(1)
        assert one.text == text
        assert -1e-4 < one.log_prob_given <= 0


def test_no_log_probability_of_a_token_exceeds_zero() -> None:
    """All states emit the same word; in float32, their probabilities sum to a little more or less than one."""
    for seed in range(5):
        draw, states = seeded(seed), 5
        start, matrix = distributions(draw, states).float(), distributions(draw, states, states).float()
        emission = Categorical(torch.tensor([[1.0], [0.0]]).expand(2, states).log().contiguous(), None, states)
        params = PartsParams(start, Dense(matrix), emission)
        model = trellis.HMM(trellis.Vocabulary(["a", "<eos>"], [1, 1]), params).eval()
        found = model.token_log_probs("a a a a a a a a")[:-1]
        assert (found <= 0).all()
        assert (found > -1e-6).all()


def test_what_cannot_be(model: Any) -> None:
    with pytest.raises(
        TrellisError, match=r"No sentence of 0 to 3 words satisfies .*: contains 'cat' at least 5 times"
    ):
        model.constrain(contains("cat", 5), most=3).sample()
    with pytest.raises(TrellisError, match="that begins with 'the cat' satisfies"):
        model.constrain(begins("a"), most=5).best("the cat")
    assert model.constrain(begins("a"), most=5).log_prob("the cat") == -np.inf
    assert model.constrain(anything(), most=2).log_prob("the cat sees the dog") == -np.inf  # too long
    with pytest.raises(TrellisError, match="Cannot generate 3 to 2 words"):
        model.constrain(anything(), 3, 2)
    for limit in (-1, 0, 1.5):
        with pytest.raises(TrellisError, match=f"The number of prefixes of each length is {limit}; pass an integer"):
            model.constrain(anything(), most=5).best(limit=limit)
    bigram = trellis.train(SENTENCES, family="bigram").model
    with pytest.raises(TrellisError, match=r"constrain\(\) is for HMMs"):
        bigram.constrain(anything())


def generated(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    capsys.readouterr()
    code = run("generate", "demo", "--device", "cpu", *words)
    return code, *capsys.readouterr()


def test_sentences_alone_are_on_standard_output(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--contains", "a list", "--not", "the", "--words", "5..12"]
    code, out, _ = generated(capsys, *options, "-n", "4")
    assert code == 0
    assert len(out.splitlines()) == 4
    assert all("a list" in line and "the" not in re.split(r"\W", line) for line in out.splitlines())
    code, out, _ = generated(capsys, *options, "-n", "4", "--json")
    data = json.loads(out)
    found = trellis.load("demo").constrain(contains("a list") & banned("the"), 5, 12)
    assert data["log_prob"] == found.log_prob()
    assert [sentence["text"] for sentence in data["sentences"]] == found.sample(4)
    code, out, _ = generated(capsys, *options, "--best")
    assert out == f"{found.best().text}\n"


def test_the_probability_is_logged(capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO"):
        generated(capsys, "--template", "a ___ list", "--words", "..5")
    (message,) = [record.message for record in caplog.records]
    assert re.fullmatch(
        r"p\(constraint\) = [\d.e-]+ for 0 to 5 words \(expected: 3\.0\); p\(more .*\) = 0\.\d+", message
    )


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--contains", "zebra"], "The word 'zebra' is not among the 2,000 words"),
        (["--contains", "list", "--not", "list"], "not 'list', together with contains 'list'"),
        (["--regex", "(a"], "is not closed"),
        (["--contains", "list", "--words", "0"], "No sentence of 0 to 0 words"),
        (["--words", "9..3"], "Cannot generate 9 to 3 words"),
        (["--words", "150.."], "Cannot generate 150 to 100 words; pass 0 <= least <= most"),
        (["--words", "some"], "not a range of words"),
        (["--in-order", "--contains", "a"], "needs at least two phrases"),
        (["--draw", "a.png"], "pictures are SVG"),
        (["--n", "5"], "unrecognized arguments: --n 5"),
        (["--best", "-n", "5"], "--best prints one sentence"),
        (["--prompt", "return a list of", "--words", "..3"], "The prompt has 4 words, more than the 3"),
    ],
)
def test_misuse(capsys: pytest.CaptureFixture[str], words: list[str], sentence: str) -> None:
    code, out, error = generated(capsys, *words)
    assert (code, out) == (2, "")
    assert sentence in error


def test_options_are_parts_of_the_constraint(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, out, _ = generated(
        capsys, "--begins", "return", "--ends", ".", "--tokens", ".* [list string] .*", "--contains", "a", "--contains",
        "of", "--in-order", "--words", "20", "--draw", str(tmp_path / "automaton.svg"), "--prompt", "return a",
    )  # fmt: skip
    assert code == 0
    assert out.startswith("return a")
    assert out.endswith(".\n")
    assert re.search(r"\b(list|string)\b", out)
    assert "a" in out.split(" of ")[0].split()
    picture = (tmp_path / "automaton.svg").read_text()
    assert picture.count("<circle") == 9  # eight states, one of them accepting
    assert ">return</text>" in picture


def test_an_automaton_too_large_for_a_picture(tmp_path: Path) -> None:
    from trellis.report.automaton import AutomatonPicture

    vocab = trellis.load("demo").vocab
    with pytest.raises(TrellisError, match="too large for a picture"):
        AutomatonPicture(length(100, 101).compile(vocab), vocab.words).save(tmp_path / "a.svg")


def test_several_constraints_at_once(model: Any) -> None:
    constraints = [
        contains("cat"),
        begins("a") & banned("sees"),
        template("the ___ runs"),
        contains("dog") | ends("runs"),
    ]
    together = model.constrain_each(constraints, 1, 7)
    for one, constraint in zip(together, constraints, strict=True):
        alone = model.constrain(constraint, 1, 7)
        np.testing.assert_allclose(one.log_prob("a"), alone.log_prob("a"), rtol=1e-9)
        np.testing.assert_allclose(one.log_prob(), alone.log_prob(), rtol=1e-9)
        np.testing.assert_allclose(one.length_probs(), alone.length_probs(), rtol=1e-9)
        assert one.best() == (alone.best().text, pytest.approx(alone.best().log_prob, rel=1e-9), True)
    for number in range(20):
        for constraint, text in zip(constraints, sample_each(together, number), strict=True):
            assert constraint.compile(model.vocab).accepts(model.encode_line(text)[0].tolist())
    with pytest.raises(TrellisError, match="not prepared together"):
        sample_each([together[0], model.constrain(contains("cat"))])
    with pytest.raises(TrellisError, match="at least one constraint"):
        model.constrain_each([])
    for given in (contains("cat"), 3):
        with pytest.raises(TrellisError, match="Pass a list of constraints, not "):
            model.constrain_each(given)
    assert len(model.constrain_each(iter(constraints), 1, 7)) == len(constraints)
    for given in ([], together[0], ["cat"]):
        with pytest.raises(TrellisError, match="Pass the result of constrain_each, not "):
            sample_each(given)
    assert sample_each(iter(together)) == sample_each(together)
    with pytest.raises(TrellisError, match="The seed is -1; pass an integer"):
        sample_each(together, -1)


def test_log_probabilities_of_samples(model: Any) -> None:
    found = model.constrain(contains("cat"), most=8)
    for one in found.samples(5, "the"):
        np.testing.assert_allclose(one.log_prob, model.log_prob(one.text), rtol=1e-9)
        given = one.log_prob - model.token_log_probs("the")[0] - found.log_prob("the")
        np.testing.assert_allclose(one.log_prob_given, given, rtol=1e-9)
    assert [one.text for one in found.samples(5, "the")] == found.sample(5, "the")
    stream = model.constrain(contains("cat"), most=4, complete=False)
    position, expected = stream.product.begin(), 0.0
    for token in stream.draw(1, "", 0)[0]:
        position, log_prob = stream.product.read(position, torch.tensor([token]))
        expected += float(log_prob)
    np.testing.assert_allclose(stream.samples(1)[0].log_prob, expected, rtol=1e-9)


def test_log_probabilities_on_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--contains", "a list", "--words", "..8", "-n", "3"]
    model = trellis.load("demo")
    _, out, _ = generated(capsys, *options, "--log-probs")
    for line in out.splitlines():
        value, text = line.split("\t")
        assert float(value) == pytest.approx(model.log_prob(text), abs=1e-3)
    data = json.loads(generated(capsys, *options, "--json")[1])
    for one in data["sentences"]:
        assert one["log_prob_given"] == pytest.approx(one["log_prob"] - data["log_prob"], abs=1e-9)


def test_a_prompt_of_unknown_words_is_noticed(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    for prompt, noticed in (("zyx the qwv", True), ("return the qwv", False), ("<unk> <unk>", False), ("", False)):
        caplog.clear()
        generated(capsys, "--prompt", prompt)
        warnings = [record.message for record in caplog.records if record.levelname == "WARNING"]
        assert len(warnings) == noticed
        assert all("2 of the 3 words of the prompt, such as 'zyx'" in message for message in warnings)
