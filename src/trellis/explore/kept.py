"""Arrays computed from a model that are kept in a file beside it, so that the next start is quick."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from trellis.errors import TrellisError
from trellis.storage import load_tensors, read_metadata, save_tensors

logger = logging.getLogger(__name__)
FILE, FORMAT, SCHEMA = "explore.safetensors", "trellis.explore", "1"


class Kept:
    """The file in which arrays computed from a model are kept. Without a folder, nothing is kept."""

    def __init__(self, model: Any, folder: Path | None) -> None:
        self.model, self.file = model, None if folder is None else folder / FILE

    @cached_property
    def fingerprint(self) -> str:
        """A hash of all parameters of the model."""
        digest = hashlib.sha256()
        for name, tensor in sorted(self.model.tensors().items()):
            digest.update(f"{name} {tuple(tensor.shape)}".encode())
            digest.update(np.ascontiguousarray(tensor.cpu().numpy()).tobytes())
        return digest.hexdigest()[:32]

    def load(self) -> dict[str, np.ndarray]:
        """The arrays in the file. There are none if the file is absent or damaged, or belongs to another model."""
        if self.file is None or not self.file.is_file():
            return {}
        try:
            about = read_metadata(self.file)
            if [about.get(key) for key in ("format", "schema", "model")] != [FORMAT, SCHEMA, self.fingerprint]:
                return {}
            return {name: tensor.numpy() for name, tensor in load_tensors(self.file, checked=True).items()}
        except (TrellisError, ValueError, LookupError):
            return {}

    def save(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Write the file, if the folder can be written."""
        if self.file is None:
            return
        try:
            save_tensors(self.file, arrays, {"format": FORMAT, "schema": SCHEMA, "model": self.fingerprint})
        except TrellisError as error:
            logger.info(f"The map of states was not kept: {error}")
