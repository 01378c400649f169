"""Sums of rows with the same index on a GPU, in a fixed order."""
