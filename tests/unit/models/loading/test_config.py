"""From a name or a folder to a model: configs, the Hub out of reach, weights drawn, GGUF, quantised bases."""

from __future__ import annotations

import gc
import json
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
from hftune.models.loading.causal_lm import forget_gguf
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


def test_gguf(tiny_model: Path, tmp_path: Path) -> None:
    """A GGUF file next to its tokenizer, also where ZeRO-3 partitions what is read."""
    write_gguf(tiny_model, tmp_path)
    flags = ("--gguf_file", "tiny.gguf", "--tokenizer_name_or_path", str(tiny_model))
    wanted = AutoModelForCausalLM.from_pretrained(tiny_model)
    ids = torch.arange(3, 40)[None]
    with torch.no_grad():
        model = load("sft", tmp_path, *flags)
        torch.testing.assert_close(model.eval()(ids).logits, wanted(ids).logits, rtol=0, atol=1e-4)
        assert not hasattr(model.config, "quantization_config")
    partitioned = values(load("sft", tmp_path, *flags, "--deepspeed", ZERO3))
    for name, value in wanted.named_parameters():
        assert torch.equal(partitioned[name], value), name


def test_nothing_is_left_of_a_gguf_file(tiny_model: Path) -> None:
    model: Any = AutoModelForCausalLM.from_pretrained(tiny_model)
    forget_gguf(model)  # nothing was there
    model.hf_quantizer, model.quantization_method, model.is_quantized = object(), "gguf", True
    model.config.quantization_config = {"quant_method": "gguf"}
    forget_gguf(model)
    assert not hasattr(model, "hf_quantizer") and not hasattr(model, "quantization_method") and not model.is_quantized
    assert "quantization_config" not in model.config.to_dict()


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


def write_gguf(model: Path, folder: Path) -> None:
    """The tiny Llama as llama.cpp stores one: float32, with queries and keys permuted for its own rope."""
    import gguf
    import numpy as np
    from safetensors.torch import load_file

    config = AutoModelForCausalLM.from_pretrained(model).config
    heads, keys, size = config.num_attention_heads, config.num_key_value_heads, config.hidden_size
    writer = gguf.GGUFWriter(str(folder / "tiny.gguf"), "llama")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(heads)
    writer.add_head_count_kv(keys)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_dimension_count(size // heads)
    writer.add_vocab_size(config.vocab_size)
    names = {
        "model.embed_tokens": "token_embd",
        "model.norm": "output_norm",
        "lm_head": "output",
        "self_attn.q_proj": "attn_q",
        "self_attn.k_proj": "attn_k",
        "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output",
        "mlp.gate_proj": "ffn_gate",
        "mlp.up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down",
        "input_layernorm": "attn_norm",
        "post_attention_layernorm": "ffn_norm",
        "model.layers": "blk",
    }
    for name, tensor in load_file(model / "model.safetensors").items():
        array = tensor.float().numpy()
        for ours, theirs in names.items():
            name = name.replace(ours, theirs)
        if "attn_q" in name or "attn_k" in name:
            count = heads if "attn_q" in name else keys
            array = array.reshape(count, 2, -1, size).swapaxes(1, 2).reshape(array.shape)
        writer.add_tensor(name, np.ascontiguousarray(array))
    content = json.loads((model / "tokenizer.json").read_text())
    tokens = content["model"]["vocab"] | {entry["content"]: entry["id"] for entry in content["added_tokens"]}
    special = {entry["content"] for entry in content["added_tokens"]}
    names_of = sorted(tokens, key=lambda token: tokens[token])
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(names_of)
    writer.add_token_types([gguf.TokenType.CONTROL if one in special else gguf.TokenType.NORMAL for one in names_of])
    gguf.SpecialVocab(model, load_merges=True, n_vocab=len(names_of)).add_to_gguf(writer, quiet=True)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


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
