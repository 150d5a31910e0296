"""Every way of adapting: what should change changes and nothing else; what is saved gives the same logits in peft."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from peft import PeftModel

from hftune.errors import ArgumentError
from hftune.logging import notices
from hftune.models.adapters.lora_config import lora_config
from hftune.models.adapters.preparation import add_adapter
from hftune.models.loading.causal_lm import load_causal_lm
from hftune.models.loading.tokenizer import load_tokenizer
from tests.architectures import make_model
from tests.unit.models.adapting import IDS, arguments, load, logits, train

pytestmark = pytest.mark.long

LINEAR = {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """peft says much that is no fault here; what matters is asserted."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        yield


PATTERNS = ["--rank_pattern", '{"down_proj": 6}', "--alpha_pattern", '{"q_proj": 5}']
# flags, and the ends of the names of the base's parameters that are trained in full
CASES = {
    "lora": (["--use_rslora", "--init_lora_weights", "gaussian", *PATTERNS], []),
    "dora-dropout": (["--use_dora", "--lora_dropout", "0.1"], []),
    "mica": (["--init_lora_weights", "mica"], []),
    "embeddings": (["--lora_modules_to_save", "embed_tokens"], ["embed_tokens.weight"]),
    "head": (["--lora_modules_to_save", "lm_head"], ["embed_tokens.weight"]),
    "tokens": (["--trainable_token_indices", "6", "5"], []),
    "layer": (["--trainable_parameters", "model.layers.1"], [".layers.1."]),
    "norms": (["--trainable_parameters_regex", "layernorm"], ["layernorm.weight"]),
}


@pytest.mark.parametrize("name", CASES)
def test_what_changes_and_what_is_saved(tiny_model: Path, tmp_path: Path, name: str) -> None:
    flags, whole = CASES[name]
    _, adapter_args, training_args = arguments(tiny_model, *flags)
    base, model = load(tiny_model), load(tiny_model)
    adapted = add_adapter(model, adapter_args, training_args)
    start = logits(adapted)
    # Whatever an adapter begins with, training begins from the base.
    torch.testing.assert_close(start, logits(base), atol=1e-4, rtol=1e-4)
    before = {key: parameter.detach().clone() for key, parameter in adapted.named_parameters()}
    train(adapted)
    changed = {key for key, parameter in adapted.named_parameters() if not torch.equal(parameter, before[key])}
    trained = {key for key, parameter in adapted.named_parameters() if parameter.requires_grad}
    assert changed == trained
    assert all("lora_" in key or "modules_to_save" in key or "trainable_tokens" in key for key in trained)
    full = [key.replace(".modules_to_save.default", "") for key in trained if "modules_to_save" in key]
    assert bool(full) is bool(whole) and all(any(part in key for part in whole) for key in full), full
    end = logits(adapted)
    assert (end - start).abs().max() > 0.5

    adapted.save_pretrained(tmp_path)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="Found missing adapter keys")
        again = PeftModel.from_pretrained(load(tiny_model), tmp_path).eval()
    torch.testing.assert_close(logits(again), end, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(logits(again.merge_and_unload(safe_merge=True)), end, atol=1e-4, rtol=1e-4)


def test_tied_embeddings_stay_one_matrix(tiny_model: Path) -> None:
    """The head must follow the embeddings in training: the tiny model has one matrix for both."""
    for name in ("embed_tokens", "lm_head"):
        _, adapter_args, training_args = arguments(tiny_model, "--lora_modules_to_save", name)
        adapted = add_adapter(load(tiny_model), adapter_args, training_args)
        train(adapted)
        base = adapted.get_base_model()
        assert torch.equal(base.lm_head.weight, base.model.embed_tokens.weight)


@pytest.mark.parametrize(
    "flags, modules",
    [
        ([], {f"{layer}.{name}" for layer in "01" for name in LINEAR}),
        (["--target_modules", "q_proj,v_proj"], {"0.q_proj", "0.v_proj", "1.q_proj", "1.v_proj"}),
        (["--target_regex", r"model\.layers\.0\..*(q|v)_proj"], {"0.q_proj", "0.v_proj"}),
        (["--target_regex", r".*layers\.1.*"], {f"1.{name}" for name in LINEAR}),
        (["--exclude_modules", "mlp.down_proj,q_proj,v_proj,k_proj,gate_proj,up_proj"], {"0.o_proj", "1.o_proj"}),
        (["--target_modules", "lm_head"], None),
    ],
)  # fmt: skip
def test_targets(tiny_model: Path, flags: list[str], modules: set[str] | None) -> None:
    _, adapter_args, training_args = arguments(tiny_model, *flags)
    if modules is None:
        with pytest.raises(ArgumentError, match="are one matrix"):
            add_adapter(load(tiny_model), adapter_args, training_args)
        return
    adapted = add_adapter(load(tiny_model), adapter_args, training_args)
    names = [key.split(".lora_A")[0].split(".") for key, _ in adapted.named_parameters() if "lora_A" in key]
    assert {f"{parts[parts.index('layers') + 1]}.{parts[-1]}" for parts in names} == modules


@pytest.mark.parametrize(
    "flags, part",
    [
        (["--target_modules", "q_proj,c_attn"], "no module c_attn"),
        (["--target_modules", "proj"], "no module proj"),
        (["--target_regex", "q_proj"], "matches as a whole"),
        (["--target_regex", "(q"], "no regular expression"),
        (["--exclude_modules", "query"], "no module query"),
        (["--lora_modules_to_save", "lm_heads"], "no module lm_heads"),
        (["--trainable_token_indices", "100000"], "no token id"),
        (["--rank_pattern", '{"query": 8}'], "'query' matches no module"),
        (["--rank_pattern", '{"q_proj": 0}'], "no positive numbers"),
        (["--alpha_pattern", "8"], "no positive numbers"),
        (["--lora_bias", "all"], "no biases"),
        (["--lora_target_parameters", "mlp.experts"], "no parameter mlp.experts"),
        (["--trainable_parameters", "model.layers.0.self_attn.q"], None),
        (["--trainable_parameters", "lm_heads"], "no parameter's name begins with it"),
    ],
)
def test_names_that_are_not_there(tiny_model: Path, flags: list[str], part: str | None) -> None:
    _, adapter_args, _ = arguments(tiny_model, *flags)
    if part is None:  # a prefix may end within a name
        assert lora_config(load(tiny_model), adapter_args).modules_to_save == ["model.layers.0.self_attn.q_proj"]
        return
    with pytest.raises(ArgumentError, match=part):
        lora_config(load(tiny_model), adapter_args)


def test_ranks_and_scales(tiny_model: Path) -> None:
    _, adapter_args, training_args = arguments(tiny_model, *PATTERNS, "--use_rslora")
    layer = add_adapter(load(tiny_model), adapter_args, training_args).base_model.model.model.layers[0]
    assert layer.mlp.down_proj.lora_A.default.weight.shape[0] == 6
    assert layer.self_attn.q_proj.scaling["default"] == pytest.approx(5 / 4**0.5)  # alpha / sqrt(r)
    assert layer.mlp.down_proj.scaling["default"] == pytest.approx(16 / 6**0.5)


@pytest.fixture(scope="module")
def tiny_moe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A mixture of four experts, which lie in two parameters of three dimensions."""
    return make_model("qwen3_moe", tmp_path_factory.mktemp("moe"))


@pytest.mark.parametrize(
    "flags",
    [
        ["--target_modules", "none", "--lora_target_parameters", "experts.gate_up_proj"],
        ["--target_modules", "q_proj", "--lora_target_parameters", "mlp.experts.down_proj,mlp.experts.gate_up_proj"],
        [],
    ],
)
def test_experts(tiny_moe: Path, tmp_path: Path, flags: list[str]) -> None:
    _, adapter_args, training_args = arguments(tiny_moe, *flags)
    adapted = add_adapter(load(tiny_moe), adapter_args, training_args)
    before = {key: parameter.detach().clone() for key, parameter in adapted.named_parameters()}
    train(adapted)
    changed = {key for key, parameter in adapted.named_parameters() if not torch.equal(parameter, before[key])}
    assert changed and all("lora_" in key for key in changed)
    assert any("experts" in key for key in changed)
    adapted.save_pretrained(tmp_path)
    again = PeftModel.from_pretrained(load(tiny_moe), tmp_path).eval()
    torch.testing.assert_close(logits(again), logits(adapted))
    assert any("modules with an adapter: " in said and "experts " in said for said in notices())


def test_training_after_an_evaluation_on_a_quantised_base(tiny_model: Path) -> None:
    """On a CPU with AVX512-BF16 bitsandbytes would repack the weights for a kernel without a gradient."""
    model_args, adapter_args, training_args = arguments(tiny_model, "--qlora")
    tokenizer = load_tokenizer(model_args, training_args)
    adapted = add_adapter(
        load_causal_lm(model_args, adapter_args, training_args, tokenizer), adapter_args, training_args
    )

    def gradients() -> dict[str, torch.Tensor]:
        adapted.train()
        adapted.zero_grad()
        adapted(IDS, labels=IDS).loss.backward()
        return {name: p.grad.clone() for name, p in adapted.named_parameters() if p.grad is not None}

    first = gradients()
    adapted.eval()
    logits(adapted)
    again = gradients()
    assert set(first) == set(again) and all(torch.equal(first[name], again[name]) for name in first)
