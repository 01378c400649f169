"""Some rows of a table, in two precisions, and their gradient, on a GPU."""
