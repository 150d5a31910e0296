"""A DeepSpeed config keeps no secret; its tracker finds it in the environment."""

from __future__ import annotations

import copy
import os
import re
from typing import Any

import pytest

from hftune.distributed.ds_secrets import remove_secrets
from hftune.secrets import redact


def test_comets_key_moves_to_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMET_API_KEY", "another")
    config = {"comet": {"enabled": True, "api_key": "comet-key-1"}, "train_batch_size": "auto"}
    clean, said = remove_secrets(config)
    assert clean == {"comet": {"enabled": True}, "train_batch_size": "auto"} and config["comet"]["api_key"]  # type: ignore[index]
    assert os.environ["COMET_API_KEY"] == "comet-key-1" and redact("comet-key-1") == "***"
    assert said == ["DeepSpeed config: comet.api_key is a secret and is kept in COMET_API_KEY"]


@pytest.mark.parametrize(
    "config",
    (
        {"wandb": {"api_key": "zzzz-zzzz-1"}},
        {"a": [{"b": {"password": "zzzz-zzzz-1"}}]},
        {"hub_token": "zzzz-zzzz-1"},
        {"wandb": {"api_keys": ["zzzz-zzzz-1", "zz-2"]}},
        {"a": [[{"credentials": {"user": "zzzz-zzzz-1"}}]]},
        {"password": 1234567890},
        {"comet": {"api_key": ["zzzz-zzzz-1"]}},
        {"csv_monitor": {"output_path": "s3://me:zzzz-zzzz-1@host/x"}},
        {"csv_monitor": {"output_path": ["https://host/x?token=zzzz-zzzz-1"]}},
        {"a": {"https://me:zzzz-zzzz-1@host": [1, ["https://me:zzzz-zzzz-1@host"]]}},
        {"a": "AccountName=me;AccountKey=zzzz-zzzz-1"},
    ),
)
def test_others_are_left_out(config: dict[str, Any]) -> None:
    before = copy.deepcopy(config)
    clean, said = remove_secrets(config)
    assert not re.search("zz-|123456", str(clean)) and len(said) == 1
    assert config == before and "zz" not in redact(said[0])
    assert "comet.api_key" not in said[0] or "left out" in said[0]


def test_one_found_elsewhere_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DB_PASS", "zzzz-zzzz-9")
    clean, said = remove_secrets({"wandb": {"group": "by zzzz-zzzz-9", "project": "mine"}})
    assert clean == {"wandb": {"group": "by ***", "project": "mine"}}
    assert said == ["DeepSpeed config: wandb.group holds a secret, which is left out"]


@pytest.mark.parametrize(
    "config",
    (
        *({"comet": {"api_key": None}}, {"comet": {"api_key": ""}}, {"fp16": {"enabled": "auto"}}),
        *({"a": [{"use_auth_token": True}, "b", 1, None]}, {"credentials": {}}),
    ),
)
def test_nothing_to_do(config: dict[str, Any]) -> None:
    assert remove_secrets(config) == (config, [])
