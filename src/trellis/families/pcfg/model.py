"""The probabilistic context-free grammar as a language model."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar, cast

import numpy as np
import torch
from torch import Tensor

from trellis.config import RunConfig
from trellis.constraints import Constraint
from trellis.corpus import Corpus, Vocabulary
from trellis.devices import Draws, check_integer, check_memory, choose_device, draw_uniform
from trellis.errors import TrellisError
from trellis.families.hmm.parameters.base import restored_support
from trellis.families.hmm.parameters.dropout import Dropout
from trellis.families.pcfg.conditioned import ConditionedGrammar
from trellis.families.pcfg.config import CHARTS, PARAMS, PCFGConfig
from trellis.families.pcfg.generate import Generator
from trellis.families.pcfg.grammar import Grammar
from trellis.families.pcfg.inside import log_likelihoods, lower_bounds
from trellis.families.pcfg.parameters import GrammarParams, Kept, Size
from trellis.families.pcfg.parse import Tree, parse_batch
from trellis.families.pcfg.prefix import Closure, Prefix, scored
from trellis.families.pcfg.queries import Gaps, expected_counts, posterior
from trellis.families.pcfg.words import brown
from trellis.kernels.inside import begin
from trellis.learning.base import GradientModel
from trellis.models.base import Infilled, LanguageModel, Memo, Path, Saved
from trellis.models.chain import GapModel
from trellis.models.restoring import rebuilt
from trellis.models.text import Text, in_batches, rows_of, sentences_of
from trellis.options import choose
from trellis.registry import resolve
from trellis.types import Batch, Counts

USUAL = 32  # words of a sentence, in estimates of memory
LARGEST_CHART = {"cpu": 1 << 26, "cuda": 1 << 28}  # entries of the charts in memory while scoring
SIZES = ("nonterminals", "preterminals", "rank")


class PCFG(GradientModel, GapModel):
    """A probabilistic context-free grammar with exact inference. Its rules have p(B C | A) = sum_r u_Ar v_Br w_Cr.

    Probabilities are normalised over finite trees (docs/pcfg.md).

    Parameters
    ----------
    vocab
        The words of the model.
    params
        The rules.
    dropout
        The dropout of nonterminals during training; None: none.
    word_dropout
        The dropout of preterminals; None: none.

    Examples
    --------
    >>> model = trellis.train(["a b", "b a"] * 20, family="pcfg", nonterminals=2, preterminals=2, epochs=1).model
    >>> len(model.parse("a b b").brackets())
    2
    """

    family: ClassVar[str] = "pcfg"
    any_lengths = rough = True  # all terms of the inside pass are positive: rounding errors stay small
    embed_kinds: ClassVar = {"posterior": lambda model, tokens, lengths: model.word_posteriors(tokens, lengths)}
    __repr__ = LanguageModel.__repr__

    def __init__(
        self, vocab: Vocabulary, params: GrammarParams, dropout: Dropout | None = None,
        word_dropout: Dropout | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.vocab, self.params = vocab, params
        self.dropout, self.word_dropout = dropout or Dropout("none", 0.0), word_dropout or Dropout("none", 0.0)
        self.memo = Memo(params)

    @property
    def num_states(self) -> int:
        """The preterminals."""
        return self.params.size.preterminals

    @property
    def synchronises(self) -> bool:  # type: ignore[override]
        """Whether a training step waits for the device: to find out whether all trees are finite, and for gaps."""
        return self.device.type == "cpu" or self.params.partition is not None

    @property
    def sizes(self) -> tuple[int]:
        return (self.num_states,)

    @property
    def width(self) -> int:
        return max(len(self.vocab), USUAL * self.params.size.ranks, self.num_states)

    def grammar(self) -> Grammar:
        """The grammar's probabilities."""
        return self.memo("grammar", lambda: self.params.grammar())

    def closure(self) -> Closure:
        return self.memo("closure", lambda: Closure(self.grammar()))

    def start(self, batch: int) -> Prefix:
        return Prefix.begin(self.closure(), batch)

    def reset(self, state: Prefix, where: Tensor) -> Prefix:
        return self.start(len(where)).where(where, state.rows(len(where)))

    def forecast(self, state: Prefix) -> Tensor:
        return state.forecast(self.grammar(), self.vocab.eos)

    def score(self, tokens: Tensor, state: Prefix, lengths: Tensor | None = None) -> tuple[Tensor, Prefix]:
        self.check(tokens)
        ends = torch.full_like(tokens[:, 0], tokens.shape[1]) if lengths is None else lengths
        if self.whole_sentences(tokens, ends) and not bool(state.lengths.any()):
            return self.score_sentences(tokens, ends), self.start(len(tokens))
        found = []
        for t in range(tokens.shape[1]):
            log_probs, state = self.score_next(tokens[:, t], state, t < ends)
            found.append(log_probs)
        return torch.stack(found, 1) if found else state.left.new_zeros(tokens.shape), state

    def score_next(self, words: Tensor, state: Prefix, active: Tensor) -> tuple[Tensor, Prefix]:
        """log p of the next word of the active sentences [B], zero for others, and the state after it."""
        closure, ending = self.closure(), words == self.vocab.eos
        after = state.extend(closure, words)
        log_probs = torch.where(ending, state.log_whole, after.log_prefix) - state.log_prefix
        after = self.start(len(words)).where(ending, after)
        known = active & (state.log_prefix > -torch.inf)  # nothing is, after a word that is impossible
        return log_probs.where(known, 0.0).to(state.left.dtype), after.where(active, state)

    def whole_sentences(self, tokens: Tensor, ends: Tensor) -> bool:
        """Whether every row is a sentence with its only <eos> at its end."""
        steps = torch.arange(tokens.shape[1], device=tokens.device)
        eos = (tokens == self.vocab.eos) & (steps < ends[:, None])
        return bool((eos == (steps == ends[:, None] - 1)).all() & (ends > 0).all())

    def score_sentences(self, tokens: Tensor, ends: Tensor) -> Tensor:
        """log p of every token of whole sentences, in pieces that fit in memory."""
        length = tokens.shape[1]
        rows = max(1, LARGEST_CHART[tokens.device.type] // (length * (length + 1) // 2 * self.params.size.ranks))
        pieces = zip(tokens.split(rows), (ends - 1).split(rows), strict=True)
        found = [scored(self.closure(), words[:, :-1], lengths) for words, lengths in pieces]
        return torch.cat(found).to(self.grammar().lefts.dtype)

    def check(self, tokens: Tensor) -> None:
        """Raise if a token is outside the vocabulary."""
        if tokens.numel() and not 0 <= int(tokens.min()) <= int(tokens.max()) < len(self.vocab):
            raise TrellisError(
                f"A grammar scores only the {len(self.vocab):,} words of its vocabulary, without gaps; encode the text "
                "with that vocabulary."
            )

    def log_likelihood(self, batch: Batch, state: Any) -> tuple[Tensor, None]:
        """log p of whole sentences; in training, under the symbols that dropout keeps."""
        draws = [one.draw(None) if self.training else None for one in (self.dropout, self.word_dropout)]
        grammar = self.params.grammar(Kept(*(draw and draw.ids for draw in draws)))
        if self.training and not self.synchronises:
            return lower_bounds(grammar, *self.ended(batch.tokens, batch.lengths)).sum(), None
        return log_likelihoods(grammar, *self.without_end(batch.tokens, batch.lengths)).sum(), None

    def without_end(self, tokens: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Sentences [B, L] without the <eos> at their end, and at least one column."""
        tokens, words = self.ended(tokens, lengths)
        return tokens[:, : max(1, tokens.shape[1] - 1)] if bool((words < tokens.shape[1]).all()) else tokens, words

    def ended(self, tokens: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Sentences [B, L] with padding in place of the <eos> at their end."""
        last = tokens.gather(1, (lengths - 1).clamp(min=0)[:, None])[:, 0]
        words = lengths - ((last == self.vocab.eos) & (lengths > 0)).long()
        ended = torch.arange(tokens.shape[1], device=tokens.device) >= words[:, None]
        return tokens.masked_fill(ended, 0), words

    @torch.no_grad()
    def counts(self, batch: Batch, state: Any) -> tuple[Counts, None]:
        """Expected counts of a batch of sentences for EM."""
        return expected_counts(self.grammar(), *self.without_end(batch.tokens, batch.lengths)), None

    def state_to_tensors(self, state: Prefix) -> dict[str, Tensor]:
        return state._asdict()

    def state_from_tensors(self, tensors: dict[str, Tensor]) -> Prefix:
        return Prefix(**tensors)

    @torch.no_grad()
    def sample_tokens(self, n: int, max_tokens: int, seed: int) -> Tensor:
        random = np.random.default_rng(check_integer(seed, "seed", least=0))
        generator = self.memo("generator", lambda: Generator(self.grammar()))
        return generator.sample(n, max_tokens, self.vocab.eos, random)

    @torch.no_grad()
    def word_posteriors(self, tokens: Tensor, lengths: Tensor | None = None) -> Tensor:
        """p(preterminal of a word | sentence) [B, T, P], zero for <eos>. A sentence without <eos> may continue."""
        ends = torch.full_like(tokens[:, 0], tokens.shape[1]) if lengths is None else lengths
        last = tokens.gather(1, (ends - 1).clamp(min=0)[:, None])[:, 0]
        words, count = self.without_end(tokens, ends)
        closed = posterior(self.grammar(), words, count).words
        if not bool((last == self.vocab.eos).all()):
            open_ = posterior(self.grammar(), words, count, self.closure()).words
            closed = torch.where((last == self.vocab.eos)[:, None, None], closed, open_)
        found = closed.new_zeros(*tokens.shape, self.num_states)
        found[:, : closed.shape[1]] = closed
        return found.to(self.grammar().lefts.dtype)

    def posterior(self, text: Text, complete: bool = True) -> np.ndarray | list[np.ndarray]:
        return rows_of(self, text, self.word_posteriors, complete)

    def parse(self, text: Text, method: str = "mbr", seed: int = 0) -> Tree | list[Tree]:
        """The tree of a sentence, or of each sentence of a list.

        `method` is one of:

        - "mbr": the tree with the largest expected number of correct spans;
        - "viterbi": the tree of the most probable derivation;
        - "sample": a random tree, given the words.

        >>> model = trellis.train(["a b", "b a"] * 20, family="pcfg", nonterminals=2, preterminals=2, epochs=1).model
        >>> [len(tree.words) for tree in model.parse(["a b", "b a b"], "viterbi")]
        [2, 3]
        """
        given = sentences_of(self, text)

        def trees(tokens: Tensor, lengths: Tensor) -> Iterable[Tree]:
            return parse_batch(self, tokens, lengths, method, seed)

        return given.answer(in_batches(self, given, trees))

    def viterbi(self, text: Text, complete: bool = True) -> Path | list[Path]:
        """The preterminals of the most probable derivation, and its log-probability; `complete` must be true."""
        if not complete:
            raise TrellisError("The tree of a sentence that may continue is not known; use complete=True.")
        found = self.parse(text, "viterbi")
        paths = [Path(tree.preterminals(), tree.log_prob) for tree in ([found] if isinstance(found, Tree) else found)]
        return paths[0] if isinstance(found, Tree) else paths

    def draw(self, text: Text) -> Tree:
        """The tree of a sentence, which notebooks show as a picture."""
        return cast(Tree, self.parse(self.encode_line(text)[0].cpu().numpy()))

    @torch.no_grad()
    def fill(self, tokens: Tensor, lengths: Tensor, n: int, samples: int, seed: int) -> list[Infilled]:
        """Fill the gaps (-1) of sentences [B, T]; those without <eos> may continue. The samples of a sentence do not
        depend on the rest of its batch."""
        words, count = self.without_end(tokens, lengths)
        gaps = Gaps(self.grammar(), None if bool((count < lengths).all()) else self.closure())
        given, log_probs = gaps.distribution(words, count)
        self.check_possible(log_probs == -torch.inf, words, count)
        best = gaps.best(words, count)
        final = gaps.log_probs(best, count).tolist()
        many, ends = (values.repeat_interleave(samples, 0) for values in (words, count))
        uniform = draw_uniform(many.shape, self.device, Draws(seed, count.tolist(), samples))
        drawn = gaps.sample(many, ends, uniform).view(len(words), samples, -1)
        return [
            Infilled(
                [self.rank(given[row, t].log(), n) for t in (words[row] < 0).nonzero().flatten().tolist()],
                self.sentences(best[row : row + 1, :length])[0],
                self.sentences(drawn[row, :, :length]),
                final[row],
                int((words[row] < 0).sum()) == 1,
            )
            for row, length in enumerate(count.tolist())
        ]

    def constrain(
        self, constraint: Constraint, least: int = 0, most: int | None = None, complete: bool = True
    ) -> ConditionedGrammar:
        return ConditionedGrammar(self, constraint, least, most, complete)

    def settings(self) -> dict[str, Any]:
        size = {name: getattr(self.params.size, name) for name in SIZES}
        return {"params": self.params.kind, **size, **self.params.options()}

    def tensors(self) -> dict[str, Tensor]:
        return {name: value.detach() for name, value in self.params.state_dict().items()}

    @classmethod
    def restore(cls, saved: Saved) -> PCFG:
        vocab, settings, tensors, _ = saved
        kind = resolve(PARAMS[settings["params"]])
        size = Size(len(vocab), vocab.eos, *(int(settings[name]) for name in SIZES))
        if min(size.nonterminals, size.preterminals) < 1 or size.rank < 0:
            raise ValueError("a grammar has at least one nonterminal and one preterminal")
        options = {key: settings[key] for key in kind.keys}
        partition = restored_support(tensors, len(vocab), size.preterminals)
        return cls(vocab, rebuilt(lambda: kind(size, partition, **options), tensors)).eval()


def build(run: RunConfig, corpus: Corpus) -> PCFG:
    """The untrained grammar of a run, with word probabilities near their frequencies."""
    config, vocab = cast(PCFGConfig, run.model), corpus.vocab
    if len(vocab) < 2:
        raise TrellisError("The text has no words to emit: a grammar needs at least one besides <eos>.")
    size = Size(len(vocab), vocab.eos, config.nonterminals, config.preterminals, config.rank)
    check_longest(corpus, size.ranks, choose_device(run.device))
    kind = resolve(choose(PARAMS, config.params, "model.params"))
    partition = brown(corpus, config, run.seed) if config.emission == "brown" else None
    params = kind(size, partition, **{key: getattr(config, key) for key in kind.keys}, seed=run.seed)
    frequency = torch.tensor(vocab.counts, dtype=torch.float32).add_(1.0).log_()
    params.shift_word_logits(frequency - frequency.mean())
    rates = (config.dropout_rate, config.nonterminals), (config.preterminal_dropout, config.preterminals)
    drops = (
        Dropout("state" if rate else "none", rate, seed=run.seed + i, states=count)
        for i, (rate, count) in enumerate(rates)
    )
    return PCFG(vocab, params, *drops)


def check_longest(corpus: Corpus, ranks: int, device: str) -> None:
    """Raise if the charts of the longest sentence need more memory than there is."""
    longest = max(int(np.diff(split.sentences).max(initial=1)) for split in corpus.splits.values()) - 1
    what = f"The longest sentence, of {longest:,} words,"
    needed = torch.get_default_dtype().itemsize * CHARTS * ranks * begin(longest, longest + 1)
    check_memory(needed, what, "divide it, or use fewer nonterminals or a smaller rank", device)
