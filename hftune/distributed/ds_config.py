"""Read a DeepSpeed config and what it says of ZeRO; `ds_setup.py` makes the config of a run from it."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

from hftune.constants import SHIPPED
from hftune.errors import ArgumentError, did_you_mean
from hftune.logging import notice
from hftune.opening.files import MIB
from hftune.opening.json_file import parse_json, read_json
from hftune.secrets import learn_config

DsConfig = dict[str, Any]
_FIX = "fix the JSON of the DeepSpeed config there"
CONFIGS = SHIPPED / "ds_configs"


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
    path = config_file(value)
    if path is None:
        names = [file.stem for file in sorted(CONFIGS.glob("*.json"))]
        listed = f"Give a path, inline JSON, or one of: {', '.join(names)}"
        raise ArgumentError(
            f"there is no DeepSpeed config {value}",
            place="--deepspeed",
            fix=f"{did_you_mean(Path(value).stem, names)} {listed}".strip(),
        )
    shipped = _shipped(value)
    if shipped and not path.samefile(shipped):
        notice(f"--deepspeed {value} is {path} of the working folder, not the one that hftune ships")
    config = read_json(path, limit=MIB, error=ArgumentError, fix=_FIX)
    learn_config(config)
    return config


def config_file(value: str) -> Path | None:
    """The file that a name or a path means: the working folder's where it has one, else hftune's; None: there is none.

    So `zero2` and `ds_configs/zero2.json` work from any folder.
    """
    shipped = _shipped(value)
    own = [Path(value), *([Path("ds_configs") / shipped.name] if shipped else [])]
    found = next((file for file in own if file.is_file()), None)
    # In a checkout's root the two are one file: its whole path is the same from everywhere.
    return shipped if found is None or (shipped and found.samefile(shipped)) else found


def _shipped(value: str) -> Path | None:
    files = [SHIPPED / value, CONFIGS / f"{value.removesuffix('.json')}.json"]
    return next((file for file in files if file.is_file()), None)


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
