"""The update of AdamW for many tensors at once, with a weight average, on a GPU."""
