"""The table of private parts of other libraries is well formed."""

from __future__ import annotations

import pytest

from hftune.compat import symbols
from hftune.compat.symbols import entry_of, listed

USES = {"imported", "read", "overridden", "replaced", "replaced on an object", "set"}


def test_every_symbol_stands_once() -> None:
    names = [entry.symbol for entry in listed()]
    assert len({*names}) == len(names) > 50


def test_rows() -> None:
    for entry in listed():
        assert entry.use in USES, entry.symbol
        assert entry.source and not entry.source.startswith("/"), entry.symbol
        assert entry.versions or entry.library == "argparse", entry.symbol


def test_parameters() -> None:
    assert symbols._parameters("") is None
    assert symbols._parameters("()") == ()
    assert symbols._parameters("(model, *rest, ...)") == ("model", "*rest", "...")


def test_a_row_by_its_symbol() -> None:
    found = entry_of("transformers.trainer.Trainer._save")
    assert (found.library, found.name) == ("transformers", "_save")
    assert found.parameters == ("output_dir", "state_dict")
    assert found.link.endswith("/src/transformers/trainer.py")
    with pytest.raises(KeyError):
        entry_of("transformers.trainer.Trainer.gone")
