"""Figures for papers, with matplotlib. Each function draws on the given axes, or on new ones, and returns the axes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from os import PathLike
from typing import TYPE_CHECKING, Any

import numpy as np

from trellis.errors import TrellisError
from trellis.report.comparison import COLOURS, LARGEST, PANELS, short
from trellis.report.curves import Curves, curves_of, log_ticks, read_curves
from trellis.report.format import compact, text as shown
from trellis.storage import as_path

if TYPE_CHECKING:
    from trellis.models.base import PersistedModel
    from trellis.models.text import Text
    from trellis.tasks.compare import Row

METRICS = "metrics.jsonl"
WIDTHS = {"column": 3.3, "page": 6.9}  # inches
GOLDEN = 0.62  # height of a figure relative to its width
STATE, PATH, QUIET = COLOURS[0], COLOURS[1], "0.9"  # a state, the Viterbi path, and the row of a state
LARGEST_CIRCLE, THICKEST = 180.0, 5.0  # square points, points: at probability 1
FAINTEST = 0.02  # smaller probabilities are not drawn
MARKERS = "osD^vPX"  # one for each colour
SLOPE = 40  # degrees, of labels that would overlap


def pyplot() -> Any:
    try:
        import matplotlib.pyplot as plt
    except ImportError as error:
        raise TrellisError("Plots need matplotlib; install it with: pip install 'trellis-hmm[plots]'.") from error
    return plt


def axes_or_new(ax: Any) -> Any:
    plt = pyplot()
    return plt.subplots()[1] if ax is None else ax


@contextmanager
def figure_style(width: str | float = "column", height: float | None = None) -> Iterator[None]:
    """A context manager that sets matplotlib's style for figures in papers.

    Text has 7 or 8 points, fonts are embedded in PDF files, and colours are those of the report.

    Parameters
    ----------
    width
        "column" (3.3 inches), "page" (6.9 inches) or a number of inches.
    height
        A number of inches; by default, 0.62 times the width.

    Examples
    --------
    >>> import matplotlib.pyplot as plt
    >>> with trellis.figure_style(width=5):
    ...     figure = plt.figure()
    >>> float(figure.get_figwidth())
    5.0
    """
    plt = pyplot()
    if isinstance(width, str) and width not in WIDTHS:
        raise TrellisError(f"The width of a figure is 'column', 'page' or a number of inches, not {width!r}.")
    inches = float(WIDTHS.get(str(width), 0.0) or width)
    style = {
        "figure.figsize": (inches, inches * GOLDEN if height is None else height),
        "figure.constrained_layout.use": True,
        "axes.prop_cycle": plt.cycler(color=COLOURS),
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.linewidth": 0.6,
        "font.size": 8,
        "legend.frameon": False,
        "legend.fontsize": 7,
        "lines.linewidth": 1.2,
        "pdf.fonttype": 42,  # TrueType: text in the PDF can be searched and edited
        "savefig.bbox": "tight",
        "savefig.dpi": 300,
    }
    with plt.rc_context(style):
        yield


def plot_trellis(model: PersistedModel, text: Text, *, ax: Any = None) -> Any:
    """Plot the trellis of a sentence: words across, states down.

    The area of a circle is the posterior probability of a state, the width of a line that of a transition. Rings mark
    the Viterbi path. `model.draw(text)` draws the same picture as SVG.

    Parameters
    ----------
    model
        An HMM language model.
    text
        A sentence.
    ax : matplotlib.axes.Axes or None
        The axes to draw on; None: new ones.

    Examples
    --------
    >>> from matplotlib.figure import Figure
    >>> axes = trellis.plot_trellis(trellis.load("demo"), "returns a list", ax=Figure().subplots())
    >>> [label.get_text() for label in axes.get_xticklabels()]
    ['returns', 'a', 'list', '<eos>']
    """
    found: Any = model.draw(text)
    axes, (times, rows) = axes_or_new(ax), np.nonzero(found.posterior > FAINTEST)
    axes.hlines(range(len(found.names)), -0.4, len(found.words) - 0.6, color=QUIET, linewidth=0.6, zorder=0)
    for time, before, after in np.argwhere(found.steps > FAINTEST):
        prob = float(found.steps[time, before, after])
        axes.plot(
            (time, time + 1), (before, after), color=STATE, alpha=0.6 * prob**0.5, linewidth=0.4 + THICKEST * prob
        )
    sizes = LARGEST_CIRCLE * found.posterior[times, rows]
    axes.scatter(times, rows, s=sizes, color=STATE, zorder=2, clip_on=False)
    rings = {"s": 1.5 * LARGEST_CIRCLE, "facecolors": "none", "edgecolors": PATH}
    axes.scatter(range(len(found.path)), found.path, **rings, zorder=3, clip_on=False)
    axes.set_xticks(range(len(found.words)), labels=[shown(word) for word in found.words])
    axes.set_yticks(range(len(found.names)), labels=[shown(name) for name in found.names])
    axes.tick_params(length=0, top=False, labeltop=True, bottom=False, labelbottom=False)
    axes.spines[:].set_visible(False)
    axes.set(xlim=(-0.5, len(found.words) - 0.5), ylim=(len(found.names) - 0.3, -0.7))
    slope_if_crowded(axes)
    return axes


def slope_if_crowded(axes: Any) -> None:
    """Rotate the labels above the axes if they would overlap."""
    axes.figure.figure.draw_without_rendering()
    boxes = [label.get_window_extent() for label in axes.get_xticklabels()]
    if any(one.x1 > other.x0 for one, other in pairwise(boxes)):
        for label in axes.get_xticklabels():
            label.set(rotation=SLOPE, horizontalalignment="left", rotation_mode="anchor")


def plot_training(runs: Any, *, ax: Any = None) -> Any:
    """Plot training and validation perplexity over the epochs of a run, or of several.

    Dashed lines are training perplexities.

    Parameters
    ----------
    runs : Trained, path, or dict
        The result of `train`, a run folder, or a dict of these by name.
    ax : matplotlib.axes.Axes or None
        The axes to draw on; None: new ones.

    Examples
    --------
    >>> from matplotlib.figure import Figure
    >>> trained = trellis.train(["a b", "b a"] * 20, states=2, epochs=3)
    >>> trellis.plot_training({"2 states": trained}, ax=Figure().subplots()).get_xlabel()
    'epoch'
    """
    named = runs if isinstance(runs, Mapping) else {"": runs}
    axes, units = axes_or_new(ax), set()
    for number, (name, run) in enumerate(named.items()):
        curves, colour = run_curves(run), COLOURS[number % len(COLOURS)]
        unit = curves.steps_per_epoch
        units.add("step" if unit is None else "epoch")
        for split, points in curves.points.items():
            steps = [point.step / (unit or 1.0) for point in points]
            look = "-" if split == "valid" else "--"
            label = f"{name} {split}".strip()
            axes.plot(steps, [point.perplexity for point in points], look, color=colour, label=label)
    axes.set_yscale("log")
    ticks = log_ticks(*axes.get_ylim())
    axes.set_yticks(ticks, labels=map(compact, ticks))
    axes.minorticks_off()
    axes.set(xlabel=" or ".join(sorted(units)), ylabel="perplexity")
    axes.legend()
    return axes


def run_curves(run: Any) -> Curves:
    """The curves of a `Trained` or of a run folder."""
    is_path = isinstance(run, str | PathLike)
    curves = read_curves(as_path(run) / METRICS) if is_path else curves_of(getattr(run, "history", []))
    if not curves.points:
        what = f"The run {run}" if is_path else "This run"
        raise TrellisError(
            f"{what} has no training curves: pass a Trained or a run folder of a model trained in steps."
        )
    return curves


def plot_comparison(rows: Sequence[Row], *, by: str = "frequency", ax: Any = None) -> Any:
    """Plot the perplexity of models by word frequency, or by position in the sentence.

    With several models, perplexities are relative to the first.

    Parameters
    ----------
    rows
        The result of `trellis.compare`.
    by
        "frequency" or "position".
    ax : matplotlib.axes.Axes or None
        The axes to draw on; None: new ones.

    Examples
    --------
    >>> from matplotlib.figure import Figure
    >>> text = ["a b c", "b a c", "c c a"] * 20
    >>> models = [trellis.train(text, family=name).model for name in ("unigram", "bigram")]
    >>> axes = trellis.plot_comparison(trellis.compare(models, text), by="position", ax=Figure().subplots())
    >>> axes.get_xlabel()
    'preceding words in the sentence'
    """
    if f"by_{by}" not in PANELS:
        raise TrellisError(f"`by` is 'frequency' or 'position', not {by!r}.")
    rows = list(rows)
    if not rows:
        raise TrellisError("plot_comparison needs at least one row of trellis.compare.")
    axes, bands = axes_or_new(ax), [getattr(row, f"by_{by}") for row in rows]
    units = [1.0 if len(rows) == 1 else band.perplexity for band in bands[0]]
    for number, (row, own) in enumerate(zip(rows, bands, strict=True)):
        heights = [band.perplexity / unit for band, unit in zip(own, units, strict=True)]
        points = [(np.nan, np.nan)]
        for place, (band, height) in enumerate(zip(own, heights, strict=True)):
            points += [] if band.name[0].isdigit() else [(np.nan, np.nan)]  # <eos> and <unk> are not on the same scale
            points.append((place, height if 0 < height < LARGEST else np.nan))
        label, look = f"{short(row.model)} ({row.perplexity:.1f})", number % len(COLOURS)
        axes.plot(*zip(*points, strict=True), MARKERS[look], ls="-", ms=4, color=COLOURS[look], label=label)
    axes.set_xticks(range(len(units)), labels=[shown(band.name) for band in bands[0]])
    relative = "perplexity" if len(rows) == 1 else f"perplexity relative to {short(rows[0].model)}"
    axes.set(xlabel=PANELS[f"by_{by}"].removeprefix("by "), ylabel=relative)
    axes.legend()
    return axes
