"""Model files that were written to do harm: one sentence, before memory is allocated."""

from __future__ import annotations

import json
import resource
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import trellis
from corpora import SUPPORTS, hmm, split, vocabulary
from trellis.emissions import Partition
from trellis.errors import TrellisError
from trellis.families.hmm.config import HMMConfig
from trellis.families.hmm.model import HMM
from trellis.families.hmm.parameters import TableParams
from trellis.families.hmm.parameters.lowrank import LowRankParams, LowRankTable
from trellis.families.hmm.parameters.neural import NeuralParams
from trellis.families.neural.feedforward import FeedForward
from trellis.families.neural.rnn import LSTM, RNN
from trellis.families.ngram.model import NGram
from trellis.models.files import FILE, load, save_model
from trellis.storage import load_tensors, read_metadata, save_tensors

MOST = 64 << 10  # KiB that a rejected file may allocate
TAGGED = [[("the", "D"), ("cat", "N")], [("a", "D"), ("dog", "N")]] * 20
LINES = ["the cat sees a dog", "a dog sees the cat", "the dog"] * 10


def neural(kind: type[NeuralParams], support: Any = None, **options: Any) -> HMM:
    words = vocabulary().words
    emission = "cloned" if isinstance(support, Partition) else "full"
    config = HMMConfig(states=9, dim=4, params=kind.kind, emission=emission, **options)
    return HMM(vocabulary(), kind(words, config, support)).eval()


MODELS: dict[str, Callable[[], Any]] = {
    "hmm": hmm,
    "support": lambda: HMM(vocabulary(), TableParams(9, 7, SUPPORTS["sets"])),
    "partition": lambda: HMM(vocabulary(), TableParams(9, 7, SUPPORTS["uneven"])),
    "lowrank-table": lambda: HMM(vocabulary(), LowRankTable(9, 7, features=4, band=2)),
    "neural": lambda: neural(NeuralParams, spelling=True),
    "factored": lambda: neural(NeuralParams, SUPPORTS["uneven"], factored=True),
    "lowrank": lambda: neural(LowRankParams, band=2, features=4),
    "taylor": lambda: neural(LowRankParams, features=20, feature_map="taylor"),
    "fhmm": lambda: trellis.train(LINES, family="fhmm", layers=2, states=3, epochs=1).model,
    "ngram": lambda: NGram.fit(vocabulary(), split(), 3),
    "feedforward": lambda: FeedForward(vocabulary(), 4, window=2, hidden=3),
    "lstm": lambda: LSTM(vocabulary(), 4),
    "rnn": lambda: RNN(vocabulary(), 4),
    "lds": lambda: trellis.train(LINES, family="lds", dim=2).model,
    "hmm-tagger": lambda: trellis.train(TAGGED, family="hmm-tagger", states=4, epochs=1).model,
    "crf": lambda: trellis.train(TAGGED, family="crf").model,
}


class Contents:
    """The contents of a model file, to be changed."""

    def __init__(self, file: Path) -> None:
        self.file, self.header, self.tensors = file, read_metadata(file), load_tensors(file)
        self.settings, self.vocab, self.about = (json.loads(self.header[key]) for key in ("settings", "vocab", "about"))

    def write(self) -> None:
        """Write the file again, with a valid checksum."""
        changed = {key: json.dumps(getattr(self, key)) for key in ("settings", "vocab", "about")}
        save_tensors(self.file, self.tensors, self.header | changed)


@pytest.fixture(scope="module", params=MODELS)
def original(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp(request.param) / FILE
    save_model(file, MODELS[request.param](), {})
    return file


@pytest.fixture(scope="module")
def lds() -> Any:
    return MODELS["lds"]()


@pytest.fixture
def contents(original: Path, tmp_path: Path) -> Contents:
    (tmp_path / FILE).write_bytes(original.read_bytes())
    return Contents(tmp_path / FILE)


def rejected(contents: Contents, match: str = "is damaged|must be|model\\.|at least one layer") -> str:
    """The message about the changed file, which may allocate little memory."""
    contents.write()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(TrellisError, match=match) as caught:
        load(contents.file)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < MOST
    return str(caught.value)


def sizes(settings: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The places of all integers in the settings that determine the shape of a tensor."""
    inner = settings.items() if isinstance(settings, dict) else enumerate(settings)
    for key, value in inner if isinstance(settings, dict | list) else ():
        if type(value) is int and key not in ("min_count", "config"):
            yield (*path, key)
        elif isinstance(value, dict | list) and key != "config":
            yield from sizes(value, (*path, key))


def put(settings: Any, path: tuple[Any, ...], value: Any) -> None:
    for key in path[:-1]:
        settings = settings[key]
    settings[path[-1]] = value


@pytest.mark.parametrize(
    "size", [0, -1, 12_345, 10**9, 2**63, 10**400, 1e300, float("inf"), float("nan"), "many", [], {}]
)
def test_no_size_is_trusted(contents: Contents, size: Any) -> None:
    for path in list(sizes(contents.settings)):
        fresh = Contents(contents.file)
        saved = json.dumps(fresh.settings)
        put(fresh.settings, path, size)
        if path[-1] in ("band", "hidden", "dim") and size == 0 and "0" in str(json.loads(saved)):
            continue  # a size of zero may be what it was
        rejected(fresh)
        fresh.settings = json.loads(saved)
        fresh.write()
    load(contents.file)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_every_number_is_finite(contents: Contents, value: float) -> None:
    floating = [name for name, tensor in contents.tensors.items() if tensor.is_floating_point() and tensor.numel()]
    for name in floating:
        if (name, value) == ("log_probs", -float("inf")):
            continue  # a probability of zero
        old = contents.tensors[name]
        contents.tensors[name] = old.clone().index_put_(
            tuple(torch.zeros(old.dim(), dtype=torch.int64)), old.new_tensor(value)
        )
        rejected(contents, "is damaged")
        contents.tensors[name] = old


def test_every_index_is_in_range(contents: Contents) -> None:
    for name, old in contents.tensors.items():
        if not old.is_floating_point() and name not in ("names", "counts", "tagged"):
            for value in (-2, 10_000, torch.iinfo(old.dtype).max):
                contents.tensors[name] = old.clone()
                contents.tensors[name].view(-1)[-1] = value
                rejected(contents, "is damaged")
            contents.tensors[name] = old


def test_every_tensor_is_needed_and_has_its_shape_and_type(contents: Contents) -> None:
    originals = contents.tensors
    for name, old in originals.items():
        rest = {key: value for key, value in originals.items() if key != name}
        changed: list[Tensor] = [old.unsqueeze(0), torch.cat([old, old]), old[: len(old) // 2]]
        changed += [old.long()] if old.is_floating_point() else [old.double()] * (name not in ("counts", "tagged"))
        cases = [{**rest, name: one} for one in changed if one.shape != old.shape or one.dtype != old.dtype]
        for contents.tensors in [*cases, *[rest] * (name not in ("variance", "tagged", "support"))]:
            rejected(contents, "is damaged|needs classes")
    contents.tensors = originals | {"more": torch.zeros(3)}
    rejected(contents, "is damaged")


def test_no_word_is_repeated(contents: Contents) -> None:
    words = contents.vocab["words"]
    some = [i for i, word in enumerate(words) if not word.startswith("<")]
    words[some[1]] = words[some[0]]
    rejected(contents, "not distinct strings")


@pytest.mark.parametrize("words", [["a", "a"], [1, 2], [None, "x"], [["a"], "b"]])
def test_the_vocabulary_is_distinct_strings(contents: Contents, words: Any) -> None:
    contents.vocab["words"] = [*words, *contents.vocab["words"][2:]]
    rejected(contents, "is damaged")


@pytest.mark.parametrize("count", [-1, 0.5, "1", None, 2**64])
def test_counts_of_words_are_integers(contents: Contents, count: Any) -> None:
    contents.vocab["counts"][0] = count
    rejected(contents, "is damaged")


@pytest.mark.parametrize("about", [[], "x", {"data": []}, {"corpus": 3}, {"scores": "x"}, {"order": {}}])
def test_metadata_have_their_types(contents: Contents, about: Any) -> None:
    contents.about = about
    rejected(contents, "metadata")


def test_a_model_without_a_checksum_is_rejected(contents: Contents) -> None:
    data = contents.file.read_bytes()
    contents.file.write_bytes(data.replace(b'"crc32"', b'"crc33"'))
    with pytest.raises(TrellisError, match="it has no checksum"):
        load(contents.file)


def test_weights_of_features_out_of_order(tmp_path: Path) -> None:
    save_model(tmp_path / FILE, MODELS["crf"](), {})
    contents = Contents(tmp_path / FILE)
    first = contents.tensors["first"]
    first[1], first[2] = int(first[2]) + 1, int(first[1])
    rejected(contents, "do not match the labels")


def test_a_tagger_names_its_template(tmp_path: Path) -> None:
    save_model(tmp_path / FILE, MODELS["crf"](), {})
    contents = Contents(tmp_path / FILE)
    contents.settings["config"]["template"] = ""  # valid in a configuration, which leaves the choice to the training
    rejected(contents, "no feature template")


@pytest.mark.parametrize("value", [None, -1, -0.5, True, "1", [1]])
@pytest.mark.parametrize("name", ["pseudocount", "prior"])
def test_pseudocounts_are_numbers(tmp_path: Path, lds: Any, name: str, value: Any) -> None:
    save_model(tmp_path / FILE, lds, {})
    contents = Contents(tmp_path / FILE)
    contents.settings[name] = value
    rejected(contents, "not numbers of at least zero")


def test_probabilities_above_one(tmp_path: Path) -> None:
    model = MODELS["ngram"]()
    for name, change in (("log_probs", 0.1), ("log_probs", -1e-3), ("backoffs", 3.0)):
        save_model(tmp_path / FILE, model, {})
        contents = Contents(tmp_path / FILE)
        contents.tensors[name] = torch.full_like(contents.tensors[name], change)
        rejected(contents, "above zero|sum to")


def test_long_run_distributions_are_normalised(tmp_path: Path) -> None:
    model = neural(NeuralParams)
    model.visits, model.ending = torch.full((9,), 1 / 9), torch.full((9,), 1 / 9)
    save_model(tmp_path / FILE, model, {})
    load(tmp_path)
    for change in (torch.full((9,), 0.5), torch.tensor([2.0, -1.0] + [0.0] * 7), torch.full((3,), 1 / 3)):
        for name in ("visits", "ending"):
            contents = Contents(tmp_path / FILE)
            old = contents.tensors[f"settled.{name}"]
            contents.tensors[f"settled.{name}"] = change
            rejected(contents, "distribution")
            contents.tensors[f"settled.{name}"] = old
            contents.write()


def test_the_classes_of_a_partition_do_not_allocate_states(tmp_path: Path) -> None:
    save_model(tmp_path / FILE, MODELS["partition"](), {})
    contents = Contents(tmp_path / FILE)
    contents.tensors["partition.sizes"][0] = 10**9
    rejected(contents, "partition.sizes")
    contents.tensors["partition.sizes"] = torch.ones(10**6, dtype=torch.int64)
    rejected(contents, "partition.sizes")
