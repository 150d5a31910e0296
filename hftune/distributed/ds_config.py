"""Read a DeepSpeed config and what it says of ZeRO; `ds_setup.py` makes the config of a run from it."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

from hftune.errors import ArgumentError, did_you_mean
from hftune.opening.files import MIB
from hftune.opening.json_file import parse_json, read_json
from hftune.secrets import learn_config

DsConfig = dict[str, Any]
_FIX = "fix the JSON of the DeepSpeed config there"
SHIPPED = Path(__file__).parents[2] / "ds_configs"


def read_ds_config(value: str | DsConfig) -> DsConfig:
    """The config behind a `--deepspeed` value: a name of `ds_configs/`, a path, inline JSON, or a dict that is copied.

    Raises:
        ArgumentError: The file is missing, or its JSON is broken or not an object.
    """
    config: DsConfig
    if isinstance(value, dict):
        return copy.deepcopy(value)  # what is resolved later is written into the config
    if value.lstrip().startswith("{"):
        config = parse_json(value, "--deepspeed", error=ArgumentError, fix=_FIX)
        learn_config(config)  # its secrets, before a message can quote them
        return config
    path = Path(value)
    # By name, so that `--deepspeed zero2` works from any folder.
    shipped = {file.stem: file for file in sorted(SHIPPED.glob("*.json"))}
    if not path.is_file():
        # A relative path is looked for next to the scripts as well, so that they run from any folder.
        path = shipped.get(value) or SHIPPED.parent / value
    if not path.is_file():
        listed = f"Give a path, inline JSON, or one of: {', '.join(shipped)}"
        raise ArgumentError(
            f"there is no DeepSpeed config {value}",
            place="--deepspeed",
            fix=f"{did_you_mean(path.stem, shipped)} {listed}".strip(),
        )
    config = read_json(path, limit=MIB, error=ArgumentError, fix=_FIX)
    learn_config(config)
    return config


def zero_stage(config: DsConfig | None) -> int:
    """ZeRO stage 0 to 3; 0 for no config."""
    return int((config or {}).get("zero_optimization", {}).get("stage", 0))


def live_config(training_args: Any) -> DsConfig:
    """The config that accelerate gives DeepSpeed, which may be changed in place; empty without DeepSpeed."""
    return getattr(getattr(training_args, "hf_deepspeed_config", None), "config", None) or {}


def offload_device(config: DsConfig | None, what: str) -> str | None:
    """Where `what` ("optimizer" or "param") is offloaded to: "cpu", "nvme", or None."""
    block = (config or {}).get("zero_optimization", {}).get(f"offload_{what}") or {}
    device = block.get("device", "none")
    # DeepSpeed writes the text "none" where nothing is offloaded, as well as leaving the block out.
    return None if device == "none" else str(device)


def asks_for_compiling(config: DsConfig) -> bool:
    """Whether DeepCompile is switched on, which does nothing unless the model is compiled."""
    return bool((config.get("compile") or {}).get("deepcompile"))
