"""DenseHMM: hidden Markov models with dense representations."""
