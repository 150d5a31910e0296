"""Asks the board without a network."""

from __future__ import annotations

import html
import re
from dataclasses import dataclass

from hftune.tools.board.app import Board

TOKEN = "token-of-the-test-0123456789"
HOST = "127.0.0.1:8765"


@dataclass
class Said:
    status: int
    text: str

    @property
    def said(self) -> str:
        """Its words, without tags."""
        return html.unescape(re.sub(r"<[^>]*>", " ", self.text))


def ask(board: Board, path: str, *, token: str = TOKEN, host: str = HOST) -> Said:
    """What the board answers."""
    status, _, text = board.answer(f"/{token}/{path}", host)
    return Said(status, text)
