"""The explorer's views of the states of an HMM: lists, one state, classes, the map."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from trellis.devices import seeded
from trellis.emissions import Partition
from trellis.errors import TrellisError
from trellis.explore.kept import Kept
from trellis.explore.language import LanguageViews
from trellis.explore.layout import Layout, place_states, restored
from trellis.explore.packed import StateTables
from trellis.explore.views import Answer, Turn
from trellis.families.hmm.concordance import Concordance
from trellis.families.hmm.lattice import WORDS
from trellis.families.hmm.model import HMM
from trellis.families.hmm.normalisers import LARGE, NORMS, lazy_transition, use_norms
from trellis.families.hmm.parameters.neural import NeuralParams
from trellis.families.hmm.states import merged_by_word
from trellis.transitions import LazySoftmax
from trellis.transitions.lazy import AT_ONCE

MOST_WORDS, MOST_CONTEXTS = 200, 12  # of one state
MOST_ROWS = 12  # of its predecessors, successors and neighbours
SKETCH = 64  # dimensions of the vectors of states without embeddings
MOST_MATCHES = 50  # words that begin with a query
WORTH_KEEPING = 1.0  # seconds; what is computed faster is not kept beside the model
MOST_PAIRS = 1 << 24  # states times words, up to which names of states exclude <unk>
LONGEST_LABEL = 24  # characters of a state's name on the map
DIGITS = 5  # of positions and occupancies on the map


class StateViews(LanguageViews):
    """Views of the states of an HMM."""

    model: HMM
    layout: Layout | None = None
    progress = 0.0

    def __init__(self, model: HMM, name: str = "", folder: Path | None = None) -> None:
        super().__init__(model, name, folder)
        self.lazy = lazy_transition(model)

    @property
    def partition(self) -> Partition | None:
        return self.model.params.partition

    @property
    def num_classes(self) -> int | None:
        if self.partition is not None:
            return self.partition.num_classes
        return None if self.layout is None else len(self.layout.centres)

    @property
    def examples(self) -> list[str]:
        """Sampled sentences. In a large model, sampling takes long, so there are none until the background work is
        done."""
        ready = self.model.num_states < LARGE or "examples" in vars(self)
        return super().examples if ready else []

    @cached_property
    def occupancy(self) -> Tensor:
        with torch.no_grad():
            return self.model.occupancy()

    @cached_property
    def unigram(self) -> Tensor:
        """p(word) if states are distributed like the occupancy: [V]."""
        with torch.no_grad():
            return self.model.parts().emission.predict(self.occupancy).exp()

    @cached_property
    def top_words(self) -> Tensor:
        """The most probable words of each state: [K, n]; -1 instead of a word that it cannot emit."""
        with torch.no_grad():
            return self.model.parts().emission.top(WORDS).indices

    @property
    def best_words(self) -> Tensor:
        """The most probable word of each state: [K]."""
        return self.top_words[:, 0].clamp(min=0)

    @cached_property
    def known_words(self) -> Tensor:
        """The most probable word of each state other than <unk>, [K]. In a large model, <unk> is not excluded."""
        vocab, states = self.model.vocab, self.model.num_states
        if vocab.unk is None or states * len(vocab) > MOST_PAIRS:
            return self.best_words
        columns = self.model.parts().emission.columns(torch.arange(states, device=self.model.device)).clone()
        columns[vocab.unk] = -torch.inf
        return columns.argmax(0)

    @cached_property
    def vectors(self) -> Tensor:
        """A vector for each state, [K, d]: its embedding as a successor, if it has one.

        Otherwise, a random projection of the square roots of its word and transition probabilities. Distances between
        these vectors approximate Hellinger distances."""
        params = self.model.params
        with torch.no_grad():
            if isinstance(params, NeuralParams):
                return params.embed("out").detach().float()
            _, transition, emission = self.model.parts()
            by_words = torch.randn(len(self.model.vocab), SKETCH, generator=seeded(0)).to(self.model.device)
            by_states = torch.randn(self.model.num_states, SKETCH, generator=seeded(1)).to(self.model.device)
            words = torch.cat([(some.float() / 2).exp().T @ by_words for some in emission.by_state()])
            states = torch.arange(self.model.num_states, device=self.model.device)
            rows = [transition.rows(some).float().sqrt() @ by_states for some in states.split(1024)]
            return torch.cat([words, torch.cat(rows)], 1)

    @cached_property
    def unit_vectors(self) -> Tensor:
        return torch.nn.functional.normalize(self.vectors - self.vectors.mean(0), dim=-1)

    @cached_property
    def classes_of_states(self) -> Tensor | None:
        """The class of each state [K], given by the model; None if it has no classes."""
        return None if self.partition is None else self.partition.state_class()

    @cached_property
    def concordance(self) -> Concordance:
        return Concordance(self.model)

    def class_of(self, state: int) -> int | None:
        if self.classes_of_states is not None:
            return int(self.classes_of_states[state])
        return None if self.layout is None else int(self.layout.groups[state])

    def background(self, turn: Turn[Any]) -> None:
        kept, begun = Kept(self.model, self.folder), time.monotonic()
        arrays = kept.load()
        if self.lazy is not None:
            turn(partial(use_norms, self.lazy, arrays.get(NORMS)))
        turn(self.warm)
        vectors = turn(lambda: self.vectors.cpu().numpy())
        groups = None if self.classes_of_states is None else self.classes_of_states.cpu().numpy()
        self.layout = restored(arrays, len(vectors)) or place_states(vectors, groups, self.report)
        found = arrays | self.layout._asdict()
        if not arrays and time.monotonic() - begun > WORTH_KEEPING:
            kept.save(found)
        if self.lazy is not None and len(self.lazy.missing):
            self.compute_norms(self.lazy, turn)
            kept.save(found | {NORMS: self.lazy.values.cpu().numpy()})
        turn(lambda: super(StateViews, self).examples)
        if self.has_corpus:
            self.concordance.read(turn)

    def compute_norms(self, transition: LazySoftmax, turn: Turn[Any]) -> None:
        """Compute all normalisers of a large transition, a few rows at a time."""
        for rows in transition.missing.split(AT_ONCE):
            turn(partial(transition.need, rows))

    def report(self, done: float) -> None:
        self.progress = done

    def warm(self) -> None:
        """Compute values that many answers share."""
        _ = self.unigram, self.top_words, self.unit_vectors

    def named(self, states: Tensor) -> list[Answer]:
        """The ids, labels and classes of some states [n]."""
        pairs = zip(states.tolist(), self.top_words[states].tolist(), strict=True)
        return [{"id": z, "label": self.written(words), "class": self.class_of(z)} for z, words in pairs]

    def written(self, words: Sequence[int]) -> str:
        """The label of a state or a class, given the ids of its words."""
        return ", ".join(self.model.vocab.decode([word for word in words if word >= 0]))

    def ranked(self, values: Tensor, n: int, name: str = "prob", above: float = 0.0) -> list[Answer]:
        """The n states with the highest values [K] above a limit, with their labels."""
        top = values.topk(min(n, len(values)))
        states = top.indices[top.values > above]
        pairs = zip(self.named(states), top.values.tolist(), strict=False)
        return [{"id": one["id"], "label": one["label"], name: value} for one, value in pairs]

    @torch.no_grad()
    def states(self, offset: int, limit: int, query: str, sort: str) -> Answer:
        """A page of states, with their occupancies."""
        order = self.matching(query) if query else self.sorted(sort)
        page = order[offset : offset + limit]
        shares = self.occupancy[page].tolist()
        items = [one | {"occupancy": share} for one, share in zip(self.named(page), shares, strict=True)]
        return {"items": items, "total": len(order), "offset": offset}

    def sorted(self, sort: str) -> Tensor:
        """All states, by id, by occupancy, or by class and occupancy: [K]."""
        if sort == "id":
            return torch.arange(self.model.num_states, device=self.model.device)
        order = self.occupancy.argsort(descending=True, stable=True)
        if sort == "class" and self.num_classes is not None:
            order = order[cast(Tensor, self.groups())[order].argsort(stable=True)]
        return order

    def matching(self, query: str) -> Tensor:
        """The states that emit a word, or else the words that begin with a text, most probable first."""
        vocab, emission = self.model.vocab, self.model.parts().emission
        known = [query] if query in vocab.index else [word for word in vocab.words if word.startswith(query)]
        ids = sorted((vocab.index[word] for word in known), key=lambda i: -float(self.unigram[i]))[:MOST_MATCHES]
        weights = torch.zeros_like(self.occupancy)
        for i in ids:
            weights += self.occupancy * emission.log_probs(i).exp()
        order = weights.argsort(descending=True, stable=True)
        return order[weights[order] > 0]

    @torch.no_grad()
    def state(self, state: int) -> Answer:
        """The words, successors, predecessors, similar states and contexts of one state."""
        if state >= self.model.num_states:
            raise TrellisError(f"There is no state {state}; the states are 0 to {self.model.num_states - 1}.")
        _, transition, emission = self.model.parts()
        chosen = torch.tensor([state], device=self.model.device)
        similar = self.unit_vectors @ self.unit_vectors[state]
        similar[state] = -torch.inf
        return {
            **self.named(chosen)[0],
            "occupancy": float(self.occupancy[state]),
            "words": [self.with_base(*pair) for pair in self.model.rank(emission.columns(chosen)[:, 0], MOST_WORDS)],
            "incoming": self.incoming(chosen),
            "outgoing": self.merged(transition.rows(chosen)[0]),
            "neighbours": self.ranked(similar, MOST_ROWS, "similarity", -torch.inf),
            "contexts": self.concordance.find(state, MOST_CONTEXTS),
        }

    def incoming(self, chosen: Tensor) -> list[Answer] | None:
        """The predecessors of a state [1], merged by word; None while normalisers of a large model are missing."""
        if self.lazy is not None and len(self.lazy.missing):
            return None
        one_hot = torch.nn.functional.one_hot(chosen, self.model.num_states).to(self.occupancy.dtype)
        before = self.occupancy * self.model.parts().transition.backward(one_hot)[0]
        return self.merged(before / before.sum().clamp(min=torch.finfo(before.dtype).tiny))

    def with_base(self, word: str, prob: float) -> Answer:
        return {"word": word, "prob": prob, "base": float(self.unigram[self.model.vocab.index[word]])}

    def merged(self, probs: Tensor) -> list[Answer]:
        """A distribution over states [K], summed over states with the same most probable word."""
        found = merged_by_word(probs, self.best_words, len(self.model.vocab), MOST_ROWS)
        return [
            {
                "id": one.main,
                "label": self.written(self.top_words[one.main].tolist()),
                "word": self.model.vocab.words[one.word],
                "prob": one.prob,
                "count": one.states,
            }
            for one in found
        ]

    @torch.no_grad()
    def classes(self) -> Answer:
        """The classes of words of the model, or else groups of similar states."""
        groups = self.groups()
        if groups is None:
            return {"items": [], **self.unready()}
        n = int(groups.max()) + 1
        shares = torch.zeros(n, dtype=self.occupancy.dtype, device=groups.device).index_add_(0, groups, self.occupancy)
        sizes = torch.bincount(groups, minlength=n).tolist()
        labels = self.class_labels(groups, n)
        rows = zip(labels, sizes, shares.tolist(), strict=True)
        items = [
            {"id": c, "label": label, "states": size, "occupancy": share} for c, (label, size, share) in enumerate(rows)
        ]
        return {"items": items, "ready": True}

    def unready(self) -> Answer:
        """The answer while the map is being computed; raises TrellisError if that has failed."""
        if self.failure:
            raise TrellisError(self.failure)
        return {"ready": False, "progress": self.progress}

    def groups(self) -> Tensor | None:
        """The class of each state [K]; None until groups have been found."""
        if self.classes_of_states is not None:
            return self.classes_of_states
        return None if self.layout is None else torch.from_numpy(self.layout.groups).long().to(self.model.device)

    def class_labels(self, groups: Tensor, classes: int) -> list[str]:
        """The most frequent words of each class, counting only the most probable word of each state."""
        size = len(self.model.vocab)
        pairs, place = (groups * size + self.best_words).unique(return_inverse=True)
        shares = torch.zeros(len(pairs), dtype=torch.float64, device=groups.device)
        shares.index_add_(0, place, self.occupancy.double())
        found: list[list[int]] = [[] for _ in range(classes)]
        for pair in pairs[shares.argsort(descending=True, stable=True)].tolist():
            if len(found[pair // size]) < WORDS:
                found[pair // size].append(pair % size)
        return [self.written(words) for words in found]

    def tables(self) -> StateTables | None:
        """All states as arrays, for a page without a server."""
        from trellis.families.hmm.state_tables import state_tables

        return state_tables(self)

    @torch.no_grad()
    def map(self) -> Answer:
        """The positions of all states, with classes and occupancies."""
        if self.layout is None:
            return self.unready()
        labels = [one["label"] for one in self.classes()["items"]]
        x, y = self.layout.points.T.astype(float).round(DIGITS).tolist()
        centres = zip(labels, self.layout.centres.astype(float).round(DIGITS).tolist(), strict=True)
        return {
            "x": x,
            "y": y,
            "class": cast(Tensor, self.groups()).tolist(),
            "occupancy": [float(f"{share:.{DIGITS}g}") for share in self.occupancy.tolist()],
            "labels": [word[:LONGEST_LABEL] for word in self.model.vocab.decode(self.known_words.tolist())],
            "classes": [{"id": c, "label": label, "x": a, "y": b} for c, (label, (a, b)) in enumerate(centres)],
            "ready": True,
        }
