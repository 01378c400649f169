"""Train a CRF: by L-BFGS on the full data, by AdaGrad on mini-batches, or by crfsuite."""

import struct
import tempfile
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import numpy as np
import torch
from scipy.optimize import OptimizeResult, minimize
from torch import Tensor

from trellis.errors import TrellisError
from trellis.families.crf import FAMILY
from trellis.families.crf.config import CRFTrainConfig
from trellis.families.crf.model import CRF, Features
from trellis.options import choose
from trellis.progress import progress
from trellis.registry import resolve

EVALUATIONS = 20  # of the loss, at most, per iteration
PERIOD = 10  # iterations over which the loss must decrease by the fraction `tolerance`
CURVATURE = 0.1  # typical p (1 - p) of a label
FEATURE = np.dtype([("kind", "<u4"), ("source", "<u4"), ("target", "<u4"), ("weight", "<f8")])  # in crfsuite's files


def train_crf(
    crf: CRF, features: Features, gold: Tensor, config: CRFTrainConfig, device: str = "cpu", seed: int = 0
) -> CRF:
    """Fit the weights to the labels gold [N]; crfsuite supports no real-valued features."""
    learn = resolve(choose(FAMILY.learners, config.learner or "lbfgs", "train.learner"))
    learn(crf.to(device), features.to(device), gold.to(device), config, seed)
    return crf.cpu()


def by_lbfgs(crf: CRF, features: Features, gold: Tensor, config: CRFTrainConfig, seed: int = 0) -> None:
    """Find the unique optimum by L-BFGS, in coordinates of roughly equal curvature.

    The loss is per token, so that progress is easy to read."""
    weights, recent = list(crf.parameters()), deque[float](maxlen=PERIOD)
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

    with progress("training the CRF", config.iterations, "iterations") as bar:

        def watch(intermediate_result: OptimizeResult) -> None:
            now = float(intermediate_result.fun)
            bar.update(loss=now)
            bar.advance(1)
            if len(recent) == PERIOD and recent[0] - now < config.tolerance * abs(now):
                raise StopIteration
            recent.append(now)

        limits = {"maxiter": config.iterations, "maxfun": EVALUATIONS * config.iterations, "ftol": 0.0, "gtol": 0.0}
        begin = torch.cat([weight.detach().flatten().double().cpu() for weight in weights]) / scale
        found = minimize(evaluate, begin.numpy(), jac=True, method="L-BFGS-B", callback=watch,
                         options=limits | {"maxcor": config.history})  # fmt: skip
    put(found.x)
    crf.zero_grad()


@torch.no_grad()
def equal_curvature(crf: CRF, features: Features, l2: float) -> Tensor:
    """(2 l2 + p (1 - p) c) ** -1/2 for every weight, where c is the sum of its feature's squares in the text."""
    counts = features.ids.bincount(minlength=len(crf.first) - 1).to(crf.attribute)
    squares = features.dense.square().sum(0).to(crf.dense)
    moves = torch.full_like(crf.transition[:, 0], features.dense.shape[0] / len(crf.transition))
    counts = counts.repeat_interleave(crf.first.diff())
    squares, moves = (sums.repeat_interleave(len(crf.transition)) for sums in (squares, moves))
    return (2 * l2 + CURVATURE * torch.cat([counts, squares, moves])).rsqrt()


def by_adagrad(crf: CRF, features: Features, gold: Tensor, config: CRFTrainConfig, seed: int = 0) -> None:
    """AdaGrad on shuffled batches of sentences, each with its share of the penalty."""
    descent = torch.optim.Adagrad(crf.parameters(), lr=config.lr)
    generator = torch.Generator().manual_seed(seed)
    count = len(features.lengths)
    with progress("training the CRF", config.iterations, "epochs") as bar:
        for _ in range(config.iterations):
            total = 0.0
            for chosen in torch.randperm(count, generator=generator).split(config.batch):
                part, tokens = features.take(chosen.to(gold.device))
                total += crf.backward(part, gold[tokens], config.l2 * len(chosen) / count)
                descent.step()
            bar.update(loss=total)
            bar.advance(1)


def by_crfsuite(crf: CRF, features: Features, gold: Tensor, config: CRFTrainConfig, seed: int = 0) -> None:
    """Train with python-crfsuite, using our ids as attribute and label names, and copy its weights."""
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
    """The names of crfsuite's internal ids, by section of its dump; these names are our ids."""
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
