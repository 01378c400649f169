"""Commands on a GPU (pretended here) say what they say on the CPU."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from elsewhere import THERE, pretended_gpu
from running import parsed, run
from trellis.devices import choose_device
from trellis.distributed.job import Job
from trellis.errors import TrellisError
from trellis.families.hmm.model import HMM
from trellis.families.hmm.sections import sections
from trellis.models.base import LanguageModel
from trellis.models.files import load

CLOSE = 1e-5
NEURAL = ["model.dim=8", "train.learner=gradient", "train.epochs=2"]
FAMILIES = {  # and what to set
    "dense": ("hmm", ["model.states=4", "train.learner=em"]),
    "softmax": ("hmm", ["model.states=8", "model.params=neural", *NEURAL]),
    "brown": ("hmm", ["model.states=8", "model.params=neural", "model.emission=brown", "model.classes=4", *NEURAL]),
    "lowrank": ("hmm", ["model.states=8", "model.params=lowrank", "model.features=4", *NEURAL]),
    "ngram": ("ngram", ["batches.order=sentences"]),
    "lstm": ("lstm", NEURAL),
    "fhmm": ("fhmm", ["model.layers=2", "model.states=3", "batches.order=sentences"]),
    "lds": ("lds", ["model.dim=4"]),
    "pcfg": ("pcfg", ["model.nonterminals=3", "model.preterminals=4", "model.dim=8", "train.epochs=2"]),
}
PARSE = ["parse", "parse --method viterbi", "parse --method sample"]
COMMANDS = {
    "eval": [],
    "sample": ["-n", "3"],
    "score": ["the cat sees the dog", "a dog runs"],
    "score --tokens": ["the cat sees the dog"],
    "infill": ["the ___ sees the dog"],
    "embed": ["the cat sees the dog"],
    "generate": ["--contains", "dog", "--words", "2..6", "-n", "3"],
    "generate --best": ["--template", "the ___ sees the ___"],
    **{command: ["the cat sees the dog", "a dog runs"] for command in PARSE},
    "states": [],
    "states --measures": [],
}
ASKS = {
    "ngram": ["eval", "sample", "score"],
    "lstm": ["eval", "sample", "score --tokens"],  # torch packs sequences of several lengths on a real GPU alone
    "fhmm": ["eval", "sample", "score", "embed"],
    "lds": ["embed"],
    "pcfg": ["eval", "sample", "score", "infill", "embed", *PARSE],
}


def said(capsys: pytest.CaptureFixture[str], command: str, *words: object) -> object:
    assert run(*command.split(), *words, "--json", "--quiet") == 0, capsys.readouterr().err
    return parsed(capsys.readouterr().out, *command.split(), *words)


def assert_alike(ours: object, theirs: object) -> None:
    """The same JSON, but for the last digits of its numbers."""
    if isinstance(theirs, dict):
        assert isinstance(ours, dict)
        assert ours.keys() == theirs.keys()
        ours, theirs = list(ours.values()), list(theirs.values())
    if isinstance(theirs, list):
        assert isinstance(ours, list)
        assert len(ours) == len(theirs)
        for one, other in zip(ours, theirs, strict=True):
            assert_alike(one, other)
    else:
        assert ours == (pytest.approx(theirs, rel=CLOSE, abs=CLOSE) if isinstance(theirs, float) else theirs)


@pytest.fixture
def model(request: pytest.FixtureRequest, text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    """A run of the family that the test names."""
    family, settings = FAMILIES[request.param]
    given = ["--run", tmp_path / "run", "--device", "cpu", *(word for one in settings for word in ("--set", one))]
    assert run("train", "--data", text, "--model", family, "--quiet", *given) == 0
    capsys.readouterr()
    return tmp_path / "run"


@pytest.mark.parametrize(("model", "family"), [(name, name) for name in FAMILIES], indirect=["model"])
def test_commands_answer_alike(model: Path, family: str, capsys: pytest.CaptureFixture[str]) -> None:
    for command in ASKS.get(family, [name for name in COMMANDS if name not in PARSE]):
        here = said(capsys, command, model, *COMMANDS[command], "--device", "cpu")
        with pretended_gpu():
            assert load(model, device="cuda").device.type == THERE.type
            assert_alike(said(capsys, command, model, *COMMANDS[command]), here)


@pytest.mark.parametrize("model", [name for name, (family, _) in FAMILIES.items() if family == "hmm"], indirect=True)
def test_reports_are_alike(model: Path) -> None:
    here = pages(load(model))
    with pretended_gpu():
        assert pages(load(model, device="cuda")) == here


def pages(model: LanguageModel) -> list[str]:
    assert isinstance(model, HMM)
    return [*map(str, sections(model))]


@pytest.mark.parametrize("model", ["dense"], indirect=True)
def test_a_device_that_is_not_there(
    model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for device, sentence in (("cuda", "torch finds no GPU"), ("gpu", "use auto, cpu or cuda")):
        assert run("sample", model, "--device", device) == 2
        assert sentence in capsys.readouterr().err
    assert load(model, device="auto").device.type == load(model, device=torch.device("cpu")).device.type == "cpu"


def test_a_gpu_beyond_the_last() -> None:
    with pretended_gpu(), pytest.raises(TrellisError, match="from cuda:0"):
        choose_device("cuda:1")


@pytest.mark.parametrize("device", ["auto", "cuda", "cuda:1"])
def test_the_gpu_of_a_process_becomes_the_current_one(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if the program itself has connected the processes, without choosing a GPU."""
    monkeypatch.setattr(Job, "size", 2)
    monkeypatch.setenv("LOCAL_RANK", "1")
    with pretended_gpu():
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
        assert choose_device(device) == "cuda:1"
        torch.cuda.set_device.assert_called_once_with("cuda:1")  # type: ignore[attr-defined]
        assert choose_device("cpu") == "cpu"


def test_the_pretended_gpu_is_strict() -> None:
    with pretended_gpu():
        there = torch.arange(3, device="cuda")
        assert there.device == THERE
        assert (there + 1).cpu().numpy().tolist() == [1, 2, 3]
        with pytest.raises(RuntimeError, match="two devices"):
            there + torch.ones(3)
        with pytest.raises(TypeError, match="NumPy"):
            there.numpy()
