"""Text as integers: sources, vocabulary, memory-mapped splits and batches."""

from trellis.corpus.batches import Batches, Documents, Sentences, Streams
from trellis.corpus.cache import CacheEntry, cache_entries, cache_folder, clear_cache
from trellis.corpus.encode import Split
from trellis.corpus.load import Corpus, load_corpus
from trellis.corpus.sources import NAMED
from trellis.corpus.vocab import GAP, Vocabulary

__all__ = [
    "GAP",
    "NAMED",
    "Batches",
    "CacheEntry",
    "Corpus",
    "Documents",
    "Sentences",
    "Split",
    "Streams",
    "Vocabulary",
    "cache_entries",
    "cache_folder",
    "clear_cache",
    "load_corpus",
]
