"""Checkpoints: the full training state in one file of tensors and JSON, written atomically."""

import json
import logging
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trellis import distributed
from trellis.corpus import Batches
from trellis.errors import TrellisError
from trellis.learning.base import Learner
from trellis.models.base import PersistedModel
from trellis.models.files import BEST, FORMAT as MODEL, LAST, UNTRAINED, intact, read_model
from trellis.models.restoring import check_finite
from trellis.storage import check_schema, load_tensors, read_metadata, save_tensors
from trellis.training.state import TrainState

logger = logging.getLogger(__name__)

FORMAT, SCHEMA = "trellis.checkpoint", 2
CARRIED = "belief."  # prefix of tensors with one row for each sequence that continues in the next batch


def save_checkpoint(path: Path, learner: Learner, batches: Batches, state: TrainState) -> None:
    """Save everything needed to resume training exactly, in any number of processes."""
    details = {
        "state": state.to_json(),
        "learner": learner.state_json(),
        "batches": batches.state(),
        "threads": torch.get_num_threads(),
        "processes": distributed.size(),
    }
    tensors = learner.state_tensors() | _random_state()
    if distributed.is_joined():
        tensors = _with_all_rows(tensors, learner)
    if not distributed.is_first():
        return
    metadata = {"format": FORMAT, "schema": str(SCHEMA), "training": json.dumps(details)}
    save_tensors(path, tensors, metadata)


def _with_all_rows(tensors: dict[str, Tensor], learner: Learner) -> dict[str, Tensor]:
    """The tensors of the state, with the rows of the continuing sequences of all processes, in order."""
    own = {name: value.cpu() for name, value in tensors.items() if name.startswith(CARRIED)}
    parts = [part for part in distributed.from_all({} if learner.idle else own) if part]
    return tensors | {name: torch.cat([part[name] for part in parts]) for name in (parts[0] if parts else ())}


def _with_own_rows(tensors: dict[str, Tensor], batches: Batches) -> dict[str, Tensor]:
    """The tensors of the state, with the rows of this process's continuing sequences; if it has none, the first row."""

    def own(rows: Tensor) -> Tensor:
        chosen = rows[batches.own_rows()]
        return chosen if len(chosen) else rows[:1]

    carried = {name: own(rows) for name, rows in tensors.items() if name.startswith(CARRIED)}
    rest = {name: value for name, value in tensors.items() if name not in carried}
    return rest | (carried if batches.rows() else {})


def restore_checkpoint(path: Path, learner: Learner, batches: Batches) -> TrainState:
    """Restore the learner, batches and random generators, and return the state of the loop."""
    details, tensors = distributed.from_first(lambda: (read_details(path), _read_tensors(path)))
    with intact(path):
        if distributed.is_joined():
            tensors = _with_own_rows(tensors, batches)
        return _restore(path, details, tensors, learner, batches)


def _read_tensors(path: Path) -> dict[str, Tensor]:
    try:
        return load_tensors(path, checked=True)
    except TrellisError as error:
        raise TrellisError(f"{error}{_advice(path)}") from error


def _restore(
    path: Path, details: dict[str, Any], tensors: dict[str, Tensor], learner: Learner, batches: Batches
) -> TrainState:
    before = {"threads": details["threads"], "processes": details.get("processes", 1)}
    now = {"threads": torch.get_num_threads(), "processes": distributed.size()}
    for what in (name for name in now if now[name] != before[name]):
        given = path.parent, before[what], what, now[what]
        logger.warning("%s was trained with %d %s and resumes with %d; results may differ in the last digits.", *given)
    learner.restore(tensors, details["learner"])
    batches.restore(details["batches"])
    _restore_random_state(tensors)
    return TrainState.from_json(details["state"])


def load_weights(path: Path, device: str | torch.device = "cpu") -> dict[str, Tensor]:
    """The model weights in a checkpoint, averaged if training kept an average."""
    read_details(path)
    tensors = load_tensors(path, device, checked=True)
    return {name.removeprefix("model."): value for name, value in tensors.items() if name.startswith("model.")}


def read_unfinished(path: Path) -> PersistedModel:
    """The model of a checkpoint, with a warning that its run is unfinished."""
    if read_metadata(path).get("format") == MODEL:  # some families save their models as checkpoints
        logger.warning("%s is unfinished: this is the model of its checkpoint %s.", path.parent, path.name)
        return read_model(path)
    with intact(path):
        state = TrainState.from_json(read_details(path)["state"])
    untrained = path.with_name(UNTRAINED)
    if not untrained.exists():
        raise TrellisError(f"{path} needs {UNTRAINED} from the same run; resume the run to finish it.")
    model: Any = read_model(untrained)
    weights = load_weights(path)
    with intact(path):
        check_finite(weights)
        model.load_state_dict(weights)
    which = "best" if path.name == BEST else "last"
    where = f"epoch {state.epoch}, step {state.step:,}"
    logger.warning("%s is unfinished: this is its %s checkpoint so far (%s).", path.parent, which, where)
    return model


def read_details(path: Path) -> dict[str, Any]:
    """The JSON part of a checkpoint: state, learner, batches, and the numbers of threads and processes."""
    try:
        metadata = read_metadata(path)
    except TrellisError as error:
        raise TrellisError(f"{error}{_advice(path)}") from error
    if metadata.get("format") != FORMAT:
        raise TrellisError(f"{path} is not a Trellis checkpoint; pass a {LAST} or {BEST}.")
    check_schema(path, metadata.get("schema", 1), SCHEMA, "train again, or resume with that version")
    with intact(path):
        return dict(json.loads(metadata["training"]))


def _advice(path: Path) -> str:
    """Advice about an unreadable checkpoint: whether the other checkpoint is intact."""
    other = path.with_name(BEST if path.name == LAST else LAST)
    try:
        step = json.loads(read_metadata(other)["training"])["state"]["step"]
        load_tensors(other, checked=True)
    except (TrellisError, LookupError, ValueError, TypeError):
        return ""
    return f" {other} (step {step}) is intact; copy it over {path.name} to resume from there."


def _random_state() -> dict[str, Tensor]:
    devices = [torch.cuda.get_rng_state(device) for device in _devices()] if torch.cuda.is_initialized() else []
    return {"random.cpu": torch.get_rng_state()} | {f"random.cuda.{i}": state for i, state in enumerate(devices)}


def _restore_random_state(tensors: dict[str, Tensor]) -> None:
    torch.set_rng_state(tensors["random.cpu"])
    for number, device in enumerate(_devices()):
        if f"random.cuda.{number}" in tensors:
            torch.cuda.set_rng_state(tensors[f"random.cuda.{number}"], device)


def _devices() -> list[int]:
    """The GPUs whose generators are saved: all, or only the GPU of this process if there are several processes."""
    if not torch.cuda.is_available():
        return []
    return [torch.cuda.current_device()] if distributed.is_joined() else [*range(torch.cuda.device_count())]
