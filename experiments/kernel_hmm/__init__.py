"""Kernel softmax: HMM transitions through features."""
