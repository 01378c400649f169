"""Train a CRF: by L-BFGS on the full data, by AdaGrad on mini-batches, or by crfsuite."""

import struct
import tempfile
from collections import deque
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from trellis.errors import TrellisError
from trellis.families.crf import FAMILY
from trellis.families.crf.config import CRFTrainConfig
from trellis.families.crf.model import CRF, Features
from trellis.learning.descent import OPTIMIZERS
from trellis.options import choose
from trellis.progress import progress
from trellis.registry import resolve

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


def loss(crf: CRF, features: Features, gold: Tensor, l2: float) -> Tensor:
    """-log p(y | x) + l2 |w|^2, in float64."""
    penalty = sum(weight.square().sum(dtype=torch.float64) for weight in crf.parameters())
    return l2 * penalty - crf.log_likelihood(features, gold).sum()


def by_lbfgs(crf: CRF, features: Features, gold: Tensor, config: CRFTrainConfig, seed: int = 0) -> None:
    """Find the unique optimum by L-BFGS, in coordinates of roughly equal curvature.

    The loss is per token, because the optimiser has absolute thresholds."""
    features = features.invert(len(crf.attribute))
    weights, scales = list(crf.parameters()), equal_curvature(crf, features, config.l2)
    free = [(weight.detach() / scale).requires_grad_() for weight, scale in zip(weights, scales, strict=True)]
    descent = OPTIMIZERS["lbfgs"](free, history_size=config.history)

    @torch.no_grad()
    def put() -> None:
        for weight, value, scale in zip(weights, free, scales, strict=True):
            torch.mul(value, scale, out=weight)

    def evaluate() -> float:
        put()
        crf.zero_grad()
        value = loss(crf, features, gold, config.l2) / len(gold)
        value.backward()
        for weight, own, scale in zip(weights, free, scales, strict=True):
            own.grad = None if weight.grad is None else weight.grad * scale
        return value.item()

    recent: deque[float] = deque(maxlen=PERIOD)
    with progress("training the CRF", config.iterations, "iterations") as bar:
        for _ in range(config.iterations):
            now = descent.step(evaluate)
            bar.update(loss=now)
            bar.advance(1)
            if len(recent) == PERIOD and recent[0] - now < config.tolerance * abs(now):
                break
            recent.append(now)
    put()


@torch.no_grad()
def equal_curvature(crf: CRF, features: Features, l2: float) -> list[Tensor]:
    """(2 l2 + p (1 - p) c) ** -1/2 for each feature, where c is the sum of its squares over the text."""
    counts = features.ids.bincount(minlength=len(crf.attribute)).to(crf.attribute)
    squares = features.dense.square().sum(0).to(crf.dense)
    moves = torch.full_like(crf.transition[:, 0], len(features.offsets) / len(crf.transition))
    return [(2 * l2 + CURVATURE * sums).rsqrt().unsqueeze(-1) for sums in (counts, squares, moves)]


def by_adagrad(crf: CRF, features: Features, gold: Tensor, config: CRFTrainConfig, seed: int = 0) -> None:
    """AdaGrad on shuffled batches of sentences, each with its share of the penalty."""
    descent = torch.optim.Adagrad(crf.parameters(), lr=config.lr)
    generator = torch.Generator().manual_seed(seed)
    count = len(features.lengths)
    with progress("training the CRF", config.iterations, "epochs") as bar:
        for _ in range(config.iterations):
            total = torch.zeros((), dtype=torch.float64, device=gold.device)
            for chosen in torch.randperm(count, generator=generator).split(config.batch):
                descent.zero_grad()
                part, labels = take(features, gold, chosen.to(gold.device))
                value = loss(crf, part, labels, config.l2 * len(chosen) / count)
                value.backward()
                descent.step()
                total += value.detach()
            bar.update(loss=float(total))
            bar.advance(1)


def take(features: Features, gold: Tensor, chosen: Tensor) -> tuple[Features, Tensor]:
    """Select some of the sentences."""
    lengths = features.lengths[chosen]
    tokens = concatenated_ranges(features.starts[chosen], lengths)
    ends = torch.cat([features.offsets, features.offsets.new_tensor([len(features.ids)])])
    sizes = (ends[1:] - ends[:-1])[tokens]
    ids = features.ids[concatenated_ranges(features.offsets[tokens], sizes)]
    return Features(ids, sizes.cumsum(0) - sizes, features.dense[tokens], lengths), gold[tokens]


def concatenated_ranges(starts: Tensor, lengths: Tensor) -> Tensor:
    """Concatenate the ranges start, ..., start + length - 1."""
    before = lengths.cumsum(0) - lengths
    return torch.repeat_interleave(starts - before, lengths) + torch.arange(int(lengths.sum()), device=starts.device)


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
    ids, bounds = features.ids.tolist(), [*features.offsets.tolist(), len(features.ids)]
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
    state = kinds == 0
    targets = labels[targets]
    crf.attribute[attributes[sources[state]], targets[state]] = weights[state].to(crf.attribute)
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
