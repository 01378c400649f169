"""Taggers, with representations learned from unlabelled text and with hidden states."""
