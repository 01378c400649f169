"""Taggers, and what representations and hidden states add to them."""
