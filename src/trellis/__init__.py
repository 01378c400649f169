"""Trellis: exact latent-state models of discrete sequences."""

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # torch's threads sleep between two operations instead of spinning

from trellis.errors import TrellisError
from trellis.models import HMM, LDS, load, load_model

__version__ = "0.1.0"

__all__ = ["HMM", "LDS", "TrellisError", "load", "load_model"]
