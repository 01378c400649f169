"""Export a trained HMM as plain arrays or as an hmmlearn model."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import torch

from trellis.errors import TrellisError
from trellis.families.hmm.model import HMM
from trellis.storage import atomic_write


@torch.no_grad()
def to_arrays(model: HMM) -> dict[str, np.ndarray]:
    """Arrays by name: startprob [K] of a new sentence, transmat [K, K] and emissionprob [K, V], with rows that sum to
    one, and words [V]."""
    prior, transition, emission, _ = model.chain()
    probs = {"startprob": prior.probs[0], "transmat": transition.dense(), "emissionprob": emission.dense().exp().T}
    arrays = {name: value.double().cpu().numpy() for name, value in probs.items()}
    arrays = {name: value / value.sum(-1, keepdims=True) for name, value in arrays.items()}
    return arrays | {"words": np.array(model.vocab.words)}


def to_hmmlearn(model: HMM) -> Any:
    """The same model as an hmmlearn.hmm.CategoricalHMM whose symbols are the token ids."""
    try:
        from hmmlearn.hmm import CategoricalHMM
    except ImportError as error:
        raise TrellisError("hmmlearn is not installed; install it, or export to numpy.") from error
    arrays = to_arrays(model)
    other = CategoricalHMM(model.num_states, n_features=len(model.vocab), implementation="scaling", init_params="")
    other.startprob_, other.transmat_ = arrays["startprob"], arrays["transmat"]
    other.emissionprob_ = arrays["emissionprob"]
    return other


def write_numpy(model: HMM, path: Path) -> None:
    """Write `to_arrays` as an .npz file."""
    with atomic_write(path) as file:
        np.savez(file, allow_pickle=False, **to_arrays(model))


def write_hmmlearn(model: HMM, path: Path) -> None:
    """Pickle the result of `to_hmmlearn`."""
    with atomic_write(path) as file:
        pickle.dump(to_hmmlearn(model), file)
