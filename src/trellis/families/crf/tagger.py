"""The CRF tagger: a feature template, word representations, and a CRF over both."""

from __future__ import annotations

import json
import shutil
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from trellis import distributed
from trellis.config import RunConfig
from trellis.corpus import Vocabulary
from trellis.corpus.tagged import Tagged, describe_splits, read_splits
from trellis.corpus.tagsets import convert, units_of
from trellis.corpus.tokenize import EOS
from trellis.errors import TrellisError
from trellis.families.crf.config import CRFTaggerConfig, CRFTrainConfig
from trellis.families.crf.encoders import ENCODERS, Encoded, split_spec
from trellis.families.crf.learning import Checkpoints, State, train_crf
from trellis.families.crf.model import CRF, Features, check_pairs, every_pair, observed_pairs
from trellis.families.crf.templates import EDGES, TEMPLATES, WINDOW, WITHOUT_POS, Attributes, beside
from trellis.kernels.bags import Bags, Pairs
from trellis.models.base import Saved
from trellis.models.files import FILE, LAST, TRAINING, intact, load, read_header, save_model
from trellis.models.restoring import check_labels, check_numbers, check_shapes, rebuilt
from trellis.models.tagger import Tagger, a_few, check_data, lines_to_tensor, tensor_to_lines
from trellis.options import build
from trellis.report.markup import Markup
from trellis.storage import atomic_write, confined, load_tensors
from trellis.tasks.scores import Scores
from trellis.tasks.tagging import score_tags
from trellis.training.fit import Fitted, Job, not_together
from trellis.training.state import TrainState

NAMES = "names"  # the tensor of feature names
POS = "p[0]="  # prefix of part-of-speech attributes
SENTENCES = 1000  # sentences tagged at a time
Index = dict[str, int]
Words = Sequence[Sequence[str]]


class CRFTagger(Tagger):
    """A linear-chain CRF tagger. `tag` returns the most probable tag sequence of each sentence, argmax_y p(y | x).

    Parameters
    ----------
    config
        The options of the section [model].
    labels
        The tags.
    vocab
        The words of the training text.
    index
        The number of each attribute.
    scales
        The scale of each kind of dense representation.
    crf
        The weights.
    device
        "cpu" or "cuda", for the models whose features are used.
    files
        The kinds and files of the representations; by default, those named in `config`.

    Examples
    --------
    >>> text = [[("the", "D"), ("cat", "N")], [("a", "D"), ("dog", "N")]] * 20
    >>> trellis.train(text, family="crf").model.tag([["the", "dog"]])
    [['D', 'N']]
    """

    family = "crf"

    def __init__(
        self, config: CRFTaggerConfig, labels: list[str], vocab: Vocabulary, index: Index, scales: list[float],
        crf: CRF, device: str = "cpu", files: Sequence[tuple[str, Path]] | None = None,
    ) -> None:  # fmt: skip
        """`files` are the kinds and files of the representations; by default, those named in `config`."""
        self.config, self.labels, self.vocab, self.index, self.scales = config, labels, vocab, index, scales
        self.word_counts = {word: count for word, count in zip(vocab.words, vocab.counts, strict=True) if word != EOS}
        specs = [spec.strip() for spec in config.representations.split(";") if spec]
        self.crf, self.files = crf, [split_spec(spec) for spec in specs] if files is None else files
        self.encoders = [ENCODERS[kind](file, device) for kind, file in self.files]

    @classmethod
    def train(
        cls, data: Tagged, config: CRFTaggerConfig | None = None, train: CRFTrainConfig | None = None,
        device: str = "cpu", seed: int = 0, checkpoint: Path | None = None,
    ) -> CRFTagger:  # fmt: skip
        """Fit a tagger to tagged text; training continues from the checkpoint, if there is one."""
        check_data(data)
        spans, config = units_of(data.tag_set()) == "spans", config or CRFTaggerConfig()
        template = config.template or ("chunk" if spans else "pos")
        looks = config.pos and data.pos is not None and template not in WITHOUT_POS
        config = replace(config, template=template, pos=looks)
        data = data.map_tags(lambda tags: convert(tags, config.scheme)) if spans else data
        labels, vocab = data.tag_set(), Vocabulary.choose(Counter(chain.from_iterable(data.words)), unk=False)
        tagger = cls(config, labels, vocab, {}, [], CRF(len(labels), 0), device)
        tagger.fit(data, train or CRFTrainConfig(), device, seed, checkpoint)
        return tagger

    def fit(self, data: Tagged, train: CRFTrainConfig, device: str, seed: int, checkpoint: Path | None = None) -> None:
        """Select attributes and scales, and train the CRF."""
        encoded = self.represent(data.words)
        dense = [(encoder, part) for encoder, part in zip(self.encoders, encoded, strict=True) if not is_sparse(part)]
        self.scales = [scale_of(vectors(x), self.config.scale) if encoder.scaled else 1.0 for encoder, x in dense]
        attributes = self.attributes(data.words, data.pos, encoded)
        bags = self.choose_attributes(attributes)
        features = self.beside_vectors(bags, data.words, encoded)
        number = {label: i for i, label in enumerate(self.labels)}
        gold = torch.tensor([number[tag] for tag in chain.from_iterable(data.tags)])
        sizes = len(self.labels), len(self.index)
        pairs = None if self.config.unseen else observed_pairs(features, gold, sizes[1], sizes[0])
        self.crf = CRF(*sizes, features.dense.shape[1], pairs=pairs)
        train_crf(self.crf, features, gold, train, device, seed, self.checkpoints(checkpoint, train))

    def checkpoints(self, path: Path | None, train: CRFTrainConfig) -> Checkpoints:
        """Checkpoints of the training in a file, which is also a model of this family."""
        if path is None:
            return Checkpoints()

        def save(state: State) -> None:
            save_model(path, self, {"learner": dict(state.json)}, training=state.tensors)

        return Checkpoints(save, train.checkpoint_seconds, read_state(path) if path.exists() else None)

    def choose_attributes(self, attributes: Iterable[Attributes]) -> Bags:
        """Number the attributes that occur often enough, most frequent first, and return those of every token."""
        found: dict[str, int] = {}
        bags = bags_of(attributes, lambda name: found.setdefault(name, len(found)))
        counts = bags.ids.bincount(minlength=len(found))
        order = counts.argsort(descending=True, stable=True)
        rank = torch.empty_like(order, dtype=torch.int32)
        rank[order] = torch.arange(len(order), dtype=torch.int32)
        kept = int((counts >= self.config.min_count).sum())
        names = list(found)
        self.index = {names[i]: n for n, i in enumerate(order[:kept].tolist())}
        ids = rank[bags.ids]
        if kept == len(names):
            return Bags(ids, bags.offsets)
        before = torch.cat([torch.zeros(1, dtype=torch.int64), (ids < kept).cumsum(0)])
        return Bags(ids[ids < kept], before[bags.offsets])

    def represent(self, words: Words) -> list[Encoded]:
        return [encoder.encode(words) for encoder in self.encoders]

    def attributes(self, words: Words, pos: Words | None, encoded: list[Encoded]) -> Iterator[Attributes]:
        """The attributes of every sentence: those of the template, and of sparse representations within a window."""
        template = TEMPLATES[self.config.template]
        sparse = [(k, cast(list[Attributes], part)) for k, part in enumerate(encoded) if is_sparse(part)]
        for i, sentence in enumerate(words):
            own = template(sentence, pos[i] if pos is not None and self.config.pos else None)
            more = [spread(f"{k}", part[i]) for k, part in sparse]
            yield beside(own, *more)

    def features(self, attributes: Iterable[Attributes], words: Words, encoded: list[Encoded]) -> Features:
        """The features of sentences, as the CRF reads them."""
        return self.beside_vectors(bags_of(attributes, self.index.get), words, encoded)

    def beside_vectors(self, bags: Bags, words: Words, encoded: list[Encoded]) -> Features:
        """Add the scaled vectors of the real-valued representations."""
        parts = zip((vectors(part) for part in encoded if not is_sparse(part)), self.scales, strict=True)
        dense = [torch.from_numpy(np.concatenate([window(x) for x in part])) * scale for part, scale in parts]
        empty = torch.zeros(len(bags.offsets) - 1, 0)
        lengths = torch.tensor([len(sentence) for sentence in words])
        return Features(*bags, torch.cat([empty, *dense], 1), lengths)

    def tag_words(self, words: Words, pos: Words | None = None) -> list[list[str]]:
        if self.config.pos:
            self.check_pos(pos)
        found = []
        for first in range(0, len(words), SENTENCES):
            some, some_pos = words[first : first + SENTENCES], pos and pos[first : first + SENTENCES]
            encoded = self.represent(some)
            features = self.features(self.attributes(some, some_pos, encoded), some, encoded).to(self.device)
            names = iter([self.labels[label] for label in self.crf.best_labels(features).tolist()])
            found += [[next(names) for _ in sentence] for sentence in some]
        return [convert(tags, "IOB2") for tags in found] if self.units == "spans" else found

    def check_pos(self, pos: Words | None) -> None:
        """Raise if the data lacks parts of speech, or has those of another tag set."""
        if pos is None:
            raise TrellisError("The tagger was trained with parts of speech, but the data has none.")
        given, own = {*chain.from_iterable(pos)}, {n.removeprefix(POS) for n in self.index if n.startswith(POS)}
        if given and own and given.isdisjoint(own):
            raise TrellisError(
                f"The tagger has none of the parts of speech of the data ({a_few(given)}); it has {a_few(own)}. "
                "Map them to the tag set it was trained with."
            )

    @property
    def names(self) -> list[str]:
        """File names of the representations, next to the model file."""
        return [f"encoder-{k}{file.suffix}" for k, (_, file) in enumerate(self.files)]

    def save_beside(self, folder: Path) -> None:
        """Copy the representations into the tagger's folder."""
        for name, (_, file) in zip(self.names, self.files, strict=True):
            with atomic_write(folder / name) as copy, file.open("rb") as source:
                shutil.copyfileobj(source, copy)

    def settings(self) -> dict[str, Any]:
        own = [(kind, name) for name, (kind, _) in zip(self.names, self.files, strict=True)]
        config = asdict(replace(self.config, representations=""))
        return {"config": config, "encoders": own, "labels": self.labels, "scales": self.scales}

    def tensors(self) -> dict[str, Tensor]:
        weights = {name: weight.detach() for name, weight in self.crf.state_dict().items()}
        return weights | {NAMES: torch.from_numpy(lines_to_tensor([*self.index]).copy())}

    def to(self, device: str | torch.device) -> CRFTagger:
        self.crf.to(device)
        return self

    @classmethod
    def restore(cls, saved: Saved) -> CRFTagger:
        vocab, settings, tensors, folder = saved
        files = [(kind, confined(folder, name)) for kind, name in settings["encoders"]]
        names, labels = check_labels("features", tensor_to_lines(tensors[NAMES])), settings["labels"]
        weights = {name: tensor for name, tensor in tensors.items() if name != NAMES}
        if weights["attribute"].dim() == 2:  # all pairs, as in files written before weights were sparse
            check_shapes({"attribute": (len(names), len(labels))}, {"attribute": weights["attribute"]})
            weights |= every_pair(len(names), len(labels))._asdict() | {"attribute": weights["attribute"].flatten()}
        pairs = Pairs(weights["first"], weights["labels"])
        check_pairs(pairs, len(names), len(check_labels("labels", labels)))
        check_numbers("scales", settings["scales"])
        crf = rebuilt(lambda: CRF(len(labels), len(names), len(weights["dense"]), pairs=pairs), weights)
        config, index = build(CRFTaggerConfig, settings["config"]), {name: i for i, name in enumerate(names)}
        if config.template not in TEMPLATES:
            raise ValueError("the settings name no feature template")
        tagger = cls(config, labels, vocab, index, settings["scales"], crf, files=files)
        tagger.check_widths()
        return tagger

    def check_widths(self) -> None:
        """Raise ValueError if the representations do not have as many dimensions as the CRF has weights."""
        dense = [vectors(part)[0] for part in self.represent([[EOS]]) if not is_sparse(part)]
        if len(dense) != len(self.scales) or sum(window(one).shape[1] for one in dense) != len(self.crf.dense):
            raise ValueError("the representations beside the model are not those it was trained with")


@dataclass(frozen=True)
class TaggedCorpus:
    """Tagged text by split."""

    splits: dict[str, Tagged]
    description: str


def read(run: RunConfig, data: Any = None) -> TaggedCorpus:
    """The tagged text of a run."""
    splits = read_splits(run.data, data)
    return TaggedCorpus(splits, describe_splits(run.data, splits))


def fit(job: Job) -> Fitted:
    config, folder = job.config, job.folder
    if distributed.size() > 1:
        raise not_together(config)
    if folder is not None and (folder / FILE).exists():
        finished = load(folder, CRFTagger, job.device)
        return Fitted(finished, TrainState(**finished.about["training"]))
    model, train = cast(CRFTaggerConfig, config.model), cast(CRFTrainConfig, config.train)
    options = model, train, job.device, config.seed, folder and folder / LAST
    return Fitted(CRFTagger.train(job.corpus.splits["train"], *options))


def read_state(path: Path) -> State:
    """The state of the learner in a checkpoint."""
    header, tensors = read_header(path), load_tensors(path, checked=True)
    with intact(path):
        found = {name.removeprefix(TRAINING): t for name, t in tensors.items() if name.startswith(TRAINING)}
        return State(found, json.loads(header["about"])["learner"])


def evaluate(model: CRFTagger, corpus: TaggedCorpus, run: RunConfig) -> Scores:
    """Accuracy and F1 (of spans, if the tags mark spans) on held-out text, or on the training text if there is none."""
    held_out = {name: split for name, split in corpus.splits.items() if name != "train"} or corpus.splits
    found = {
        name: score_tags(text, model.tag(text.words, text.pos), model.units, model.word_counts)
        for name, text in held_out.items()
    }
    rows = [{"split": name, "accuracy, %": 100 * one.accuracy, "F1, %": 100 * one.f1} for name, one in found.items()]
    values = {f"{name}_accuracy": 100 * score.accuracy for name, score in found.items()}
    values |= {f"{name}_f1": 100 * score.f1 for name, score in found.items()}
    return Scores("tags", {"parameters": model.num_parameters(), **values}, rows, headline="test_f1")


def sections(model: CRFTagger) -> list[Markup]:
    return []


def bags_of(attributes: Iterable[Attributes], number: Callable[[str], int | None]) -> Bags:
    """The numbers of the attributes of every token; attributes without a number are dropped."""
    ids, offsets = array("i"), array("q", [0])
    for token in chain.from_iterable(attributes):
        ids.extend(i for i in map(number, token) if i is not None)
        offsets.append(len(ids))
    return Bags(torch.from_numpy(np.array(ids, np.int32)), torch.from_numpy(np.array(offsets, np.int64)))


def is_sparse(encoded: Encoded) -> bool:
    return not isinstance(encoded[0], np.ndarray)


def vectors(encoded: Encoded) -> list[np.ndarray]:
    """The vectors of a real-valued representation."""
    return cast(list[np.ndarray], encoded)


def scale_of(part: list[np.ndarray], wanted: float) -> float:
    """The factor that scales vectors to the wanted root mean square."""
    rms = float(np.sqrt(np.mean(np.square(np.concatenate(part), dtype=np.float64))))
    return wanted / rms if rms > 0 else 1.0


def spread(name: str, sentence: Attributes) -> Attributes:
    """The attributes of a representation within the window around each token."""
    edges = [[[edge]] * WINDOW for edge in EDGES]
    padded = [*edges[0], *sentence, *edges[1]]
    return [
        [f"{name}[{offset - WINDOW}]{value}" for offset in range(2 * WINDOW + 1) for value in padded[t + offset]]
        for t in range(len(sentence))
    ]


def window(rows: np.ndarray) -> np.ndarray:
    """The vectors within the window around each token, zero outside the sentence: [T, D] -> [T, 5 D]."""
    padded = np.pad(rows, ((WINDOW, WINDOW), (0, 0)))
    return np.concatenate([padded[offset : offset + len(rows)] for offset in range(2 * WINDOW + 1)], 1)
