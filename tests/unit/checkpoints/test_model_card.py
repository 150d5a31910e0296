"""The model card of a result, as far as stages differ."""

from __future__ import annotations

from hftune.checkpoints.model_card import model_card


def test_a_distillation_names_its_teachers() -> None:
    """Names of the Hub as they are, of folders the last part alone, which says nothing of a machine."""
    manifest = {"stage": "distill", "base": {"name": "owner/student"}, "kind": "full"}
    manifest |= {"teachers": [{"name": "owner/big"}, {"name": "/home/somebody/outputs/sft"}]}
    manifest |= {"arguments": {"training": {"distill_mode": "mixed", "beta": 0.5}}}
    card = model_card(manifest, "mine")
    assert "Taught by `owner/big`, `sft`." in card and "somebody" not in card
    assert "| distill_mode | mixed |" in card
    assert "Taught by" not in model_card({"stage": "sft"}, "mine")
