"""`python -m experiments.factorial_hmm.convergence RUN`: how many sweeps over the layers a mean field needs.

RUN is a trained factorial HMM. Both bounds on log p of validation sentences are computed after each sweep, and compared
with those after many sweeps. Writes convergence.json."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from torch import Tensor

from trellis.config import load_config
from trellis.corpus import load_corpus
from trellis.families.factorial.mean_field import infer
from trellis.families.factorial.model import FHMM
from trellis.models.files import load
from trellis.storage import write_text
from trellis.tasks.lm import READINGS
from trellis.training.run import CONFIG
from trellis.types import Batch

FOUND = Path(__file__).parent / "convergence.json"
SWEEPS, SENTENCES = 50, 256  # until all has converged; about so many are read
NEAR = 0.01, 0.001  # nats per token that a converged bound may be below the last one
FEW = 10  # sweeps, the paper's


def sweep_by_sweep(model: FHMM, batch: Batch, bound: str, sweeps: int) -> Tensor:
    """The bound on log p of each sentence after each sweep, in nats per token: [sweeps, B]."""
    field, found = None, []
    for _ in range(sweeps):
        result = infer(model.chains(), model.emission(), batch.tokens, batch.lengths, 1, bound, field)
        field = result.field
        found.append(result.bound / batch.lengths)
    return torch.stack(found)


def needed(bounds: Tensor, near: float) -> Tensor:
    """The number of sweeps [B] after which the bounds [sweeps, B] are near their last values."""
    return 1 + (bounds < bounds[-1] - near).sum(0)


def study(model: FHMM, batches: list[Batch]) -> dict[str, dict[str, float]]:
    """By bound and tolerance: the median number of sweeps, and the fraction of sentences that need fewer than FEW."""
    found = {}
    for bound in ("tilted", "jensen"):
        values = [sweep_by_sweep(model, batch, bound, SWEEPS) for batch in batches]
        for near in NEAR:
            sweeps = torch.cat([needed(one, near) for one in values]).double()
            few = float((sweeps < FEW).double().mean())
            found[f"{bound}, {near}"] = {"median": float(sweeps.median()), "few": few, "sentences": float(len(sweeps))}
    return found


def some(batches: list[Batch]) -> list[Batch]:
    """Batches from the whole text, with enough sentences."""
    return batches[:: max(1, sum(len(batch.tokens) for batch in batches) // SENTENCES)]


def main() -> None:
    model = load(sys.argv[1])
    assert isinstance(model, FHMM)
    valid = load_corpus(load_config(Path(sys.argv[1]) / CONFIG).data)["valid"]
    found = study(model, some(list(READINGS["sentences"](valid))))
    print(found)
    write_text(FOUND, json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
