"""Factorial HMMs for representations of language."""
