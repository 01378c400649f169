"""A linear dynamical system model for text."""
