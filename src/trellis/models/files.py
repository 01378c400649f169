"""Model files: tensors, with the family, settings and vocabulary as JSON in the header."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar, overload

import torch
from torch import Tensor

from trellis.corpus import Vocabulary
from trellis.devices import choose_device
from trellis.errors import TrellisError
from trellis.models.base import PersistedModel, Saved
from trellis.models.restoring import check_settings
from trellis.registry import families, find_family, resolve
from trellis.storage import as_path, check_schema, load_tensors, read_metadata, save_tensors

FORMAT, SCHEMA = "trellis.model", 2
FILE = "model.safetensors"
TRAINING = "training."  # prefix of the state of a learner in a checkpoint
LOG_ZERO = -1e30  # the logit of a probability of zero in a model file, finite
UNTRAINED = "untrained.safetensors"  # in the folder of an unfinished run: the model before its first step
BEST, LAST = "best.safetensors", "last.safetensors"  # its checkpoints
CONFIG = "config.toml"
DEMO = "demo"  # a model in the package, made by `make bundled`
BUNDLED = Path(__file__).with_name(f"{DEMO}.safetensors")
# the types of the metadata that are used
ABOUT: dict[str, type] = dict.fromkeys(("corpus", "order", "reader", "column", "licence"), str)
ABOUT |= dict.fromkeys(("data", "run", "training", "scores"), dict)
M = TypeVar("M", bound=PersistedModel)


def save_model(
    path: str | Path, model: PersistedModel, about: dict[str, Any] | None = None, half: bool = False,
    training: Mapping[str, Tensor] | None = None,
) -> None:  # fmt: skip
    """Save a model. `about` is additional JSON metadata, such as data and scores.

    With `half`, float32 numbers are stored as float16. With `training`, the state of a learner, the file is a
    checkpoint, which can also be loaded as a model."""
    header = {
        "format": FORMAT,
        "schema": str(SCHEMA),
        "family": model.family,
        "settings": json.dumps(model.settings()),
        "vocab": model.vocab.to_json(),
        "about": json.dumps(model.about if about is None else about),
    }
    model.save_beside(Path(path).parent)
    tensors = model.tensors()
    short = {name: t.half() if t.dtype == torch.float32 else t for name, t in tensors.items()} if half else tensors
    if large := [name for name, t in short.items() if t.dtype == torch.float16 and bool((t == torch.inf).any())]:
        raise TrellisError(f"The tensor {large[0]!r} has numbers that are too large for float16; save it without half.")
    save_tensors(path, short | {f"{TRAINING}{name}": t for name, t in (training or {}).items()}, header)


def widened(tensor: Tensor) -> Tensor:
    """Convert a float16 tensor to float32. Logits of zero probabilities, which are stored as -inf, become finite
    again."""
    return tensor.float().masked_fill(tensor == -torch.inf, LOG_ZERO)


@overload
def load(path: str | Path, kind: type[M], device: str | torch.device = "cpu") -> M: ...
@overload
def load(path: str | Path, kind: None = None, device: str | torch.device = "cpu") -> PersistedModel: ...
def load(path: str | Path, kind: type[M] | None = None, device: str | torch.device = "cpu") -> Any:
    """Load a model of any family from a model file, a run folder or an ARPA file.

    If the run in a folder is not finished, its best checkpoint so far is loaded, with a warning.

    Parameters
    ----------
    path
        The file or folder. "demo" is a small HMM that comes with the package. A model called "demo" in the working
        directory takes precedence.
    kind
        The expected class, such as `trellis.HMM`. If the model is not an instance of it, an error is raised.
    device
        "cpu", "cuda", or "auto": the GPU if there is one.

    Examples
    --------
    >>> import trellis
    >>> trellis.load("demo").num_states
    96
    """
    file, device = find_model(path), choose_device(device)
    model = (foreign_reader(file) or read_model)(file)
    if kind is not None and not isinstance(model, kind):
        raise TrellisError(f"{path} is a model of the family {model.family}, not {kind.described()}.")
    moved = model.to(device)
    moved.about = model.about
    return moved


def read_model(file: Path) -> PersistedModel:
    """Read a model from a Trellis model file."""
    with intact(file):
        header = read_header(file)
        family = find_family(header["family"])
        vocab, settings = Vocabulary.from_json(header["vocab"]), json.loads(header["settings"])
        vocab.check()
        tensors = load_tensors(file, checked=True)
        tensors = {name: t for name, t in tensors.items() if not name.startswith(TRAINING)}
        tensors = {name: widened(t) if t.dtype == torch.float16 else t for name, t in tensors.items()}
        check_settings(settings, tensors)
        saved, kind = Saved(vocab, settings, tensors, file.parent), family.load("model")
        kind.check_saved(saved)
        model = kind.restore(saved)
        model.about = checked_about(json.loads(header["about"]))
        return model


def checked_about(about: Any) -> dict[str, Any]:
    """The metadata of a model file; raises ValueError if a value has the wrong type."""
    if not isinstance(about, dict):
        raise ValueError("the metadata are not a JSON object")
    for name, kind in ABOUT.items():
        if name in about and not isinstance(about[name], kind):
            raise ValueError(f"the metadata {name!r} has the wrong type")
    return about


def foreign_reader(file: Path) -> Any:
    """The function that reads a checkpoint or a file of another format, chosen by the file name; None for Trellis model
    files."""
    if file.name in (BEST, LAST):
        return resolve("trellis.training.checkpoint:read_unfinished")
    names = [] if file.name.endswith(".safetensors") else [*families()]
    readers = ((end, path) for name in names for end, path in find_family(name).imports.items())
    return next((resolve(path) for end, path in readers if file.name.endswith(end)), None)


@contextmanager
def intact(file: Path) -> Iterator[None]:
    """Turn errors from inconsistent file contents into a one-line TrellisError."""
    try:
        yield
    except (LookupError, ValueError, TypeError, AttributeError, RuntimeError, ArithmeticError, MemoryError) as error:
        reason = " ".join(str(error).split())
        raise TrellisError(f"{file} is damaged: its contents are inconsistent ({reason}); train it again.") from error


def find_model(path: str | Path) -> Path:
    """The model file: `path` itself, the model in that folder, the checkpoint of an unfinished run, or the bundled
    model."""
    path = as_path(path)
    files = [path / name for name in (FILE, BEST, LAST)] if path.is_dir() else [path]
    file = next((file for file in files if file.is_file()), None)
    if file is None and (path / CONFIG).is_file():
        advice = f"resume it with 'trellis train --run {path} --resume'"
        raise TrellisError(f"The run in {path} is unfinished and has no checkpoint yet; {advice}.")
    if file is None and str(path) == DEMO:
        return BUNDLED
    if file is None:
        raise TrellisError(f"There is no model at {path}; pass a model file, the folder of a run, or {DEMO}.")
    return file


def read_header(file: Path) -> dict[str, str]:
    """Read and check the header of a model file."""
    header = read_metadata(file)
    if header.get("format") != FORMAT:
        raise TrellisError(f"{file} is not a Trellis model; pass the model.safetensors written by 'trellis train'.")
    check_schema(file, header.get("schema", header.get("version", "1")), SCHEMA, "train the model again")
    return header
