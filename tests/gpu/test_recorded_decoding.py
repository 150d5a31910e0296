"""Decoding steps recorded as CUDA graphs draw what transformers draws."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, BitsAndBytesConfig

from hftune.models import recorded_decoding
from hftune.models.decoding import decoding_together
from tests.unit.models.test_decoding import OPTIONS, config, drawn, prompts, tiny
from tests.unit.models.test_recorded_decoding import cast_to_bfloat16

pytestmark = pytest.mark.gpu


def on_gpu(model_type: str) -> tuple[Any, dict[str, torch.Tensor]]:
    torch.backends.cuda.matmul.allow_tf32 = False
    return tiny(model_type).cuda(), {name: tensor.cuda() for name, tensor in prompts().items()}


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A number for each recording that was made."""
    made: list[int] = []
    record = recorded_decoding.record

    def noted(run: Any) -> Any:
        made.append(len(made))
        return record(run)

    monkeypatch.setattr(recorded_decoding, "record", noted)
    return made


@pytest.mark.parametrize("options", OPTIONS, ids=["plain", "top_k", "repetition", "greedy"])
@pytest.mark.parametrize("model_type", ["llama", "qwen3", "gpt2", "gemma", "olmo2"])
def test_draws_what_transformers_draws(model_type: str, options: dict[str, Any], recorded: list[int]) -> None:
    model, given = on_gpu(model_type)
    # The exponential numbers of multinomial differ between devices, not between these two loops.
    expected = drawn(model, given, config(**options))
    with decoding_together(model, torch.float32):
        assert torch.equal(drawn(model, given, config(**options)), expected)
    assert recorded


def test_several_recordings_one_after_the_other(recorded: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorded_decoding, "ROOM", 5)
    model, given = on_gpu("llama")
    options = config(max_new_tokens=40)
    expected = drawn(model, given, options)
    with decoding_together(model, torch.float32):
        assert torch.equal(drawn(model, given, options), expected)
    assert len(recorded) == 7


def test_an_adapter_that_was_trained_meanwhile_is_used(recorded: list[int]) -> None:
    base, given = on_gpu("llama")
    model = get_peft_model(base, LoraConfig(r=4, target_modules="all-linear", init_lora_weights=False)).eval()
    plain = model.get_base_model()
    for _ in range(2):
        expected = drawn(model, given, config())
        with decoding_together(plain, torch.float32):
            assert torch.equal(drawn(model, given, config()), expected)
        with torch.no_grad():
            for name, weight in model.named_parameters():
                if "lora_" in name:
                    weight.add_(0.3)
    assert len(recorded) == 2


def test_float32_weights_under_autocast(recorded: list[int]) -> None:
    """As weights are trained in full: keys come in float32, and values in 16 bits."""
    model, given = on_gpu("llama")
    cast_to_bfloat16(model)
    greedy = config(do_sample=False, max_new_tokens=30)
    expected = drawn(model, given, greedy)
    with decoding_together(model, torch.float32):
        found = drawn(model, given, greedy)
    assert recorded and (found == expected).float().mean() > 0.5


def test_a_base_in_4_bits(recorded: list[int], tmp_path: Path) -> None:
    tiny("llama").save_pretrained(tmp_path)
    four = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_compute_dtype=torch.float32)
    base = AutoModelForCausalLM.from_pretrained(tmp_path, quantization_config=four, device_map={"": 0})
    base = base.eval()
    given = {name: tensor.cuda() for name, tensor in prompts().items()}
    model = get_peft_model(base, LoraConfig(r=4, target_modules="all-linear", init_lora_weights=False)).eval()
    expected = drawn(model, given, config())
    with decoding_together(model.get_base_model(), torch.float32):
        assert torch.equal(drawn(model, given, config()), expected)
    assert recorded


def test_bfloat16_says_nearly_the_same(recorded: list[int]) -> None:
    model, given = on_gpu("llama")
    model = model.bfloat16()
    greedy = config(do_sample=False, max_new_tokens=30)
    expected = drawn(model, given, greedy)
    with decoding_together(model, torch.float32):
        found = drawn(model, given, greedy)
    assert recorded and (found == expected).float().mean() > 0.5


def test_what_cannot_be_recorded_is_drawn_without(recorded: list[int]) -> None:
    """A wait for the GPU ends a recording; all that follows must still work, random numbers above all."""
    model, given = on_gpu("llama")
    expected = drawn(model, given, config())
    waits = model.model.norm.register_forward_hook(lambda module, args, output: output * (output.sum().item() * 0 + 1))
    with decoding_together(model, torch.float32):
        assert torch.equal(drawn(model, given, config()), expected)
    waits.remove()
    assert recorded == [0]
    assert torch.rand(4, device="cuda").isfinite().all()
    with decoding_together(model, torch.float32):
        assert torch.equal(drawn(model, given, config()), expected)
