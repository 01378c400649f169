"""Scaling hidden Markov language models."""
