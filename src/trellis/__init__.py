"""Trellis: exact latent-state models of discrete sequences."""

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # torch's threads sleep between two operations instead of spinning
os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")  # large tensors get huge pages, which are quicker to come by

from typing import TYPE_CHECKING, Any

from trellis.errors import TrellisError
from trellis.families.files import load, load_model
from trellis.families.hmm.model import HMM
from trellis.families.lds.model import LDS

if TYPE_CHECKING:
    from trellis.estimators import (
        CategoricalHMM,
        DenseHMM,
        FactorialHMM,
        GaussianDenseHMM,
        GaussianHMM,
        LDSVectors,
        PoissonHMM,
    )

__version__ = "0.1.0"

__all__ = [
    "HMM",
    "LDS",
    "CategoricalHMM",
    "DenseHMM",
    "FactorialHMM",
    "GaussianDenseHMM",
    "GaussianHMM",
    "LDSVectors",
    "PoissonHMM",
    "TrellisError",
    "load",
    "load_model",
]


def __getattr__(name: str) -> Any:
    """The estimators, imported when first asked for."""
    if name in __all__:
        from trellis import estimators

        return getattr(estimators, name)
    raise AttributeError(f"module 'trellis' has no attribute {name!r}")
