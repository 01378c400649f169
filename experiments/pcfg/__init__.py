"""Grammars with low-rank rule probabilities: perplexity and trees."""
