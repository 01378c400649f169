r"""
How exact inference works
=========================

The sum over all sequences of hidden states has :mathmpl:`K^T` terms. The forward algorithm computes it in
:mathmpl:`T K^2` steps. This page rebuilds it in ten lines, checks it against brute force and against the library, and
goes on to posteriors, gaps and gradients.

A hidden Markov model with :mathmpl:`K` states has a start distribution :mathmpl:`\pi`, a transition matrix
:mathmpl:`A` and emission probabilities :mathmpl:`B`. The joint probability of states and symbols is

.. mathmpl::

   p(x, z) = \pi_{z_1} B_{z_1 x_1} \prod_{t=2}^{T} A_{z_{t-1} z_t} B_{z_t x_t}
"""

from itertools import pairwise, product

import matplotlib.pyplot as plt
import numpy as np
import torch

import trellis

random = np.random.default_rng(0)
K, V, T = 3, 4, 7
start = random.dirichlet(np.ones(K))
transition, emission = random.dirichlet(np.ones(K), K), random.dirichlet(np.ones(V), K)
x = random.integers(V, size=T)

# %%
# Brute force
# -----------
# The likelihood sums the joint probability over all state sequences: :mathmpl:`3^7 = 2187` of them here.


def joint(z: tuple[int, ...]) -> float:
    steps = np.prod([transition[a, b] for a, b in pairwise(z)])
    return float(start[z[0]] * steps * np.prod(emission[list(z), x]))


paths = list(product(range(K), repeat=T))
print(len(paths), "paths, log p(x) =", np.log(sum(map(joint, paths))))

# %%
# The forward algorithm
# ---------------------
# Let :mathmpl:`\alpha_t` be the *filtered* distribution :mathmpl:`p(z_t | x_1 \ldots x_t)`. Each step moves the
# distribution by the transition matrix, multiplies it by the probabilities of the symbol, and normalises:
#
# .. mathmpl::
#
#    \alpha_t(z) = \frac{1}{c_t} B_{z x_t} \sum_{z'} \alpha_{t-1}(z') A_{z' z}, \qquad
#    c_t = p(x_t | x_1 \ldots x_{t-1})
#
# The normalisers are the probabilities of the next symbol. Their product is the likelihood. Because every step is
# normalised, nothing underflows, even after a million steps.


def forward(x):
    alpha, log_likelihood, filtered = start, 0.0, []
    for t, symbol in enumerate(x):
        predicted = alpha if t == 0 else alpha @ transition
        weighted = predicted * emission[:, symbol]
        log_likelihood += np.log(weighted.sum())
        alpha = weighted / weighted.sum()
        filtered.append(alpha)
    return log_likelihood, np.array(filtered)


log_likelihood, filtered = forward(x)
print("forward:  ", log_likelihood)

# %%
# The library computes the same number. `CategoricalHMM` takes the parameters as attributes:

model = trellis.CategoricalHMM(K)
model.startprob_, model.transmat_, model.emissionprob_ = start, transition, emission
print("library:  ", model.score(x))
assert np.isclose(log_likelihood, model.score(x), rtol=1e-12)
assert np.allclose(filtered, model.filter(x), rtol=1e-12)

# %%
# The plot compares the number of operations. That of brute force grows exponentially with the length of the sequence,
# and that of the forward algorithm grows linearly.

lengths = np.arange(1, 31)
with trellis.figure_style():
    figure, axes = plt.subplots()
    axes.semilogy(lengths, lengths * float(K) ** lengths, label="all paths")
    axes.semilogy(lengths, lengths * float(K) ** 2, label="forward algorithm")
    axes.set(xlabel="symbols", ylabel="multiplications")
    axes.legend()

# %%
# Posteriors
# ----------
# The *smoothed* posterior :mathmpl:`p(z_t | x)` also uses the symbols after :mathmpl:`t`. A backward pass computes
# :mathmpl:`\beta_t(z) = p(x_{t+1} \ldots x_T | z_t = z)` up to scale:
#
# .. mathmpl::
#
#    \beta_t(z) \propto \sum_{z'} A_{z z'} B_{z' x_{t+1}} \beta_{t+1}(z'), \qquad
#    p(z_t | x) \propto \alpha_t(z_t) \beta_t(z_t)

beta, smoothed = np.ones(K), [filtered[-1]]
for t in range(T - 2, -1, -1):
    beta = transition @ (emission[:, x[t + 1]] * beta)
    beta /= beta.sum()
    smoothed.insert(0, filtered[t] * beta / (filtered[t] @ beta))
assert np.allclose(smoothed, model.predict_proba(x), rtol=1e-10)

weights = np.array([joint(z) for z in paths])
by_enumeration = [[weights[[z[t] == k for z in paths]].sum() / weights.sum() for k in range(K)] for t in range(T)]
assert np.allclose(smoothed, by_enumeration, rtol=1e-10)
print(np.array(smoothed).round(3))

# %%
# One adjoint
# -----------
# Trellis does not have a separate backward algorithm. The posterior is the *gradient* of the log-likelihood with
# respect to the log emission probabilities of each step, and expected transition counts are the gradient with respect
# to the log transition probabilities. Differentiating the forward algorithm gives both:
#
# .. mathmpl::
#
#    \frac{\partial \log p(x)}{\partial \log B_{z x_t}} = p(z_t = z | x)

log_potentials = torch.tensor(np.log(emission[:, x].T), requires_grad=True)
alpha, total = torch.tensor(start), torch.tensor(0.0, dtype=torch.float64)
for t in range(T):
    weighted = (alpha if t == 0 else alpha @ torch.tensor(transition)) * log_potentials[t].exp()
    total, alpha = total + weighted.sum().log(), weighted / weighted.sum()
total.backward()
assert np.allclose(log_potentials.grad, smoothed, rtol=1e-10)
print("the gradient is the posterior")

# %%
# Missing symbols
# ---------------
# A missing symbol is summed out: its factor :mathmpl:`B_{z x_t}` becomes one. The posterior over the missing symbol
# follows from the states on both sides of it. Brute force over the symbols agrees:

gap = 3
filled = np.array([np.exp(forward([*x[:gap], symbol, *x[gap + 1 :]])[0]) for symbol in range(V)])
print("p(missing symbol | rest):", (filled / filled.sum()).round(4))

open_model = trellis.CategoricalHMM(K, missing_values=-1)
open_model.startprob_, open_model.transmat_, open_model.emissionprob_ = start, transition, emission
with_gap = x.copy()
with_gap[gap] = -1
assert np.isclose(open_model.score(with_gap), np.log(filled.sum()), rtol=1e-10)
states = open_model.predict_proba(with_gap)[gap]
assert np.allclose(states @ emission, filled / filled.sum(), rtol=1e-10)

# %%
# The most probable path
# ----------------------
# Replacing sums by maxima gives the Viterbi algorithm. It maximises the joint probability over paths, which is not the
# same as choosing the most probable state at each step.

log_prob, path = model.decode(x)
best = max(paths, key=joint)
assert list(path) == list(best)
assert np.isclose(log_prob, np.log(joint(best)))
print("Viterbi path:          ", path)
print("most probable states:  ", np.argmax(smoothed, axis=1))

# %%
# :doc:`/inference` continues with the implementation: engines, log space, live states, and costs. :doc:`/numerics`
# lists where rounding and approximation enter.
plt.show()
