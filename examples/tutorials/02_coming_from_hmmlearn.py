"""
Coming from hmmlearn
====================

Trellis has hmmlearn's classes, arguments and fitted attributes. To move a script, change the import. This tutorial does
so for a typical script, then uses what Trellis adds: restarts, missing values, masks of transitions, forecasts, and a
search for the number of states.
"""

# was: from hmmlearn import hmm
import matplotlib.pyplot as plt
import numpy as np

import trellis
from trellis import hmm

# %%
# The data are generated: a machine that is idle, working or overheated, and a sensor with noise.

random = np.random.default_rng(0)
truth = np.repeat([0, 1, 2, 1, 0, 1, 0], [60, 80, 25, 60, 70, 90, 40])
X = np.array([20.0, 45.0, 70.0])[truth][:, None] + random.normal(scale=6.0, size=(len(truth), 1))

# %%
# The script as it was: `fit`, `score`, `predict`, and the fitted attributes with a trailing underscore.

model = hmm.GaussianHMM(n_components=3, covariance_type="diag", n_iter=100, random_state=0)
model.fit(X)
print("log-likelihood:", round(model.score(X), 1))
print("means:", model.means_[:, 0].round(1))

# %%
# Restarts
# --------
# EM finds a local optimum, and the one above is poor: three states with nearly the same mean. `n_init=10` starts EM ten
# times and keeps the best result; hmmlearn leaves this loop to you.

model = hmm.GaussianHMM(3, n_init=10, n_iter=100, random_state=0).fit(X)
print("log-likelihood:", round(model.score(X), 1))
print("means:", model.means_[:, 0].round(1))

with trellis.figure_style("page", height=2.2):
    trellis.plot_states(model, X)

# %%
# Missing observations
# --------------------
# Missing values are summed out, not filled in. The posterior is then less certain, and the decoded states are still
# the most probable ones given what was observed.

broken = X.copy()
broken[100:130] = np.nan
gappy = hmm.GaussianHMM(3, n_init=5, n_iter=100, random_state=0, missing_values=np.nan).fit(broken)
right = gappy.align_to(model).predict(broken) == model.predict(X)
print(f"same states as with all values: {right.mean():.1%}; within the gap: {right[100:130].mean():.1%}")

with trellis.figure_style("page", height=2.0):
    trellis.plot_posterior(gappy, broken)

# %%
# Forbidden transitions
# ---------------------
# The machine does not overheat while it is idle. A mask keeps such transitions at zero, and EM remains exact. `sticky`
# adds to the pseudocounts of transitions from a state to itself, which helps EM to find states that last.

mask = np.array([[1, 1, 0], [1, 1, 1], [0, 1, 1]], bool)
masked = hmm.GaussianHMM(3, transmat_mask=mask, sticky=20, n_init=10, n_iter=100, random_state=0)
masked.fit(X)
print(masked.transmat_.round(3))

# %%
# Forecasts
# ---------
# `filter_step` takes one observation at a time, and `forecast` looks ahead from there.

state = None
for x in X[:200]:
    state = masked.filter_step(state, x)
ahead = masked.forecast(60, state)

with trellis.figure_style("page", height=2.0):
    figure, axes = plt.subplots()
    spread = 2 * np.sqrt(ahead.covariance[:, 0, 0])
    steps = np.arange(200, 260)
    axes.plot(np.arange(150, 260), X[150:260, 0], ".", color="0.6", markersize=3, label="observed")
    axes.plot(steps, ahead.mean[:, 0], label="forecast from step 200")
    axes.fill_between(steps, ahead.mean[:, 0] - spread, ahead.mean[:, 0] + spread, alpha=0.2)
    axes.set(xlabel="step", ylabel="temperature")
    axes.legend()

# %%
# How many states?
# ----------------
# `select_states` fits every number of states from several seeds and compares them by BIC.

chosen = trellis.select_states(hmm.GaussianHMM(n_iter=50), X, n_components=range(1, 6), n_restarts=3, random_state=0)
print("states:", chosen.best.n_components)
for number in range(1, 6):
    print(number, round(min(row.bic for row in chosen.table if row.n_components == number)))
plt.show()
