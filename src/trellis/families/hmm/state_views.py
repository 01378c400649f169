"""What the explorer shows of the states of an HMM: lists, one state, classes, the map."""

from __future__ import annotations

from functools import cached_property
from typing import Any, cast

import torch
from torch import Tensor

from trellis.devices import seeded
from trellis.emissions import Partition
from trellis.errors import TrellisError
from trellis.explore.language import LanguageViews
from trellis.explore.layout import Layout, keep_layout, kept_layout
from trellis.explore.views import Answer, Turn
from trellis.families.hmm.concordance import Concordance
from trellis.families.hmm.lattice import WORDS, state_words
from trellis.families.hmm.model import HMM
from trellis.families.hmm.parameters.neural import NeuralParams
from trellis.families.hmm.states import merged_by_word

MOST_WORDS, MOST_ROWS, MOST_CONTEXTS = (
    200,
    12,
    12,
)  # of one state: words; predecessors, successors, neighbours; contexts
SKETCH = 64  # dimensions of the vectors of states without embeddings
MOST_MATCHES = 50  # words that begin with a query
DIGITS = 5  # of positions and occupancies on the map


class StateViews(LanguageViews):
    """Views of the states of an HMM."""

    model: HMM
    layout: Layout | None = None
    progress = 0.0

    @property
    def partition(self) -> Partition | None:
        return self.model.params.partition

    @property
    def num_classes(self) -> int | None:  # type: ignore[override]
        if self.partition is not None:
            return self.partition.num_classes
        return None if self.layout is None else len(self.layout.centres)

    @cached_property
    def occupancy(self) -> Tensor:
        with torch.no_grad():
            return self.model.occupancy()

    @cached_property
    def unigram(self) -> Tensor:
        """p(word) under the occupancy: [V]."""
        with torch.no_grad():
            return self.model.parts().emission.predict(self.occupancy).exp()

    @cached_property
    def best_words(self) -> Tensor:
        """The most probable word of each state: [K]."""
        with torch.no_grad():
            return self.model.parts().emission.best()[1]

    @cached_property
    def vectors(self) -> Tensor:
        """A vector for each state, [K, d]: its embedding as a successor, or else a random projection of the square
        roots of its word and transition probabilities, whose distances approximate Hellinger distances."""
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
        vectors = turn(lambda: self.vectors.cpu().numpy())
        turn(lambda: (self.best_words, self.unigram, self.unit_vectors))
        groups = None if self.classes_of_states is None else self.classes_of_states.cpu().numpy()

        def report(done: float) -> None:
            self.progress = done

        self.layout = kept_layout(self.folder, vectors) or keep_layout(self.folder, vectors, groups, report)
        if self.has_corpus:
            self.concordance.read(turn)

    def named(self, states: Tensor) -> list[Answer]:
        """The ids, labels and classes of some states [n]."""
        if not len(states):
            return []
        labels = state_words(self.model.vocab, self.model.parts().emission.columns(states).cpu().numpy())
        pairs = zip(states.tolist(), labels, strict=True)
        return [{"id": z, "label": label, "class": self.class_of(z)} for z, label in pairs]

    def ranked(self, probs: Tensor, n: int, name: str = "prob") -> list[Answer]:
        """The n states with the highest values [K] above zero, with their labels."""
        top = probs.topk(min(n, len(probs)))
        states = top.indices[top.values > 0]
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
            groups = torch.tensor([self.class_of(z) for z in order.tolist()], device=order.device)
            order = order[groups.argsort(stable=True)]
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
        """One state."""
        if state >= self.model.num_states:
            raise TrellisError(f"There is no state {state}; the states are 0 to {self.model.num_states - 1}.")
        _, transition, emission = self.model.parts()
        chosen = torch.tensor([state], device=self.model.device)
        one_hot = torch.nn.functional.one_hot(chosen, self.model.num_states).to(self.occupancy.dtype)
        before = self.occupancy * transition.backward(one_hot)[0]
        similar = self.unit_vectors @ self.unit_vectors[state]
        similar[state] = -torch.inf
        return {
            **self.named(chosen)[0],
            "occupancy": float(self.occupancy[state]),
            "words": [self.with_base(*pair) for pair in self.model.rank(emission.columns(chosen)[:, 0], MOST_WORDS)],
            "incoming": self.merged(before / before.sum().clamp(min=torch.finfo(before.dtype).tiny)),
            "outgoing": self.merged(transition.forward(one_hot)[0]),
            "neighbours": self.ranked(similar, MOST_ROWS, "similarity"),
            "contexts": self.concordance.find(state, MOST_CONTEXTS),
        }

    def with_base(self, word: str, prob: float) -> Answer:
        return {"word": word, "prob": prob, "base": float(self.unigram[self.model.vocab.index[word]])}

    def merged(self, probs: Tensor) -> list[Answer]:
        """A distribution over states [K], summed over states with the same most probable word."""
        found = merged_by_word(probs, self.best_words, len(self.model.vocab), MOST_ROWS)
        labels = (
            {one["id"]: one["label"] for one in self.named(torch.tensor([one.main for one in found]).to(probs.device))}
            if found
            else {}
        )
        return [
            {"id": one.main, "label": labels[one.main], "word": self.model.vocab.words[one.word], "prob": one.prob,
             "count": one.states}
            for one in found
        ]  # fmt: skip

    @torch.no_grad()
    def classes(self) -> Answer:
        """The classes of words of the model, or else groups of similar states."""
        groups = self.groups()
        if groups is None:
            return {"items": [], "ready": False}
        n = int(groups.max()) + 1
        shares = torch.zeros(n, dtype=self.occupancy.dtype, device=groups.device).index_add_(0, groups, self.occupancy)
        sizes = torch.bincount(groups, minlength=n).tolist()
        labels = self.class_labels(groups, n)
        rows = zip(labels, sizes, shares.tolist(), strict=True)
        items = [
            {"id": c, "label": label, "states": size, "occupancy": share} for c, (label, size, share) in enumerate(rows)
        ]
        return {"items": items, "ready": True}

    def groups(self) -> Tensor | None:
        """The class of each state [K]; None until groups have been found."""
        if self.classes_of_states is not None:
            return self.classes_of_states
        return None if self.layout is None else torch.from_numpy(self.layout.groups).long().to(self.model.device)

    def class_labels(self, groups: Tensor, n: int) -> list[str]:
        """The most frequent words of each class: those of its states' most probable words with the largest share."""
        size = len(self.model.vocab)
        shares = torch.zeros(n * size, dtype=torch.float32, device=groups.device) if n * size < 1 << 27 else None
        if shares is None:
            return [str(c) for c in range(n)]
        shares.index_add_(0, groups * size + self.best_words, self.occupancy.float() + 1e-12)
        top = shares.view(n, size).topk(min(WORDS, size))
        rows = zip(top.indices.tolist(), top.values.tolist(), strict=True)
        return [
            ", ".join(self.model.vocab.decode([i for i, p in zip(ids, ps, strict=True) if p > 0])) for ids, ps in rows
        ]

    @torch.no_grad()
    def map(self) -> Answer:
        """The positions of all states, with classes and occupancies."""
        if self.layout is None:
            return {"ready": False, "progress": self.progress}
        labels = [one["label"] for one in self.classes()["items"]]
        x, y = self.layout.points.T.astype(float).round(DIGITS).tolist()
        centres = zip(labels, self.layout.centres.astype(float).round(DIGITS).tolist(), strict=True)
        return {
            "x": x,
            "y": y,
            "class": cast(Tensor, self.groups()).tolist(),
            "occupancy": [float(f"{share:.{DIGITS}g}") for share in self.occupancy.tolist()],
            "classes": [{"id": c, "label": label, "x": a, "y": b} for c, (label, (a, b)) in enumerate(centres)],
            "ready": True,
        }
