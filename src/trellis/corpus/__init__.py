"""Text as integers: sources, vocabulary, memory-mapped splits and batches."""

from trellis.corpus.batches import (
    Batches as Batches,
    Documents as Documents,
    Sentences as Sentences,
    Streams as Streams,
)
from trellis.corpus.cache import (
    CacheEntry as CacheEntry,
    cache_entries as cache_entries,
    cache_folder as cache_folder,
    clear_cache as clear_cache,
)
from trellis.corpus.load import Corpus as Corpus, load_corpus as load_corpus
from trellis.corpus.sources import NAMED as NAMED
from trellis.corpus.splits import Split as Split
from trellis.corpus.vocab import GAP as GAP, Vocabulary as Vocabulary
