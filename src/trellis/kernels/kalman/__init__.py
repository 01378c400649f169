"""Kalman passes that miss observations, compiled; `trellis.inference.compiled` calls them."""
