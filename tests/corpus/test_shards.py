"""Shards: every token once per epoch, in a new order, resumable anywhere, and the same as one text if there is one."""

from __future__ import annotations

import gzip
import os
import signal
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch

import trellis
from trellis.corpus import shards
from trellis.corpus.recipe import Recipe
from trellis.corpus.shards import Shards, count_tokens, open_shards
from trellis.errors import TrellisError
from trellis.learning.em import EMLearner
from trellis.storage import load_tensors
from trellis.training.checkpoint import LAST, read_details

WORDS = ["the", "a", "dog", "cat", "man", "sees", "runs", "sleeps", "red", "big"]
LANES, WINDOW = 3, 5


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Four shards of different lengths, two of them compressed."""
    made = tmp_path / "shards"
    made.mkdir()
    for number in range(4):
        random = np.random.default_rng(number)
        text = "".join(" ".join(random.choice(WORDS, 1 + n % 7)) + "\n" for n in range(20 + 7 * number)).encode()
        name = made / f"part-{number}.txt{'.gz' * (number % 2)}"
        name.write_bytes(gzip.compress(text) if number % 2 else text)
    return made


@pytest.fixture
def vocab() -> trellis.corpus.Vocabulary:
    return trellis.read_corpus([" ".join(WORDS)] * 30).vocab


def shards_of(folder: Path, vocab: trellis.corpus.Vocabulary) -> Shards:
    return open_shards(str(folder), vocab, Recipe(), LANES, WINDOW, seed=1, cache=folder.parent / "cache")


def rows(batch) -> list[list[int]]:
    return [row[:n].tolist() for row, n in zip(batch.tokens, batch.lengths, strict=True)]


def test_an_epoch_has_every_token_once_in_a_new_order(folder: Path, vocab) -> None:
    batches = shards_of(folder, vocab)
    text = [word for path in sorted(folder.iterdir()) for word in lines(path)]
    epochs = [[rows(batch) for batch in batches] for _ in range(2)]
    for epoch in epochs:
        assert len(epoch) == len(batches)
        assert Counter(t for batch in epoch for row in batch for t in row) == Counter(vocab.encode(text).tolist())
    windows = [sorted(row for batch in epoch for row in batch) for epoch in epochs]
    assert windows[0] != windows[1]  # they begin at other places
    assert batches.tokens == len(text)


def lines(path: Path) -> list[str]:
    data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    return [word for line in data.decode().splitlines() for word in (*line.split(), "<eos>")]


def test_rows_continue_within_a_shard_and_are_fresh_at_its_begin(folder: Path, vocab) -> None:
    batches = shards_of(folder, vocab)
    fresh = [bool(batch.all_fresh) for batch in batches]
    assert sum(fresh) == 4
    batches.epoch = 0
    assert [batches._place(position)[1] == 0 for position in range(len(batches))] == fresh


def test_resuming_within_a_shard(folder: Path, vocab) -> None:
    wanted = [rows(batch) for batch in shards_of(folder, vocab)]
    for stop in (1, 4, len(wanted) - 1):
        first = shards_of(folder, vocab)
        seen = [rows(batch) for batch, _ in zip(first, range(stop), strict=False)]
        later = shards_of(folder, vocab)
        later.restore({"epoch": 0, "position": stop})
        assert [*seen, *map(rows, later)] == wanted


def test_counts_are_kept_until_a_file_changes(folder: Path, tmp_path: Path) -> None:
    paths = sorted(folder.iterdir())
    sizes = count_tokens(paths, Recipe(), tmp_path / "cache")
    paths[0].write_text("the dog\n")
    again = count_tokens(paths, Recipe(), tmp_path / "cache")
    assert again == [3, *sizes[1:]]


def test_a_shard_that_is_too_short_or_missing_says_so(folder: Path, vocab) -> None:
    (folder / "part-9.txt").write_text("a\n")
    with pytest.raises(TrellisError, match="too few for 3 lanes"):
        shards_of(folder, vocab)
    with pytest.raises(TrellisError, match="there is no file or folder"):
        shards_of(folder / "none", vocab)


def test_what_cannot_read_shards_says_so(folder: Path) -> None:
    with pytest.raises(TrellisError, match="does not read shards"):
        trellis.train(["a b"] * 40, family="bigram", shards=str(folder))
    with pytest.raises(TrellisError, match=r"batches\.order"):
        trellis.train(["a b"] * 40, states=2, shards=str(folder), order="sentences")


def test_training_on_shards(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "held.txt").write_text("".join(" ".join(WORDS[n % 8 :]) + "\n" for n in range(60)))
    given = {"states": 2, "epochs": 2, "lanes": LANES, "window": WINDOW, "ngram": 0, "device": "cpu"}
    trained = trellis.train(str(tmp_path / "held.txt"), shards=str(folder / "part-*"), **given)
    tokens = sum(count_tokens(sorted(folder.iterdir()), Recipe()))
    assert trained.training["tokens"] == 2 * tokens
    assert torch.isfinite(torch.tensor([line["valid_ppl"] for line in trained.history if line["valid_ppl"]])).all()


def test_a_run_killed_within_a_shard_resumes_to_the_same_bits(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "held.txt").write_text("".join(" ".join(WORDS[n % 8 :]) + "\n" for n in range(60)))
    given = {"states": 2, "epochs": 2, "lanes": LANES, "window": WINDOW, "ngram": 0, "device": "cpu", "resume": True}
    given |= {"learner": "stepwise-em", "checkpoint_steps": 3, "shards": str(folder), "order": "streams"}
    step, killed_at = EMLearner.step, 17

    def step_or_die(self, batch):
        if self.steps == killed_at:
            os.kill(os.getpid(), signal.SIGKILL)
        return step(self, batch)

    def train(name: str) -> dict[str, torch.Tensor]:
        trellis.train(str(tmp_path / "held.txt"), run=tmp_path / name, **given)
        return load_tensors(tmp_path / name / LAST)

    wanted = train("whole")
    if not (child := os.fork()):
        EMLearner.step = step_or_die  # type: ignore[method-assign]
        train("killed")
        os._exit(0)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
    place = read_details(tmp_path / "killed" / LAST)["batches"]
    corpus = trellis.read_corpus(str(tmp_path / "held.txt"))
    batches = open_shards(str(folder), corpus.vocab, corpus.recipe, LANES, WINDOW, cache=tmp_path / "cache")
    batches.restore(place)
    assert place["position"] == killed_at - killed_at % 3
    assert batches._place(place["position"])[1] > 0
    found = train("killed")
    assert found.keys() == wanted.keys()
    assert all(torch.equal(found[name], value) for name, value in wanted.items())


def test_a_shard_that_has_changed_since_it_was_counted_says_so(folder: Path, vocab) -> None:
    batches = shards_of(folder, vocab)
    with (folder / "part-2.txt").open("a") as file:
        file.write(WORDS[0] + "\n")
    with pytest.raises(TrellisError, match=r"part-2\.txt has changed: it had \d+ tokens and now has \d+"):
        list(batches)


def test_files_are_counted_once(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = sorted(folder.iterdir())
    found = count_tokens(paths, Recipe(), tmp_path)
    monkeypatch.setattr(shards, "tokens_of_file", None)
    assert count_tokens(paths, Recipe(), tmp_path) == found
