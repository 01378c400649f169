"""Plots of a fitted HMM, with matplotlib. Each function draws on the given axes, or on new ones, and returns the
axes."""

from typing import Any

import numpy as np
import torch

from trellis.errors import InputTypeError
from trellis.estimators.inputs import Array
from trellis.report.figures import axes_or_new
from trellis.report.format import text as shown
from trellis.report.heatmap import likeness_order


def plot_states(model: Any, X: Any, lengths: Any = None, *, feature: int = 0, ax: Any = None) -> Any:
    """Plot one feature of the observations over time, coloured by decoded state; dashed lines separate sequences.

    >>> from matplotlib.figure import Figure
    >>> X = np.array([0, 1, 0, 1, 2, 2])
    >>> model = trellis.CategoricalHMM(2, random_state=0).fit(X)
    >>> trellis.plot_states(model, X, ax=Figure().subplots()).get_xlabel()
    'step'
    """
    states, observed = model.predict(X, lengths), model._observe(X, lengths)
    axes, times = axes_or_new(ax), np.arange(len(states))
    order = times if observed.order is None else np.argsort(observed.order)
    values = observed.values.reshape(len(states), -1)[order, feature].astype(float)
    values[observed.missing[order]] = np.nan
    axes.plot(times, values, color="0.8", linewidth=1, zorder=1)
    for state in range(model.n_components):
        here = states == state
        axes.scatter(times[here], values[here], s=12, color=colour(state), label=f"state {state}", zorder=2)
    if hasattr(model, "symbols_"):
        axes.set_yticks(range(len(model.symbols_)), labels=model.symbols_)
    separate(axes, observed.lengths, observed.order)
    axes.set(xlabel="step", ylabel="symbol" if observed.values.ndim == 1 else f"feature {feature}")
    axes.legend()
    return axes


def plot_transitions(model: Any, *, n: int = 20, ax: Any = None) -> Any:
    """Plot the transition matrix as a heat map. With up to 20 states, the values are shown too.

    For an HMM language model, the matrix has the `n` most informative states, labelled with their most probable words
    and ordered so that similar states are adjacent.

    >>> from matplotlib.figure import Figure
    >>> model = trellis.CategoricalHMM(2, random_state=0).fit([0, 1, 0, 1, 2, 2])
    >>> len(trellis.plot_transitions(model, ax=Figure().subplots()).texts)
    4
    >>> language_model = trellis.load("demo")
    >>> len(trellis.plot_transitions(language_model, n=3, ax=Figure().subplots()).texts)
    9
    """
    is_language_model = hasattr(model, "states")
    names, matrix = informative_states(model, n) if is_language_model else fitted_states(model)
    axes = axes_or_new(ax)
    axes.imshow(matrix, cmap="Blues", vmin=0, vmax=1)
    if len(matrix) <= 20:
        for (row, column), value in np.ndenumerate(matrix):
            shade = "white" if value > 0.5 else "black" if value >= 0.005 else "0.75"
            axes.text(column, row, f"{value:.2f}", ha="center", va="center", color=shade, fontsize="x-small")
    axes.set(xlabel="to state", ylabel="from state")
    axes.set_xticks(range(len(names)), labels=names, rotation=90 if is_language_model else 0)
    axes.set_yticks(range(len(names)), labels=names)
    return axes


def fitted_states(model: Any) -> tuple[list[str], Array]:
    """The names and the transition matrix of an estimator."""
    if not hasattr(model, "_check_fitted"):
        raise InputTypeError(f"Transitions of a fitted HMM are plotted; this is {type(model).__name__}.")
    model._check_fitted()
    matrix = np.asarray(model.transmat_)
    return [str(state) for state in range(len(matrix))], matrix


def informative_states(model: Any, n: int) -> tuple[list[str], Array]:
    """The most probable words of the most informative states of a language model, and p(z' | z) between the states."""
    found = model.states(n, 1)
    chosen = torch.tensor([one.state for one in found], device=model.device)
    with torch.no_grad():
        matrix = model.parts().transition.rows(chosen)[:, chosen].double().cpu().numpy()
    order = likeness_order(matrix)
    return [shown(found[z].words[0][0]) for z in order], matrix[np.ix_(order, order)]


def plot_posterior(model: Any, X: Any, lengths: Any = None, *, ax: Any = None) -> Any:
    """Plot the posterior probabilities of the states over time, stacked; dashed lines separate sequences.

    >>> from matplotlib.figure import Figure
    >>> X = np.array([0, 1, 0, 1, 2, 2])
    >>> model = trellis.CategoricalHMM(2, random_state=0).fit(X)
    >>> tuple(map(float, trellis.plot_posterior(model, X, ax=Figure().subplots()).get_ylim()))
    (0.0, 1.0)
    """
    posterior, observed = model.predict_proba(X, lengths), model._observe(X, lengths)
    axes, times = axes_or_new(ax), np.arange(len(posterior))
    names = [f"state {state}" for state in range(model.n_components)]
    axes.stackplot(times, posterior.T, labels=names, colors=list(map(colour, range(model.n_components))))
    separate(axes, observed.lengths, observed.order)
    axes.set(xlabel="step", ylabel="posterior probability", ylim=(0.0, 1.0), xlim=(0, max(1, len(posterior) - 1)))
    axes.legend()
    return axes


def colour(state: int) -> str:
    """One of matplotlib's ten default colours."""
    return f"C{state % 10}"


def separate(axes: Any, lengths: Array, order: Array | None) -> None:
    """Draw a line between sequences, unless their rows are mixed."""
    if order is None or (np.diff(order) == 1).all():
        for end in np.cumsum(lengths)[:-1]:
            axes.axvline(end - 0.5, color="0.5", linestyle="--", linewidth=0.8)
