"""Checkpoints in 4 and 8 bit as their makers publish them: every weight as it was drawn, or one message."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from hftune.arguments.entry import parse_arguments
from hftune.errors import UserError
from hftune.models.loading import quantisation
from hftune.models.loading.causal_lm import load_causal_lm
from hftune.models.loading.reward_model import load_reward_model
from hftune.models.loading.tokenizer import load_tokenizer
from hftune.preflight.check_run import check_run
from hftune.preflight.facts import resolve
from tests.packed import FORMATS, pack, pack_gpt_oss

WIDE = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "tie_word_embeddings": False}
WIDE |= {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16}
IDS = torch.tensor([[5, 9, 17, 33, 41, 8]])


def arguments(stage: str, folder: Path, tmp_path: Path, *flags: str) -> Any:
    out = f"{tmp_path}-out"  # not among the records
    given = ["--model_name_or_path", str(folder), "--output_dir", out, "--use_cpu", "True"]
    given += ["--train_file_dir", str(tmp_path), "--bf16", "False", *flags]
    return parse_arguments(stage, given)


def load(folder: Path, tmp_path: Path, *flags: str, stage: str = "sft") -> Any:
    model_args, _, adapter_args, training_args = arguments(stage, folder, tmp_path, *flags)
    loader: Any = load_reward_model if stage == "rm" else load_causal_lm
    return loader(model_args, adapter_args, training_args, load_tokenizer(model_args, training_args)).eval()


def compare(folder: Path, model: Any, rounded: float = 1e-6) -> None:
    """Weights and logits are those of the same numbers stored whole, but for what is rounded on the way."""
    whole: Any = AutoModelForCausalLM.from_pretrained(f"{folder}-whole", dtype=torch.float32).eval()
    mine, wanted = model.state_dict(), whole.state_dict()
    assert mine.keys() == wanted.keys()
    for name, tensor in wanted.items():
        torch.testing.assert_close(mine[name].float(), tensor, atol=rounded, rtol=rounded, msg=name)
    with torch.no_grad():
        torch.testing.assert_close(model(IDS).logits, whole(IDS).logits, atol=100 * rounded, rtol=100 * rounded)


@pytest.mark.parametrize("kind", FORMATS)
def test_every_format(kind: str, make_base: Callable, tmp_path: Path) -> None:
    compressed = FORMATS[kind][0]["quant_method"] == "compressed-tensors"
    if compressed:
        pytest.importorskip("compressed_tensors")
    folder = pack(make_base("llama", **WIDE), tmp_path / kind, kind)
    model = load(folder, tmp_path, "--dtype", "float32")
    compare(folder, model, 5e-3 if compressed else 1e-6)  # it computes in the dtype of its scales, bfloat16
    assert model.name_or_path == str(folder) == model.config.name_or_path
    assert getattr(model.config, "quantization_config", None) is None
    # transformers alone would quantise again what it saves.
    model.save_pretrained(tmp_path / "saved")
    assert {tensor.dtype for tensor in load_file(tmp_path / "saved" / "model.safetensors").values()} == {torch.float32}


@pytest.mark.parametrize("name", ["qwen3_moe", "deepseek_v3"])
def test_experts_that_are_fused(name: str, make_base: Callable, tmp_path: Path) -> None:
    """Stored one by one, packed; one parameter in memory."""
    changes = {"hidden_size": 64, "moe_intermediate_size": 32, "intermediate_size": 96}
    changes |= (
        {"kv_lora_rank": 32, "qk_rope_head_dim": 32, "qk_nope_head_dim": 32, "v_head_dim": 32, "q_lora_rank": 32}
        if name == "deepseek_v3"
        else {"head_dim": 16}
    )
    folder = pack(make_base(name, **changes), tmp_path / "packed", "fp8")
    compare(folder, load(folder, tmp_path, "--dtype", "float32"))


@pytest.fixture(scope="module")
def gpt_oss(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Experts in MXFP4, as the only tensors that gpt-oss has so."""
    from transformers import AutoConfig

    from tests.conftest import tiny_tokenizer

    fields = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "vocab_size": 320, "head_dim": 16}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "num_local_experts": 4, "num_experts_per_tok": 2}
    config = AutoConfig.for_model("gpt_oss", **fields, **heads, pad_token_id=0, eos_token_id=0)
    torch.manual_seed(0)
    plain = tmp_path_factory.mktemp("gpt_oss")
    AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).save_pretrained(plain)
    tiny_tokenizer().save_pretrained(plain)
    return pack_gpt_oss(plain, plain.parent / "mxfp4")


def test_mxfp4(gpt_oss: Path, tmp_path: Path) -> None:
    compare(gpt_oss, load(gpt_oss, tmp_path, "--dtype", "float32"))


def change(folder: Path, **said: Any) -> Path:
    """The same checkpoint with another `quantization_config`."""
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] |= said
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def refusal(folder: Path, tmp_path: Path, *flags: str) -> str:
    with pytest.raises(UserError) as error:
        check_run(resolve("sft", arguments("sft", folder, tmp_path, *flags)))
    return str(error.value)


@pytest.mark.parametrize(
    ("said", "cause"),
    [
        ({"quant_method": "hqq"}, "stored in hqq, which hftune does not train on"),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "stored in modelopt NVFP4, which hftune does not"),
        ({"quant_method": None}, "stored in none, which hftune does not train on"),
        ({"quant_method": "gptq"}, "stored in gptq, which needs gptqmodel and optimum"),
        ({"quant_method": "awq"}, "stored in awq, which needs gptqmodel"),
    ],
)
def test_what_is_not_served_is_refused(
    said: dict[str, Any], cause: str, make_base: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quantisation, "find_spec", lambda name: None)
    folder = change(pack(make_base("llama", num_hidden_layers=1), tmp_path / "packed", "fp8"), **said)
    message = refusal(folder, tmp_path, "--use_peft", "True")
    assert cause in message and "give the weights in 16 bit" in message
    assert f"dequantize_model('{folder}', '{folder}-bf16')" in message


def test_blocks_that_do_not_divide_a_weight_are_refused(make_base: Callable, tmp_path: Path) -> None:
    """transformers would take them for two of 40 columns each."""
    sizes = {"hidden_size": 80, "intermediate_size": 96, "num_hidden_layers": 1}
    folder = pack(make_base("llama", **sizes), tmp_path / "packed", "fp8")
    assert "its blocks do not divide model.layers.0.mlp." in refusal(folder, tmp_path)
    with pytest.raises(UserError, match="do not divide"):
        load(folder, tmp_path, "--dtype", "float32")


@pytest.mark.parametrize(
    ("kind", "flags", "cause"),
    [
        ("fp8", ("--qlora", "True"), "does not quantise on the way"),
        ("gptq", (), "add --use_peft without --load_in_4bit"),
        ("gptq", ("--qlora", "True"), "add --use_peft without --load_in_4bit"),
    ],
)
def test_flags_that_do_not_go_with_it(
    kind: str, flags: tuple[str, ...], cause: str, make_base: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quantisation, "find_spec", lambda name: name)
    folder = pack(make_base("llama", **WIDE), tmp_path / "packed", "fp8")
    assert cause in refusal(change(folder, quant_method=kind), tmp_path, *flags)


def test_what_is_stored_is_said_before(make_base: Callable, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = pack(make_base("llama", **WIDE), tmp_path / "packed", "fp8")
    with caplog.at_level("INFO"):
        check_run(resolve("sft", arguments("sft", folder, tmp_path, "--use_peft", "True")))
    assert "stored in fp8 and read as whole weights" in caplog.text
