"""Texts for pre-training, from the columns that may hold them."""

from __future__ import annotations

from hftune.data.records import to_text
from tests.unit.data.helpers import assistant, row


def test_text() -> None:
    assert to_text(row(text=" 你好 ")) == " 你好 "
    assert to_text(row(content="c")) == "c"
    assert to_text(row(text=None, content="c")) == "c"
    assert to_text(row(messages=[assistant("ms-swift writes text so")])) == "ms-swift writes text so"
