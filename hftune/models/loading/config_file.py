"""What config.json says, looked at before anything is built from it: names of foreign code, and numbers of layers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from hftune.errors import ArgumentError, shown
from hftune.opening.model_files import read_checked

_MOST_LAYERS = 10_000
"""transformers makes a list of one entry a layer as it reads a config: of a billion it never ends."""

_DEEP = 8
"""Configs within configs: text, vision and audio parts lie one deep."""


def check_config(name: str | Path | None, flag: str = "--model_name_or_path") -> dict[str, Any]:
    """The config.json of a local folder, looked at; nothing of a name on the Hub, which is not there yet.

    Raises:
        ArgumentError: It is no JSON object, says a number of layers that no model has, or names kernels of the Hub.
    """
    file = Path(name or "") / "config.json"
    if not name or not file.is_file():
        return {}
    config = read_checked(file, error=ArgumentError, fix="copy or download the model again")
    if not 0 <= layer_count(config) <= _MOST_LAYERS:
        raise ArgumentError(
            f"config.json says {shown(layer_count(config))} layers, which no model has",
            place=f"{file} ({flag})",
            fix="copy or download the model again",
        )
    kernels = [*_foreign_kernels(config, "", 0)]
    if kernels:
        raise ArgumentError(
            f"config.json names code of others that would be downloaded and run: {'; '.join(kernels)}",
            place=f"{file} ({flag})",
            fix="take it out of config.json; --attn_implementation chooses an implementation",
        )
    return config


def _foreign_kernels(config: Mapping[str, Any], within: str, depth: int) -> Iterator[str]:
    """Implementations that are named as a repository's, which transformers fetches where it finds `kernels`."""
    for name, value in config.items():
        if isinstance(value, Mapping) and depth < _DEEP:
            yield from _foreign_kernels(value, f"{within}{name}.", depth + 1)
        # One for each part of a model has the part's name, below that of all.
        elif "_implementation" in f"{within}{name}" and "/" in str(value):
            yield f"{within}{name} is {shown(value)}"


_LAYER = re.compile(
    r"^(?:model\.(?:language_model\.)?|language_model\.(?:model\.)?|transformer\.|gpt_neox\.|backbone\.|model\.decoder\.)?"
    r"(?:layers|h|blocks)\.(\d+)\."
)
_COUNTS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
_MTP = ("eh_proj", "enorm", "hnorm", "shared_head", "mtp")
"""Parts of a layer that predicts a token further on (DeepSeek-V3's `num_nextn_predict_layers`), which is not loaded."""


def mismatch_error(what: str, folder: str, flag: str) -> ArgumentError:
    """The error for weights that are not those of the config next to them."""
    return ArgumentError(
        f"config.json and the weights of {folder} are of different models: {what}",
        place=flag,
        fix="copy or download config.json and weights of one model, all files of it",
    )


def layer_count(config: Mapping[str, Any]) -> int:
    """Decoder layers that a config.json says; 0 where it says none."""
    text = config.get("text_config")
    said: Mapping[str, Any] = text if isinstance(text, Mapping) else config
    return next((said[name] for name in _COUNTS if isinstance(said.get(name), int)), 0)


def beyond_last(config: Mapping[str, Any], stored: Iterable[str]) -> list[str]:
    """Stored tensors of decoder layers beyond the last that a config.json says.

    A layer that predicts a token further on is stored behind the others, and is none of them.
    """
    text = config.get("text_config")
    said: Mapping[str, Any] = text if isinstance(text, Mapping) else config
    count = layer_count(config)
    further = {int(match[1]) for name in stored if any(part in name for part in _MTP) and (match := _LAYER.match(name))}
    end = count + int(said.get("num_nextn_predict_layers") or 0)
    numbers = ((name, int(match[1])) for name in stored if (match := _LAYER.match(name)))
    return sorted(name for name, number in numbers if count and number >= end and number not in further)


def missing_layers(config: Mapping[str, Any], stored: Iterable[str]) -> list[int]:
    """Numbers of layers that a config.json says and of which nothing is stored."""
    # Without any name of a known kind the architecture is one that is not counted here.
    there = {int(match[1]) for name in stored if (match := _LAYER.match(name))}
    return [number for number in range(layer_count(config)) if number not in there] if there else []


def check_layers(config: Mapping[str, Any], stored: Iterable[str], folder: str, flag: str) -> None:
    """Count decoder layers; names of an architecture that is not known here are not counted.

    Raises:
        ArgumentError: There are others than config.json says.
    """
    stored = list(stored)
    beyond, missing = beyond_last(config, stored), missing_layers(config, stored)
    said = f"config.json says {layer_count(config)} layers"
    if beyond:
        raise mismatch_error(f"{said}, and {beyond[0]} is stored", folder, flag)
    if missing:
        raise mismatch_error(f"{said}, and nothing is stored of layer {missing[0]}", folder, flag)
