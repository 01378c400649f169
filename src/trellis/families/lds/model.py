"""The linear dynamical system over words, in which every token has a hidden vector.

It is a Gaussian model of one-hot vectors, so it has densities (nats per token) rather than perplexities."""

from __future__ import annotations

from copy import copy
from functools import cached_property
from typing import Any, ClassVar, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor

from trellis.corpus import Split, Vocabulary
from trellis.corpus.moments import ABSENT
from trellis.devices import usable
from trellis.families.lds.parameters import OneHot, Parameters, Whitening
from trellis.inference import gaussian
from trellis.inference.gaussian import MISSING, Dynamics, Filtered, Normal, Potentials
from trellis.inference.steady import lyapunov, steady_state
from trellis.models.base import PersistedModel, Ranked, Saved
from trellis.models.restoring import check_indices, check_numbers, check_shapes

LANES, WINDOW, WARM = 64, 2048, 100  # parallel windows of a stream, their length, and their overlap


class Pair(NamedTuple):
    """A singular vector pair of A, described by the words it maps from (`before`) and to (`after`)."""

    value: float
    before: list[str]
    after: list[str]


class LDS(PersistedModel):
    """A linear dynamical system over words: x_t = A x_{t-1} + N(0, I), w_t = C x_t + N(0, D).

    w_t is the one-hot vector of the word, centred and scaled.

    Parameters
    ----------
    vocab
        The words of the model.
    rows
        The row of each word in the tables, [V]; rare words share one.
    counts
        The count of each row.
    parameters
        A, C and the noise.
    spread
        The covariance [h, h] of the smoothed vectors of the training text.
    pseudocount
        Pseudocounts per word in the whitening scale.
    prior
        Pseudocounts per word in the noise.
    whiten
        Whether words are scaled by their frequency.

    Examples
    --------
    >>> text = ["the cat sees the dog", "a dog sees a cat", "the dog runs", "a cat runs and sees"] * 15
    >>> model = trellis.train(text, family="lds", dim=2, epochs=1).model
    >>> model.embed("the cat runs").shape
    (3, 2)
    """

    family: ClassVar[str] = "lds"
    embed_kinds: ClassVar = {  # whitened, of unit length
        "smoothed": lambda model, tokens, lengths: model.unit(model.smooth(tokens, lengths)),
        "filtered": lambda model, tokens, lengths: model.unit(model.filter(tokens, lengths).means),
        "type": lambda model, tokens, lengths: model.type_vectors()[tokens],
    }

    def __init__(
        self,
        vocab: Vocabulary,
        rows: Tensor,
        counts: Tensor,
        parameters: Parameters,
        spread: Tensor,
        pseudocount: float = 0.0,
        prior: float = 0.0,
        whiten: bool = True,
    ) -> None:
        self.vocab, self.rows, self.counts, self.parameters = vocab, rows, counts, parameters
        self.spread, self.pseudocount, self.prior, self.whiten = spread, pseudocount, prior, whiten
        self.where = torch.device("cpu")

    @property
    def dim(self) -> int:
        return len(self.parameters.transition)

    @property
    def width(self) -> int:
        return self.dim

    @property
    def device(self) -> torch.device:
        return usable(self.where)

    def to(self, device: str | torch.device) -> LDS:
        """Move the inference tables to another device."""
        model = copy(self)
        model.__dict__.pop("tables", None)
        model.where = torch.device(device)
        return model

    @cached_property
    def coordinates(self) -> Whitening:
        total = int(self.counts.sum())
        return Whitening(self.counts.numpy() / total, self.pseudocount / total, self.prior / total, self.whiten)

    @cached_property
    def emission(self) -> OneHot:
        return self.parameters.emission(self.coordinates)

    @cached_property
    def tables(self) -> dict[str, Tensor]:
        """Lookup tables for inference: per-word vectors [n, h] and constants [n], and matrices [h, h]."""
        A, unit = self.parameters.transition, np.eye(self.dim)
        values, vectors = np.linalg.eigh(self.spread.numpy())
        whiten = (vectors / np.sqrt(values.clip(1e-12 * values.max()))) @ vectors.T
        arrays = {
            "transition": A,
            "noise": unit,
            "stationary": lyapunov(A, unit),
            "information": self.emission.information,
            "vectors": self.emission.vectors(),
            "constants": self.emission.constants(),
            "gain": steady_state(A, unit, self.emission.information).filtered,
            "whiten": whiten,
        }
        return {name: torch.from_numpy(array).to(self.where) for name, array in arrays.items()}

    def problem(self, tokens: Tensor) -> tuple[Normal, Dynamics, Potentials]:
        """The inputs of inference for tokens [B, T]; -1 and words unseen in training are missing."""
        tables, rows = self.tables, self.rows.to(self.where)
        row = torch.where(tokens < 0, ABSENT, rows[tokens.clamp(min=0)])
        seen = row.clamp(min=0)
        information = tables["information"][None]
        potentials = Potentials(
            information, torch.where(row < 0, MISSING, 0), tables["vectors"][seen], tables["constants"][seen]
        )
        prior = Normal(torch.zeros_like(information[0, 0]), tables["stationary"])
        return prior, Dynamics(tables["transition"], tables["noise"]), potentials

    @torch.no_grad()
    def filter(self, tokens: Tensor, lengths: Tensor | None = None) -> Filtered:
        """Filtered means E[x_t | w_<=t] of sequences [B, T], their covariances, and log p(w_t | w_<t)."""
        return gaussian.filter(*self.problem(tokens), lengths)

    @torch.no_grad()
    def smooth(self, tokens: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Smoothed means E[x_t | w] of sequences [B, T]: [B, T, h]."""
        return gaussian.smoothed_means(*self.problem(tokens), lengths)

    @torch.no_grad()
    def nats_per_token(self, split: Split) -> float:
        """Mean log density per token of a split read as one stream.

        The stream is read in parallel windows. Each window first reads the end of the previous one, without counting
        it."""
        text, total = torch.from_numpy(np.asarray(split.tokens, np.int64)), 0.0
        for begin in range(0, max(1, len(text) - WARM), LANES * WINDOW):
            piece = text[begin : begin + LANES * WINDOW + WARM]
            lanes = max(1, -(-(len(piece) - WARM) // WINDOW))
            padded = torch.nn.functional.pad(piece, (0, WARM + lanes * WINDOW - len(piece)))
            windows = padded.unfold(0, WARM + WINDOW, WINDOW).to(self.where)
            lengths = (len(piece) - WINDOW * torch.arange(lanes, device=self.where)).clamp(max=WARM + WINDOW)
            densities = gaussian.log_densities(*self.problem(windows), lengths)
            densities[0 if begin else 1 :, :WARM] = 0.0  # counted by the previous window
            total += float(densities.sum(dtype=torch.float64))
        return total / len(text)

    def static_nats_per_token(self, split: Split) -> float:
        """`nats_per_token` of a memoryless Gaussian with the words' mean and covariance."""
        alone = OneHot(self.coordinates, 0 * self.parameters.loadings, np.eye(self.dim)).constants()
        rows = self.rows.numpy()[split.tokens]
        return float(np.where(rows < 0, 0.0, alone[rows]).mean())

    def unit(self, vectors: Tensor) -> Tensor:
        """Whiten vectors by the covariance of the training text's smoothed vectors, and scale them to unit length."""
        return torch.nn.functional.normalize(vectors @ self.tables["whiten"], dim=-1)

    def type_vectors(self) -> Tensor:
        """The vector of each word out of context, which is its Kalman gain: [V, h]; zero for unseen words."""
        vectors = self.unit(self.tables["vectors"] @ self.tables["gain"])
        rows = self.rows.to(self.where)
        return vectors[rows.clamp(min=0)] * (rows >= 0).unsqueeze(-1)

    def neighbours(self, text: str, position: int, n: int = 10) -> Ranked:
        """The words whose vectors out of context are nearest to the vector of a token in context, with cosines."""
        vector = torch.from_numpy(cast(np.ndarray, self.embed(text))[position]).to(self.where)
        cosines = self.type_vectors() @ vector.double()
        top = cosines.topk(min(n, len(cosines)))
        return list(zip(self.vocab.decode(top.indices.tolist()), top.values.tolist(), strict=True))

    def dynamics(self, n: int = 10, words: int = 9) -> list[Pair]:
        """The n leading singular vector pairs of A, each described by words."""
        left, values, right = np.linalg.svd(self.parameters.transition)
        pairs = zip(values[:n], right[:n], left.T[:n], strict=True)
        return [Pair(float(value), *self.favoured_words(before, after, words)) for value, before, after in pairs]

    def favoured_words(self, before: np.ndarray, after: np.ndarray, words: int) -> tuple[list[str], list[str]]:
        """The words closest to each vector of a pair. The pair has the sign for which these words are more
        distinctive."""
        first = np.full(self.counts.numel(), -1)
        known = np.flatnonzero(self.rows.numpy() >= 0)[::-1]
        first[self.rows.numpy()[known]] = known
        scores = [self.parameters.loadings @ side for side in (before, after)]
        sign = 1.0 if scores[0].max() >= -scores[0].min() else -1.0
        favoured = [self.vocab.decode(first[np.argsort(-sign * score)[:words]].tolist()) for score in scores]
        return favoured[0], favoured[1]

    def settings(self) -> dict[str, Any]:
        return {"dim": self.dim, "pseudocount": self.pseudocount, "prior": self.prior, "whiten": self.whiten}

    def tensors(self) -> dict[str, Tensor]:
        arrays = self.parameters._asdict().items()
        numbers = {name: torch.from_numpy(array) for name, array in arrays if array is not None}
        return {"rows": self.rows, "counts": self.counts, "spread": self.spread, **numbers}

    def num_parameters(self) -> int:
        return sum(array.size for array in self.parameters if array is not None)

    @classmethod
    def check_saved(cls, saved: Saved) -> None:
        super().check_saved(saved)
        tensors, dim, words = saved.tensors, saved.settings["dim"], len(saved.tensors["counts"])
        square, shapes = (dim, dim), {"rows": (len(saved.vocab),), "counts": (words,), "loadings": (words, dim)}
        shapes |= {"transition": square, "explained": square, "spread": square}
        shapes |= {"variance": (words,)} if "variance" in tensors else {}
        check_shapes(shapes, tensors)
        check_indices("rows", tensors["rows"], shapes["rows"], -1, words)
        check_numbers("pseudocounts", [saved.settings[name] for name in ("pseudocount", "prior")])
        if not all(tensor.is_floating_point() for name, tensor in tensors.items() if name not in ("rows", "counts")):
            raise ValueError("a parameter is not a real number")
        if not bool((tensors["counts"] >= 0).all()) or not 0 < float(tensors["counts"].sum()) < 1 << 63:
            raise ValueError("the counts of words are not positive")
        if "variance" in tensors and not bool((tensors["variance"] > 0).all()):
            raise ValueError("a variance is not positive")

    @classmethod
    def restore(cls, saved: Saved) -> LDS:
        vocab, settings, tensors, _ = saved
        parameters = Parameters(**{name: tensors[name].numpy() for name in Parameters._fields if name in tensors})
        tempered = {name: settings[name] for name in ("pseudocount", "prior", "whiten")}
        return cls(vocab, tensors["rows"], tensors["counts"], parameters, tensors["spread"], **tempered)
