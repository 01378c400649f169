"""Grammars with rules of low rank: perplexity and trees."""
