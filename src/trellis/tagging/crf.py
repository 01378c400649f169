"""The tagger with features: a template, representations of words, and a CRF over both."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from trellis.config import build, choose
from trellis.corpus.tagged import Tagged
from trellis.corpus.tagsets import SCHEMES, convert, units_of
from trellis.errors import TrellisError
from trellis.families.crf.learning import CRFConfig, train_crf
from trellis.families.crf.model import CRF, Features
from trellis.storage import atomic_write
from trellis.tagging.base import (
    Tagger,
    a_few,
    check_data,
    check_sentences,
    lines_to_tensor,
    tensor_to_lines,
    write_tagger,
)
from trellis.tagging.encoders import ENCODERS, Encoded, split_spec
from trellis.tagging.templates import EDGES, TEMPLATES, WINDOW, WITHOUT_POS, Attributes, beside

POS = "p[0]="  # how the attribute of a part of speech begins
SENTENCES = 1000  # tagged at a time
Index = dict[str, int]


@dataclass(frozen=True)
class TaggerConfig:
    """What a tagger looks at, and how it is trained."""

    template: str = ""  # pos | chunk | ner | huang; none: pos for tokens, chunk for spans
    scheme: str = "IOB2"  # in which spans are learned: IOB1 | IOB2 | IOBES
    scale: float = 0.3  # root mean square of real-valued features that are not probabilities
    pos: bool = True  # look at parts of speech where the data has them
    min_count: int = 1  # tokens that an attribute must have
    crf: CRFConfig = field(default_factory=CRFConfig)

    def __post_init__(self) -> None:
        choose(SCHEMES, self.scheme, "The scheme of spans")


class FeatureTagger(Tagger):
    """argmax_y p(y | x) of a CRF."""

    kind = "crf"

    def __init__(
        self, config: TaggerConfig, specs: Sequence[str], labels: list[str], counts: Mapping[str, int], index: Index,
        scales: list[float], crf: CRF,
    ) -> None:  # fmt: skip
        self.config, self.labels, self.counts, self.index, self.scales = config, labels, counts, index, scales
        self.crf, self.files = crf, [split_spec(spec) for spec in specs]
        self.encoders = [ENCODERS[kind](file, config.crf.device) for kind, file in self.files]

    @classmethod
    def train(cls, data: Tagged, config: TaggerConfig, specs: Sequence[str] = ()) -> FeatureTagger:
        """Fit a tagger to labelled text; specs are representations, KIND:PATH each."""
        check_data(data)
        spans = units_of(data.tag_set()) == "spans"
        template = config.template or ("chunk" if spans else "pos")
        choose(TEMPLATES, template, "The template")
        looks = config.pos and data.pos is not None and template not in WITHOUT_POS
        config = replace(config, template=template, pos=looks)
        data = data.map_tags(lambda tags: convert(tags, config.scheme)) if spans else data
        labels, counts = data.tag_set(), Counter(chain.from_iterable(data.words))
        tagger = cls(config, specs, labels, counts, {}, [], CRF(len(labels), 0))
        tagger.fit(data)
        return tagger

    def fit(self, data: Tagged) -> None:
        """Choose attributes and scales, and train the CRF."""
        encoded = self.encode(data.words)
        dense = [(encoder, part) for encoder, part in zip(self.encoders, encoded, strict=True) if not is_sparse(part)]
        self.scales = [scale_of(vectors(x), self.config.scale) if encoder.scaled else 1.0 for encoder, x in dense]
        attributes = list(self.attributes(data.words, data.pos, encoded))
        often = Counter(chain.from_iterable(chain.from_iterable(attributes)))
        kept = (name for name, count in often.items() if count >= self.config.min_count)
        self.index = {name: i for i, name in enumerate(kept)}
        features = self.features(attributes, data.words, encoded)
        number = {label: i for i, label in enumerate(self.labels)}
        gold = torch.tensor([number[tag] for tag in chain.from_iterable(data.tags)])
        crf = CRF(len(self.labels), len(self.index), features.dense.shape[1])
        self.crf = train_crf(crf, features, gold, self.config.crf)

    def encode(self, words: list[list[str]]) -> list[Encoded]:
        return [encoder.encode(words) for encoder in self.encoders]

    def attributes(
        self, words: list[list[str]], pos: list[list[str]] | None, encoded: list[Encoded]
    ) -> Iterator[Attributes]:
        """All attributes of every sentence: the template's, and each sparse representation in a window."""
        template = TEMPLATES[self.config.template]
        sparse = [(k, cast(list[Attributes], part)) for k, part in enumerate(encoded) if is_sparse(part)]
        for i, sentence in enumerate(words):
            own = template(sentence, pos[i] if pos is not None and self.config.pos else None)
            more = [spread(f"{k}", part[i]) for k, part in sparse]
            yield beside(own, *more)

    def features(self, attributes: Iterable[Attributes], words: list[list[str]], encoded: list[Encoded]) -> Features:
        """What the CRF takes."""
        rows = [[self.index[name] for name in token if name in self.index] for token in chain.from_iterable(attributes)]
        sizes = torch.tensor([len(row) for row in rows])
        ids = torch.from_numpy(np.fromiter(chain.from_iterable(rows), np.int64))
        parts = zip((vectors(part) for part in encoded if not is_sparse(part)), self.scales, strict=True)
        dense = [torch.from_numpy(np.concatenate([window(x) for x in part])) * scale for part, scale in parts]
        empty = torch.zeros(len(rows), 0)
        lengths = torch.tensor([len(sentence) for sentence in words])
        return Features(ids, sizes.cumsum(0) - sizes, torch.cat([empty, *dense], 1), lengths)

    def tag(self, words: list[list[str]], pos: list[list[str]] | None = None) -> list[list[str]]:
        check_sentences(words, pos)
        if self.config.pos:
            self.check_pos(pos)
        found = []
        for first in range(0, len(words), SENTENCES):
            some, some_pos = words[first : first + SENTENCES], pos and pos[first : first + SENTENCES]
            encoded = self.encode(some)
            features = self.features(self.attributes(some, some_pos, encoded), some, encoded)
            names = iter([self.labels[label] for label in self.crf.best_labels(features).tolist()])
            found += [[next(names) for _ in sentence] for sentence in some]
        return [convert(tags, "IOB2") for tags in found] if self.units == "spans" else found

    def check_pos(self, pos: list[list[str]] | None) -> None:
        """Refuse data without parts of speech, or with those of another tag set."""
        if pos is None:
            raise TrellisError("The tagger was trained with parts of speech, and the data has none.")
        given, own = {*chain.from_iterable(pos)}, {n.removeprefix(POS) for n in self.index if n.startswith(POS)}
        if given and own and given.isdisjoint(own):
            raise TrellisError(
                f"The tagger knows none of the parts of speech of the data ({a_few(given)}); its own are {a_few(own)}. "
                "Map them to the tag set that it was trained with."
            )

    def save(self, folder: Path) -> None:
        """The tagger in one file, its representations beside it."""
        names = [f"encoder-{k}{file.suffix}" for k, (_, file) in enumerate(self.files)]
        for name, (_, file) in zip(names, self.files, strict=True):
            with atomic_write(folder / name) as copy, file.open("rb") as source:
                shutil.copyfileobj(source, copy)
        own = [(kind, name) for name, (kind, _) in zip(names, self.files, strict=True)]
        settings = {"config": asdict(self.config), "encoders": own, "labels": self.labels, "scales": self.scales}
        tensors = {name: weight.detach() for name, weight in self.crf.state_dict().items()}
        texts = {"names": [*self.index], "words": [f"{count} {word}" for word, count in self.counts.items()]}
        write_tagger(folder, self.kind, settings, tensors | {k: lines_to_tensor(v) for k, v in texts.items()})

    @classmethod
    def restore(cls, folder: Path, settings: dict[str, Any], tensors: dict[str, Tensor]) -> FeatureTagger:
        """The tagger that `save` wrote."""
        config = build(TaggerConfig, settings["config"])
        config = replace(config, crf=replace(config.crf, device="cpu"))
        specs = [f"{kind}:{folder / name}" for kind, name in settings["encoders"]]
        index = {name: i for i, name in enumerate(tensor_to_lines(tensors.pop("names")))}
        rows = (line.split(" ", 1) for line in tensor_to_lines(tensors.pop("words")))
        counts = {word: int(count) for count, word in rows}
        crf = CRF(len(settings["labels"]), len(tensors["attribute"]), len(tensors["dense"]))
        crf.load_state_dict(tensors)
        return cls(config, specs, settings["labels"], counts, index, settings["scales"], crf)


def is_sparse(encoded: Encoded) -> bool:
    return not isinstance(encoded[0], np.ndarray)


def vectors(encoded: Encoded) -> list[np.ndarray]:
    """A representation that is known to be real-valued."""
    return cast(list[np.ndarray], encoded)


def scale_of(part: list[np.ndarray], wanted: float) -> float:
    """The factor that brings vectors to the wanted root mean square."""
    rms = float(np.sqrt(np.mean(np.square(np.concatenate(part), dtype=np.float64))))
    return wanted / rms if rms > 0 else 1.0


def spread(name: str, sentence: Attributes) -> Attributes:
    """The attributes of a representation within the window of every token."""
    edges = [[[edge]] * WINDOW for edge in EDGES]
    padded = [*edges[0], *sentence, *edges[1]]
    return [
        [f"{name}[{offset - WINDOW}]{value}" for offset in range(2 * WINDOW + 1) for value in padded[t + offset]]
        for t in range(len(sentence))
    ]


def window(rows: np.ndarray) -> np.ndarray:
    """The vectors within the window of every token, zero outside the sentence: [T, D] -> [T, 5 D]."""
    padded = np.pad(rows, ((WINDOW, WINDOW), (0, 0)))
    return np.concatenate([padded[offset : offset + len(rows)] for offset in range(2 * WINDOW + 1)], 1)
