"""N processes and one process, with the same batches, end with the same parameters."""

from __future__ import annotations

import contextlib
import functools
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from processes import together

import trellis
from trellis import distributed
from trellis.corpus import Documents, Sentences, Streams
from trellis.distributed import sums
from trellis.errors import TrellisError
from trellis.families.hmm import model as hmm
from trellis.learning.graph import Captured, Graphed
from trellis.tasks import lm
from trellis.training import fit
from trellis.transitions import Softmax, softmax, stripes

EXACT, ROUNDING = 1e-10, 1e-6  # EM; gradient steps, in which Adam divides by gradients that are zero but for rounding
WORDS = ["the", "a", "dog", "cat", "man", "sees", "runs", "sleeps", "red", "big"]
TEXT = [" ".join(np.random.default_rng(n).choice(WORDS, 3 + n % 9)) for n in range(100)]
TAGGED = [[(word, word[0]) for word in line.split()] for line in TEXT[:60]]
SHORT = {"epochs": 2, "device": "cpu", "lanes": 5, "window": 6, "tokens": 90, "ngram": 0}
CASES: dict[str, dict[str, Any]] = {
    "em, streams": {"states": 4, "learner": "em", "order": "streams"},
    "em, sentences": {"states": 4, "learner": "em", "order": "sentences"},
    "em, documents": {"states": 4, "learner": "em", "order": "documents"},
    "stepwise em": {"states": 4, "learner": "stepwise-em", "order": "streams"},
    "gradient": {"states": 8, "learner": "gradient", "order": "streams", "average": 0.9},
    "gradient, documents": {"states": 8, "learner": "gradient", "order": "documents", "schedule": "plateau"},
    "neural, state dropout": {
        "states": 24, "params": "neural", "emission": "brown", "classes": 3, "dim": 6, "dropout": "state",
        "dropout_rate": 0.5, "learner": "gradient", "order": "streams", "average": 0.9, "clip": 0.2,
    },
    "neural, masks": {
        "states": 12, "params": "neural", "dim": 6, "dropout": "unstructured", "dropout_rate": 0.3,
        "learner": "gradient", "order": "sentences",
    },
}  # fmt: skip


def in_float64(config: Any, corpus: Any) -> Any:
    return config.family.load("build")(config, corpus).double()


def train_all(cases: dict[str, dict[str, Any]] = CASES, fewest: int = 2) -> dict[str, dict[str, torch.Tensor]]:
    """The outcome of every case, trained in float64. With at least `fewest` states, normalisers are computed in
    stripes, and state embeddings are divided."""
    torch.set_num_threads(1)
    patches = [(fit, "by_steps", functools.partial(fit.by_steps, build=in_float64))]
    patches += [(softmax, "LARGEST_MATRIX", 0), (stripes, "FEWEST", fewest)]
    patches += [(hmm, "FEW", 0.5)]
    with contextlib.ExitStack() as stack:
        for patch in patches:
            stack.enter_context(mock.patch.object(*patch))
        return {name: outcome(trellis.train(TEXT, **SHORT | options)) for name, options in cases.items()}


def outcome(trained: trellis.Trained) -> dict[str, torch.Tensor]:
    """The parameters, the number of dropout samples, and the last validation perplexity."""
    model: Any = trained.model
    valid = torch.tensor(trained.history[-1]["valid_ppl"], dtype=torch.float64)
    return dict(model.params.state_dict()) | {"draws": model.dropout.draws, "valid": valid}


@pytest.fixture(scope="module")
def alone() -> dict[str, dict[str, torch.Tensor]]:
    [found] = together(1, train_all)
    return found


@pytest.mark.parametrize("size", [2, 3])
def test_parameters_do_not_depend_on_the_number_of_processes(size: int, alone: dict) -> None:
    for found in together(size, train_all):
        assert not isinstance(found, BaseException), repr(found)
        for name, wanted in alone.items():
            allowed = EXACT if "em" in name else ROUNDING
            for key, value in wanted.items():
                assert torch.allclose(found[name][key], value, rtol=allowed, atol=allowed), (name, key)


def test_no_sum_is_part_of_a_cuda_graph(alone: dict) -> None:
    """With pretended graphs: gradients are summed after the graph, and a step with other sums is not captured. Without
    such sums, the states that a replay keeps are those of this step."""
    runs = [("gradient", 2), ("neural, state dropout", 1000), ("neural, state dropout", 2)]
    begin_sum = distributed.begin_sum

    def train() -> tuple[list[tuple[str, dict[str, torch.Tensor]]], list[int]]:
        graphs: list[Graphed] = []

        def replayed(self: Graphed, given: dict, choice: Any, steady: bool) -> dict:
            return self.repeat(given, choice) if steady else self.work(given, choice)

        def capture(self: Graphed, given: dict, choice: Any) -> Captured:
            graphs.append(self)
            given, made = {name: value.clone() for name, value in given.items()}, {}

            def replay() -> None:
                self.capturing = True
                made.update(self.work(given, choice))
                self.capturing = False
                gradients = self.work.__self__.gradients  # those of the graph captured last: a replay runs no Python
                gradients.touched = {weight: rows[:1] for weight, rows in gradients.touched.items()}

            return Captured(mock.Mock(replay=replay), given, made)

        def sum_outside(tensor: torch.Tensor) -> Any:
            assert not any(graph.capturing for graph in graphs)
            return begin_sum(tensor)

        with (
            mock.patch.object(Graphed, "__call__", replayed),
            mock.patch.object(Graphed, "capture", capture),
            mock.patch.object(sums, "begin_sum", sum_outside),
            mock.patch.object(distributed, "begin_sum", sum_outside),
        ):
            found, captured = [], []
            for name, fewest in runs:
                found.append((name, train_all({name: CASES[name]}, fewest)[name]))
                captured.append(len(graphs))
            return found, captured

    for found, (first, second, last) in together(2, train):
        assert 0 < first < second == last
        for name, values in found:
            for key, value in alone[name].items():
                assert torch.allclose(values[key], value, rtol=ROUNDING, atol=ROUNDING), (name, key)


def test_each_process_has_its_own_rows_of_every_batch() -> None:
    split = trellis.read_corpus(TEXT)["train"]
    orders = {
        "streams": lambda: Streams(split, 7, 9),
        "sentences": lambda: Sentences(split, 20),
        "documents": lambda: Documents(split, 7, 9),
    }

    def read() -> dict[str, list]:
        return {name: list(make().share()) for name, make in orders.items()}

    found = together(3, read)
    for name, make in orders.items():
        for whole, *parts in zip(make(), *(one[name] for one in found), strict=True):
            rows = [row[:n].tolist() for part in parts if not part.idle for row, n in zip(*part[:2], strict=True)]
            assert rows == [row[:n].tolist() for row, n in zip(*whole[:2], strict=True)]
            assert {part.num_tokens for part in parts} == {whole.num_tokens}
            assert {part[3:5] for part in parts} == {whole[3:5]}
    assert any(part.idle for part in found[2]["sentences"])


def test_validation_is_divided(monkeypatch: pytest.MonkeyPatch) -> None:
    corpus = trellis.read_corpus(TEXT)
    one_document = corpus["train"]._replace(documents=corpus["train"].documents[[0, -1]])
    model = trellis.train(TEXT, **SHORT | CASES["em, streams"]).model
    monkeypatch.setattr(lm, "WINDOW", 64)
    orders = dict(lm.READINGS) | {"streams": lambda split: Streams(split, 1, lm.WINDOW)}
    monkeypatch.setattr(lm, "READINGS", orders)
    cases = [(order, split) for order in orders for split in (corpus["train"], one_document)]
    wanted = [lm.evaluate(model, orders[order](split)) for order, split in cases]

    def measure() -> list[lm.Evaluation]:
        return [lm.evaluate_together(model, *case) for case in cases]

    for found in together(3, measure):
        for one, whole in zip(found, wanted, strict=True):
            assert one.tokens == whole.tokens
            assert one.log_likelihood == pytest.approx(whole.log_likelihood, rel=1e-6)


def test_only_touched_rows_are_sent() -> None:
    def add() -> tuple[torch.Tensor, int, torch.Tensor, int]:
        few, many = torch.zeros(1000, 5), torch.zeros(1000, 5)
        few[distributed.rank() :: 97], many[distributed.rank() :] = 1.0, 2.0
        start = distributed.bytes_sent()
        few, after_few = distributed.add_up_rows(few), distributed.bytes_sent()
        return few, after_few - start, distributed.add_up_rows(many), distributed.bytes_sent() - after_few

    wanted_few, wanted_many = torch.zeros(1000, 5), torch.full((1000, 5), 4.0)
    wanted_few[::97] += 1
    wanted_few[1::97] += 1
    wanted_many[0] = 2.0
    for few, sent_few, many, sent_many in together(2, add):
        assert torch.equal(few, wanted_few)
        assert torch.equal(many, wanted_many)
        assert sent_few < 2000 < 20_000 <= sent_many


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"states": 2, "lanes": 1, "order": "streams"}, "processes need at least 2 lanes"),
        ({"family": "lds", "dim": 2}, "runs in one process"),
        ({"family": "crf"}, "runs in one process"),
        ({"family": "fhmm", "layers": 2, "states": 2, "learner": "stepwise-em"}, "runs in one process"),
    ],
)
def test_what_cannot_run_together_says_so(options: dict, message: str) -> None:
    text = TAGGED if options.get("family") == "crf" else TEXT
    found = together(2, lambda: trellis.train(text, device="cpu", **options))
    assert all(isinstance(one, TrellisError) and message in str(one) for one in found)


def test_the_first_process_chooses_alone() -> None:
    """It measures training steps, in whose sums the others take no part: they wait for the choice."""

    def choose() -> tuple[float, bool]:
        summed = distributed.from_first(lambda: float(distributed.add_up(torch.ones(()))))
        return summed, distributed.is_joined()

    assert together(2, choose, 20) == [(1.0, True)] * 2
    options = {"learner": "stepwise-em", "epochs": 1, "device": "cpu", "ngram": 0}
    found = together(2, lambda: trellis.train(TEXT, **options).model.num_states, 60)
    assert found[0] == found[1] > 1


def test_one_process_needs_no_connection() -> None:
    assert (distributed.rank(), distributed.size(), distributed.is_joined()) == (0, 1, False)
    assert distributed.largest(1.0, 2.0) == (1.0, 2.0)
    assert distributed.from_first(lambda: 3) == 3
    assert distributed.share_of(7) == slice(0, 7)


def test_row_normalisers_in_stripes_equal_those_of_one_process() -> None:
    """Each process has a loss of its own rows; the sum of their gradients is that of one process."""
    generator = torch.Generator().manual_seed(0)
    values = [torch.randn(11, 4, generator=generator, dtype=torch.float64) for _ in range(2)]
    weights = torch.rand(3, 11, generator=generator, dtype=torch.float64)

    def gradients(*own: torch.Tensor) -> list[torch.Tensor]:
        queries, keys = (value.clone().requires_grad_() for value in values)
        norms = Softmax(queries, keys).log_norm
        (norms * sum(own)).sum().backward()
        return [norms.detach(), queries.grad, keys.grad]

    def shared() -> tuple[list[torch.Tensor], int]:
        with mock.patch.object(stripes, "FEWEST", 2), distributed.stepping():
            norms, *found = gradients(weights[distributed.rank()])
        return [norms, *(distributed.add_up(grad) for grad in found)], distributed.bytes_sent()

    [wanted] = together(1, lambda: gradients(*weights))
    for found, sent in together(3, shared):
        assert sent > 0
        for one, other in zip(found, wanted, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


def test_other_families_run_together() -> None:
    given = {"epochs": 1, "device": "cpu"}
    streams = {"lanes": 4, "window": 8, "ngram": 0}
    networks = streams | {"dim": 4, "net_dropout": 0.0}
    grammar = {"nonterminals": 3, "preterminals": 4, "tokens": 90, "ngram": 0}

    def train() -> list[dict[str, torch.Tensor]]:
        torch.set_num_threads(1)
        models = [
            trellis.train(TEXT, family="lstm", **given | networks).model,
            trellis.train(TEXT, family="feedforward", **given | networks).model,
            trellis.train(TEXT, family="rnn", **given | networks).model,
            trellis.train(TEXT, family="fhmm", layers=2, states=2, learner="gradient", **given | streams).model,
            trellis.train(TEXT, family="pcfg", dim=4, learner="gradient", **given | grammar).model,
            trellis.train(TEXT, family="pcfg", params="table", learner="em", **given | grammar).model,
            trellis.train(TAGGED, family="hmm-tagger", states=6, learner="em", **given).model,
        ]
        return [model.state_dict() for model in models]

    [alone] = together(1, train)
    for found in together(2, train):
        for one, other in zip(found, alone, strict=True):
            assert all(torch.allclose(one[name], value, rtol=1e-3, atol=1e-4) for name, value in other.items())
