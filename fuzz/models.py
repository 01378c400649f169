"""Model files of every family: changed bytes; changed settings, vocabulary and tensors with a valid checksum."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch

import trellis
from fuzz.harness import FindingError
from fuzz.mutations import STRINGS, any_value, changed_bytes, changed_json
from fuzz.small import OPTIONS, SENTENCES, VARIANTS, model
from trellis.models.base import LanguageModel
from trellis.models.tagger import Tagger
from trellis.storage import load_tensors, read_metadata, save_tensors

BAD = [float("nan"), float("inf"), float("-inf"), -1.0, 2.0, 1e30, 0.0]


def use(found: Any) -> None:
    """Query a loaded model; NaN is never an answer."""
    if isinstance(found, Tagger):
        found.tag([["the", "cat", "sees"]])
    if isinstance(found, LanguageModel):
        if np.isnan(found.log_prob(SENTENCES[:2])).any():
            raise FindingError("the log-probability is NaN")
        found.sample(1, 5)
    repr(found)


class Target:
    """Load and use changed model files."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "x.safetensors"
        self.files: list[bytes] = []
        for name in [*OPTIONS, *VARIANTS]:
            model(name).save(self.path)
            self.files.append(self.path.read_bytes())
        self.parts = []
        for data in self.files:
            self.path.write_bytes(data)
            self.parts.append((load_tensors(self.path), read_metadata(self.path)))

    def honest(self) -> None:
        for data in self.files:
            self.path.write_bytes(data)
            use(trellis.load(self.path))

    def case(self, random: Random) -> None:
        if random.random() < 0.3:
            self.path.write_bytes(changed_bytes(random, random.choice(self.files)))
        else:
            tensors, header = random.choice(self.parts)
            change = random.choice([changed_header, changed_header, changed_tensors])
            save_tensors(self.path, *change(random, dict(tensors), dict(header)))
        use(trellis.load(self.path))


def changed_header(random: Random, tensors: Any, header: Any) -> Any:
    """Another value in the metadata or in its JSON."""
    key = random.choice(sorted(header))
    try:
        header[key] = json.dumps(changed_json(random, json.loads(header[key])))
    except ValueError:
        header[key] = str(any_value(random))
    if random.random() < 0.05:
        header[key] = random.choice(STRINGS)
    return tensors, header


def changed_tensors(random: Random, tensors: Any, header: Any) -> Any:
    """A tensor with other values, another shape, another type, or missing."""
    name = random.choice(sorted(tensors))
    tensor = tensors.pop(name)
    if random.random() < 0.1:
        return tensors, header
    kind = random.randrange(5)
    if kind == 0 and tensor.numel():
        tensor = tensor.clone()
        tensor.view(-1)[random.randrange(tensor.numel())] = (
            random.choice(BAD)
            if tensor.is_floating_point()
            else random.choice([torch.iinfo(tensor.dtype).max, 100, 0] if tensor.dtype != torch.bool else [0, 1])
        )
    elif kind == 1:
        tensor = tensor.to(
            random.choice([torch.float64, torch.float32, torch.float16, torch.int64, torch.bool, torch.uint8])
        )
    elif kind == 2:
        tensor = (
            random.choice([tensor[..., :-1], tensor[None], tensor.reshape(-1), tensor[:0]])
            if tensor.ndim
            else tensor[None]
        )
    elif kind == 3:
        tensor = torch.full_like(tensor, random.choice([0, 1])) if tensor.dtype != torch.bool else ~tensor
    else:
        name = random.choice([name + "x", "params.x", "x"])
    return tensors | {name: tensor.contiguous()}, header
