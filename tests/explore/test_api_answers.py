"""The answers of the explorer are those of the models' own methods, for every family."""

from __future__ import annotations

import json
import math
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("starlette", reason="starlette is not installed")

import trellis
from corpora import STATES, SUPPORTS, hmm, vocabulary
from fuzz.asgi import ask
from fuzz.small import OPTIONS, SENTENCES, VARIANTS, model as small
from trellis import constraints
from trellis.errors import TrellisError
from trellis.explore.endpoints import ENDPOINTS
from trellis.explore.explorer import Explorer
from trellis.explore.server import application
from trellis.explore.views import Views, command, views_of
from trellis.families.hmm.concordance import Concordance
from trellis.families.hmm.model import HMM
from trellis.testing.oracle import Paths

EXACT = 1e-9
CLOSE = 1e-5  # float32
SENTENCE = "the cat sees"
WITH_GAP = "the ___ sees"
ENDPOINT = {endpoint.name: endpoint for endpoint in ENDPOINTS}
ANSWERS: dict[str, dict[str, Any]] = {  # a request for every endpoint
    "about": {}, "training": {}, "classes": {}, "map": {}, "states": {}, "state": {"id": 1},
    "smooth": {"text": SENTENCE}, "score": {"text": SENTENCE}, "predict": {"text": "the"},
    "infill": {"text": WITH_GAP}, "generate": {"contains": ["cat"], "words": [1, 8]}, "sample": {"n": 2},
    "neighbours": {"word": "cat"}, "layers": {"layer": 1}, "tag": {"text": SENTENCE}, "ngrams": {"prompt": "the"},
}  # fmt: skip
HMM_ANSWERS = {"about", "training", "classes", "map", "states", "state", "smooth", "score", "predict", "infill",
               "generate", "sample"}  # fmt: skip
LANGUAGE = {"about", "training", "score", "predict", "sample"}
OF_FAMILY = {
    "hmm": HMM_ANSWERS,
    "hmm-tagger": HMM_ANSWERS | {"tag"},
    "fhmm": LANGUAGE | {"smooth", "layers"},
    "pcfg": LANGUAGE,
    "lds": {"about", "training", "neighbours"},
    "crf": {"about", "training", "tag"},
    **dict.fromkeys(("ngram", "bigram"), LANGUAGE | {"ngrams"}),
    **dict.fromkeys(("feedforward", "lstm", "rnn"), LANGUAGE | {"neighbours"}),
}


@cache
def views(name: str) -> Views:
    found = views_of(small(name), name)
    found.background(lambda work: work())
    return found


def answer(found: Views, name: str, **given: Any) -> Any:
    return Explorer([found]).answer(ENDPOINT[name], given)


@pytest.mark.parametrize("name", [*OPTIONS, *VARIANTS])
def test_every_family_answers_what_makes_sense_for_it(name: str) -> None:
    app, family = application(Explorer([views(name)])), views(name).model.family
    wanted = OF_FAMILY[name.split()[0]]
    for asked, given in ANSWERS.items():
        endpoint = ENDPOINT[asked]
        path = endpoint.path.format(**given)
        query = "&".join(f"{key}={value}" for key, value in given.items() if f"{{{key}}}" not in endpoint.path)
        post = endpoint.method == "POST"
        reply = ask(app, endpoint.method, path if post or not query else f"{path}?{query}", given if post else None)
        assert reply.status == (200 if asked in wanted else 400), (family, asked, reply.body)
        assert asked in wanted or "no answer for this model" in reply.json["error"]
    about = ask(app, "GET", "/api/about").json["models"][0]
    assert about["family"] == family
    assert about["views"]


def test_the_trellis_agrees_with_every_path() -> None:
    model = hmm().double()
    found = answer(views_of(model), "smooth", text=SENTENCE)
    with torch.no_grad():
        start, transition, emission = model.parts()
        tokens = model.encode_line(SENTENCE, eos=True)[0]
        matrix, potentials = transition.dense().numpy(), emission.dense().exp()[tokens].numpy()
    paths = Paths(start.numpy(), np.broadcast_to(matrix, (len(tokens) - 1, *matrix.shape)), potentials)
    order = [one["id"] for one in found["states"]]
    np.testing.assert_allclose(found["posterior"], paths.smoothed()[:, order], rtol=0, atol=EXACT)
    pairs = paths.pairs()
    for step, edges in enumerate(found["edges"]):
        for i, j, prob in edges:
            assert prob == pytest.approx(pairs[step, order[i], order[j]], abs=EXACT)
        assert sum(prob for _, _, prob in edges) > 0.9
    assert found["log_prob"] == pytest.approx(float(model.log_prob(SENTENCE)), abs=EXACT)
    assert [order[i] for i in found["path"][:-1]] == model.viterbi(SENTENCE).states.tolist()
    bits = -np.array(model.token_log_probs(SENTENCE)) / math.log(2)
    np.testing.assert_allclose(found["surprisal"], bits, rtol=0, atol=EXACT)


@pytest.mark.parametrize("support", SUPPORTS)
@pytest.mark.parametrize("text", [SENTENCE, WITH_GAP])
def test_live_states_give_the_posteriors_over_all_states(support: str, text: str) -> None:
    states = STATES if support != "full" else 3
    model = HMM.new(vocabulary(), states, support=SUPPORTS[support]).double().requires_grad_(False)
    found = answer(views_of(model), "smooth", text=text)
    if text == SENTENCE:
        wanted = model.posterior(text)
    else:
        words = [w for w in model.vocab.words if w != "<eos>"]
        filled = [text.replace("___", w) for w in words]
        weights = np.exp(model.log_prob(filled))
        wanted = np.einsum("n,ntk->tk", weights / weights.sum(), np.stack(model.posterior(filled)))
        assert found["log_prob"] == pytest.approx(math.log(weights.sum()), abs=EXACT)
    shown = [one["id"] for one in found["states"]]
    np.testing.assert_allclose(np.array(found["posterior"])[:-1], wanted[:, shown], rtol=0, atol=EXACT)
    assert found["gaps"] == ([] if text == SENTENCE else [1])


def test_questions_give_the_numbers_of_the_methods() -> None:
    model = views("hmm").model
    scored = answer(views("hmm"), "score", text=SENTENCE)
    assert scored["log_prob"] == pytest.approx(model.log_prob(SENTENCE))
    assert scored["words"] == ["the", "cat", "sees", "<eos>"]
    predicted = answer(views("hmm"), "predict", text="the", top=4)
    assert [(one["word"], one["prob"]) for one in predicted["items"]] == model.predict("the", 4)
    filled, wanted = answer(views("hmm"), "infill", text=WITH_GAP, top=3), model.infill(WITH_GAP, 3)
    assert [(one["word"], one["prob"]) for one in filled["gaps"][0]["items"]] == wanted.gaps[0]
    assert filled["best"] == {"text": wanted.best, "log_prob": wanted.log_prob, "proved": wanted.proved}
    made = answer(views("hmm"), "generate", contains=["cat"], words=[1, 8], n=3, seed=4)
    conditioned = model.constrain(constraints.contains("cat"), 1, 8)
    assert made["log_prob"] == conditioned.log_prob()
    assert [one["text"] for one in made["items"]] == conditioned.sample(3, seed=4)
    best = answer(views("hmm"), "generate", contains=["cat"], words=[1, 8], best=True)
    assert best["items"][0]["text"] == conditioned.best().text
    assert [one["text"] for one in answer(views("hmm"), "sample", n=2, seed=3)["items"]] == model.sample(2, seed=3)


def test_the_states_behind_a_word_have_its_probability() -> None:
    """Sums over states of p(state | word) are 1, and p(state | word) p(word) = p(state) p(word | state)."""
    model = hmm().double()
    for item in answer(views_of(model), "predict", text="the", top=7)["items"]:
        assert sum(one["prob"] for one in item["states"]) == pytest.approx(1.0, abs=EXACT)
    with torch.no_grad():
        start, transition, emission = model.parts()
        after = model.score(model.encode_line("the"), model.start(1))[1].prior(start, transition).probs[0]
        item = answer(views_of(model), "predict", text="the", top=1)["items"][0]
        joint = after * emission.log_probs(model.vocab.index[item["word"]]).exp()
    for one in item["states"]:
        assert one["prob"] * item["prob"] == pytest.approx(float(joint[one["id"]]), abs=EXACT)


def test_a_state_has_its_words_predecessors_and_successors() -> None:
    model = hmm().double()
    found = views_of(model)
    found.background(lambda work: work())
    with torch.no_grad():
        _, transition, emission = model.parts()
        share, matrix = model.occupancy(), transition.dense()
        best = emission.best()[1]
    for state in range(model.num_states):
        one = answer(found, "state", id=state)
        assert one["occupancy"] == float(share[state])
        assert {w["word"]: w["prob"] for w in one["words"]} == pytest.approx(
            dict(zip(model.vocab.words, emission.columns(torch.tensor([state]))[:, 0].exp().tolist(), strict=True))
        )
        base = emission.predict(share).exp()
        assert one["words"][0]["base"] == pytest.approx(float(base[model.vocab.index[one["words"][0]["word"]]]))
        before = share * matrix[:, state]
        for name, probs in (("outgoing", matrix[state]), ("incoming", before / before.sum())):
            for row in one[name]:
                alike = best == model.vocab.index[row["word"]]
                assert row["prob"] == pytest.approx(float(probs[alike].sum()))
                assert row["count"] == int(alike.sum())
        assert {row["id"] for row in one["neighbours"]} == {*range(model.num_states)} - {state}


def test_states_are_listed_a_page_at_a_time() -> None:
    found = views("hmm brown")
    share = found.model.occupancy()
    everything = answer(found, "states", limit=4)
    assert [one["id"] for one in everything["items"]] == share.argsort(descending=True, stable=True).tolist()
    second = answer(found, "states", offset=2, limit=1)
    assert (second["items"], second["total"], second["offset"]) == (everything["items"][2:3], 4, 2)
    assert [one["id"] for one in answer(found, "states", sort="id")["items"]] == [0, 1, 2, 3]
    assert [one["class"] for one in answer(found, "states", sort="class")["items"]] == [0, 0, 1, 1]
    assert answer(found, "states", offset=10)["items"] == []


def test_states_are_found_by_word() -> None:
    found = views("hmm brown")
    log_probs = found.model.parts().emission.log_probs(found.model.vocab.index["cat"]).exp() * found.model.occupancy()
    order = [z for z in log_probs.argsort(descending=True, stable=True).tolist() if log_probs[z] > 0]
    assert [one["id"] for one in answer(found, "states", query="cat")["items"]] == order
    assert answer(found, "states", query="zebra")["total"] == 0
    assert answer(found, "states", query="ca")["total"] == len(order)  # the beginning of a word


def test_classes_and_the_map_have_all_states() -> None:
    found = views("hmm brown")
    items = answer(found, "classes")["items"]
    assert sum(one["states"] for one in items) == found.model.num_states
    assert sum(one["occupancy"] for one in items) == pytest.approx(1.0, abs=CLOSE)
    placed = answer(found, "map")
    assert {len(placed[name]) for name in ("x", "y", "class", "occupancy", "labels")} == {found.model.num_states}
    assert placed["class"] == found.model.params.partition.state_class().tolist()
    assert [one["id"] for one in placed["classes"]] == [0, 1]


def test_the_map_is_not_ready_before_it_is_computed() -> None:
    app = application(Explorer([views_of(hmm())]))
    for path in ("/api/map", "/api/classes"):
        reply = ask(app, "GET", path)
        assert (reply.status, reply.json["ready"]) == (202, False)


def test_examples_of_states_come_from_the_training_text(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("".join(f"{line}\n" for line in SENTENCES * 8))
    trained = trellis.train(str(text), states=3, epochs=1, tokenizer="whitespace", min_count=1, device="cpu")
    read = Concordance(trained.model)
    read.read(lambda work: work())
    found = [one for state in range(3) for one in read.find(state, 5)]
    assert found
    for one in found:
        assert " ".join([*one["before"], one["word"], *one["after"]]).removesuffix(" <eos>") in SENTENCES
    for one in read.find(0, 3):
        sentence = " ".join([*one["before"], one["word"], *one["after"]]).removesuffix(" <eos>")
        posterior = np.vstack([trained.model.posterior(sentence), np.full((1, 3), np.nan)])
        if one["word"] != "<eos>":
            assert one["prob"] == pytest.approx(float(posterior[len(one["before"]), 0]), abs=CLOSE)


def test_layers_of_a_factorial_model() -> None:
    model = views("fhmm").model
    for layer in range(2):
        found = answer(views("fhmm"), "layers", layer=layer)
        assert found["layers"] == 2
        matrix = model.chains()[1][layer]
        for one in found["items"]:
            assert {row["id"]: row["prob"] for row in one["outgoing"]} == pytest.approx(
                dict(enumerate(matrix[one["id"]].tolist()))
            )
    shown = answer(views("fhmm"), "smooth", text=SENTENCE)
    posterior = model.posterior(SENTENCE)
    columns = [one["id"] + 2 * one["layer"] for one in shown["states"]]
    np.testing.assert_allclose(shown["posterior"], posterior[:, columns], atol=CLOSE)
    with pytest.raises(TrellisError, match="There is no layer 2"):
        answer(views("fhmm"), "layers", layer=2)


def test_neighbours_are_those_of_the_type_vectors() -> None:
    model = views("lds").model
    vectors = torch.nn.functional.normalize(model.type_vectors(), dim=-1)
    cosines = vectors @ vectors[model.vocab.index["cat"]]
    for one in answer(views("lds"), "neighbours", word="cat", top=3)["items"]:
        assert one["similarity"] == pytest.approx(float(cosines[model.vocab.index[one["word"]]]))
        assert one["word"] != "cat"
    with pytest.raises(TrellisError, match="not in the vocabulary"):
        answer(views("lds"), "neighbours", word="zebra")


def test_the_order_of_a_next_word_is_that_of_the_longest_ngram() -> None:
    found = answer(views("ngram"), "ngrams", prompt="a cat", top=11)
    orders = {one["word"]: one["order"] for one in found["items"]}
    text = [["<eos>", *line.split(), "<eos>"] for line in SENTENCES]
    grams = {tuple(line[i : i + n]) for line in text for n in (1, 2, 3) for i in range(len(line) - n + 1)}
    for word, order in orders.items():
        longest = max((n for n in (2, 3) if (*["a", "cat"][3 - n :], word) in grams), default=1)
        assert order == longest, word
    assert found["order"] == 3


@pytest.mark.parametrize("name", ["crf", "hmm-tagger"])
def test_tags_are_those_of_the_tagger(name: str) -> None:
    found = answer(views(name), "tag", text=SENTENCE)
    assert found["tags"] == views(name).model.tag([SENTENCE.split()])[0]
    for tag, prob, others in zip(found["tags"], found["probs"], found["alternatives"], strict=True):
        assert prob == pytest.approx({one["tag"]: one["prob"] for one in others}[tag])
        assert sum(one["prob"] for one in others) <= 1 + CLOSE


def test_two_models_are_compared() -> None:
    both = Explorer([views("hmm"), views("bigram")])
    found = both.answer(ENDPOINT["compare"], {"text": SENTENCE})
    for bits, one in zip(found["surprisal"], both.views, strict=True):
        np.testing.assert_allclose(bits, -np.array(one.model.token_log_probs(SENTENCE)) / math.log(2), atol=CLOSE)
    with pytest.raises(TrellisError, match="Two language models are compared"):
        Explorer([views("hmm"), views("lds")]).answer(ENDPOINT["compare"], {"text": SENTENCE})
    with pytest.raises(TrellisError, match="There is no model 1"):
        answer(views("hmm"), "score", text=SENTENCE, model=1)


def test_the_largest_differences_come_from_the_validation_text(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("".join(f"{line}\n" for line in SENTENCES * 8))
    options: dict[str, Any] = {"tokenizer": "whitespace", "min_count": 1, "device": "cpu"}
    models = [trellis.train(str(text), family=family, **options).model for family in ("unigram", "bigram")]
    found = Explorer([views_of(one) for one in models]).answer(ENDPOINT["compare"], {})["differences"]
    gaps = [abs(one["bits"][0] - one["bits"][1]) for one in found]
    assert gaps == sorted(gaps, reverse=True)
    assert gaps[0] > 0


def test_training_curves_have_every_logged_figure(tmp_path: Path) -> None:
    line = {"step": 5, "epoch": 1, "tokens": 100, "seconds": 0.5, "train_ppl": 9.5, "valid_ppl": None, "lr": "nan"}
    later = line | {"step": 10, "valid_ppl": 8.0}
    (tmp_path / "metrics.jsonl").write_text(f"{json.dumps(line)}\n{json.dumps(later)}\nnot json\n[1]\n")
    found = answer(views_of(hmm(), "run", tmp_path), "training")["series"]
    assert [one["name"] for one in found] == ["train_ppl", "valid_ppl"]
    assert [point["step"] for point in found[0]["points"]] == [5, 10]
    assert found[1]["points"] == [{"step": 10, "epoch": 1, "tokens": 100, "seconds": 0.5, "value": 8.0}]
    assert "training" in views_of(hmm(), "run", tmp_path).about()["views"]
    assert "training" not in views_of(hmm()).about()["views"]


def test_queries_have_a_link_and_a_command() -> None:
    found = answer(views("hmm"), "generate", contains=["the cat", "dog"], ordered=True, words=[2, 8], n=2)
    assert found["command"] == (
        "trellis generate hmm --contains 'the cat' --contains dog --in-order --words 2..8 -n 2 --seed 0"
    )
    assert found["link"] == (
        "#/questions?ask=generate&contains=the%20cat&contains=dog&ordered=true&words=2&words=8&n=2"
    )
    assert answer(views("hmm"), "smooth", text="a & b=c")["link"] == "#/sentence?text=a%20%26%20b%3Dc"
    assert answer(views("hmm"), "infill", text=WITH_GAP)["command"] == "trellis infill hmm 'the ___ sees' -n 10"


def test_a_command_cannot_control_a_terminal() -> None:
    assert command("trellis", "score", "a\x1b]0;x\x07'b\\") == "trellis score $'a\\x1b]0;x\\x07\\'b\\\\'"
    assert command("echo", "a b") == "echo 'a b'"
