"""A line chart as an SVG element: colours from the page's CSS, so that it follows light and dark; nothing to load."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from hftune.visible import html

WIDTH, HEIGHT = 360, 210
_LEFT, _RIGHT, _TOP, _BOTTOM = 50, 12, 12, 26
_COLOURS = 6
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
    xs = [x for points in finite.values() for x, _ in points]
    ys = [y for points in finite.values() for _, y in points]
    across, up = _Scale(min(xs), max(xs), _LEFT, WIDTH - _RIGHT), _Scale(*_padded(ys), HEIGHT - _BOTTOM, _TOP)
    parts = [
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{html(title)}">',
        *_grid(across, up),
        *(_line(points, across, up, numbers[label], label) for label, points in finite.items()),
        "</svg>",
    ]
    return "".join(parts) + (_legend({label: numbers[label] for label in finite}) if len(finite) > 1 else "")


class _Scale:
    """Maps values to pixels."""

    def __init__(self, low: float, high: float, start: float, end: float) -> None:
        # A single step, or values that are all the same, would divide by zero.
        self.low, self.high = low, high if high > low else low + 1
        self.start, self.end = start, end

    def __call__(self, value: float) -> float:
        share = (value - self.low) / (self.high - self.low)
        return round(self.start + share * (self.end - self.start), 1)


def _padded(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    # Room above and below; for a flat curve a tenth of its height, and for one at zero a unit.
    margin = (high - low) * 0.05 or abs(high) * 0.1 or 1.0
    return low - margin, high + margin


def ticks(low: float, high: float, count: int = 4) -> list[float]:
    """Places of grid lines: round numbers (1, 2, 2.5 or 5 times a power of ten) between two values."""
    raw = (high - low) / count
    power = 10.0 ** math.floor(math.log10(raw))
    # Slack as well: a step that is too small by rounding alone would give a line more.
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= raw * 0.999)
    # A hair of slack: 4e-5 / 1e-5 is a little less than 4.
    first, last = math.ceil(low / step - 1e-6), math.floor(high / step + 1e-6)
    return [number * step for number in range(first, last + 1)]


def _grid(across: _Scale, up: _Scale) -> list[str]:
    parts = []
    for value in ticks(up.low, up.high):
        y = up(value)
        parts.append(f'<path class="grid" d="M{_LEFT} {y}H{WIDTH - _RIGHT}"/>')
        parts.append(f'<text class="y" x="{_LEFT - 6}" y="{y + 4}">{short(value)}</text>')
    # There is no step 2.5.
    for step in (int(value) for value in ticks(across.low, across.high) if value == int(value)):
        parts.append(f'<text class="x" x="{across(step)}" y="{HEIGHT - 8}">{short(step)}</text>')
    return parts


def _line(points: Sequence[tuple[int, float]], across: _Scale, up: _Scale, number: int, label: str) -> str:
    d = "M" + "L".join(f"{across(x)} {up(y)}" for x, y in points)
    dots = "".join(
        f'<circle class="c{number}" cx="{across(x)}" cy="{up(y)}" r="{3 if len(points) <= 40 else 1.5}">'
        f"<title>{html(label)}: {short(y)} at step {x}</title></circle>"
        # Every dot carries its value as a tooltip; of many, the last one is enough.
        for x, y in (points if len(points) <= 120 else points[-1:])
    )
    return f'<path class="line c{number}" d="{d}"/>{dots}'


def _legend(curves: Mapping[str, object]) -> str:
    entries = (f'<span><i class="c{number}"></i>{html(label)}</span>' for number, label in enumerate(curves))
    return f'<div class="legend">{"".join(entries)}</div>'


def short(value: float) -> str:
    """A number as an axis shows it: 0.002, 1.5e-05, 12k."""
    if value == 0:
        return "0"
    size = abs(value)
    if size >= 1e9:
        return f"{value / 1e9:.3g}G"
    if size >= 1e6:
        return f"{value / 1e6:.3g}M"
    if size >= 1e4:
        return f"{value / 1e3:.3g}k"
    return f"{value:.4g}" if size >= 1e-3 else f"{value:.2g}"
