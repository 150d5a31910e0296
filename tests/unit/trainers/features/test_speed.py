"""Tokens and operations are counted by hand's numbers."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch.overrides import TorchFunctionMode
from transformers import LlamaConfig, LlamaForCausalLM, MixtralConfig, MixtralForCausalLM

from hftune.constants import FILLER
from hftune.trainers.features.speed import Cost, Meter, Speed, lengths_of
from tests.unit.trainers.features import made_up

SIZES: dict[str, Any] = {
    "vocab_size": 50,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "tie_word_embeddings": False,
}
LAYERS = 3 * (16 * 16 * 2 + 16 * 8 * 2 + 3 * 16 * 24)


def test_operations_of_full_training() -> None:
    cost = Cost.of(LlamaForCausalLM(LlamaConfig(**SIZES)))
    assert cost.per_token == 6 * LAYERS  # not the embeddings
    assert cost.per_label == 6 * 50 * 16
    # Three passes of two products, half of them masked, a multiplication and an addition each.
    assert cost.per_square == 3 * 3 * 2 * 2 * 16 / 2


def test_operations_of_an_adapter_and_of_experts() -> None:
    tied: Any = get_peft_model(
        LlamaForCausalLM(LlamaConfig(**{**SIZES, "tie_word_embeddings": True})),
        LoraConfig(r=2, target_modules=["q_proj"]),
    )
    assert Cost.of(tied).per_token == 4 * LAYERS + 6 * 3 * 2 * (16 + 16)
    assert Cost.of(tied).per_label == 4 * 50 * 16
    config = MixtralConfig(**SIZES, num_local_experts=4, num_experts_per_tok=2)
    attention, expert, router = 16 * 16 * 2 + 16 * 8 * 2, 3 * 16 * 24, 16 * 4
    found = Cost.of(MixtralForCausalLM(config)).per_token
    assert found == 6 * 3 * (attention + 2 * expert + router)


@pytest.mark.parametrize(
    ("inputs", "lengths"),
    [
        ({"input_ids": torch.zeros(1, 9), "cu_seq_lens_q": torch.tensor([0, 4, 9])}, [4, 5]),
        ({"input_ids": torch.zeros(2, 3), "attention_mask": torch.tensor([[1, 1, 0], [1, 1, 1]])}, [2, 3]),
        ({"input_ids": torch.zeros(2, 3)}, [3, 3]),
        ({"prompts": ["a"]}, None),
    ],
)
def test_tokens_of_batches(inputs: dict[str, Any], lengths: list[int] | None) -> None:
    found = lengths_of(inputs)
    assert (None if found is None else found.tolist()) == lengths


def test_a_meter_starts_anew_when_it_is_read() -> None:
    class Alone:
        def reduce(self, sums: torch.Tensor, how: str) -> torch.Tensor:
            return sums

    meter = Meter(torch.device("cpu"))
    meter.add({"prompts": ["a"]})
    assert meter.began is None
    meter.add({"input_ids": torch.zeros(2, 3)})
    meter.add({"input_ids": torch.zeros(1, 4), "labels": torch.tensor([[-100, -100, 5, 6]])})
    meter.add({"input_ids": torch.zeros(1, 4), "answer_ids": torch.tensor([4, 5, 6])})
    meter.add({"input_ids": torch.zeros(2, 3), FILLER: torch.tensor([[False] * 3, [True] * 3])})
    counts, of_data, seconds = meter.take(Alone())
    assert counts == (20, 4 * 9 + 16 + 16, 2 + 3) and of_data == 17 and seconds > 0
    assert Cost(2.0, 10.0, 0.5).of_batches(*counts) == 2 * 20 + 10 * 5 + 0.5 * 68
    assert meter.began is None and meter.all_tokens == 20 and not meter.sums.any()


def test_an_evaluation_between_two_logs_is_no_training() -> None:
    speed, run = Speed(), made_up.run()
    speed.before_step(run, None, {"input_ids": torch.zeros(2, 3)})
    speed.before_evaluate(run)
    time.sleep(0.2)
    speed.after_evaluate(run, {}, "eval")
    speed.before_log(run, logs := {"loss": 1.0})
    assert logs["tokens_per_second"] > 6 / 0.2


class OneDevice(TorchFunctionMode):
    """What a GPU insists on and the meta device does not: sums are added to from where they are."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", "") in ("__iadd__", "add_"):
            assert args[0].device == args[1].device
        return func(*args, **(kwargs or {}))


def test_a_meter_on_another_device_takes_batches_that_are_not_there_yet() -> None:
    """Streams give batches on the CPU, which the Trainer's own step moves later."""
    meter = Meter(torch.device("meta"))
    with OneDevice():
        meter.add({"input_ids": torch.zeros(2, 3)})
    assert meter.began is not None and meter.sums.device.type == "meta"
