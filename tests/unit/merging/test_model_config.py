"""What lies next to merged weights."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import AutoTokenizer

from hftune.checkpoints.manifest import text_fingerprint
from hftune.constants import TOKENIZER_FILES
from hftune.errors import ManifestError
from hftune.merging import model_config
from hftune.merging.adapters import Adapter
from hftune.merging.inputs import BaseFolder, Inputs
from hftune.merging.model_config import copy_other_files, copy_tokenizer, describe_tokenizer, pad_token_id, write_config
from tests.unit.merging.models import settings


def written(folder: Path, config: dict[str, Any], **more: Any) -> dict[str, Any]:
    inputs = Inputs(BaseFolder("base", folder), config, [[Adapter(folder)]], tokenizer=folder, **more)
    write_config(inputs, folder)
    return settings(folder)


def test_what_merging_leaves_alone(tmp_path: Path) -> None:
    config = {"model_type": "llama", "dtype": "bfloat16", "vocab_size": 5, "name": "ß"}
    (tmp_path / "adapter_config.json").write_text("{}")
    assert written(tmp_path, config) == config
    assert "ß" in (tmp_path / "config.json").read_text(encoding="utf-8")
    assert written(tmp_path, config | {"reward_scale": {"mean": 1}}) == config


def test_a_config_that_nothing_changes_is_that_of_the_base_byte_for_byte(make_base: Callable, tmp_path: Path) -> None:
    file = make_base("llama") / "config.json"
    written(tmp_path, json.loads(file.read_text()))
    assert (tmp_path / "config.json").read_bytes().strip() == file.read_bytes().strip()


def test_what_merging_changes(tmp_path: Path) -> None:
    (tmp_path / "hftune.json").write_text(json.dumps({"reward_scale": {"mean": 2}}))
    found = written(tmp_path, {"torch_dtype": "float32", "vocab_size": 5}, dtype="float16")
    assert found == {"torch_dtype": "float16", "vocab_size": 5, "reward_scale": {"mean": 2}}


def test_a_model_that_sees(tmp_path: Path) -> None:
    text_config = {"dtype": "float32", "vocab_size": 5}
    config = {"dtype": "float32", "text_config": dict(text_config)}
    found = written(tmp_path, config, dtype="bfloat16")
    assert found["text_config"] == {"dtype": "bfloat16", "vocab_size": 5}
    assert found["dtype"] == "bfloat16" and "vocab_size" not in found
    assert config["text_config"] == text_config, "the base's own"
    assert written(tmp_path, {"text_config": {"vocab_size": 5}}) == {"text_config": {"vocab_size": 5}}


@pytest.mark.parametrize(
    ("task", "scores", "architecture", "labels"),
    [
        ("SEQ_CLS", 2, "LlamaForSequenceClassification", ["LABEL_0", "LABEL_1"]),
        ("TOKEN_CLS", 2, "LlamaForTokenClassification", ["wrong", "right"]),
    ],
)
def test_a_reward_model(task: str, scores: int, architecture: str, labels: list[str], tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text(json.dumps({"task_type": task}))
    found = written(tmp_path, {"model_type": "llama"}, scores=scores)
    assert found["architectures"] == [architecture] and list(found["id2label"].values()) == labels
    assert found["label2id"] == {label: number for number, label in enumerate(labels)}
    assert found["pad_token_id"] is None  # there is no tokenizer


def test_files_that_go_along(tmp_path: Path) -> None:
    base, merged = tmp_path / "base", tmp_path / "merged"
    (base / "additional_chat_templates").mkdir(parents=True)
    merged.mkdir()
    for name in ("tokenizer.json", "chat_template.jinja", "generation_config.json", "processor_config.json", "own.py"):
        (base / name).write_text(name)
    (base / "additional_chat_templates" / "tools.jinja").write_text("tools")
    (base / "config.json").write_text('{"limit": Infinity}')  # as Python writes it
    (base / "spk_dict.pt").write_text("voices")
    copy_tokenizer(base, merged)
    copy_other_files(base, merged, generates=False)
    names = {"tokenizer.json", "chat_template.jinja", "processor_config.json", "additional_chat_templates"}
    names |= {"spk_dict.pt"}
    assert {file.name for file in merged.iterdir()} == names
    assert (merged / "additional_chat_templates" / "tools.jinja").read_text() == "tools"
    (merged / "processor_config.json").write_text("merged")  # peft's way of merging has saved one
    (base / "config.json").write_text('{"auto_map": {}, "limit": Infinity}')
    copy_other_files(base, merged, generates=True)
    assert {file.name for file in merged.iterdir()} == names | {"generation_config.json", "own.py"}
    assert (merged / "processor_config.json").read_text() == "merged"


def test_a_tokenizer_s_description(make_base: Callable, tmp_path: Path) -> None:
    base = make_base("llama")
    found = describe_tokenizer(base)
    assert found is not None and found["tokens"] == len(AutoTokenizer.from_pretrained(base))
    assert describe_tokenizer(tmp_path) is None
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_text((base / name).read_text())
    before = describe_tokenizer(tmp_path)
    (tmp_path / "chat_template.jinja").write_text("{{ messages }} another")
    after = describe_tokenizer(tmp_path)
    assert before and after and before["fingerprint"] == after["fingerprint"]
    assert after["template_fingerprint"] == text_fingerprint("{{ messages }} another")
    (tmp_path / "chat_template.jinja").unlink()
    for template, read in (("{{ own }}", "{{ own }}"), (None, ""), ([{"name": "default", "template": "x"}], "")):
        said = {"chat_template": template, "model_max_length": float("inf")}
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(said))
        one = describe_tokenizer(tmp_path)
        assert one and one["template_fingerprint"] == text_fingerprint(read)
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(ManifestError) as error:
        describe_tokenizer(tmp_path)
    assert error.value.place == str(tmp_path / "tokenizer.json")


def test_tokens_that_were_added_count(tmp_path: Path) -> None:
    tokenizer = Tokenizer(WordLevel({"a": 0, "b": 1}))
    tokenizer.add_special_tokens(["<pad>"])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    found = describe_tokenizer(tmp_path)
    assert found is not None and found["tokens"] == 3


def test_a_score_is_read_before_the_tokenizer_s_padding(make_base: Callable, tmp_path: Path) -> None:
    base = make_base("llama")
    tokenizer = AutoTokenizer.from_pretrained(base)
    tokenizer.pad_token = tokenizer.convert_ids_to_tokens(7)
    tokenizer.save_pretrained(tmp_path)
    assert pad_token_id(tmp_path, trust_remote_code=False) == 7
    (tmp_path / "adapter_config.json").write_text('{"task_type": "SEQ_CLS"}')
    assert written(tmp_path, {"model_type": "llama"}, scores=1)["pad_token_id"] == 7


@pytest.mark.parametrize("trusted", [True, False])
def test_code_of_a_tokenizer_s_own_runs_where_it_is_trusted(
    trusted: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    def pretrained(auto: Any, folder: Path, **options: Any) -> Any:
        asked.append((auto, folder, options))
        return SimpleNamespace(pad_token_id=7)

    monkeypatch.setattr(model_config, "pretrained", pretrained)
    (tmp_path / "adapter_config.json").write_text('{"task_type": "SEQ_CLS"}')
    (tmp_path / "tokenizer_config.json").write_text('{"pad_token": "<pad>"}')
    assert written(tmp_path, {"model_type": "llama"}, scores=1, trust_remote_code=trusted)["pad_token_id"] == 7
    assert asked == [(AutoTokenizer, tmp_path, {"trust_remote_code": trusted})]


def test_a_tokenizer_that_is_nowhere_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(model_config, "notice", said.append)
    for name in ("none", "some", "empty", "saved"):
        (tmp_path / name).mkdir()
    (tmp_path / "some" / "tokenizer.json").write_text("{}")
    (tmp_path / "saved" / "tokenizer_config.json").write_text("{}")
    copy_tokenizer(tmp_path / "some", tmp_path / "empty")
    copy_tokenizer(tmp_path / "none", tmp_path / "saved")
    assert said == [] and [file.name for file in (tmp_path / "empty").iterdir()] == ["tokenizer.json"]
    (tmp_path / "empty" / "tokenizer.json").unlink()
    copy_tokenizer(tmp_path / "none", tmp_path / "empty")
    assert said == [f"there is no tokenizer in {tmp_path / 'none'}, so the merged model has none"]


def test_every_file_of_a_tokenizer_goes_along(tmp_path: Path) -> None:
    (tmp_path / "from").mkdir()
    (tmp_path / "to").mkdir()
    for one in (*TOKENIZER_FILES, "model.safetensors", *(f"my_{name}" for name in TOKENIZER_FILES)):
        (tmp_path / "from" / one).write_text(one)
    copy_tokenizer(tmp_path / "from", tmp_path / "to")
    assert {file.name for file in (tmp_path / "to").iterdir()} == {*TOKENIZER_FILES}


@pytest.mark.parametrize(("kind", "made"), [("reward", "SequenceClassification"), ("steps", "TokenClassification")])
@pytest.mark.parametrize(("model_type", "name"), [("llama", "Llama"), ("granite", "Granite")])
def test_the_class_of_a_reward_model(model_type: str, name: str, kind: str, made: str) -> None:
    """transformers has none for Granite: the one that hftune makes of the decoder is named as its own would be."""
    assert model_config._classifier({"model_type": model_type}, kind) == f"{name}For{made}"
