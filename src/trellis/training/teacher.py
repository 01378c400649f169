"""Learning from a teacher: samples of a trained language model, added to the training text."""

import hashlib
from typing import Any

import numpy as np

from trellis.config import RunConfig
from trellis.corpus import Split, Vocabulary
from trellis.corpus.cache import cache_folder
from trellis.errors import TrellisError
from trellis.models.base import LanguageModel
from trellis.models.files import find_model, load
from trellis.progress import progress
from trellis.storage import as_path, atomic_write
from trellis.tasks.lm import join

STEPPED = "trellis.training.fit:by_steps"  # the way of fitting that reads the samples
CACHE_FORMAT = 2  # increment when the samples of a seed change
TOGETHER = 2048  # sentences sampled at a time


def with_samples(train: Split, vocab: Vocabulary, config: RunConfig, device: str) -> Split:
    """The training text, followed by samples of the teacher if there is one."""
    return join([train, samples_of(train, vocab, config, device)]) if teacher_of(config) else train


def teacher_of(config: RunConfig) -> str:
    """The teacher of a run, or an empty string; raises if its family cannot learn from one."""
    teacher = str(getattr(config.train, "teacher", ""))
    if teacher and config.family.fit != STEPPED:
        raise TrellisError(f"train.teacher: the family {config.family.name} does not learn from samples; remove it.")
    return teacher


def about_teacher(config: RunConfig) -> dict[str, Any]:
    """The metadata about a teacher for the model file: its name, its family and the number of tokens."""
    if not (teacher := teacher_of(config)):
        return {}
    family = load(as_path(teacher), LanguageModel).name
    return {"teacher": {"model": teacher, "family": family, "tokens": config.train.teacher_tokens}}


def samples_of(train: Split, vocab: Vocabulary, config: RunConfig, device: str) -> Split:
    """Sentences sampled from the teacher, or read from the cache. No sentence is longer than the longest training
    sentence."""
    path, tokens = as_path(config.train.teacher), config.train.teacher_tokens
    longest = int(np.diff(train.sentences).max())
    model = hashlib.sha256(find_model(path).read_bytes()).hexdigest()
    digest = hashlib.sha256(repr((CACHE_FORMAT, model, tokens, config.seed, longest, vocab.words)).encode())
    cached = cache_folder() / "samples" / f"{digest.hexdigest()[:16]}.npy"
    if not cached.exists():
        drawn = sample_text(load(path, LanguageModel, device), vocab, tokens, longest, config.seed)
        with atomic_write(cached) as file:
            np.save(file, drawn, allow_pickle=False)
    return as_split(np.load(cached, allow_pickle=False), vocab.eos)


def sample_text(teacher: LanguageModel, vocab: Vocabulary, tokens: int, longest: int, seed: int) -> np.ndarray:
    """Sentences sampled from the teacher, with at least `tokens` tokens in total, as int32 ids of `vocab`. It must have
    the same words as the teacher's vocabulary. Each sentence has at most `longest` tokens, including <eos>."""
    if set(teacher.vocab.words) != set(vocab.words):
        own, given = len(teacher.vocab), len(vocab)
        raise TrellisError(
            f"The teacher and the text differ in vocabulary ({own:,} and {given:,} words); train both on the same text."
        )
    ids = np.array([vocab.index[word] for word in teacher.vocab.words], np.int32)
    found: list[np.ndarray] = []
    with progress("sampling from the teacher", tokens, "tokens") as bar:
        for number in range(tokens):
            if sum(map(len, found)) >= tokens:
                break
            own_seed = int(np.random.default_rng([seed, number]).integers(2**63))
            rows = teacher.sample_tokens(TOGETHER, longest, own_seed).cpu().numpy()
            rows = np.pad(ids[rows], ((0, 0), (0, 1)), constant_values=vocab.eos)[:, :longest]
            rows[:, -1] = vocab.eos
            before = np.cumsum(rows == vocab.eos, 1) - (rows == vocab.eos)
            found.append(rows[before == 0])
            bar.advance(len(found[-1]))
    return np.concatenate(found)


def as_split(tokens: np.ndarray, eos: int) -> Split:
    """A text whose sentences end with <eos>; each sentence is a document."""
    ends = np.append(0, np.flatnonzero(tokens == eos) + 1)
    return Split(tokens, ends, ends)
