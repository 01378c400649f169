"""A trained model as one file: tensors, and in its header the family, the settings and the vocabulary as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from trellis.config import choose
from trellis.corpus import Vocabulary
from trellis.devices import choose_device
from trellis.errors import TrellisError
from trellis.families.factorial.model import FHMM
from trellis.families.hmm.model import HMM
from trellis.families.lds.model import LDS
from trellis.families.neural.feedforward import FeedForward
from trellis.families.neural.rnn import LSTM, RNN
from trellis.families.ngram.arpa import is_arpa, read_arpa
from trellis.families.ngram.model import ORDERS, NGram
from trellis.families.tag_hmm.model import TagHMM
from trellis.models.base import LanguageModel, PersistedModel
from trellis.storage import load_tensors, read_metadata, save_tensors

FORMAT, VERSION = "trellis.model", 1
FILE = "model.safetensors"
MODELS: tuple[type[PersistedModel], ...] = (HMM, TagHMM, FHMM, LDS, NGram, FeedForward, LSTM, RNN)
FAMILIES: dict[str, type[PersistedModel]] = {m.family: m for m in MODELS} | dict.fromkeys(ORDERS, NGram)


def save_model(path: str | Path, model: PersistedModel, about: dict[str, Any] | None = None) -> None:
    """Write the model; `about` is what else a reader may want to know (data, figures), as JSON values."""
    header = {
        "format": FORMAT,
        "version": str(VERSION),
        "family": model.family,
        "settings": json.dumps(model.settings()),
        "vocab": model.vocab.to_json(),
        "about": json.dumps(about or {}),
    }
    save_tensors(path, model.tensors(), header)


def load_model(path: str | Path, device: str | torch.device = "cpu") -> LanguageModel:
    """Read a language model, as `load` does."""
    model = load(path, device)
    if not isinstance(model, LanguageModel):
        raise TrellisError(
            f"An {model.name} model gives words no probabilities; ask it for vectors: 'trellis embed', 'neighbours' or "
            "'dynamics'."
        )
    return model


def load(path: str | Path, device: str | torch.device = "cpu") -> Any:
    """Read a model of any family from its file (n-grams also from ARPA), or from the folder of the run that made it; to
    the CPU, the GPU (cuda), or whichever there is (auto)."""
    file, device = find_model(path), choose_device(device)
    if is_arpa(file):
        return read_arpa(file, device)
    with intact(file):
        header = read_header(file)
        model = choose(FAMILIES, header["family"], "model.family")
        vocab, settings = Vocabulary.from_json(header["vocab"]), json.loads(header["settings"])
        vocab.check()
        restored = model.restore(vocab, settings, load_tensors(file))
    return restored.to(device)


@contextmanager
def intact(file: Path) -> Iterator[None]:
    """One sentence about a file whose parts do not fit together."""
    try:
        yield
    except (LookupError, ValueError, TypeError, AttributeError, RuntimeError) as error:
        reason = " ".join(str(error).split())
        raise TrellisError(f"{file} is damaged: its parts do not fit together ({reason}); train it again.") from error


def read_about(path: str | Path) -> dict[str, Any]:
    """What was noted when the model was saved; an ARPA file has no room for that."""
    file = find_model(path)
    if is_arpa(file):
        return {}
    with intact(file):
        return dict(json.loads(read_header(file)["about"]))


def find_model(path: str | Path) -> Path:
    """The model's file: `path` itself, or the one inside that folder."""
    path = Path(path)
    file = path / FILE if path.is_dir() else path
    if not file.is_file():
        raise TrellisError(f"There is no model at {path}; give a model file or the folder of a finished training run.")
    return file


def read_header(file: Path) -> dict[str, str]:
    """The header of a model file, checked."""
    header = read_metadata(file)
    if header.get("format") != FORMAT:
        raise TrellisError(f"{file} is not a Trellis model; give the model.safetensors that 'trellis train' wrote.")
    if int(header["version"]) > VERSION:
        raise TrellisError(
            f"{file} has model format {header['version']}, newer than this Trellis reads ({VERSION}); upgrade Trellis."
        )
    return header
