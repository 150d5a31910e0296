"""--verify: a merge that says something else never gets into place."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from hftune.errors import ManifestError, UserError
from hftune.merging import changes
from hftune.merging import merge as merging
from hftune.merging.verify import reload_strictly
from tests.unit.merging.models import ATTENTION, make_adapter, merge, merged_logits, settings


@pytest.fixture
def adapter(make_base: Callable, tmp_path: Path) -> Path:
    return make_adapter(make_base("llama"), tmp_path / "adapter", target_modules=ATTENTION)


def test_a_good_merge(adapter: Path, tmp_path: Path) -> None:
    verified = merge(adapter, tmp_path / "merged", verify="auto")["verified"]
    assert verified["largest"] < 1e-4 and verified["same_choice"] == verified["same_greedy"] == 1.0
    assert json.loads((tmp_path / "merged" / "hftune.json").read_text())["verified"] == verified


def test_a_wrong_scale(adapter: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    right = changes.LowRank
    monkeypatch.setattr(changes, "LowRank", lambda a, b, scale, *more: right(a, b, 0.9 * scale, *more))
    with pytest.raises(UserError, match="does not say what base"):
        merge(adapter, tmp_path / "merged", verify="true")
    assert not (tmp_path / "merged").exists()


def test_another_template(adapter: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copied = merging.copy_tokenizer

    def copy(source: Path, target: Path) -> None:
        copied(source, target)
        (target / "chat_template.jinja").write_text("{{ messages }}")

    monkeypatch.setattr(merging, "copy_tokenizer", copy)
    with pytest.raises(UserError, match="another chat template"):
        merge(adapter, tmp_path / "merged", verify="true")


def test_a_process_reward_model(make_base: Callable, tmp_path: Path) -> None:
    """Head, bias and classes, and the scale that is stored beside them, bit for bit."""
    config = {"target_modules": ATTENTION, "task_type": "TOKEN_CLS", "modules_to_save": ["score"]}
    adapter = make_adapter(make_base("llama"), tmp_path / "adapter", **config)
    scale = {"mean": 0.1 + 0.2, "std": 1 / 3, "scores": 7, "measured_on": "held-out records"}
    (adapter / "hftune.json").write_text(json.dumps({"head": "steps", "status": "complete", "reward_scale": scale}))
    manifest = merge(adapter, tmp_path / "merged", verify="true")
    assert manifest["head"] == "steps" and manifest["verified"]["largest"] < 1e-4
    assert manifest["reward_scale"] == scale == settings(tmp_path / "merged")["reward_scale"]
    assert settings(tmp_path / "merged")["id2label"] == {"0": "wrong", "1": "right"}
    trained, merged = load_file(adapter / "adapter_model.safetensors"), load_file(tmp_path / "merged/model.safetensors")
    for name in ("score.weight", "score.bias"):
        assert torch.equal(trained[f"base_model.model.{name}"], merged[name])


def test_a_scale_is_not_kept_where_it_does_not_hold(make_base: Callable, tmp_path: Path) -> None:
    config = {"target_modules": ATTENTION, "task_type": "SEQ_CLS", "modules_to_save": ["score"]}
    scale = {"mean": 1.0, "std": 2.0, "scores": 7, "measured_on": "held-out records"}
    base = make_base("llama")
    for seed in (1, 2):
        adapter = make_adapter(base, tmp_path / str(seed), seed=seed, **config)
        (adapter / "hftune.json").write_text(json.dumps({"head": "score", "reward_scale": scale}))
    merge(tmp_path / "1", tmp_path / "merged")
    assert settings(tmp_path / "merged")["reward_scale"] == scale
    # On a base that was a reward model, an adapter without a scale must not inherit that of the base.
    (tmp_path / "2" / "hftune.json").write_text(json.dumps({"head": "score"}))
    other = tmp_path / "base"
    shutil.copytree(base, other)
    (other / "config.json").write_text(json.dumps(settings(base) | {"reward_scale": scale}))
    merge(tmp_path / "2", tmp_path / "again", base_model_name_or_path=str(other))
    assert "reward_scale" not in settings(tmp_path / "again")


def test_a_reward_model_upon_an_adapter(make_base: Callable, tmp_path: Path) -> None:
    base = make_base("llama")
    below = make_adapter(base, tmp_path / "sft", target_modules=["q_proj", "down_proj", "lm_head"])
    config = {"target_modules": ATTENTION, "task_type": "SEQ_CLS", "modules_to_save": ["score"]}
    adapter = make_adapter(base, tmp_path / "rm", **config)
    manifest = {"base": {"name": str(base), "adapters": [str(below)]}, "head": "score", "status": "complete"}
    (adapter / "hftune.json").write_text(json.dumps(manifest))
    verified = merge(adapter, tmp_path / "merged", verify="true")["verified"]
    assert verified["largest"] < 1e-4
    alone = make_adapter(base, tmp_path / "alone", **config)
    merge(alone, tmp_path / "merged-alone")
    assert not torch.allclose(
        merged_logits(tmp_path / "merged", "SEQ_CLS"), merged_logits(tmp_path / "merged-alone", "SEQ_CLS")
    )


def test_a_head_that_is_stored_although_the_config_ties_it(make_base: Callable, tmp_path: Path) -> None:
    """transformers loads both as they are; the merged config says so."""
    base = tmp_path / "base"
    shutil.copytree(make_base("llama", tie_word_embeddings=True), base)
    stored = load_file(base / "model.safetensors")
    stored["lm_head.weight"] = stored["model.embed_tokens.weight"] + 1
    save_file(stored, base / "model.safetensors", {"format": "pt"})
    adapter = make_adapter(base, tmp_path / "adapter", target_modules=["q_proj", "lm_head"])
    assert merge(adapter, tmp_path / "merged", verify="true")["verified"]["largest"] < 1e-4
    assert settings(tmp_path / "merged")["tie_word_embeddings"] is False


def test_left_over_and_missing_weights(make_base: Callable, tmp_path: Path) -> None:
    for file in make_base("llama").iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    stored = load_file(tmp_path / "model.safetensors")
    save_file(stored | {"model.extra.weight": torch.ones(2)}, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(ManifestError, match=r"model\.extra\.weight"):
        reload_strictly(tmp_path, trust_remote_code=False)
    del stored["model.norm.weight"]
    save_file(stored, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(ManifestError, match=r"model\.norm\.weight"):
        reload_strictly(tmp_path, trust_remote_code=False)


def test_without_a_tokenizer(make_base: Callable, tmp_path: Path) -> None:
    adapter = make_adapter(make_base("gpt2"), tmp_path / "a", target_modules=["c_attn"], fan_in_fan_out=True)
    manifest = merge(adapter, tmp_path / "merged", verify="true")
    assert manifest["verified"] is None and any("no tokenizer for the prompts" in said for said in manifest["notices"])


@pytest.mark.long
def test_merging_starts_without_heavy_imports(adapter: Path, tmp_path: Path) -> None:
    """135 million parameters are merged in the time that transformers takes. TRL's parser alone takes 0.2 s."""
    code = (
        "import sys; sys.argv = ['merge', *sys.argv[1:]]; import merge_peft_adapter as script; script.main(); "
        "heavy = {'transformers', 'peft', 'trl.trainer', 'deepspeed', 'bitsandbytes', 'datasets'}; "
        "print(sorted(heavy & set(sys.modules)))"
    )
    flags = ["--lora_model", str(adapter), "--output_dir", str(tmp_path / "merged"), "--verify", "False"]
    finished = subprocess.run([sys.executable, "-c", code, *flags], capture_output=True, text=True)
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout.strip() == "[]"
