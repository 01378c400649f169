"""`python -m experiments.kernel_hmm.trained_features RUN`: how many features the transitions of a trained HMM need.

The softmax matrix of RUN is replaced by increasing numbers of random and of learned features; the rest of the model is
unchanged. Writes trained.json, which `python -m experiments plot kernel-hmm` draws."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import torch

from experiments.kernel_hmm.feature_study import FOLDER, divergence, fit_features, of_features
from trellis.config import load_config
from trellis.corpus import Split, Streams, load_corpus
from trellis.families.hmm.model import HMM
from trellis.families.hmm.parameters.features import Exponential, gaussian, orthogonal
from trellis.models.files import load
from trellis.parts import Parts
from trellis.storage import write_text
from trellis.tasks.lm import evaluate
from trellis.training.run import CONFIG
from trellis.transitions import LowRank, Softmax, Transition

FEATURES = (16, 32, 64, 128, 256, 1024, 4096)
LEARNED = 256  # maximum number of learned features
STEPS = 400  # steps of Adam
LANES, WINDOW = 16, 512
SIDES = ("queries", "keys")  # vectors whose mean norms are reported


def replacements(softmax: Softmax) -> Iterator[tuple[str, int, LowRank]]:
    """Approximations of a softmax matrix: the kind, the number of features, and the operator."""
    queries, keys = softmax.queries.double(), softmax.keys.double()
    log_true = (queries @ keys.T).log_softmax(-1)
    for features in FEATURES:
        for name, weights in (("random", gaussian), ("orthogonal", orthogonal)):
            torch.manual_seed(0)
            phi = Exponential(weights(features, queries.shape[1]).double(), learned=False)
            yield name, features, of_features(phi(queries), phi(keys))[0]
        if features <= LEARNED:
            yield "learned", features, fit_features(log_true, features, STEPS)


@torch.no_grad()
def perplexity(model: HMM, transition: Transition, split: Split) -> float:
    """The perplexity of a text, read as a few streams, with another transition."""
    start, _, emission = model.parts()
    model.memo.kept["parts"] = Parts(start, transition, emission)
    return evaluate(model, Streams(split, LANES, WINDOW)).perplexity


def study(model: HMM, split: Split) -> dict[str, dict[str, dict[int, float]]]:
    """KL from the trained matrix, and perplexity, by kind and number of features; 0 is the softmax itself."""
    with torch.no_grad():
        softmax = model.params.parts().transition
        assert isinstance(softmax, Softmax)
        log_true = (softmax.queries.double() @ softmax.keys.double().T).log_softmax(-1)
    norms = {name: float(vectors.norm(dim=1).mean()) for name, vectors in vars(softmax).items() if name in SIDES}
    found: dict[str, dict[str, dict[int, float]]] = {
        "softmax": {"perplexity": {0: perplexity(model, softmax, split)}, **{side: {0: norms[side]} for side in SIDES}}
    }
    for name, features, operator in replacements(softmax):
        kinds = found.setdefault(name, {"divergence": {}, "perplexity": {}})
        kinds["divergence"][features] = divergence(log_true, operator.dense().detach())
        single = LowRank(operator.into.detach().float(), operator.out.detach().float())
        kinds["perplexity"][features] = perplexity(model, single, split)
        print(name, features, kinds["divergence"][features], kinds["perplexity"][features], flush=True)
    return found


def main() -> None:
    model = load(sys.argv[1])
    assert isinstance(model, HMM)
    model.requires_grad_(False)
    figures = study(model, load_corpus(load_config(Path(sys.argv[1]) / CONFIG).data)["valid"])
    write_text(FOLDER / "trained.json", json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
