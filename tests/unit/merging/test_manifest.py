"""What a merge writes of itself, field by field."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hftune.merging import merge
from hftune.merging.merge import _is_tied, _manifest
from hftune.template_arguments import FIELD


def folder_with(folder: Path, **config: Any) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def plan_of(tmp_path: Path, base: Any, *, last: dict[str, Any] | None = None, **inputs: Any) -> Any:
    """One adapter, whose folder holds the tokenizer."""
    adapter = SimpleNamespace(folder=tmp_path / "adapter", manifest=last or {}, weight=0.5)
    own = {"quantised": None, "head": "causal_lm", "dtype": None, "tokenizer": adapter.folder, **inputs}
    made = SimpleNamespace(base=base, adapters=[adapter], last=adapter, **own)
    return SimpleNamespace(inputs=made, outputs=SimpleNamespace(tensors=[]))


ARGS: Any = SimpleNamespace(merge_base="dequantized", hf_hub_token="hf_" + "a" * 34)


@pytest.fixture
def of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The manifest of a plan, where a folder's fingerprint is its path."""
    monkeypatch.setattr(merge, "fingerprint", lambda folder: f"print of {folder}")
    monkeypatch.setattr(merge, "describe_tokenizer", lambda folder: {"fingerprint": "read", "tokens": 3})
    count = iter(range(9))

    def make(plan: Any, **config: Any) -> Any:
        return _manifest(ARGS, plan, folder_with(tmp_path / f"merged{next(count)}", **config), 7)

    return make


def test_a_base_on_this_disk_is_known_by_its_weights_and_one_of_a_hub_by_its_name(tmp_path: Path, of: Any) -> None:
    here = folder_with(tmp_path / "base")
    found = of(plan_of(tmp_path, SimpleNamespace(name=str(here), folder=here)))
    assert found["base"] == {"name": str(here), "fingerprint": f"print of {here}"}
    hub = SimpleNamespace(name="maker/model", folder=here)
    assert of(plan_of(tmp_path, hub))["base"] == {"name": "maker/model", "fingerprint": "print of maker/model"}


def test_what_it_is_made_of(tmp_path: Path, of: Any) -> None:
    base = SimpleNamespace(name="b", folder=tmp_path)
    plan = plan_of(tmp_path, base, last={"stage": "dpo", "vocabulary": {"new_tokens": [["<x>"]]}})
    found = of(plan, vocab_size=11, tie_word_embeddings=True, dtype="bfloat16", limit=float("inf"))
    assert found["parents"] == [
        {"folder": str(tmp_path / "adapter"), "fingerprint": f"print of {tmp_path / 'adapter'}", "weight": 0.5}
    ]
    assert (found["stage"], found["status"], found["kind"], found["head"]) == ("merge", "complete", "full", "causal_lm")
    assert (found["merged_stage"], found["merged_by"], found["merge_base"]) == ("dpo", "hftune", "as trained")
    assert found["changed_tensors"] == 7 and found["verified"] is None and "reward_scale" not in found
    assert found["vocabulary"] == {"rows": 11, "tied": True, "new_tokens": [["<x>"]], "growth": None}
    assert found["dtype"] == "bfloat16" and ARGS.hf_hub_token not in json.dumps(found["arguments"])
    assert found["hftune"] == found["versions"]["hftune"]


def test_other_ways_and_heads(tmp_path: Path, of: Any) -> None:
    base = SimpleNamespace(name="b", folder=tmp_path)
    plan = plan_of(tmp_path, base, quantised={"bits": 4}, head="score", dtype="torch.float16")
    plan.outputs = None
    found = of(plan, text_config={"vocab_size": 5}, reward_scale={"mean": 1.0}, torch_dtype="float32")
    assert (found["merged_by"], found["merge_base"], found["head"]) == ("peft", "dequantized", "score")
    assert found["reward_scale"] == {"mean": 1.0} and found["dtype"] == "torch.float16"
    assert found["vocabulary"] == {"rows": 5, "tied": False, "new_tokens": [], "growth": None}
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
        return SimpleNamespace(outputs=SimpleNamespace(tensors=[SimpleNamespace(name=name) for name in names]))

    assert _is_tied(plan("lm_head.weight"), {"tie_word_embeddings": True})
    assert not _is_tied(plan("a"), {"tie_word_embeddings": False})
    assert _is_tied(plan("a", "b"), {}) and not _is_tied(plan("a", "model.lm_head.weight"), {})
    assert not _is_tied(SimpleNamespace(outputs=None), {})  # type: ignore[arg-type]
