"""
Factorial HMMs
==============

A factorial HMM has several hidden chains side by side, called layers. Each symbol depends on the states of all layers.
With three layers of two states there are eight joint states, but the layers have their own, much smaller transition
matrices. Use it if several independent causes act at the same time.

The data are generated: two switches that flip at different speeds, and symbols that depend on both.
"""

import matplotlib.pyplot as plt
import numpy as np

import trellis

random = np.random.default_rng(3)


def switch(steps: int, stay: float) -> np.ndarray:
    flips = random.random(steps) > stay
    return np.cumsum(flips) % 2


STEPS = 3000
slow, fast = switch(STEPS, 0.99), switch(STEPS, 0.85)
EMISSION = np.full((4, 4), 0.06) + 0.76 * np.eye(4)


def observe(slow: np.ndarray, fast: np.ndarray) -> np.ndarray:
    return np.array([random.choice(4, p=EMISSION[2 * a + b]) for a, b in zip(slow, fast, strict=True)])


X = observe(slow, fast)
print(X[:30])

# %%
# Fit
# ---
# `FactorialHMM` has scikit-learn's interface. EM maximises a mean-field *bound* on the likelihood, since the exact
# posterior couples the layers. `score` is exact: it sums over joint states.

best = max(
    (trellis.FactorialHMM((2, 2), epochs=40, random_state=seed).fit(X) for seed in range(3)),
    key=lambda model: model.score(X),
)
print("exact log-likelihood:", round(best.score(X), 1))

# %%
# The layers
# ----------
# `transform` returns the posteriors of all layers, side by side. Each layer should follow one of the two switches. The
# layers are in no particular order, and neither are the states of a layer.

posteriors = best.transform(X)
layers = posteriors[:, 1], posteriors[:, 3]
for name, truth in {"slow": slow, "fast": fast}.items():
    found = [abs(np.corrcoef(layer, truth)[0, 1]) for layer in layers]
    print(f"{name} switch: correlation with the layers {found[0]:.2f}, {found[1]:.2f}")

with trellis.figure_style("page", height=3.0):
    figure, panels = plt.subplots(4, sharex=True)
    shown = slice(0, 300)
    drawn = {"slow switch": slow, "fast switch": fast, "layer 1": layers[0], "layer 2": layers[1]}
    for axes, (name, values) in zip(panels, drawn.items(), strict=True):
        axes.fill_between(range(300), values[shown], step="mid", alpha=0.7)
        axes.set(ylabel=name, yticks=[], ylim=(0, 1))
        axes.yaxis.label.set(rotation=0, ha="right")
    panels[-1].set(xlabel="step")

# %%
# Against one chain
# -----------------
# An ordinary HMM with four states can represent the same process, with 12 free transition probabilities instead of 4.

flat = trellis.CategoricalHMM(4, n_init=5, n_iter=100, random_state=0).fit(X)
new = observe(switch(STEPS, 0.99), switch(STEPS, 0.85))
print("log-likelihood of new data:")
print(f"  factorial HMM, 2 x 2 states: {best.score(new):.1f}")
print(f"  HMM, 4 states:               {flat.score(new):.1f}")

# %%
# How good is the mean field?
# ---------------------------
# Language models (``trellis train --model fhmm``) can compute exact posteriors over joint states, with ``exact=True``.
# :doc:`/factorial-hmm` compares the two, and :doc:`/numerics` lists what is exact in each family.
plt.show()
