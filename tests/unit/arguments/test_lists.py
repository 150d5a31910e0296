"""Command lists of MedicalGPT and ms-swift through the real parsers: each parses, or names what differs.

`lists/TOOL.yaml` holds them: the file in the other project, the stage here, its arguments (names and values of a
config file, or a command line), the names that `differ`, and `instead`: values for those that one process alone or the
first message's other causes cannot take (null: left out).
"""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from hftune.arguments.entry import parse_arguments
from hftune.arguments.merging import parse_merge_arguments
from hftune.errors import UserError

FOLDER = Path(__file__).parent / "lists"
TOOLS = ("medicalgpt", "ms_swift")
SAME = ("learning_rate", "per_device_train_batch_size", "gradient_accumulation_steps", "num_train_epochs", "save_steps")
ROW = {"pt": "block_size", "rl": "max_prompt_length"}


@functools.cache
def lists(tool: str) -> dict[str, dict[str, Any]]:
    """The lists of a tool by the file that they stand in there."""
    found: dict[str, dict[str, Any]] = yaml.safe_load((FOLDER / f"{tool}.yaml").read_text(encoding="utf-8"))
    return found


ALL = [(tool, source) for tool in TOOLS for source in lists(tool)]
# The table of names is walked row by row in test_table.py; of whole lists some of each tool are enough every time.
QUICK = {*ALL[::4], *((tool, source) for tool, source in ALL if tool == "medicalgpt")}


def given(entry: dict[str, Any]) -> dict[str, list[str]]:
    """Names and values, however they are written."""
    if "config" in entry:
        return {name: [str(value)] for name, value in entry["config"].items()}
    found: dict[str, list[str]] = {}
    for word in entry["flags"]:
        if str(word).startswith("--"):
            found[word[2:]] = []
        else:
            found[list(found)[-1]].append(str(word))
    return found


def changed(entry: dict[str, Any], names: list[str]) -> dict[str, Any]:
    """A list without some names, and with what it has instead of others."""
    instead = entry.get("instead", {})
    gone = {*names, *instead}
    more = {name: value for name, value in instead.items() if value is not None}
    if "config" in entry:
        return {"config": {name: value for name, value in entry["config"].items() if name not in gone} | more}
    kept = {name: values for name, values in given(entry).items() if name not in gone}
    kept |= {name: [value] for name, value in more.items()}
    return {"flags": [word for name, values in kept.items() for word in (f"--{name}", *values)]}


def parsed(stage: str, entry: dict[str, Any], folder: Path) -> dict[str, Any]:
    """All arguments that a list becomes, by name."""
    argv = entry.get("flags") or ["--config", str(folder / "list.yaml")]
    if "config" in entry:
        (folder / "list.yaml").write_text(yaml.safe_dump(entry["config"]), encoding="utf-8")
    groups = [parse_merge_arguments(argv)] if stage == "merge" else parse_arguments(stage, argv)
    return {name: value for group in groups for name, value in vars(group).items()}


def same(found: Any, written: str) -> bool:
    """Whether a value is what the list says."""
    return str(found) == written or float(found) == float(written)


def check(found: dict[str, Any], said: dict[str, list[str]], stage: str) -> None:
    """That what a run depends on most arrived."""
    for name in SAME:
        if name in said:
            assert same(found[name], said[name][0]), name
    if found.get("use_peft") and "lora_rank" in said:
        assert same(found["lora_r"], said["lora_rank"][0])
    for name in ("cutoff_len", "max_length"):
        if name in said:
            assert same(found[ROW.get(stage, "max_length")], said[name][0]), name
    if "template" in said and stage != "merge":
        assert found["chat_template"] == said["template"][0]


def test_there_are_enough() -> None:
    assert len(ALL) >= 40
    assert {entry["stage"] for tool in TOOLS for entry in lists(tool).values()} == {
        *("pt", "sft", "rm", "dpo", "rl", "distill", "merge")
    }
    assert not any("differs" in entry for entry in lists("medicalgpt").values())


@pytest.mark.parametrize(
    ("tool", "source"), [pytest.param(*one, marks=[] if one in QUICK else pytest.mark.slow) for one in ALL]
)
def test_it_parses_or_names_what_differs(tool: str, source: str, tmp_path: Path) -> None:
    entry = lists(tool)[source]
    stage, differs = entry["stage"], entry.get("differs", [])
    if differs:
        with pytest.raises(UserError) as caught:
            parsed(stage, changed(entry, []), tmp_path)
        message = str(caught.value)
        assert "unknown argument" not in message
        assert [name for name in differs if not re.search(rf"\b{name}\b", message)] == []
        assert message.count("to do:") == max(1, len(re.findall(r"^\d+\. ", message, re.M)))
    # What is left has a counterpart: no second round of messages.
    left = changed(entry, differs)
    check(parsed(stage, left, tmp_path), given(left), stage)
