"""Checkpoints in 4 and 8 bit as their makers publish them: every weight as it was drawn, or one message."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from hftune.arguments.entry import parse_arguments
from hftune.errors import UserError
from hftune.models.loading.causal_lm import load_causal_lm
from hftune.models.loading.packed_weights import packed_checkpoint, whole_shapes
from hftune.models.loading.reward_model import load_reward_model
from hftune.models.loading.tokenizer import load_tokenizer
from hftune.preflight.check_run import check_run
from hftune.preflight.facts import resolve
from hftune.preflight.run_memory import memory_of
from hftune.weight_files import weight_shapes
from tests.packed import FORMATS, pack, pack_gpt_oss

# 160 is a block of 128 and a part of one.
WIDE = {"hidden_size": 160, "intermediate_size": 192, "num_hidden_layers": 2, "tie_word_embeddings": False}
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


def compare(folder: Path, model: Any) -> None:
    """Weights and logits are those of the same numbers stored whole."""
    whole: Any = AutoModelForCausalLM.from_pretrained(f"{folder}-whole", dtype=torch.float32).eval()
    mine, wanted = model.state_dict(), whole.state_dict()
    assert mine.keys() == wanted.keys()
    for name, tensor in wanted.items():
        torch.testing.assert_close(mine[name].float(), tensor, atol=1e-6, rtol=1e-6, msg=name)
    with torch.no_grad():
        torch.testing.assert_close(model(IDS).logits, whole(IDS).logits, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("kind", FORMATS)
def test_every_format(kind: str, make_base: Callable, tmp_path: Path) -> None:
    folder = pack(make_base("llama", **WIDE), tmp_path / kind, kind)
    model = load(folder, tmp_path, "--dtype", "float32")
    compare(folder, model)
    assert model.name_or_path == str(folder) == model.config.name_or_path
    assert getattr(model.config, "quantization_config", None) is None
    assert whole_shapes(folder) == weight_shapes(f"{folder}-whole")


@pytest.mark.parametrize("kind", ["fp8", "int4"])
@pytest.mark.parametrize("name", ["qwen3_moe", "deepseek_v3"])
def test_experts_that_are_fused(name: str, kind: str, make_base: Callable, tmp_path: Path) -> None:
    """Stored one by one, packed; one parameter in memory."""
    changes = {"hidden_size": 160, "moe_intermediate_size": 32, "intermediate_size": 192}
    folder = pack(make_base(name, **changes), tmp_path / "packed", kind)
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
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    compare(gpt_oss, load(gpt_oss, tmp_path, "--dtype", "float32"))
    stored, whole = (load_file(Path(folder) / "model.safetensors") for folder in (gpt_oss, f"{gpt_oss}-whole"))
    name = "model.layers.1.mlp.experts.down_proj"
    theirs = convert_moe_packed_tensors(stored[f"{name}_blocks"], stored[f"{name}_scales"], dtype=torch.float32)
    assert torch.equal(theirs, whole[name])


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


SAID: dict[str, tuple[str, dict[str, Any], str]] = {
    "awq-gemv": ("awq", {"version": "gemv"}, "layout gemv"),
    "marlin": ("gptq", {"checkpoint_format": "marlin"}, "layout marlin"),
    "sparse": ("int4", {"sparsity_config": {"format": "sparse-24-bitmask"}}, "sparse-24-bitmask"),
    "no-bits": ("int4", {"config_groups": {}}, "does not say how"),
    "odd": ("int4", {"config_groups": {"group_0": {"targets": 3, "weights": []}}}, "not as that format has it"),
    "pattern": (
        "int4",
        {"config_groups": {"group_0": {"targets": ["re:("], "weights": {"num_bits": 4}}}},
        "not as that format has it",
    ),
    "hqq": ("gptq", {"quant_method": "hqq"}, "quantised with hqq"),
    "nameless": ("gptq", {"quant_method": None}, "quantised with none"),
}


@pytest.mark.parametrize("name", SAID)
def test_what_is_not_known_is_refused(name: str, make_base: Callable, tmp_path: Path) -> None:
    kind, said, cause = SAID[name]
    folder = change(pack(make_base("llama", num_hidden_layers=1), tmp_path / "packed", kind), **said)
    message = refusal(folder, tmp_path, "--use_peft", "True")
    assert cause in message and "give the" in message


def in_memory(folder: Path) -> dict[str, torch.Tensor]:
    """Copies: what is loaded lies in the file, which is about to be written."""
    return {name: tensor.clone() for name, tensor in load_file(folder / "model.safetensors").items()}


def test_tensors_that_do_not_fit(make_base: Callable, tmp_path: Path) -> None:
    base = make_base("llama", num_hidden_layers=1)
    folder = pack(base, tmp_path / "fp8", "fp8")
    tensors = in_memory(folder)
    name = "model.layers.0.mlp.up_proj.weight_scale_inv"
    save_file(tensors | {name: torch.ones(5, 3)}, folder / "model.safetensors", {"format": "pt"})
    assert "has scales of shape [5, 3]" in refusal(folder, tmp_path)
    folder = pack(base, tmp_path / "gptq", "gptq")
    tensors = in_memory(folder)
    tensors["model.layers.0.mlp.up_proj.g_idx"] += 100
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(UserError, match=r"up_proj\.qweight cannot be unpacked"):
        load(folder, tmp_path, "--dtype", "float32")


def test_memory_is_said_before(make_base: Callable, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Of the whole weights, which is also what the arithmetic counts."""
    folder = pack(make_base("llama", num_hidden_layers=1), tmp_path / "packed", "fp8")
    whole = sum(torch.Size(shape).numel() for shape in weight_shapes(f"{folder}-whole").values())
    found = packed_checkpoint(folder)
    assert found is not None and found.whole_bytes(2) == 2 * whole
    assert found.stored_bytes == sum(t.nbytes for t in load_file(folder / "model.safetensors").values())
    given = arguments("sft", folder, tmp_path, "--use_peft", "True")
    with caplog.at_level("INFO"):
        facts = resolve("sft", given)
        memory = memory_of(facts)
        assert memory is not None and memory.size.weights == whole
        check_run(facts)
    assert "stored in fp8" in caplog.text and "--qlora quantises them" in caplog.text


def test_qlora_on_packed_weights(make_base: Callable, tmp_path: Path) -> None:
    """bitsandbytes quantises what was unpacked."""
    from bitsandbytes.functional import dequantize_4bit, quantize_4bit

    folder = pack(make_base("llama", num_hidden_layers=1), tmp_path / "packed", "int4")
    model = load(folder, tmp_path, "--qlora", "True", "--dtype", "float32")
    weight = model.model.layers[0].mlp.up_proj.weight
    wanted = load_file(f"{folder}-whole/model.safetensors")["model.layers.0.mlp.up_proj.weight"]
    kinds = {"compress_statistics": weight.quant_state.nested, "quant_type": weight.quant_state.quant_type}
    again = dequantize_4bit(*quantize_4bit(wanted, **kinds))
    torch.testing.assert_close(dequantize_4bit(weight.data, weight.quant_state), again)


def test_a_reward_model_on_packed_weights(make_base: Callable, tmp_path: Path) -> None:
    folder = pack(make_base("llama", num_hidden_layers=1), tmp_path / "packed", "awq")
    model = load(folder, tmp_path, "--dtype", "float32", stage="rm")
    wanted = load_file(f"{folder}-whole/model.safetensors")
    assert model.score.weight.shape[0] == 1
    torch.testing.assert_close(model.model.layers[0].mlp.up_proj.weight, wanted["model.layers.0.mlp.up_proj.weight"])
