"""hftune's own attention functions are imported when one of them is chosen."""

from __future__ import annotations

import pytest
from transformers import AttentionInterface, AttentionMaskInterface

from hftune.models.attention import names
from hftune.models.attention.names import SEGMENTS, ULYSSES, VARLEN, registered, whole_row_attention


@pytest.mark.parametrize("name", [SEGMENTS, VARLEN, ULYSSES])
def test_each_name_leads_to_the_module_that_registers_it(name: str) -> None:
    assert registered(name) == name
    assert name in AttentionInterface() and name in AttentionMaskInterface()


def test_nothing_is_imported_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(names, "on_demand", lambda place: pytest.fail(place))
    assert [registered(name) for name in (None, "sdpa", "flash_attention_2")] == [None, "sdpa", "flash_attention_2"]


def test_over_whole_rows() -> None:
    assert (whole_row_attention(True), whole_row_attention(False)) == (VARLEN, SEGMENTS)
