"""Trellis: exact latent-state models of discrete sequences."""
