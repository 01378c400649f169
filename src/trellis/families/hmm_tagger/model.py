"""The HMM tagger: states that emit a word and its tag, p(x, y, z) = prod_t p(z_t | z_{t-1}) p(x_t | z_t) p(y_t | z_t).

Missing tags are summed out exactly, so the model can be trained on any mixture of tagged and untagged text. With one
state per tag, each emitting only that tag, this is the classic HMM tagger."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from trellis.corpus import Sentences
from trellis.corpus.lexicon import Lexicon, Sentence, as_split
from trellis.corpus.tokenize import EOS
from trellis.emissions import Product
from trellis.families.hmm.model import HMM
from trellis.families.hmm.parameters import Dropout, Params, SavedParams, Support
from trellis.families.hmm_tagger.config import HMMTaggerConfig
from trellis.families.hmm_tagger.parameters import INNER, TaggedParams, with_tags
from trellis.inference import discrete
from trellis.models.base import Saved
from trellis.models.restoring import check_indices, check_labels
from trellis.models.tagger import Tagger
from trellis.options import choose
from trellis.types import Batch

SURENESS = 4.0  # initial difference between the logits of a state's own tag and of the others
TOKENS = 1 << 13  # sentences decoded at a time
OLDER = {"tagged"}  # tensors of older files that are no longer needed
WORDS = slice(1, None)  # the tags of words: all but that of <eos>


class HMMTagger(HMM, Tagger):
    """An HMM tagger: each state emits a word and a tag. A tag that is not observed is summed out.

    Parameters
    ----------
    lexicon
        Words, tags, and the spelling classes of unknown words.
    params
        The parameters, which give start, transition and emission.
    dropout
        The dropout of states during training; None: none.

    Examples
    --------
    >>> text = [[("the", "D"), ("cat", "N")], [("a", "D"), ("dog", "N")]] * 20
    >>> trellis.train(text, family="hmm-tagger", states=0, epochs=2).model.tag([["the", "dog"]])
    [['D', 'N']]
    """

    family = "hmm-tagger"
    params: TaggedParams

    def __init__(self, lexicon: Lexicon, params: Params, dropout: Dropout | None = None) -> None:
        super().__init__(lexicon.vocab, params, dropout=dropout)
        self.lexicon, self.labels, self.word_counts = lexicon, lexicon.tags[1:], lexicon.tagged_counts

    @classmethod
    def assemble(
        cls, lexicon: Lexicon, config: HMMTaggerConfig, seed: int, support: Support, state_tags: Tensor
    ) -> HMMTagger:
        """An untrained tagger; state_tags [K] are the initial tags of the states."""
        words = HMM.build(lexicon.vocab, replace(config, states=len(state_tags)), False, seed, support)
        kinds = torch.from_numpy(lexicon.kinds())
        assert isinstance(words.params, SavedParams)
        params = with_tags(words.params, len(lexicon.tags), kinds, config.backoff, config.hard_tags)
        params.assign(state_tags, SURENESS)
        return cls(lexicon, params, words.dropout)

    def encode_words(self, words: Sequence[str]) -> np.ndarray:
        """Encode words as ids; an unknown word gets the id of its spelling class."""
        return self.lexicon.words(words)

    def of_words(self, sentences: Sequence[Sentence], answer: Callable[[Batch], Tensor]) -> list[list[int]]:
        """Apply `answer`, a function that returns [B, T], to untagged sentences; returns its values for each word."""
        split = as_split([self.lexicon.symbols(sentence) for sentence in sentences])
        found = Sentences(split, TOKENS, shuffle=False).each(lambda batch: answer(batch.to(self.device)))
        return [row[:-1].tolist() for row in found]  # without <eos>

    @torch.no_grad()
    def tag_marginals(self, batch: Batch) -> Tensor:
        """p(y_t | x), marginalised over the states: [B, T, Y]."""
        prior, transition, spoken, _ = self.chain(len(batch.tokens))
        emission = cast(Product, spoken)
        potentials = emission.potentials(batch.tokens)
        probs = discrete.smooth(prior, transition, potentials, batch.lengths).probs
        if potentials.ids is not None and probs.shape[-1] < self.num_states:
            full = probs.new_zeros(*probs.shape[:2], self.num_states)
            probs = full.scatter_add_(-1, potentials.ids, probs)
        return probs @ emission.tags.exp().T

    @torch.no_grad()
    def best_tags(self, batch: Batch) -> Tensor:
        """The tags y of the jointly most probable (states, tags) given the words: [B, T]."""
        prior, transition, spoken, _ = self.chain(len(batch.tokens))
        potentials, best = cast(Product, spoken).best_tags(batch.tokens, WORDS)
        path, _ = discrete.viterbi(prior, transition, potentials, batch.lengths)
        return best[path.clamp(min=0)]

    def tag_words(
        self, words: Sequence[Sentence], pos: Sequence[Sentence] | None = None, *, decode: str = "marginal"
    ) -> list[list[str]]:
        """Tag each word, by its most probable tag (marginal) or by the jointly best path (viterbi)."""
        decoder = choose(DECODERS, decode, "decode")
        found = self.of_words(words, lambda batch: decoder(self, batch)) if words else []
        return [[self.lexicon.tags[tag] for tag in row] for row in found]

    def state_paths(self, sentences: Sequence[Sentence]) -> list[list[int]]:
        """The Viterbi path of states of each sentence, with tags unobserved."""
        return self.of_words(sentences, lambda batch: self.best_path(batch.tokens, batch.lengths)[0])

    def settings(self) -> dict[str, Any]:
        return super().settings() | {"tags": self.lexicon.tags}

    @classmethod
    def check_saved(cls, saved: Saved) -> None:
        super().check_saved(saved)
        words, tags = len(saved.vocab), check_labels("tags", saved.settings["tags"])
        own = {name for name in saved.tensors if not name.startswith(INNER)} - OLDER
        if own != {"tag_logits", "kinds"}:
            raise ValueError(f"its tensors are {', '.join(sorted(own))}")
        check_indices("kinds", saved.tensors["kinds"], (words,), -1, words)
        if len(saved.tensors["tag_logits"]) != len(tags) or tags[:1] != [EOS] or saved.vocab.unk is None:
            raise ValueError("the tags do not match the tensors")

    @classmethod
    def restore(cls, saved: Saved) -> HMMTagger:
        vocab, settings, tensors, _ = saved
        lexicon = Lexicon(vocab, list(settings["tags"]))
        return cls(lexicon, TaggedParams.restore(vocab.words, settings, tensors)).eval()


DECODERS = {
    "marginal": lambda model, batch: model.tag_marginals(batch)[..., WORDS].argmax(-1) + WORDS.start,
    "viterbi": HMMTagger.best_tags,
}
