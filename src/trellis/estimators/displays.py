"""Plots of a fitted HMM, with matplotlib. Each function draws on the given axes, or on new ones, and returns the
axes."""

from typing import Any

import numpy as np
import torch

from trellis.errors import InputTypeError
from trellis.estimators.inputs import Array
from trellis.report.figures import MARKERS, axes_or_new
from trellis.report.format import text as shown
from trellis.report.heatmap import likeness_order

SMALL = 7  # points, of numbers and words in cells
NARROWEST = 14  # points, of a cell with a number
WORDS = 5  # of a state
LETTER = 0.6  # width of a letter relative to its size


def plot_states(model: Any, X: Any = None, lengths: Any = None, *, feature: int = 0, n: int = 8, ax: Any = None) -> Any:
    """Plot one feature of the observations over time, coloured by decoded state; dashed lines separate sequences.

    For an HMM language model, which needs no X, plot the most probable words of its most informative states.

    Parameters
    ----------
    model : estimator or HMM
        A fitted estimator, or an HMM language model.
    X, lengths : array or list, array or None
        The observations and the lengths of their sequences, as for `fit`.
    feature
        The feature to plot.
    n
        The number of states of a language model.
    ax : matplotlib.axes.Axes or None
        The axes to draw on; None: new ones.

    Examples
    --------
    >>> from matplotlib.figure import Figure
    >>> X = np.array([0, 1, 0, 1, 2, 2])
    >>> model = trellis.CategoricalHMM(2, random_state=0).fit(X)
    >>> trellis.plot_states(model, X, ax=Figure().subplots()).get_xlabel()
    'step'
    """
    if hasattr(model, "states"):
        return plot_words(model, n, axes_or_new(ax))
    states, observed = model.predict(X, lengths), model._observe(X, lengths)
    axes, times = axes_or_new(ax), np.arange(len(states))
    order = times if observed.order is None else np.argsort(observed.order)
    values = observed.values.reshape(len(states), -1)[order, feature].astype(float)
    values[observed.missing[order]] = np.nan
    axes.plot(times, values, color="0.8", linewidth=1, zorder=1)
    for state in range(model.n_components):
        here = states == state
        look = {"color": colour(state), "marker": marker(state)}
        axes.scatter(times[here], values[here], s=12, label=f"state {state}", zorder=2, **look)
    if hasattr(model, "symbols_"):
        axes.set_yticks(range(len(model.symbols_)), labels=model.symbols_)
    separate(axes, observed.lengths, observed.order)
    axes.set(xlabel="step", ylabel="symbol" if observed.values.ndim == 1 else f"feature {feature}")
    legend_above(axes)
    return axes


def plot_words(model: Any, n: int, axes: Any) -> Any:
    """Plot the most probable words of states, darker if they are more probable, and how often each state is visited."""
    found = model.states(n, WORDS)
    probs = np.zeros((len(found), WORDS))
    for row, one in enumerate(found):
        probs[row, : len(one.words)] = [prob for _, prob in one.words]
    axes.imshow(probs, cmap="Blues", vmin=0, vmax=1, aspect="auto")
    axes.set_xticks([])
    axes.set_yticks(range(len(found)), labels=[f"{one.occupancy:.1%}" for one in found])
    axes.set(xlabel="words, most probable first", ylabel="visits to the state")
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    longest = int(cell_width(axes, WORDS) / (LETTER * SMALL))
    for row, one in enumerate(found):
        for column, (word, prob) in enumerate(one.words):
            write(axes, column, row, cut(shown(word), longest), prob)
    return axes


def cut(word: str, longest: int) -> str:
    return word if len(word) <= longest else word[: max(1, longest - 1)] + "…"


def cell_width(axes: Any, columns: int) -> float:
    """The width of a column of a heat map, in points."""
    figure = axes.figure.figure
    figure.draw_without_rendering()  # which computes the layout
    return axes.get_window_extent().width / columns / figure.dpi * 72


def write(axes: Any, column: int, row: int, text: str, value: float) -> None:
    """Write into a cell of a heat map, in a colour that contrasts with the value's."""
    axes.text(column, row, text, ha="center", va="center", color="white" if value > 0.5 else "black", fontsize=SMALL)


def legend_above(axes: Any) -> None:
    """A legend above the axes, where it hides nothing."""
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=4, columnspacing=1.2, handletextpad=0.4)


def plot_transitions(model: Any, *, n: int = 20, ax: Any = None) -> Any:
    """Plot the transition matrix as a heat map.

    For an HMM language model, plot the transitions between the `n` most informative states. States are labelled with
    their most probable words, and similar states are adjacent.

    Parameters
    ----------
    model : estimator or HMM
        A fitted estimator, or an HMM language model.
    n
        The number of states of a language model.
    ax : matplotlib.axes.Axes or None
        The axes to draw on; None: new ones.

    Examples
    --------
    >>> from matplotlib.figure import Figure
    >>> model = trellis.CategoricalHMM(2, random_state=0).fit([0, 1, 0, 1, 2, 2])
    >>> trellis.plot_transitions(model, ax=Figure().subplots()).images[0].get_array().shape
    (2, 2)
    >>> language_model = trellis.load("demo")
    >>> trellis.plot_transitions(language_model, n=3, ax=Figure().subplots()).images[0].get_array().shape
    (3, 3)
    """
    is_language_model = hasattr(model, "states")
    names, matrix = informative_states(model, n) if is_language_model else fitted_states(model)
    axes = axes_or_new(ax)
    image = axes.imshow(matrix, cmap="Blues", vmin=0, vmax=1)
    axes.set(xlabel="to state", ylabel="from state")
    axes.set_xticks(range(len(names)), labels=names, rotation=90 if is_language_model else 0)
    axes.set_yticks(range(len(names)), labels=names)
    if cell_width(axes, len(names)) < NARROWEST:
        axes.figure.colorbar(image, ax=axes, label="probability")
        return axes
    for (row, column), value in np.ndenumerate(matrix):
        if (shown_value := f"{value:.2f}") != "0.00":
            write(axes, column, row, shown_value.removeprefix("0"), value)
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

    Parameters
    ----------
    model : estimator
        A fitted estimator.
    X, lengths : array or list, array or None
        The observations and the lengths of their sequences, as for `fit`.
    ax : matplotlib.axes.Axes or None
        The axes to draw on; None: new ones.

    Examples
    --------
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
    legend_above(axes)
    return axes


def colour(state: int) -> str:
    """A colour of matplotlib's current cycle."""
    return f"C{state % 10}"


def marker(state: int) -> str:
    """A marker that differs between states of the same colour, whether the colour cycle has seven colours or ten."""
    return MARKERS[(state + state // len(MARKERS)) % len(MARKERS)]


def separate(axes: Any, lengths: Array, order: Array | None) -> None:
    """Draw a line between sequences, unless their rows are mixed."""
    if order is None or (np.diff(order) == 1).all():
        for end in np.cumsum(lengths)[:-1]:
            axes.axvline(end - 0.5, color="0.5", linestyle="--", linewidth=0.8)
