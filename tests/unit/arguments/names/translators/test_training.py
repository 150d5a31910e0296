"""Sums of losses."""

from __future__ import annotations

import pytest

from hftune.arguments.names.translators import training
from hftune.errors import ArgumentError
from tests.unit.arguments.names.translators.questions import ask, translated


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("loss_type=ipo", {"loss_type": "ipo"}),
        ("rpo_alpha=0.5", {"loss_type": "sigmoid sft", "loss_weights": "1 0.5"}),
        ("loss_type=ipo sft_loss_ratio=0.2 pref_loss_ratio=0.8",
         {"loss_type": "ipo sft", "loss_weights": "0.8 0.2"}),
        ("sft_loss_ratio=0 pref_loss_ratio=1.0", {}),
        ("loss_type=or sft_loss_ratio=1", {"loss_type": "odds_ratio sft", "loss_weights": "1 1"}),
        ("loss_type=kto_pair", {"loss_type": "kto_pair"}),
        ("orpo_beta=0.2", {"loss_type": "orpo", "beta": "0.2"}),
    ],
)  # fmt: skip
def test_sums_of_losses(command: str, expected: dict[str, str]) -> None:
    assert translated(training.preference_loss, ask(command, stage="dpo")) == expected


@pytest.mark.parametrize(
    ("command", "others", "stage"),
    [
        ("orpo_beta=0.1 loss_type=ipo", "", "dpo"),
        ("rpo_alpha=1", "loss_weights=1,1", "dpo"),
        ("rpo_alpha=1", "", "sft"),
    ],
)
def test_losses_that_cannot_be(command: str, others: str, stage: str) -> None:
    with pytest.raises(ArgumentError, match="cannot be used"):
        training.preference_loss(ask(command, others, stage))
