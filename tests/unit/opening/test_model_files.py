"""JSON files of models: what is read later as a dict or a number is one, or the message names the key."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hftune.errors import ArgumentError, ManifestError
from hftune.opening.model_files import KINDS, REQUIRED, json_problems, read_checked


def write(folder: Path, name: str, content: Any) -> Path:
    (folder / name).write_text(json.dumps(content))
    return folder / name


@pytest.mark.parametrize(
    ("name", "content", "fault"),
    [
        ("config.json", {"num_hidden_layers": True}, "num_hidden_layers is True, where a whole number is wanted"),
        ("config.json", {"num_hidden_layers": -1}, "num_hidden_layers is -1"),
        ("config.json", {"num_hidden_layers": 1 << 40}, f"num_hidden_layers is {1 << 40}"),
        ("adapter_config.json", {"target_modules": 3}, "target_modules is 3, where a list or a text is wanted"),
        ("adapter_config.json", {"lora_alpha": "8"}, "lora_alpha is '8', where a whole number or a number is wanted"),
        ("hftune.json", {"data": []}, "data is [], where an object is wanted"),
        ("hftune.json", {"parents": {}}, "parents is {}, where a list is wanted"),
        ("trainer_state.json", {}, "it has no global_step"),
    ],
)
def test_a_value_of_another_kind_is_named(tmp_path: Path, name: str, content: Any, fault: str) -> None:
    file = write(tmp_path, name, content)
    with pytest.raises(ManifestError) as caught:
        read_checked(file)
    assert str(file) in str(caught.value) and fault in str(caught.value)


def test_absent_null_and_other_keys_pass(tmp_path: Path) -> None:
    content = {"num_hidden_layers": None, "mine": object.__name__, "dtype": {"text": "x"}}
    assert read_checked(write(tmp_path, "config.json", content)) == content
    content = {"target_modules": r".*\.q_proj", "rank_pattern": {"layers.0": 4}, "alpha_pattern": {r"\d+": 0.5}}
    assert read_checked(write(tmp_path, "adapter_config.json", content)) == content
    # Python writes NaN into the logs of runs that diverged.
    (tmp_path / "trainer_state.json").write_text('{"global_step": 3, "log_history": [{"loss": NaN}]}')
    assert read_checked(tmp_path / "trainer_state.json")["global_step"] == 3


def test_the_error_is_of_the_family_asked_for(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="try this"):
        read_checked(write(tmp_path, "config.json", {"model_type": []}), error=ArgumentError, fix="try this")


def test_problems_of_a_folder(tmp_path: Path) -> None:
    assert list(json_problems(tmp_path)) == []
    write(tmp_path, "config.json", {"model_type": 1})
    write(tmp_path, "tokenizer.json", {"added_tokens": {}})
    write(tmp_path, "model.safetensors.index.json", {"weight_map": {"a": "../b.safetensors"}})
    write(tmp_path, "trainer_state.json", {})  # a state of a run: no model is loaded from it
    found = "\n".join(map(str, json_problems(tmp_path)))
    assert len(list(json_problems(tmp_path))) == 3
    assert "model_type" in found and "added_tokens is" in found and "no file next to it" in found
    assert REQUIRED.keys() <= KINDS.keys()
