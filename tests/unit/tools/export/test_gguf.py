"""GGUF: every architecture, read back, gives the model's logits; what llama.cpp computes otherwise is refused."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from transformers import AutoModelForCausalLM

from hftune.errors import UserError
from hftune.tools.export.arguments import GgufArguments
from hftune.tools.export.gguf_file import write_gguf
from hftune.tools.export.run import export
from tests.architectures import make_model

SIX_LAYERS = {"num_hidden_layers": 6, "layer_types": ["sliding_attention"] * 5 + ["full_attention"]}
ROPES: dict[str, dict[str, Any]] = {
    "linear": {"rope_type": "linear", "factor": 2.0, "rope_theta": 10000.0},
    "yarn": {"rope_type": "yarn", "factor": 2.0, "rope_theta": 10000.0, "original_max_position_embeddings": 256},
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
        "rope_theta": 500.0,
    },
}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama tied": ("llama", {"tie_word_embeddings": True}),
    "llama with biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "llama padded": ("llama", {"vocab_size": 320}),
    "mistral": ("mistral", {}),
    "mixtral": ("mixtral", {}),
    "qwen2": ("qwen2", {}),
    "qwen3": ("qwen3", {}),
    "qwen3_moe": ("qwen3_moe", {"norm_topk_prob": True, "moe_intermediate_size": 32}),
    "gemma2": ("gemma2", {}),
    "gemma3": ("gemma3_text", SIX_LAYERS),
    "phi3": ("phi3", {}),
}
HAS_LLAMA_CPP = importlib.util.find_spec("llama_cpp") is not None


def to_gguf(model: Path, output: Path, outtype: str) -> dict[str, Any]:
    args = GgufArguments(model_name_or_path=str(model), output_dir=str(output), outtype=outtype)
    return export(args)["figures"]


@pytest.mark.parametrize("case", CASES)
def test_read_back_it_says_the_same(case: str, tmp_path: Path) -> None:
    name, changes = CASES[case]
    figures = to_gguf(make_model(name, tmp_path / "model", **changes), tmp_path / "gguf", "f32")
    if name == "mixtral" and not HAS_LLAMA_CPP:  # transformers' reader has no Mixtral; see the next test
        assert "read_by" not in figures
        return
    # llama.cpp keeps keys and values in 16 bit.
    assert figures["logits_largest_difference"] < (1e-2 if figures["read_by"] == "llama.cpp" else 1e-6)
    assert figures["same_choice"] == 1.0


def test_experts_of_mixtral_are_stacked_in_order(tmp_path: Path) -> None:
    folder = make_model("mixtral", tmp_path / "model")
    write_gguf(folder, tmp_path / "m.gguf")
    experts = AutoModelForCausalLM.from_pretrained(folder).model.layers[1].mlp.experts
    gate, up = experts.gate_up_proj.detach().chunk(2, dim=1)
    written = tensors(tmp_path / "m.gguf")
    for name, expected in (("gate", gate), ("up", up), ("down", experts.down_proj.detach())):
        torch.testing.assert_close(torch.from_numpy(written[f"blk.1.ffn_{name}_exps.weight"].data.copy()), expected)


@pytest.mark.parametrize("rope", ROPES)
def test_positions(rope: str, tmp_path: Path) -> None:
    folder = make_model("llama", tmp_path / "model", rope_parameters=ROPES[rope])
    write_gguf(folder, tmp_path / "m.gguf")
    reader = gguf.GGUFReader(tmp_path / "m.gguf")
    fields = {key: field.contents() for key, field in reader.fields.items()}
    assert fields["llama.rope.freq_base"] == ROPES[rope]["rope_theta"]
    if rope == "llama3":
        # A position's angle is divided by the factors that the file holds: transformers' own frequencies tell them.
        model = AutoModelForCausalLM.from_pretrained(folder)
        plain = 1.0 / (500.0 ** (torch.arange(0, 8, 2) / 8))
        factors = torch.from_numpy(tensors(tmp_path / "m.gguf")["rope_freqs.weight"].data.copy())
        torch.testing.assert_close(plain / factors, model.model.rotary_emb.inv_freq)
    else:
        assert fields["llama.rope.scaling.type"] == rope and fields["llama.rope.scaling.factor"] == 2.0


@pytest.mark.parametrize("outtype", ["bf16", "f16", "q8_0", "q5_1", "q4_0"])
def test_types(outtype: str, tmp_path: Path) -> None:
    folder = make_model("llama", tmp_path / "model")
    figures = to_gguf(folder, tmp_path / "gguf", outtype)
    (file,) = (tmp_path / "gguf").glob("*.gguf")
    written = tensors(file)
    assert written["blk.0.attn_q.weight"].tensor_type.name.lower() == outtype
    assert written["blk.0.attn_norm.weight"].tensor_type.name == "F32"
    assert figures["logits_mean_difference"] < {"bf16": 0.01, "f16": 0.01, "q8_0": 0.02}.get(outtype, 0.2)
    manifest = json.loads((tmp_path / "gguf" / "hftune.json").read_text())
    assert manifest["status"] == "complete" and manifest["format"] == "gguf"


def test_several_files_are_one_model(tmp_path: Path) -> None:
    """Named and marked as llama.cpp's gguf-split does, so that it finds the others from the first."""
    folder = make_model("llama", tmp_path / "model")
    args = GgufArguments(
        model_name_or_path=str(folder), output_dir=str(tmp_path / "g"), outtype="f32", max_shard_size="40KB"
    )
    figures = export(args)["figures"]
    files = sorted(file.name for file in (tmp_path / "g").glob("*.gguf"))
    count = len(files)
    assert count > 2 and files == [f"model-f32-{number:05d}-of-{count:05d}.gguf" for number in range(1, count + 1)]
    assert figures["files"] == files and figures["logits_largest_difference"] < 1e-2 and figures["same_choice"] == 1.0
    for number, name in enumerate(files):
        fields = gguf.GGUFReader(tmp_path / "g" / name).fields
        assert [fields[f"split.{key}"].contents() for key in ("no", "count", "tensors.count")] == [
            number,
            count,
            figures["tensors"],
        ]
    write_gguf(folder, tmp_path / "whole.gguf", "f32")
    whole = {name: tensor.data.tobytes() for name, tensor in tensors(tmp_path / "whole.gguf").items()}
    parts = [tensors(tmp_path / "g" / name) for name in files]
    assert {name: tensor.data.tobytes() for part in parts for name, tensor in part.items()} == whole
    assert sum(map(len, parts)) == len(whole)


def test_rows_that_fill_no_block_stay_wider(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = make_model("llama", tmp_path / "model", intermediate_size=48)
    write_gguf(folder, tmp_path / "m.gguf", "q8_0")
    written = tensors(tmp_path / "m.gguf")
    assert written["blk.0.ffn_down.weight"].tensor_type.name == "F16"
    assert written["blk.0.ffn_up.weight"].tensor_type.name == "Q8_0"


@pytest.mark.parametrize(
    "name, changes, says",
    [
        ("glm4", {}, "no GGUF of glm4"),
        ("gemma3_text", {}, "every 6th layer"),
        ("gemma2", {"query_pre_attn_scalar": 16}, "query_pre_attn_scalar=16"),
        ("qwen3_moe", {"norm_topk_prob": False}, "norm_topk_prob"),
        ("llama", {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}}, "dynamic"),
    ],
)
def test_what_llama_cpp_computes_otherwise_is_refused(
    name: str, changes: dict[str, Any], says: str, tmp_path: Path
) -> None:
    folder = make_model(name, tmp_path / "model", **changes)
    with pytest.raises(UserError, match=says):
        to_gguf(folder, tmp_path / "gguf", "f32")
    assert not (tmp_path / "gguf").exists()


def tensors(file: Path) -> dict[str, gguf.ReaderTensor]:
    return {tensor.name: tensor for tensor in gguf.GGUFReader(file).tensors}
