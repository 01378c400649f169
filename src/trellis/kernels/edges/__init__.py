"""The messages of the pairs (t, s) of a constraint, joined along their edges on a GPU. See `inference.constrained`."""
