"""ARPA files: the same model comes back, KenLM agrees, and a malformed file is told by its line."""

from __future__ import annotations

import gzip
import math
import os
from pathlib import Path

import numpy as np
import pytest
import torch

import trellis
from corpora import split, vocabulary
from trellis.config import DataConfig
from trellis.corpus import Corpus, Split, Vocabulary, load_corpus
from trellis.errors import TrellisError
from trellis.families.ngram.arpa import read_arpa, write_arpa
from trellis.families.ngram.model import NGram
from trellis.models.files import load

ROUND_TRIP = 1e-6
KENLM = 1e-4  # log10
GOOD = """\\data\\
ngram 1=4
ngram 2=3

\\1-grams:
-1.0\t<unk>
-99\t<s>\t-0.5
-0.5\t</s>
-0.3010\tcat\t-0.25

\\2-grams:
-0.2\t<s> cat
-0.4\tcat cat
-0.6\tcat </s>

\\end\\
"""


@pytest.mark.parametrize("order", [1, 2, 4])
@pytest.mark.parametrize("crossing", [False, True])
@pytest.mark.parametrize("name", ["m.arpa", "m.arpa.gz"])
def test_round_trip(order: int, crossing: bool, name: str, tmp_path: Path) -> None:
    model = NGram.fit(vocabulary(), split(), order, crossing)
    write_arpa(model, tmp_path / name)
    again = trellis.load(tmp_path / name)
    assert isinstance(again, NGram)
    assert again.settings() == model.settings()
    assert again.vocab.words == model.vocab.words
    assert torch.equal(again.trie.keys, model.trie.keys)
    torch.testing.assert_close(again.log_probs, model.log_probs, rtol=0, atol=ROUND_TRIP)
    torch.testing.assert_close(again.backoffs, model.backoffs, rtol=0, atol=ROUND_TRIP)
    tokens = torch.from_numpy(split(seed=1).tokens.astype(np.int64))[None]
    scores = [m.score(tokens, m.start(1))[0] for m in (model, again)]
    torch.testing.assert_close(*scores, rtol=0, atol=ROUND_TRIP)
    assert load(tmp_path / name).about == {}


def test_a_file_of_another_program(tmp_path: Path) -> None:
    """By hand: <s> keeps its backoff, </s> its probability, and an unseen bigram backs off."""
    (tmp_path / "m.arpa").write_text("made elsewhere\n\n" + GOOD.replace("\n", "\r\n"))
    model = read_arpa(tmp_path / "m.arpa")
    assert model.vocab.words == ["<unk>", "<eos>", "cat"]
    assert model.log_prob("cat cat") == pytest.approx(math.log(10) * (-0.2 - 0.4 - 0.6))
    assert model.log_prob("dog cat") == pytest.approx(math.log(10) * (-0.5 - 1.0 - 0.301 - 0.6))


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("\\data\\", "\\date\\", r"line 16: the file ends without \\end\\"),
        ("\\end\\", "", r"line 16: the file ends without \\end\\"),
        ("-0.6\tcat </s>\n\n\\end\\\n", "", r"line 13: the file ends without \\end\\"),
        ("ngram 2=3", "ngram 2=4", "line 16: found 3 2-grams, but the header announces 4"),
        ("ngram 1=4", "ngram 1=3", "line 11: found 4 1-grams, but the header announces 3"),
        ("ngram 1=4", "ngram one=4", "line 2: expected 'ngram 1=NUMBER'"),
        ("ngram 2=3", "ngram 3=3", "line 3: expected 'ngram 2=NUMBER'"),
        ("ngram 1=4\nngram 2=3\n", "", "line 3: the header lists no n-grams"),
        ("ngram 2=3", "ngram 2=0", "line 5: the header lists no n-grams, or none of some order"),
        ("\\2-grams:", "\\3-grams:", r"line 11: expected \\2-grams:, found '\\\\3-grams:'"),
        ("\\end\\", "\\3-grams:", r"line 16: expected \\end\\, found '\\\\3-grams:'"),
        ("-0.3010", "-0.3x", "line 9: the log-probability or the backoff is not a number"),
        ("-0.25", "low", "line 9: the log-probability or the backoff is not a number"),
        ("-0.4", "0.4", "line 13: a log-probability must not be above zero"),
        ("-0.4", "nan", "line 13: a log-probability must not be above zero"),
        ("-0.25", "inf", "line 9: the backoff is not finite"),
        ("-0.2\t<s> cat", "-0.2\tcat", "line 12: expected a log-probability, 2 words and an optional backoff"),
        ("cat cat", "cat dog", "line 13: the word 'dog' is not among the 1-grams"),
        ("cat cat", "cat <s>", "line 13: <s> may only begin"),
        ("cat cat", "</s> cat", "line 13: <s> may only begin"),
        ("<s> cat", "cat cat", "line 13: duplicate n-gram"),
        ("<unk>", "cat", "line 9: duplicate word"),
        ("</s>", "end", "line 11: there is no </s> among the 1-grams"),
        ("<unk>", "caf\xe9", "line 6: the word is not UTF-8"),
    ],
)
def test_malformed_files_are_told_by_the_line(old: str, new: str, sentence: str, tmp_path: Path) -> None:
    assert old in GOOD
    (tmp_path / "m.arpa").write_bytes(GOOD.replace(old, new).encode("latin-1"))
    with pytest.raises(TrellisError, match=rf"m\.arpa, {sentence}"):
        read_arpa(tmp_path / "m.arpa")


def test_an_n_gram_needs_its_beginning(tmp_path: Path) -> None:
    longer = "\n\\3-grams:\n-0.1\tcat cat cat\n-0.1\tcat <unk> cat\n\n\\end\\"
    (tmp_path / "m.arpa").write_text(GOOD.replace("2=3", "2=3\nngram 3=2").replace("\n\\end\\", longer))
    with pytest.raises(TrellisError, match="line 19: its prefix, without the last word, is not in the file"):
        read_arpa(tmp_path / "m.arpa")


def test_files_that_cannot_be_read_or_written(tmp_path: Path) -> None:
    (tmp_path / "cut.arpa.gz").write_bytes(gzip.compress(GOOD.encode())[:-9])
    with pytest.raises(TrellisError, match=r"Cannot read .*cut\.arpa\.gz"):
        trellis.load(tmp_path / "cut.arpa.gz")
    blank = Vocabulary(["<eos>", " "], [1, 1], "characters")
    text = Split(np.array([1, 0], np.int32), np.array([0, 2]), np.array([0, 2]))
    with pytest.raises(TrellisError, match="cannot represent the word ' '"):
        write_arpa(NGram.fit(blank, text, 2), tmp_path / "m.arpa")
    assert not (tmp_path / "m.arpa").exists()


@pytest.fixture(scope="module")
def ptb(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    if not os.environ.get("TRELLIS_DATA"):
        pytest.skip("TRELLIS_DATA is not set")
    return load_corpus(DataConfig(source="ptb"), tmp_path_factory.mktemp("cache"))


@pytest.mark.parametrize("crossing", [False, True])
def test_kenlm_agrees_on_real_text(crossing: bool, ptb: Corpus, tmp_path: Path) -> None:
    kenlm = pytest.importorskip("kenlm", reason="kenlm is not installed")
    model, text = NGram.fit(ptb.vocab, ptb["valid"], 5, crossing), ptb["test"]
    write_arpa(model, tmp_path / "m.arpa")
    peer = kenlm.Model(str(tmp_path / "m.arpa"))
    tokens = torch.from_numpy(text.tokens[: text.sentences[800]].astype(np.int64))[None]
    ours = model.score(tokens, model.start(1))[0][0].numpy() / math.log(10)
    words = " ".join(ptb.vocab.decode(tokens[0].tolist()))
    if crossing:
        theirs = [score for score, _, _ in peer.full_scores("<eos> " + words, bos=False, eos=False)][1:]
    else:
        lines = words.removesuffix(" <eos>").split(" <eos> ")
        theirs = [score for line in lines for score, _, _ in peer.full_scores(line)]
    assert len(theirs) > 15_000
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=KENLM)
