"""How many characters a token stands for, guessed from what was met: Chinese has fewer of them a token than English."""

from __future__ import annotations

import numpy as np

HEAD = 512
"""Characters of a text by which it is judged."""


class Density:
    """A straight line through the (decaying) past: the tokens a character over the width of a text.

    That is all that is needed: a wrong guess costs time, never a token.
    """

    def __init__(self) -> None:
        self.sums = np.zeros(5)

    @property
    def known(self) -> bool:
        """Whether anything was met yet."""
        return bool(self.sums[0])

    def characters(self, widths: np.ndarray) -> np.ndarray:
        """The characters a token to expect in texts of these widths, float64."""
        weight, x, y, xx, xy = self.sums
        if not weight:
            return np.full(len(widths), 3.0)
        spread = weight * xx - x * x
        slope = (weight * xy - x * y) / spread if spread > 1e-6 * weight * weight else 0.0
        tokens = (y - slope * x) / weight + slope * widths
        return 1 / np.clip(tokens, 0.05, 2.0)

    def learn(self, widths: np.ndarray, tokens: np.ndarray) -> None:
        """Take in texts: their widths, and the tokens a character that they had."""
        sums = (len(widths), widths.sum(), tokens.sum(), widths @ widths, widths @ tokens)
        self.sums = self.sums * 0.995 ** len(widths) + np.array(sums)


def width(text: str) -> float:
    """UTF-8 bytes a character, judged by the beginning; 1 for an empty text."""
    head = text[:HEAD]
    return len(head.encode("utf-8", "replace")) / len(head) if head else 1.0
