"""Defaults in words, for `hftune explain` and docs/defaults.md."""

from __future__ import annotations

from hftune.arguments.defaults.table import OWN
from hftune.tools.explaining.defaults import RUN_KINDS, default_rows, documented_names
from hftune.tools.explaining.explain import explain


def test_every_row_is_reached() -> None:
    """A row that later ones hide from everybody is an error of the table."""
    every = [one for runs in RUN_KINDS.values() for one in runs.values()]
    shown = {
        (one.value, one.because)
        for stage in RUN_KINDS
        for name in documented_names(stage)
        for one in default_rows(stage, name)
    }
    for row in OWN:
        assert any(row.fits(one) for one in every) or row.held_out
        assert row.because in {because for _, because in shown}


def test_explain_tells_defaults_with_reasons() -> None:
    text = explain("learning_rate")
    assert "run_dpo.py, run_rl.py: LoRA: 5e-05 (an adapter" in text
    assert "run_rl.py: full: 1e-06" in text
    assert "--defaults medicalgpt: pt 5e-05" in text
    assert "  default:" in explain("lora_rank")  # of what it is an alias of
    assert "twice the rank" in explain("lora_alpha")
