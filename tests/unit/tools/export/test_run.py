"""The other formats: each result loads with the library that it is for, and says what the model says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub import HfApi
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from hftune.checkpoints.manifest import read_manifest
from hftune.cli import dispatch
from hftune.errors import UserError
from hftune.tools.export import serving
from hftune.tools.export.arguments import (
    GgufArguments,
    HubArguments,
    ServingArguments,
)
from hftune.tools.export.run import export
from tests.architectures import make_model

IDS = torch.arange(3, 35)[None]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return make_model("llama", tmp_path / "model")


def logits(folder: Path, **options: Any) -> torch.Tensor:
    with torch.no_grad():
        return AutoModelForCausalLM.from_pretrained(folder, **options)(IDS).logits.float()


def test_logits_that_are_nan_are_refused(model: Path, tmp_path: Path) -> None:
    """Their likeliest token is always the first: the result would agree with the model everywhere."""
    broken = AutoModelForCausalLM.from_pretrained(model)
    broken.model.norm.weight.data[0] = torch.nan
    broken.save_pretrained(model)
    args = ServingArguments(model_name_or_path=str(model), output_dir=str(tmp_path / "s"), dtype="auto", verify=True)
    with pytest.raises(UserError, match=r"(?s)gives logits that are NaN.*from before its weights broke"):
        export(args)
    assert not (tmp_path / "s").exists()


def test_serving_folder_ends_where_answers_end(model: Path, tmp_path: Path) -> None:
    GenerationConfig(eos_token_id=0, max_length=77).save_pretrained(model)
    manifest = export(ServingArguments(model_name_or_path=str(model), output_dir=str(tmp_path / "s"), dtype="bfloat16"))
    settings = GenerationConfig.from_pretrained(tmp_path / "s")
    assert settings.eos_token_id == [0, 2] and settings.max_length == 77
    assert manifest["figures"]["ends"] == ["<|pad|>", "<|im_end|>"]
    served = AutoModelForCausalLM.from_pretrained(tmp_path / "s")
    assert served.dtype == torch.bfloat16
    torch.testing.assert_close(logits(tmp_path / "s"), logits(model), atol=0.1, rtol=0.1)
    assert AutoTokenizer.from_pretrained(tmp_path / "s").chat_template


@pytest.mark.parametrize(("limit", "least"), [(None, 1), ("30KB", 3)])
def test_serving_folder_in_files_of_a_size(model: Path, tmp_path: Path, limit: str | None, least: int) -> None:
    args = ServingArguments(model_name_or_path=str(model), output_dir=str(tmp_path / "s"), verify=False)
    args.max_shard_size = limit
    export(args)
    files = list((tmp_path / "s").glob("*.safetensors"))
    assert len(files) >= least if limit else len(files) == 1
    assert not limit or all(file.stat().st_size < 34_000 for file in files)
    torch.testing.assert_close(logits(tmp_path / "s"), logits(model), atol=0.1, rtol=0.1)


def test_problems_come_together(tmp_path: Path) -> None:
    with pytest.raises(UserError) as raised:
        export(GgufArguments(model_name_or_path=str(tmp_path / "nowhere")))
    assert "there is no folder" in str(raised.value) and "no output folder" in str(raised.value)


def test_an_adapter_is_refused(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(UserError, match="LoRA adapter"):
        export(GgufArguments(model_name_or_path=str(tmp_path), output_dir=str(tmp_path / "out")))


def test_a_folder_without_a_model_is_refused(model: Path, tmp_path: Path) -> None:
    (tmp_path / "answers.json").write_text("{}")
    with pytest.raises(UserError, match="has no config"):
        export(GgufArguments(model_name_or_path=str(tmp_path), output_dir=str(tmp_path / "out")))
    with pytest.raises(UserError, match="give "):
        export(GgufArguments(model_name_or_path=str(model.parent), output_dir=str(tmp_path / "out")))


def test_to_the_hub(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The upload itself is the library's; what it is asked to take, and what not, is ours."""
    manifest = {
        "stage": "sft",
        "status": "complete",
        "kind": "full",
        "base": {"name": "org/base"},
        "metrics": {"eval_loss": 1.25},
        "arguments": {"training": {"learning_rate": 2e-5}},
        "data": {"train": {"used": 1200, "trained_tokens": 34567, "files": ["/home/me/secret/chat.jsonl"]}},
        "versions": {"transformers": "5.0"},
    }
    (model / "hftune.json").write_text(json.dumps(manifest))
    asked: dict[str, Any] = {}
    monkeypatch.setattr(HfApi, "create_repo", lambda self, name, **options: asked.update(name=name, **options))
    monkeypatch.setattr(HfApi, "create_commit", lambda self, *args, **more: asked.update(added=args[1], **more) or "c")
    export(HubArguments(model_name_or_path=str(model), hub_model_id="me/mine", hub_private_repo=True))
    assert asked["name"] == "me/mine" and asked["private"]
    sent = {added.path_in_repo for added in asked["added"]}
    assert {"model.safetensors", "config.json", "tokenizer.json", "README.md"} <= sent and "hftune.json" not in sent
    card = (model / "README.md").read_text()
    assert "base_model: org/base" in card and "1,200 records" in card and "| eval_loss | 1.25 |" in card
    assert "chat.jsonl" in card and "/home/me" not in card


def test_from_the_command_line(model: Path, tmp_path: Path) -> None:
    words = ["--model_name_or_path", str(model), "--output_dir", str(tmp_path / "g"), "--verify", "False"]
    dispatch(["export", "vllm", *words])
    assert list((tmp_path / "g").glob("*.safetensors"))
    manifest = read_manifest(tmp_path / "g") or {}
    assert manifest["command"][:4] == ["hftune", "export", "vllm", "--model_name_or_path"]
    assert (manifest["stage"], manifest["format"], manifest["parents"][0]["folder"]) == ("export", "vllm", str(model))
    for words, said in (
        (["gguf", "--max_shard_size", "1GB"], "--max_shard_size was removed"),
        (["ggfu"], "there is no format ggfu\n  to do: did you mean `hftune export gguf`?"),
        (["--output_dir", "x"], "needs a format\n  to do: hftune export gguf"),
    ):
        with pytest.raises(UserError) as refused:
            dispatch(["export", *words])
        assert said in str(refused.value)


def test_a_wrong_result_is_not_published(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def other(folder: Path, trust_remote_code: bool) -> Any:
        model = AutoModelForCausalLM.from_pretrained(folder)
        torch.nn.init.normal_(model.lm_head.weight) if folder != model_folder else None
        return model.eval()

    model_folder = model
    monkeypatch.setattr(serving, "load", other)
    with pytest.raises(UserError, match="the exported folder does not say what the model said"):
        export(ServingArguments(model_name_or_path=str(model), output_dir=str(tmp_path / "g")))
    assert not (tmp_path / "g").exists()
