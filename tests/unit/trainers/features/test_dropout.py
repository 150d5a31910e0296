"""Dropout that grows with steps and with depth."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from transformers import LlamaConfig

from hftune.models.loading.dropout_fields import Probabilities
from hftune.trainers.features import dropout
from hftune.trainers.features.dropout import DropoutSettings, DropoutWarmup, describe
from tests.unit.trainers.features import made_up


def asked(**given: Any) -> Any:
    names = {"hidden_dropout_prob": None, "attention_probs_dropout_prob": None}
    return SimpleNamespace(**(names | {"dropout_warmup_steps": 0, "layerwise_dropout": False} | given))


class Places:
    """Of one layer: what was set."""

    def set(self, found: Probabilities) -> None:
        self.hidden = found.hidden


@pytest.mark.parametrize(
    ("step", "layerwise", "expected"),
    [(0, False, [0.0, 0.0]), (5, False, [0.2, 0.2]), (30, False, [0.4, 0.4]), (5, True, [0.0, 0.1])],
)
def test_growth(step: int, layerwise: bool, expected: list[float]) -> None:
    layers: Any = [Places(), Places()]
    args = asked(dropout_warmup_steps=10, layerwise_dropout=layerwise)
    warmup = DropoutWarmup(layers, Probabilities(0.4, None), args)
    warmup.on_step_begin(None, SimpleNamespace(global_step=step), None)  # type: ignore[arg-type]  # made up
    assert [layer.hidden for layer in layers] == pytest.approx(expected)


def test_without_growth_all_of_it_at_once() -> None:
    layers: Any = [Places()]
    DropoutWarmup(layers, Probabilities(0.4, None), asked()).set(0)
    assert layers[0].hidden == 0.4


@pytest.mark.parametrize(("flags", "callbacks"), [({}, 0), ({"dropout_warmup_steps": 4}, 1)])
def test_what_the_config_says_needs_no_callback(
    monkeypatch: pytest.MonkeyPatch, flags: dict[str, int], callbacks: int
) -> None:
    monkeypatch.setattr(dropout, "find_dropouts", lambda model, left: [])
    args = vars(asked(attention_probs_dropout_prob=0.1, **flags))
    run = made_up.run(model=SimpleNamespace(config=LlamaConfig()), args=args)
    DropoutSettings().on_built(run)
    assert len(run.callbacks) == callbacks


def test_described() -> None:
    args = asked(hidden_dropout_prob=0.1, dropout_warmup_steps=4, layerwise_dropout=True)
    assert describe(args).startswith("dropout: 0.1 on hidden states, from 0 over 4 steps, growing with depth")
