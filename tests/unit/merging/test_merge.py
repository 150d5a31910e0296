"""What the manifest of a merged model says, field by field; and who is asked for what else is wanted."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hftune.merging import merge as merging
from hftune.weight_files import fingerprint
from tests.unit.merging.models import ATTENTION, make_adapter, merge


@pytest.fixture
def base(make_base: Callable) -> Path:
    return make_base("llama")


@pytest.fixture
def adapter(base: Path, tmp_path: Path) -> Path:
    """An adapter as SFT leaves one."""
    folder = make_adapter(base, tmp_path / "adapter", target_modules=ATTENTION)
    for file in base.glob("tokenizer*.json"):
        shutil.copy(file, folder)
    manifest = {
        "kind": "adapter", "status": "complete", "stage": "sft", "base": {"name": str(base)},
        "tokenizer": {"tokens": 7, "chat_template_kwargs": {"thinking": False}}, "vocabulary": {"new_tokens": [[3, 4]]},
    }  # fmt: skip
    (folder / "hftune.json").write_text(json.dumps(manifest))
    return folder


def test_the_manifest(base: Path, adapter: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = iter([100.0, 112.3456])
    monkeypatch.setattr(merging, "time", SimpleNamespace(perf_counter=lambda: next(seconds)))
    found = merge(adapter, tmp_path / "merged", dtype="bfloat16")
    assert found == json.loads((tmp_path / "merged" / "hftune.json").read_text()), "what is returned is what is written"
    fields = {
        "stage": "merge", "status": "complete", "kind": "full", "merged_stage": "sft", "merged_by": "hftune",
        "merge_base": "as trained", "head": "causal_lm", "dtype": "bfloat16",
        "base": {"name": str(base), "fingerprint": fingerprint(base)},
        "parents": [{"folder": str(adapter), "fingerprint": fingerprint(adapter), "weight": 1.0}],
    }  # fmt: skip
    assert {name: found[name] for name in fields} == fields
    # q, v and o of two layers.
    assert found["changed_tensors"] == 6 and found["wall_seconds"] == 12.35
    assert found["hftune"] == found["versions"]["hftune"]
    assert found["arguments"]["peft_model_path"] == str(adapter)
    assert found["tokenizer"]["tokens"] == 7, "as SFT has described it"
    assert found["tokenizer"]["chat_template_kwargs"] == {"thinking": False}
    config = json.loads((tmp_path / "merged" / "config.json").read_text())
    tied = config["tie_word_embeddings"]
    assert found["vocabulary"] == {
        "rows": config["vocab_size"], "tied": tied, "new_tokens": [[3, 4]], "growth": None
    }  # fmt: skip


def test_an_adapter_of_another_tool_has_no_history(base: Path, tmp_path: Path) -> None:
    folder = make_adapter(base, tmp_path / "adapter", target_modules=ATTENTION)
    found = merge(folder, tmp_path / "merged", base_model_name_or_path=str(base), tokenizer_path=str(base))
    assert (found["merged_stage"], found["dtype"], found["vocabulary"]["new_tokens"]) == (None, "float32", [])
    assert found["tokenizer"]["chat_template_kwargs"] == {} and len(found["tokenizer"]) > 1


@pytest.mark.parametrize(
    ("config", "names", "tied"),
    [
        ({"tie_word_embeddings": True}, ["lm_head.weight"], True),
        ({"tie_word_embeddings": False}, [], False),
        ({}, ["model.embed_tokens.weight", "lm_head.weight"], False),
        ({}, ["model.embed_tokens.weight"], True),
        ({}, None, False),
    ],
)
def test_tied_as_the_config_says_or_the_weights_show(config: Any, names: list[str] | None, tied: bool) -> None:
    tensors = None if names is None else SimpleNamespace(tensors=[SimpleNamespace(name=name) for name in names])
    assert merging._is_tied(SimpleNamespace(outputs=tensors), config) is tied  # type: ignore[arg-type]


def test_a_merged_model_is_pushed_if_asked(adapter: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pushed: list[Any] = []
    monkeypatch.setattr(
        merging, "on_demand", lambda name: lambda *args, **options: pushed.append((name, args, options))
    )
    merge(adapter, tmp_path / "quiet")
    assert pushed == []
    merge(adapter, tmp_path / "merged", hf_hub_model_id="me/model", hf_hub_token="none-of-mine", hub="modelscope")
    ((name, args, options),) = pushed
    assert name == "hftune.stores.pushing:push" and args == (tmp_path / "merged", "me/model")
    assert (options["token"], options["flag"]) == ("none-of-mine", "--hf_hub_model_id")
    assert options["hub"] == "modelscope" and "hftune" in options["message"]


def test_what_is_read_is_not_replaced(
    base: Path, adapter: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The base and every adapter are known to what publishes the result."""
    known: list[list[Path]] = []
    publish = merging.published_folder
    monkeypatch.setattr(
        merging, "published_folder", lambda *given, inputs, **how: known.append(inputs) or publish(*given, **how)
    )
    merge(adapter, tmp_path / "merged")
    assert known == [[base, adapter]]
