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
from hftune.template_arguments import FIELD
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


def test_a_merged_model_is_pushed_if_asked(adapter: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pushed: list[Any] = []
    monkeypatch.setattr(
        merging, "on_demand", lambda name: lambda *args, **options: pushed.append((name, args, options))
    )
    merge(adapter, tmp_path / "quiet")
    assert pushed == []
    token = "hf_" + "a" * 34
    found = merge(adapter, tmp_path / "merged", hf_hub_model_id="me/model", hf_hub_token=token, hub="modelscope")
    assert token not in json.dumps(found)
    ((name, args, options),) = pushed
    assert name == "hftune.stores.pushing:push" and args == (tmp_path / "merged", "me/model")
    assert (options["token"], options["flag"]) == (token, "--hf_hub_model_id")
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


# --- a manifest of stand-ins ---


def folder_with(folder: Path, **config: Any) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def plan_of(tmp_path: Path, base: Any, *, last: dict[str, Any] | None = None, **inputs: Any) -> Any:
    """One adapter, whose folder holds the tokenizer."""
    adapter = SimpleNamespace(folder=tmp_path / "adapter", manifest=last or {}, weight=0.5)
    own = {"quantised": None, "head": "causal_lm", "dtype": None, "tokenizer": adapter.folder, **inputs}
    made = SimpleNamespace(base=base, adapters=[adapter], last=adapter, **own)
    return SimpleNamespace(inputs=made, outputs=[])


ARGS: Any = SimpleNamespace(merge_base="dequantized", hf_hub_token=None)


@pytest.fixture
def of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The manifest of a plan, where a folder's fingerprint is its path."""
    monkeypatch.setattr(merging, "fingerprint", lambda folder: f"print of {folder}")
    monkeypatch.setattr(merging, "describe_tokenizer", lambda folder: {"fingerprint": "read", "tokens": 3})
    count = iter(range(9))

    def make(plan: Any, **config: Any) -> Any:
        return merging._manifest(ARGS, plan, folder_with(tmp_path / f"merged{next(count)}", **config), 7)

    return make


def test_other_ways_and_heads(tmp_path: Path, of: Any) -> None:
    base = SimpleNamespace(name="b", folder=tmp_path)
    plan = plan_of(tmp_path, base, quantised={"bits": 4}, head="score", dtype="torch.float16")
    plan.outputs = None
    found = of(plan, text_config={"vocab_size": 5}, reward_scale={"mean": 1.0}, torch_dtype="float32")
    assert (found["merged_by"], found["merge_base"], found["head"]) == ("peft", "dequantized", "score")
    assert found["reward_scale"] == {"mean": 1.0} and found["dtype"] == "torch.float16"
    assert found["vocabulary"] == {"rows": 5, "tied": False, "new_tokens": [], "growth": None}
    own = tmp_path / "adapter"
    assert found["parents"] == [{"folder": str(own), "fingerprint": f"print of {own}", "weight": 0.5}]
    assert of(plan_of(tmp_path, base), torch_dtype="float16")["dtype"] == "float16"
    assert of(plan_of(tmp_path, base))["dtype"] == "float32"


def test_a_stages_description_of_its_own_tokenizer_wins(tmp_path: Path, of: Any) -> None:
    base, given = SimpleNamespace(name="b", folder=tmp_path), {FIELD: {"enable_thinking": False}}
    said = {"fingerprint": "said", "tokens": 9, **given}
    assert of(plan_of(tmp_path, base, last={"tokenizer": said}))["tokenizer"] == said
    other = plan_of(tmp_path, base, last={"tokenizer": said}, tokenizer=tmp_path)
    assert of(other)["tokenizer"] == {"fingerprint": "read", "tokens": 3, **given}
    assert of(plan_of(tmp_path, base))["tokenizer"] == {"fingerprint": "read", "tokens": 3, FIELD: {}}


def test_tied_embeddings_by_the_config_or_by_what_was_written() -> None:
    def plan(*names: str) -> Any:
        return SimpleNamespace(outputs=[SimpleNamespace(name=name) for name in names])

    assert merging._is_tied(plan("lm_head.weight"), {"tie_word_embeddings": True})
    assert not merging._is_tied(plan("a"), {"tie_word_embeddings": False})
    assert merging._is_tied(plan("a", "b"), {}) and not merging._is_tied(plan("a", "model.lm_head.weight"), {})
    assert not merging._is_tied(SimpleNamespace(outputs=None), {})  # type: ignore[arg-type]
