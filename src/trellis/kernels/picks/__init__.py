"""Read some rows of a table in two precisions on a GPU, and compute the gradient of the table."""
