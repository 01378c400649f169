"""Tagging experiments on toy data: from labelled and unlabelled text to a result."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import torch

from corpora import vocabulary
from experiments.experiment import HERE, read_experiment
from experiments.paper import Job, Outcome
from experiments.tagging import representations, taggers
from experiments.tagging.config import TaggingRun
from experiments.tagging.representations import REPRESENTATIONS, begins, wikitext
from trellis.corpus.tagged import Tagged
from trellis.families.crf.config import CRFTaggerConfig
from trellis.families.crf.tagger import CRFTagger
from trellis.families.factorial.model import FHMM
from trellis.models.files import FILE, save_model

TOY = Tagged(
    [["the", "dog", "sees", "and", "hears"], ["a", "cat", "barks"]] * 3,
    [["D", "N", "V", "C", "V"], ["D", "N", "V"]] * 3,
)


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (taggers, representations):
        monkeypatch.setattr(module, "load_tagged", lambda name, split: TOY)
    monkeypatch.setattr(representations, "TEXTS", {"toy": (("toy", "train"),)})
    recipe = partial(representations.learn_brown, 4)
    monkeypatch.setitem(representations.LEARNED, "brown-1000", recipe)


def run(config: TaggingRun, name: str, folder: Path) -> Outcome:
    return taggers.run_tagging(Job(name, config, folder, False, {}, lambda other: None))


@pytest.mark.usefixtures("toy")
def test_a_run_learns_its_representations_and_is_compared(tmp_path: Path) -> None:
    first = run(TaggingRun(l2=0.01, text="toy"), "first", tmp_path)
    assert first.figures["test_all_f1"] == 100.0
    assert first.figures["test_oov_units"] == 0
    config = TaggingRun(l2=0.01, text="toy", representations="brown-1000", base="first", rivals="third other")
    (tmp_path / "third.0.json").write_text((tmp_path / "first.0.json").read_text())
    second = run(config, "second", tmp_path)
    assert (tmp_path / "toy-brown-1000" / "paths.txt").exists()
    assert second.figures["binomial_p"] == second.figures["p_third"] == 1.0
    assert "p_other" not in second.figures
    assert (second.figures["attributes"] or 0) > (first.figures["attributes"] or 0)


@pytest.mark.usefixtures("toy")
def test_a_layer_that_is_hardly_used_is_seen(tmp_path: Path) -> None:
    model = FHMM.new(vocabulary(), (4, 3))
    with torch.no_grad():
        model.params.starts[1].copy_(torch.tensor([50.0, 0.0, 0.0]))
        model.params.transitions[1].copy_(torch.tensor([[50.0, 0.0, 0.0]] * 3))
    save_model(tmp_path / "fhmm" / FILE, model)
    config = CRFTaggerConfig(representations=f"fhmm-posterior:{tmp_path / 'fhmm'}")
    use = taggers.layer_use(CRFTagger.train(TOY, config), TOY.words)
    assert use["least_used"] == pytest.approx(1, abs=1e-3)
    assert 1.2 < (use["most_used"] or 0) <= 4
    assert taggers.layer_use(CRFTagger.train(TOY), TOY.words) == {}


def test_wikitext_becomes_sentences(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "wikitext-2"
    folder.mkdir()
    (folder / "train.txt").write_text(' = Title = \n \n A 1 @.@ 5 m one . It ran . " Yes " said Dr . who \n')
    monkeypatch.setenv("TRELLIS_DATA", str(tmp_path))
    assert list(wikitext()) == ["A 1 . 5 m one .", "It ran .", '" Yes " said Dr . who']
    assert not begins("who")


def test_every_run_names_what_there_is() -> None:
    experiment = read_experiment(HERE / "tagging")
    configs = {run: config for run, config in experiment.configs.items() if isinstance(config, TaggingRun)}
    assert len(configs) > 30
    for run, config in configs.items():
        assert set(config.representations.split()) <= set(REPRESENTATIONS), run
        assert {config.base, *config.rivals.split()} - {""} <= set(configs), run
