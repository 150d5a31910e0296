"""DeepSpeed configs are found by name, path and as JSON, and say what they ask for."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from hftune import logging
from hftune.distributed.ds_config import (
    asks_for_compiling,
    config_file,
    live_config,
    offload_device,
    read_ds_config,
    zero_stage,
)
from hftune.errors import ArgumentError

FOLDER = Path(__file__).parents[3] / "ds_configs"
SHIPPED = sorted(FOLDER.rglob("*.json"))


def test_configs_that_are_shipped() -> None:
    names = {file.stem for file in SHIPPED}
    assert names >= {"zero0", "zero1", "zero2", "zero3", "zero2_offload", "zero3_offload", "zero3_nvme", "zero3_hpz"}
    assert all(read_ds_config(name) == json.loads((FOLDER / f"{name}.json").read_text()) for name in names)


@pytest.mark.parametrize("value", ["zero2", "./ds_configs/zero2.json"])
@pytest.mark.parametrize("own", ["", "ds_configs/zero2.json", "{value}"])
def test_the_working_folder_s_config_wins_and_it_is_said(
    value: str, own: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(logging, "_notices", [])
    if own:
        mine = tmp_path / own.format(value=value)
        mine.parent.mkdir(exist_ok=True)
        mine.write_text('{"zero_optimization": {"stage": 1}}')
    assert zero_stage(read_ds_config(value)) == (1 if own else 2)
    assert [value in said and "not the one that hftune ships" in said for said in logging.notices()] == [True][
        : len(own)
    ]


def test_in_the_checkout_nothing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging, "_notices", [])
    monkeypatch.chdir(FOLDER.parent)
    for value in ("zero3", "ds_configs/zero3.json", str(FOLDER / "zero3.json")):
        assert zero_stage(read_ds_config(value)) == 3
        found = config_file(value)
        assert found is not None and found.is_absolute()
    assert logging.notices() == [] and config_file("zero33") is None


def test_inline_json_and_broken_json(tmp_path: Path) -> None:
    assert zero_stage(read_ds_config('{"zero_optimization": {"stage": 1}}')) == 1
    (tmp_path / "broken.json").write_text('{\n  "a": 1,,\n}')
    with pytest.raises(ArgumentError, match=r"broken\.json:2"):
        read_ds_config(str(tmp_path / "broken.json"))


def test_what_a_config_says() -> None:
    config = {
        "zero_optimization": {"stage": 3, "offload_param": {"device": "nvme"}, "offload_optimizer": {"device": "none"}}
    }
    assert zero_stage(config) == 3 and zero_stage(None) == zero_stage({}) == 0
    assert offload_device(config, "param") == "nvme"
    assert offload_device(config, "optimizer") is None and offload_device(None, "param") is None
    assert asks_for_compiling({"compile": {"deepcompile": True}})
    assert not asks_for_compiling({"compile": {"deepcompile": False}}) and not asks_for_compiling({"compile": None})


def test_the_live_config_is_the_one_that_the_engine_reads_and_a_given_one_is_copied() -> None:
    config = {"zero_optimization": {"stage": 1}}
    assert live_config(SimpleNamespace(hf_deepspeed_config=SimpleNamespace(config=config))) is config
    assert live_config(SimpleNamespace(hf_deepspeed_config=None)) == {}
    read_ds_config(config)["zero_optimization"]["stage"] = 2
    assert config == {"zero_optimization": {"stage": 1}}


def test_a_missing_config_names_those_that_are_there() -> None:
    with pytest.raises(ArgumentError, match=r"zero3_offlod.*(?s:.*)did you mean zero3_offload.*zero3_hpz"):
        read_ds_config("zero3_offlod")
