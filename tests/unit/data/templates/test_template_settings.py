"""Spans of records that bring arguments of their own for the template."""

from __future__ import annotations

import pytest

from hftune.data import rendering
from hftune.data.mask import SpanFinder
from tests.unit.data.helpers import assistant, make_tokenizer, user

SIGNED = (
    "{% for m in messages %}{{ '<' + m.role + '>' + m.content + (sign or '') + '<end>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<assistant>' }}{% endif %}"
)
SAID = [user("a"), assistant("b")]


def trained(finder: SpanFinder, **arguments: str) -> str:
    (row,) = finder.rows(SAID, None, arguments)
    return row.text[row.spans[0].start : row.spans[0].end]


def test_each_record_is_written_with_its_own() -> None:
    finder = SpanFinder(make_tokenizer(SIGNED))
    assert trained(finder, sign="!") == "b!<end>" and trained(finder, sign="?") == "b?<end>"
    assert trained(finder) == "b<end>", "nothing stays of the others"
    one, other = finder.given({"sign": "!"}), finder.given({"sign": "?"})
    assert one.render is finder.given({"sign": "!"}).render and one.render is not other.render


def test_of_many_sets_few_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendering, "MOST_SETS", 3)
    finder = SpanFinder(make_tokenizer(SIGNED))
    for number in range(10):
        assert trained(finder, sign=str(number)) == f"b{number}<end>"
        assert 1 <= len(finder.render.others) <= 3
