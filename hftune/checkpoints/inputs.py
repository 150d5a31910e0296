"""The files and folders that a command line names, with what they hold: what a run was made from."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from hftune.arguments.names.table import table
from hftune.arguments.raw_arguments import given_in_file, given_on_command_line, take_config
from hftune.checkpoints.file_records import record_input
from hftune.distributed.ds_config import config_file
from hftune.errors import ManifestError
from hftune.opening.json_file import read_json
from hftune.publishing.ownership import read_own_manifest
from hftune.stores.located import origins

READ = {
    *("accelerator_config", "add_special_tokens", "add_tokens", "against", "base_model_name_or_path", "callbacks"),
    *("chat_template", "chat_template_path", "dataset_dir", "deepspeed", "fsdp_config"),
    *("include_path", "model_name_or_path"),
    *("models", "peft_model_path", "peft_path", "question_file", "ref_adapters", "ref_model", "reward_funcs"),
    *("reward_model_path", "tokenized_dir", "tokenizer_name_or_path", "tokenizer_path", "tools"),
    *("teacher_model_name_or_path", "teacher_targets", "train_file_dir", "validation_file_dir"),
    *("validation_tokenized_dir", "warm_start"),
}
"""Arguments that name what a result depends on. The value of another, such as `--lr_scheduler_type linear`, may be the
name of a folder by chance."""

_READ_BY_COMMANDS = READ - {"include_path"} | {"checkpoint", "files", "input", "model", "questions"}
"""Of parsed arguments, those of tools as well; in the folder of somebody's code all else may lie."""

_NAMED_BY_OTHERS = {"sft_model_path"}
"""Names of other tools that are translated into one of those; an alias is looked up in the table."""


def record_inputs(argv: list[str]) -> dict[str, dict[str, Any]]:
    """Every existing file and folder that the arguments name, with what it holds."""
    found: dict[str, dict[str, Any]] = {}
    copies = {given: path for path, given in origins.items()}
    for path in (copies.get(path, path) for path in paths_of(argv)):
        if path not in found:
            recorded = record_input(path)
            if recorded is not None:
                found[path] = recorded
    return found


def paths_of(argv: list[str]) -> Iterator[str]:
    """The paths that a command line names, and its `--config` file, which is one itself."""
    config, rest = take_config(argv)
    if config is not None:
        yield config
    for name, values in [*given_in_file(config), *given_on_command_line(rest)]:
        if names_a_path(name.replace("-", "_")):
            for value in values:
                yield from _paths(name, value)


def inputs_of(*arguments: object) -> list[Path]:
    """The existing files and folders that parsed arguments name to be read, with what adapters among them lie upon."""
    given = [(name, value) for group in arguments for name, value in vars(group).items() if name in _READ_BY_COMMANDS]
    found = [
        path
        for name, value in given
        for each in (value if isinstance(value, list | tuple) else [value])
        # Sources have commas or blanks between them, and a name may hold a blank.
        for text in ((each, ",".join(each.split())) if isinstance(each, str) else [each])
        for path in _paths(name, text)
    ]
    # By os.path, which takes a question of a thousand letters, too.
    named = dict.fromkeys(map(os.path.expanduser, [*found, *(path for folder in found for path in _below(folder))]))
    return [Path(name) for name in named if os.path.exists(name)]


def _below(folder: str) -> Iterator[str]:
    """Base and adapters under an adapter, as its manifest and its config have them."""
    config = os.path.join(folder, "adapter_config.json")
    if os.path.isfile(config):
        base = (read_own_manifest(Path(folder)) or {}).get("base")
        adapters = base.get("adapters") if isinstance(base, dict) else None
        named = [
            base.get("name") if isinstance(base, dict) else None,
            *(adapters if isinstance(adapters, list) else []),
        ]
        with suppress(ManifestError):  # said by who loads it
            named.append(read_json(config).get("base_model_name_or_path"))
        yield from (name for name in named if isinstance(name, str))


def names_a_path(name: str) -> bool:
    """Whether an argument, under hftune's or another tool's name, is one of `READ`."""
    # A translated name may lead to one argument, or by its value to several.
    row = table().get(name)
    to = row.to if row is not None else ""
    return not READ.isdisjoint({name, *([to] if isinstance(to, str) else to.values())}) or name in _NAMED_BY_OTHERS


def _paths(name: str, value: object) -> Iterator[str]:
    """`A,B#500` names two paths, `file.py:function` one; a number or a switch none."""
    if name == "callbacks":  # of `FILE.py:CLASS{JSON}` the file
        value = str(value).partition("{")[0]
    if not isinstance(value, str) or value.lstrip().startswith(("{", "[")):
        return
    for part in value.split(","):
        # `FILE#500` takes 500 records of a file, `rewards.py:score` a function of it.
        text = part.strip().partition("#")[0]
        folder, _, _ = text.rpartition("@")
        if not os.path.exists(text) and os.path.isdir(os.path.expanduser(folder)):
            text = folder  # of FOLDER@SPLIT
        file, _, _ = text.rpartition(":")
        if name == "deepspeed" and not Path(text).exists() and (config := config_file(text)):
            yield str(config)  # `--deepspeed zero2` means a file of hftune's
        elif text and ("/" in text or os.path.exists(text)):
            yield file if file.endswith(".py") else text
        elif file.endswith(".py"):
            yield file
