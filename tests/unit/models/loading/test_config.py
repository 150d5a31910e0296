"""From a name or a folder to a model: configs, the Hub out of reach, weights drawn, quantised bases."""

from __future__ import annotations

import gc
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from hftune.arguments.model import ModelArguments
from hftune.distributed import zero
from hftune.errors import ArgumentError
from hftune.logging import notices
from hftune.models.loading import causal_lm
from tests.architectures import make_model
from tests.unit.models.adapting import of_run, parsed

pytestmark = pytest.mark.long

ZERO3 = '{"zero_optimization": {"stage": 3}, "train_micro_batch_size_per_gpu": "auto"}'


def load(stage: str, name: Path | str, *flags: str) -> Any:
    return of_run(stage, parsed(stage, name, *flags))[0]


def values(model: Any) -> dict[str, torch.Tensor]:
    whole = {}
    for name, parameter in model.named_parameters():
        with zero.gathered([parameter]):
            whole[name] = parameter.detach().clone()
    return whole


@pytest.mark.parametrize(
    "name", ["llama", "mixtral", *(pytest.param(n, marks=pytest.mark.slow) for n in ("gemma3_text", "deepseek_v3"))]
)
def test_drawn_weights_depend_on_the_seed_alone(name: str, tmp_path: Path) -> None:
    """Whatever was drawn before, and with ZeRO-3, which draws after partitioning."""
    make_model(name, tmp_path)
    (tmp_path / "model.safetensors").unlink()
    drawn = []
    for noise, flags in ((1, ()), (2, ("--deepspeed", ZERO3)), (3, ("--seed", "7"))):
        torch.manual_seed(noise)
        drawn.append(values(load("sft", tmp_path, "--from_config", *flags)))
        gc.collect()  # the arguments hold ZeRO-3
    assert drawn[0].keys() == drawn[1].keys()
    for key, value in drawn[0].items():
        assert torch.equal(value, drawn[1][key]), key
    assert not torch.equal(drawn[0]["model.embed_tokens.weight"], drawn[2]["model.embed_tokens.weight"])
    # As the architecture draws: with the deviation that its config names.
    assert drawn[0]["model.embed_tokens.weight"].std().item() == pytest.approx(0.1, rel=0.05)
    assert drawn[0]["model.embed_tokens.weight"].dtype == torch.float32


def test_what_was_chosen_is_said(tiny_model: Path, tmp_path: Path) -> None:
    load("sft", tiny_model)
    assert "attention: sdpa (transformers' choice; rows are padded)" in notices()
    load("sft", tiny_model, "--attn_implementation", "eager")
    assert "attention: eager (as asked)" in notices()
    model = load("sft", make_model("mixtral", tmp_path), "--experts_implementation", "batched_mm")
    assert "experts: batched_mm" in notices()
    assert model.config._experts_implementation == "batched_mm"


def test_a_name_in_the_cache_needs_no_hub(tiny_model: Path, tmp_path: Path) -> None:
    """Laid out as the Hub's client does: a revision names a snapshot."""
    repository = tmp_path / "models--some-owner--some-model"
    for revision, commit in (("main", "a" * 40), ("other", "b" * 40)):
        shutil.copytree(tiny_model, repository / "snapshots" / commit)
        (repository / "refs").mkdir(exist_ok=True)
        (repository / "refs" / revision).write_text(commit)
    file = repository / "snapshots" / ("b" * 40) / "config.json"
    file.write_text(file.read_text().replace('"initializer_range": 0.2', '"initializer_range": 0.3'))
    flags = ("--cache_dir", str(tmp_path), "--offline")
    assert load("sft", "some-owner/some-model", *flags).config.initializer_range == 0.2
    assert load("sft", "some-owner/some-model", *flags, "--model_revision", "other").config.initializer_range == 0.3
    with pytest.raises(ArgumentError, match="some-owner/another"):
        load("sft", "some-owner/another", *flags)


def test_packed_weights_are_kept_as_zero_3_needs_them(tiny_model: Path) -> None:
    """As uint8, or as the dtype of all other weights where ZeRO-3 gathers them together."""
    for flags, kept in (((), torch.uint8), (("--bnb_4bit_quant_storage", "float32"), torch.float32)):
        weight = load("sft", tiny_model, "--qlora", *flags).model.layers[0].mlp.up_proj.weight
        assert weight.dtype == kept and weight.quant_state.quant_type == "nf4" and weight.quant_state.nested
    model = load("sft", tiny_model, "--qlora", "--deepspeed", ZERO3)
    assert model.model.layers[0].mlp.up_proj.weight.dtype == torch.float32
    plain = load("sft", tiny_model, "--qlora", "--bnb_4bit_quant_type", "fp4", "--use_bnb_nested_quant", "False")
    state = plain.model.layers[0].mlp.up_proj.weight.quant_state
    assert state.quant_type == "fp4" and not state.nested


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (IndexError("tuple index out of range"), "IndexError: tuple index out of range"),
        (ValueError("not enough values\nto unpack"), "ValueError: not enough values"),
        (RuntimeError(), "RuntimeError: no words"),
        (torch.OutOfMemoryError("no memory"), None),  # no fault of the model
    ],
)
def test_a_model_that_zero_3_cannot_take_apart(
    fault: Exception, said: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    args = ModelArguments(model_name_or_path=str(tmp_path))

    def fail(*_: Any, **__: Any) -> None:
        raise fault

    monkeypatch.setattr(causal_lm, "pretrained", fail)
    with pytest.raises(type(fault)):
        causal_lm._from_pretrained(AutoModelForCausalLM, LlamaConfig(), args, {})
    monkeypatch.setattr(causal_lm, "is_deepspeed_zero3_enabled", lambda: True)
    with pytest.raises(ArgumentError if said else type(fault)) as error:
        causal_lm._from_pretrained(AutoModelForCausalLM, LlamaConfig(), args, {})
    if said is None:
        return
    assert error.value.cause == f"transformers cannot load llama partitioned: {said}"
    assert error.value.place == "--deepspeed" and "zero2" in str(error.value.fix)
