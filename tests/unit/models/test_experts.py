"""Experts under ZeRO-3, which wants the same calls of modules on all processes."""

from __future__ import annotations

import pytest

from hftune.models.structure import gather_experts_at_once
from tests.table.tiny import model_class, tiny_config


@pytest.mark.parametrize(
    ("model_type", "layers"), [("dbrx", True), ("longcat_flash", True), ("mixtral", False), ("llama", False)]
)
def test_experts_that_are_called_one_by_one_are_gathered_at_once(model_type: str, layers: bool) -> None:
    model = model_class(model_type)(tiny_config(model_type))
    marked = [name for name, module in model.named_modules() if getattr(module, "_z3_leaf", False)]
    assert not marked
    count = gather_experts_at_once(model)
    marked = [name for name, module in model.named_modules() if getattr(module, "_z3_leaf", False)]
    assert len(marked) == count and bool(count) is layers and all(name.endswith(".experts") for name in marked)
