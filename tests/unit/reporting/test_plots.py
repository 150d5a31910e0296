"""Plots are files of the right kind; smoothing is arithmetic and is checked as such."""

from __future__ import annotations

import struct
from pathlib import Path

import matplotlib
import numpy as np
import pytest

from hftune.reporting.plots import plot_curves, smooth

CURVES = {
    "none": {},
    "no points": {"loss": ([], [])},
    "one point": {"loss": ([1], [2.0])},
    "short": {"train": ([1, 2, 3], [3.0, 2.0, 1.0]), "eval": ([3], [1.5])},
    "long": {"loss": (list(range(200)), [1 / (1 + step) for step in range(200)])},
    "with NaN": {"loss": (list(range(30)), [float("nan")] * 30)},
}


@pytest.mark.parametrize("curves", CURVES.values(), ids=CURVES.keys())
def test_writes_a_png(curves: dict[str, tuple[list[int], list[float]]], tmp_path: Path) -> None:
    backend = matplotlib.rcParams._get_backend_or_none()

    path = plot_curves(curves, tmp_path / "plots" / "loss.png", "SFT", "loss")

    content = path.read_bytes()
    assert content[:8] == b"\x89PNG\r\n\x1a\n"
    assert struct.unpack(">II", content[16:24]) == (900, 504)  # 7.5 x 4.2 inches at 120 dpi
    assert matplotlib.rcParams._get_backend_or_none() == backend


def test_smooth_takes_as_many_points_before_as_after() -> None:
    values = np.array([0.0, 3.0, 6.0, 0.0, 9.0])

    # (0+3)/2 at the end, then (0+3+6)/3, (3+6+0)/3, (6+0+9)/3, and (0+9)/2 at the other end
    np.testing.assert_allclose(smooth(values, 3), [1.5, 3.0, 3.0, 5.0, 4.5])


def test_smooth_leaves_a_straight_line_alone_but_for_its_ends() -> None:
    line = np.linspace(2.0, 5.0, 40)

    np.testing.assert_allclose(smooth(line, 7)[3:-3], line[3:-3])


def test_smooth_steps_over_what_is_not_a_number() -> None:
    values = np.array([1.0, np.nan, 3.0, np.nan, np.nan, np.nan, 5.0])

    # 1, (1+3)/2, 3, 3, nothing, 5, 5
    np.testing.assert_allclose(smooth(values, 3), [1.0, 2.0, 3.0, 3.0, np.nan, 5.0, 5.0])
