"""A DeepSpeed config keeps no secret; its tracker finds it in the environment."""

from __future__ import annotations

import os
from typing import Any

import pytest

from hftune.distributed.ds_secrets import take_secrets_out
from hftune.secrets import redact


def test_comets_key_moves_to_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMET_API_KEY", "another")
    config = {"comet": {"enabled": True, "api_key": "comet-key-1"}, "train_batch_size": "auto"}
    clean, said = take_secrets_out(config)
    assert clean == {"comet": {"enabled": True}, "train_batch_size": "auto"} and config["comet"]["api_key"]  # type: ignore[index]
    assert os.environ["COMET_API_KEY"] == "comet-key-1" and redact("comet-key-1") == "***"
    assert said == ["DeepSpeed config: comet.api_key is a secret and is kept in COMET_API_KEY"]


@pytest.mark.parametrize(
    "config",
    ({"wandb": {"api_key": "zzzz-zzzz-1"}}, {"a": [{"b": {"password": "zzzz-zzzz-1"}}]}, {"hub_token": "zzzz-zzzz-1"}),
)
def test_others_are_left_out(config: dict[str, Any]) -> None:
    clean, said = take_secrets_out(config)
    assert "zzzz-zzzz-1" not in str(clean) and len(said) == 1 and "zzzz" not in said[0]


@pytest.mark.parametrize(
    "config", ({"comet": {"api_key": None}}, {"comet": {"api_key": ""}}, {"fp16": {"enabled": "auto"}})
)
def test_nothing_to_do(config: dict[str, Any]) -> None:
    assert take_secrets_out(config) == (config, [])
