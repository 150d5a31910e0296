"""Curves as PNG files, without a display and without touching matplotlib's global state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

SMOOTH_ABOVE = 20
"""Curves of more points than this are drawn faintly, with their moving average on top."""


def plot_curves(
    curves: Mapping[str, tuple[Sequence[int], Sequence[float]]], path: Path, title: str, ylabel: str
) -> Path:
    """Draw named (steps, values) curves into one PNG.

    Args:
        curves: Name → steps and values, as `history.series` returns them. Curves without points are left out.
        path: Where the PNG goes; its folder is made if need be.
        title: Above the plot.
        ylabel: What the values are.
    """
    figure = Figure(figsize=(7.5, 4.2), dpi=120, layout="constrained")
    canvas = FigureCanvasAgg(figure)  # Agg whatever the user's backend
    axes = figure.add_subplot()
    drawn = {name: curve for name, curve in curves.items() if len(curve[0])}
    for number, (name, (steps, values)) in enumerate(drawn.items()):
        _draw_curve(axes, name, np.asarray(steps), np.asarray(values, dtype=float), color=f"C{number}")
    _dress(axes, title, ylabel, legend=len(drawn) > 1 or any(len(steps) > SMOOTH_ABOVE for steps, _ in drawn.values()))
    if not drawn:
        axes.text(0.5, 0.5, "nothing was logged", transform=axes.transAxes, ha="center", va="center", color="0.4")
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    canvas.print_png(path)
    return path


def smooth(values: np.ndarray, window: int) -> np.ndarray:
    """Centred moving average over at most `window` points, half as many at the ends; a NaN spoils no neighbour."""
    half = window // 2
    known = np.isfinite(values)
    # Sums over a window are differences of running sums.
    totals = np.concatenate([[0.0], np.cumsum(np.where(known, values, 0.0))])
    counts = np.concatenate([[0], np.cumsum(known)])
    # At the ends half a window stays: shrinking to a single point would end the curve in a spike of noise.
    index = np.arange(len(values))
    low, high = np.maximum(index - half, 0), np.minimum(index + half + 1, len(values))
    count = counts[high] - counts[low]
    return np.where(count > 0, (totals[high] - totals[low]) / np.maximum(count, 1), np.nan)


def _draw_curve(axes: Axes, name: str, steps: np.ndarray, values: np.ndarray, color: str) -> None:
    if len(steps) <= SMOOTH_ABOVE:
        axes.plot(steps, values, color=color, linewidth=1.8, marker="o", markersize=3.5, label=name)
        return
    window = max(5, len(steps) // 15) | 1  # odd: as many points before as after
    axes.plot(steps, values, color=color, linewidth=0.9, alpha=0.3)
    axes.plot(steps, smooth(values, window), color=color, linewidth=2.0, label=f"{name} (mean of {window})")


def _dress(axes: Axes, title: str, ylabel: str, *, legend: bool) -> None:
    axes.set_title(title, fontsize=12)
    axes.set_xlabel("step")
    axes.set_ylabel(ylabel)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(True, color="0.9", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    if legend:
        axes.legend(frameon=False, fontsize=9)
