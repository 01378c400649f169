"""The libraries that are compared, each with the same five methods.

`forward` returns log p(x) summed over all sequences, `smooth` p(z_t | x) [B, T, K], `viterbi` the best paths [B, T],
and `em` the parameters after some iterations of Baum-Welch from the problem's own, without a prior. `compiles` marks a
library that compiles on its first call.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any, Protocol

import numpy as np

from benchmarks.problem import Array, Parameters, Problem


class Contestant(Protocol):
    """The interface of a library."""

    compiles: bool

    def __init__(self, problem: Problem) -> None: ...
    def forward(self) -> float: ...
    def smooth(self) -> Array: ...
    def viterbi(self) -> Array: ...
    def em(self, iterations: int) -> Parameters: ...


class Trellis:
    """Trellis itself, in one precision."""

    compiles = True

    def __init__(self, problem: Problem, dtype: str = "float32") -> None:
        import torch

        from trellis.families.hmm.parameters import TableParams
        from trellis.transitions import Dense
        from trellis.types import Belief, Potentials

        self.problem, self.dtype = problem, getattr(torch, dtype)
        start, transition, emission = (torch.from_numpy(part).to(self.dtype) for part in problem.parameters)
        self.probabilities = start, transition, emission
        self.params = TableParams(problem.states, problem.symbols).to(self.dtype).requires_grad_(False)
        self.rows = torch.from_numpy(problem.tokens)
        self.belief = lambda probs: Belief(probs.expand(problem.sequences, -1))
        self.potentials = lambda table: Potentials(table, self.rows)
        self.chain = self.belief(start), Dense(transition), self.potentials(emission.T.log().contiguous())

    def forward(self) -> float:
        from trellis.inference import discrete

        return float(discrete.log_likelihood(*self.chain).sum())

    def smooth(self) -> Array:
        from trellis.inference import discrete

        return discrete.smooth(*self.chain).probs.numpy()

    def viterbi(self) -> Array:
        from trellis.inference import discrete

        return discrete.viterbi(*self.chain)[0].numpy()

    def em(self, iterations: int) -> Parameters:
        from trellis.inference import discrete
        from trellis.parts import Prior

        params = self.params
        params.set_probabilities(*self.probabilities)
        for _ in range(iterations):
            start, transition, emission = params.parts()
            counts, _ = discrete.counts(self.belief(start), transition, self.potentials(emission.table))
            params.maximise(counts, Prior())
        start, transition, emission = params.parts()
        parts = start, transition.dense(), emission.table.exp().T
        return Parameters(*(part.double().numpy() for part in parts))


class Numpy:
    """The textbook recursions in scaled arithmetic, with all sequences in parallel: one matrix product per step."""

    compiles = False

    def __init__(self, problem: Problem, dtype: str = "float64") -> None:
        from scipy.sparse import csr_array

        self.parameters = Parameters(*(part.astype(dtype) for part in problem.parameters))
        self.tokens, self.dtype = problem.tokens.T.copy(), np.dtype(dtype)
        flat = self.tokens.ravel()
        ones, places = np.ones(flat.size, dtype), np.arange(flat.size + 1)
        self.seen = csr_array((ones, flat, places), (flat.size, problem.symbols)).T.tocsr()

    def filtered(self, parameters: Parameters) -> tuple[Array, Array, Array]:
        """c_t [T, B], p(z_t | x_<=t) and the potentials [T, B, K]."""
        start, transition, emission = parameters
        weights = np.ascontiguousarray(emission.T)[self.tokens]
        norms, alphas = np.empty(self.tokens.shape, self.dtype), np.empty_like(weights)
        predicted = np.broadcast_to(start, weights[0].shape)
        for t, weight in enumerate(weights):
            joint = predicted * weight
            norms[t] = joint.sum(1)
            np.divide(joint, norms[t, :, None], out=alphas[t])
            predicted = alphas[t] @ transition
        return norms, alphas, weights

    def backward(self, parameters: Parameters) -> tuple[Array, Array, Array]:
        """p(z_t | x_<=t), p(z_t | x), and w_t = o_t b_t / c_t [T, B, K]."""
        norms, alphas, pulls = self.filtered(parameters)
        pulls /= norms[:, :, None]
        posterior = np.empty_like(alphas)
        posterior[-1] = alphas[-1]
        for t in range(len(alphas) - 2, -1, -1):
            message = pulls[t + 1] @ parameters.transition.T
            np.multiply(alphas[t], message, out=posterior[t])
            pulls[t] *= message
        return alphas, posterior, pulls

    def forward(self) -> float:
        return float(np.log(self.filtered(self.parameters)[0]).sum(dtype=np.float64))

    def smooth(self) -> Array:
        return np.ascontiguousarray(self.backward(self.parameters)[1].swapaxes(0, 1))

    def viterbi(self) -> Array:
        start, transition, emission = (np.log(part) for part in self.parameters)
        weights = np.ascontiguousarray(emission.T)
        arrows = np.ascontiguousarray(transition.T)
        scores = start + weights[self.tokens[0]]
        pointers = []
        for tokens in self.tokens[1:]:
            candidates = scores[:, None, :] + arrows
            best = candidates.argmax(2)
            scores = np.take_along_axis(candidates, best[:, :, None], 2)[:, :, 0] + weights[tokens]
            pointers.append(best.astype(np.int16))
        path = [scores.argmax(1)]
        for pointer in reversed(pointers):
            path.append(np.take_along_axis(pointer, path[-1][:, None], 1)[:, 0])
        return np.stack(path[::-1], 1)

    def em(self, iterations: int) -> Parameters:
        parameters, states = self.parameters, len(self.parameters.start)
        for _ in range(iterations):
            alphas, posterior, pulls = self.backward(parameters)
            moves = parameters.transition * (alphas[:-1].reshape(-1, states).T @ pulls[1:].reshape(-1, states))
            counts = posterior[0].sum(0), moves, (self.seen @ posterior.reshape(-1, states)).T
            parameters = Parameters(*(count / count.sum(-1, keepdims=True) for count in counts))
        return Parameters(*(part.astype(np.float64) for part in parameters))


class Hmmlearn:
    """hmmlearn's CategoricalHMM with scaling, its faster implementation in C++, or our drop-in replacement."""

    compiles = False

    def __init__(self, problem: Problem, module: str = "hmmlearn.hmm") -> None:
        self.problem, self.module, self.compiles = problem, import_module(module), module.startswith("trellis")
        self.data = problem.tokens.reshape(-1, 1), np.full(problem.sequences, problem.length)
        self.model = self.build(0)

    def build(self, iterations: int) -> Any:
        model = self.module.CategoricalHMM(
            self.problem.states, n_features=self.problem.symbols, implementation="scaling", init_params="",
            n_iter=iterations, tol=-np.inf,
        )  # fmt: skip
        model.startprob_, model.transmat_, model.emissionprob_ = self.problem.parameters
        return model

    def forward(self) -> float:
        return float(self.model.score(*self.data))

    def smooth(self) -> Array:
        return self.model.predict_proba(*self.data).reshape(self.problem.sequences, self.problem.length, -1)

    def viterbi(self) -> Array:
        return self.model.predict(*self.data).reshape(self.problem.sequences, -1)

    def em(self, iterations: int) -> Parameters:
        model = self.build(iterations)
        model.fit(*self.data)
        return Parameters(model.startprob_, model.transmat_, model.emissionprob_)


class Dynamax:
    """dynamax: its filter, smoother and Viterbi mapped over the sequences, and for EM the E-step of its CategoricalHMM
    (its M-step has a prior, and is NaN without one). float32."""

    compiles = True

    def __init__(self, problem: Problem) -> None:
        import jax
        import jax.numpy as jnp
        from dynamax.hidden_markov_model import CategoricalHMM, inference as hmm

        self.problem = problem
        start, transition, emission = (jnp.asarray(part, jnp.float32) for part in problem.parameters)
        table, tokens = jnp.log(emission.T), jnp.asarray(problem.tokens)

        def mapped(function: Callable[..., Any]) -> Callable[[], Any]:
            def over_sequences(table: Any, tokens: Any) -> Any:
                return jax.vmap(lambda sequence: function(start, transition, table[sequence]))(tokens)

            return partial(jax.jit(over_sequences), table, tokens)

        self.run_filter = mapped(lambda *chain: hmm.hmm_filter(*chain).marginal_loglik)
        self.run_smoother = mapped(lambda *chain: hmm.hmm_two_filter_smoother(*chain).smoothed_probs)
        self.run_viterbi = mapped(hmm.hmm_posterior_mode)

        model = CategoricalHMM(problem.states, 1, problem.symbols, 1.0, 1.0, emission_prior_concentration=1.0)
        named = {"initial_probs": start, "transition_matrix": transition, "emission_probs": emission[:, None]}
        self.first, _ = model.initialize(**named)

        def iterate(params: Any, tokens: Any) -> Any:
            (starts, moves, visits), _ = jax.vmap(partial(model.e_step, params))(tokens)
            counts = [count.sum(0) for count in (starts, moves, visits["sum_x"])]
            probabilities = [count / count.sum(-1, keepdims=True) for count in counts]
            return jax.tree.unflatten(jax.tree.structure(params), probabilities)

        self.iterate = partial(jax.jit(iterate), tokens=tokens[:, :, None])

    def forward(self) -> float:
        return float(np.asarray(self.run_filter(), np.float64).sum())

    def smooth(self) -> Array:
        return np.asarray(self.run_smoother())

    def viterbi(self) -> Array:
        return np.asarray(self.run_viterbi())

    def em(self, iterations: int) -> Parameters:
        params = self.first
        for _ in range(iterations):
            params = self.iterate(params)
        parts = params.initial.probs, params.transitions.transition_matrix, params.emissions.probs[:, 0]
        return Parameters(*(np.asarray(part, np.float64) for part in parts))


class Pomegranate:
    """pomegranate's DenseHMM, float32. Its end probabilities are set to one: a sequence may end in any state."""

    compiles = False

    def __init__(self, problem: Problem) -> None:
        import torch
        from pomegranate.hmm import DenseHMM  # noqa: F401

        self.problem = problem
        self.tokens = torch.from_numpy(problem.tokens).unsqueeze(-1)
        self.model = self.build()

    def build(self) -> Any:
        import torch
        from pomegranate.distributions import Categorical
        from pomegranate.hmm import DenseHMM

        start, transition, emission = (torch.from_numpy(part).float() for part in self.problem.parameters)
        nodes = [Categorical(row.unsqueeze(0)) for row in emission]
        return DenseHMM(nodes, transition, start, torch.ones_like(start))

    def forward(self) -> float:
        return float(self.model.log_probability(self.tokens).double().sum())

    def smooth(self) -> Array:
        return self.model.predict_proba(self.tokens).numpy()

    def viterbi(self) -> Array:
        return self.model.viterbi(self.tokens).numpy()

    def em(self, iterations: int) -> Parameters:
        import torch

        model = self.build()
        for _ in range(iterations):
            model.summarize(self.tokens)
            model.from_summaries()
            model.edges.data.copy_(model.edges.log_softmax(-1))  # restore the probability of the end state
            model.ends.data.zero_()
        emission = torch.stack([node.probs[0] for node in model.distributions])
        return Parameters(*(part.double().numpy() for part in (model.starts.exp(), model.edges.exp(), emission)))


CONTESTANTS: dict[str, Callable[[Problem], Contestant]] = {
    "trellis-float32": partial(Trellis, dtype="float32"),
    "trellis-float64": partial(Trellis, dtype="float64"),
    "trellis-estimator": partial(Hmmlearn, module="trellis.estimators"),
    "numpy-float32": partial(Numpy, dtype="float32"),
    "numpy-float64": partial(Numpy, dtype="float64"),
    "hmmlearn": Hmmlearn,
    "dynamax": Dynamax,
    "pomegranate": Pomegranate,
}
OURS = {name: ["trellis-float32"] for name in CONTESTANTS} | {
    "numpy-float64": ["trellis-float64"],
    "hmmlearn": ["trellis-float32", "trellis-float64", "trellis-estimator"],  # the last through its API
}
PRECISION = {"trellis-estimator": "float64"}
