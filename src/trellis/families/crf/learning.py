"""Train a CRF: by L-BFGS on the full data, by AdaGrad on mini-batches, or by crfsuite."""

import struct
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np
import torch
from torch import Tensor

from trellis.errors import TrellisError
from trellis.families.crf import FAMILY
from trellis.families.crf.config import CRFTrainConfig
from trellis.families.crf.model import CRF, Features
from trellis.learning.lbfgs import LBFGS
from trellis.options import choose
from trellis.progress import progress
from trellis.registry import resolve

PERIOD = 10  # iterations over which the loss must decrease by the fraction `tolerance`
CURVATURE = 0.1  # typical p (1 - p) of a label
FEATURE = np.dtype([("kind", "<u4"), ("source", "<u4"), ("target", "<u4"), ("weight", "<f8")])  # in crfsuite's files

T = TypeVar("T")


class State(NamedTuple):
    """The state from which a learner can continue: tensors and JSON values."""

    tensors: Mapping[str, Tensor]
    json: Mapping[str, Any]


@dataclass
class Checkpoints:
    """Saves the state of a learner about once every `seconds`, unless `save` is None or `seconds` is 0."""

    save: Callable[[State], None] | None = None
    seconds: float = 0.0
    found: State | None = None  # the state of an interrupted run

    def __post_init__(self) -> None:
        self.saved = time.monotonic()

    def restore(self, put: Callable[[State], T], otherwise: T) -> T:
        """Call `put` with the state of the interrupted run and return its result, or return `otherwise` if there is no
        state."""
        try:
            return otherwise if self.found is None else put(self.found)
        except (ValueError, LookupError, TypeError, RuntimeError) as error:
            raise TrellisError(f"The checkpoint does not match the text ({error}); choose another folder.") from error

    def offer(self, state: Callable[[], State]) -> None:
        """Save the state if `seconds` have passed since the last save."""
        if self.save is not None and 0 < self.seconds <= time.monotonic() - self.saved:
            self.save(state())
            self.saved = time.monotonic()


def train_crf(
    crf: CRF, features: Features, gold: Tensor, config: CRFTrainConfig, device: str = "cpu", seed: int = 0,
    checkpoints: Checkpoints | None = None,
) -> CRF:  # fmt: skip
    """Fit the weights to the labels `gold` [N]. The learner crfsuite supports no real-valued features."""
    learn = resolve(choose(FAMILY.learners, config.learner or "lbfgs", "train.learner"))
    given = crf.to(device), features.to(device), gold.to(device)
    learn(*given, config, seed, checkpoints or Checkpoints())
    return crf.cpu()


def by_lbfgs(
    crf: CRF, features: Features, gold: Tensor, config: CRFTrainConfig, seed: int, checkpoints: Checkpoints
) -> None:
    """Find the unique optimum by L-BFGS, in coordinates of roughly equal curvature.

    The loss is per token, so that progress is easy to read."""
    weights = list(crf.parameters())
    scale = equal_curvature(crf, features, config.l2).double().cpu()

    @torch.no_grad()
    def put(point: np.ndarray) -> None:
        parts = (torch.from_numpy(point) * scale).split([weight.numel() for weight in weights])
        for weight, part in zip(weights, parts, strict=True):
            weight.copy_(part.view_as(weight))

    def evaluate(point: np.ndarray) -> tuple[float, np.ndarray]:
        put(point)
        value = crf.backward(features, gold, config.l2)
        slope = torch.cat([cast(Tensor, weight.grad).flatten() for weight in weights]).double().cpu()
        return value / len(gold), (slope * scale / len(gold)).numpy()

    begin = torch.cat([weight.detach().flatten().double().cpu() for weight in weights]) / scale
    search = LBFGS(evaluate, begin.numpy(), config.history)

    def restore(found: State) -> list[float]:
        search.restore({name: tensor.numpy() for name, tensor in found.tensors.items()})
        return [float(loss) for loss in found.json["losses"]]

    losses = checkpoints.restore(restore, list[float]())
    with progress("training the CRF", config.iterations, "iterations") as bar:
        bar.advance(len(losses))
        while len(losses) < config.iterations and not converged(losses, config.tolerance) and search.advance():
            losses.append(search.value)
            bar.update(loss=search.value)
            bar.advance(1)
            checkpoints.offer(lambda: State(tensors_of(search.state()), {"losses": losses}))
    put(search.point)
    crf.zero_grad()


def converged(losses: Sequence[float], tolerance: float) -> bool:
    """Whether the loss has decreased by less than the fraction `tolerance` in the last PERIOD iterations."""
    return len(losses) > PERIOD and losses[-1 - PERIOD] - losses[-1] < tolerance * abs(losses[-1])


def tensors_of(arrays: Mapping[str, np.ndarray]) -> dict[str, Tensor]:
    return {name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in arrays.items()}


@torch.no_grad()
def equal_curvature(crf: CRF, features: Features, l2: float) -> Tensor:
    """(2 l2 + CURVATURE s) ** -1/2 for every weight, where s is the sum of its feature's squares in the text."""
    counts = features.ids.bincount(minlength=len(crf.first) - 1).to(crf.attribute)
    squares = features.dense.square().sum(0).to(crf.dense)
    moves = torch.full_like(crf.transition[:, 0], features.dense.shape[0] / len(crf.transition))
    counts = counts.repeat_interleave(crf.first.diff())
    squares, moves = (sums.repeat_interleave(len(crf.transition)) for sums in (squares, moves))
    return (2 * l2 + CURVATURE * torch.cat([counts, squares, moves])).rsqrt()


def by_adagrad(
    crf: CRF, features: Features, gold: Tensor, config: CRFTrainConfig, seed: int, checkpoints: Checkpoints
) -> None:
    """AdaGrad on shuffled batches of sentences. The loss of a batch includes its share of the L2 penalty."""
    descent = torch.optim.Adagrad(crf.parameters(), lr=config.lr)
    generator = torch.Generator().manual_seed(seed)
    count = len(features.lengths)
    first = checkpoints.restore(lambda found: restore_adagrad(crf, descent, generator, found), 0)
    with progress("training the CRF", config.iterations, "epochs") as bar:
        bar.advance(first)
        for epoch in range(first, config.iterations):
            total = 0.0
            for chosen in torch.randperm(count, generator=generator).split(config.batch):
                part, tokens = features.take(chosen.to(gold.device))
                total += crf.backward(part, gold[tokens], config.l2 * len(chosen) / count)
                descent.step()
            bar.update(loss=total)
            bar.advance(1)
            done = {"epochs": epoch + 1}
            checkpoints.offer(lambda done=done: State(adagrad_tensors(crf, descent, generator), done))  # type: ignore[misc]


def adagrad_tensors(crf: CRF, descent: torch.optim.Adagrad, generator: torch.Generator) -> dict[str, Tensor]:
    sums = {f"sum.{name}": descent.state[weight]["sum"] for name, weight in crf.named_parameters()}
    weights = {f"weight.{name}": weight.detach() for name, weight in crf.named_parameters()}
    return sums | weights | {"random": generator.get_state()}


@torch.no_grad()
def restore_adagrad(crf: CRF, descent: torch.optim.Adagrad, generator: torch.Generator, found: State) -> int:
    """Continue from a saved state; returns its number of epochs."""
    for name, weight in crf.named_parameters():
        if found.tensors[f"weight.{name}"].shape != weight.shape:
            raise ValueError(f"{name!r} has another shape")
        weight.copy_(found.tensors[f"weight.{name}"])
        descent.state[weight]["sum"].copy_(found.tensors[f"sum.{name}"])
    generator.set_state(found.tensors["random"])
    return int(found.json["epochs"])


def by_crfsuite(
    crf: CRF, features: Features, gold: Tensor, config: CRFTrainConfig, seed: int, checkpoints: Checkpoints
) -> None:
    """Train with python-crfsuite, in which attributes and labels are named by our ids, and copy its weights.
    `checkpoints` is ignored: an interrupted training starts anew."""
    if crf.dense.numel():
        raise TrellisError("The learner crfsuite supports only sparse features; train real-valued ones with lbfgs.")
    try:
        import pycrfsuite
    except ImportError as error:
        raise TrellisError("The learner crfsuite needs python-crfsuite: pip install python-crfsuite.") from error
    trainer = pycrfsuite.Trainer(algorithm="lbfgs", verbose=False)
    trainer.set_params({"c1": config.l1, "c2": config.l2, "max_iterations": config.iterations,
                        "period": PERIOD, "delta": config.tolerance, "feature.possible_transitions": True})  # fmt: skip
    for attributes, labels in sentences(features, gold):
        trainer.append(attributes, labels)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model"
        trainer.train(str(path))
        copy_crfsuite(crf, path)


def sentences(features: Features, gold: Tensor) -> Iterator[tuple[list[list[str]], list[str]]]:
    """The attributes of each token and the labels of each sentence, written as numbers."""
    names = [str(i) for i in range(int(features.ids.max()) + 1)]
    ids, bounds = features.ids.tolist(), features.offsets.tolist()
    labels, first = [str(label) for label in gold.tolist()], 0
    for length in features.lengths.tolist():
        tokens = range(first, first + length)
        yield [[names[i] for i in ids[bounds[t] : bounds[t + 1]]] for t in tokens], labels[first : first + length]
        first += length


@torch.no_grad()
def copy_crfsuite(crf: CRF, path: Path) -> None:
    """Copy the weights of a crfsuite model whose attributes and labels are named by our ids."""
    import pycrfsuite

    tagger = pycrfsuite.Tagger()
    tagger.open(str(path))
    tagger.dump(str(path.with_suffix(".txt")))
    names = dumped_names(path.with_suffix(".txt"))
    labels, attributes = (torch.tensor(names[section]) for section in ("LABELS", "ATTRIBUTES"))
    kinds, sources, targets, weights = stored_features(path.read_bytes())
    state, targets = kinds == 0, labels[targets]
    table = torch.zeros(len(crf.first) - 1, len(crf.transition), dtype=torch.float64)
    table[attributes[sources[state]], targets[state]] = weights[state]
    owners = torch.repeat_interleave(crf.first.diff())
    crf.attribute.copy_(table[owners, crf.labels.long()])
    crf.transition[labels[sources[~state]], targets[~state]] = weights[~state].to(crf.transition)


def dumped_names(path: Path) -> dict[str, list[int]]:
    """For each section of crfsuite's dump, a mapping from its internal ids to names. The names are our ids."""
    names: dict[str, list[int]] = {}
    section = ""
    for line in path.read_text().splitlines():
        if line.endswith("= {"):
            section = line.split()[0]
        elif section in ("LABELS", "ATTRIBUTES") and ":" in line:
            names.setdefault(section, []).append(int(line.split(":")[1]))
    return names


def stored_features(data: bytes) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Kind, source, target and weight of every feature in a crfsuite file, at full precision."""
    (begin,) = struct.unpack_from("<I", data, 28)  # start of the feature chunk: name, size, count, features
    (count,) = struct.unpack_from("<I", data, begin + 8)
    table = np.frombuffer(data, FEATURE, count, begin + 12)
    kind, source, target = (torch.from_numpy(table[name].astype(np.int64)) for name in ("kind", "source", "target"))
    return kind, source, target, torch.from_numpy(table["weight"].copy())
