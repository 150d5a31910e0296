"""While a trainer is made, nobody sees that its base is quantised."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from hftune.trainers.features.adapter_precision import AdapterPrecision


@pytest.mark.parametrize("bits", [4, 8])
def test_hidden_inside_and_back_after_an_error(bits: int) -> None:
    model, args = SimpleNamespace(**{f"is_loaded_in_{bits}bit": True}), SimpleNamespace()
    building: Any = AdapterPrecision().building
    with pytest.raises(KeyError), building(model, args):
        assert not getattr(model, f"is_loaded_in_{bits}bit")
        raise KeyError
    assert vars(model) == {f"is_loaded_in_{bits}bit": True}, "and nothing else was set"
