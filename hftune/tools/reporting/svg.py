"""Line charts as SVG inside HTML: nothing is loaded, and the colours are those of the page."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from hftune.tools.reporting.tables import format_cell
from hftune.visible import html

WIDTH, HEIGHT = 360, 210
_LEFT, _RIGHT, _TOP, _BOTTOM = 66, 24, 12, 26
_COLOURS = 6
_DOTS = 120
"""Of more points the last one alone has a dot with its value."""
Points = tuple[Sequence[int], Sequence[float]]


def chart(curves: Mapping[str, Points], title: str) -> str:
    """A line chart as SVG, steps to the right; with a legend where there are several curves.

    Args:
        curves: Label to steps and values; values that are not finite are left out, and the line with them.
        title: For readers that do not see it.
    """
    finite = {
        label: [(x, y) for x, y in zip(*points, strict=True) if math.isfinite(y)] for label, points in curves.items()
    }
    finite = {label: points for label, points in finite.items() if points}
    if not finite:
        return '<p class="none">nothing finite was logged</p>'
    # Of all curves: those of several charts have one colour each, also where one of them is empty.
    numbers = {label: number % _COLOURS for number, label in enumerate(curves)}
    xs = sorted(x for points in finite.values() for x, _ in points)
    ys = sorted(y for points in finite.values() for _, y in points)
    across, up = _scale(xs[0], xs[-1], _LEFT, WIDTH - _RIGHT), _scale(ys[0], ys[-1], HEIGHT - _BOTTOM, _TOP)
    parts = [f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{html(title)}">']
    for y in sorted({ys[0], (ys[0] + ys[-1]) / 2, ys[-1]}):
        parts.append(f'<path class="grid" d="M{_LEFT} {up(y)}H{WIDTH - _RIGHT}"/>')
        parts.append(f'<text class="y" x="{_LEFT - 6}" y="{up(y) + 4}">{format_cell(float(y))}</text>')
    for x in sorted({xs[0], xs[-1]}):
        parts.append(f'<text class="x" x="{across(x)}" y="{HEIGHT - 8}">{x:,}</text>')
    parts += [_line(points, across, up, numbers[label], label) for label, points in finite.items()]
    legend = "".join(f'<span><i class="c{numbers[label]}"></i>{html(label)}</span>' for label in finite)
    return "".join(parts) + "</svg>" + (f'<div class="legend">{legend}</div>' if len(finite) > 1 else "")


_Pixels = Callable[[float], float]


def _scale(low: float, high: float, start: float, end: float) -> _Pixels:
    """From values to pixels."""
    # A single step, or values that are all the same, would divide by zero.
    span = (high - low) or 1.0
    return lambda value: round(start + (value - low) / span * (end - start), 1)


def _line(points: Sequence[tuple[int, float]], across: _Pixels, up: _Pixels, number: int, label: str) -> str:
    d = "M" + "L".join(f"{across(x)} {up(y)}" for x, y in points)
    dots = "".join(
        f'<circle class="c{number}" cx="{across(x)}" cy="{up(y)}" r="2">'
        f"<title>{html(label)}: {format_cell(float(y))} at step {x}</title></circle>"
        for x, y in (points if len(points) <= _DOTS else points[-1:])
    )
    return f'<path class="line c{number}" d="{d}"/>{dots}'
