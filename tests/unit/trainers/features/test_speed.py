"""Tokens and operations are counted by hand's numbers."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM, MixtralConfig, MixtralForCausalLM

from hftune.constants import FILLER
from hftune.trainers.features.speed import Cost, Speed, lengths_of
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


def test_what_is_counted_since_the_last_log(monkeypatch: pytest.MonkeyPatch) -> None:
    speed, run, clock = Speed(), made_up.run(), iter([100.0, 104.0])
    monkeypatch.setattr(time, "perf_counter", lambda: next(clock))
    speed.before_step(run, None, {"prompts": ["a"]})
    speed.before_step(run, None, {"input_ids": torch.zeros(2, 3)})
    speed.before_step(run, None, {"input_ids": torch.zeros(1, 4), "labels": torch.tensor([[-100, -100, 5, 6]])})
    speed.before_step(run, None, {"input_ids": torch.zeros(1, 4), "answer_ids": torch.tensor([4, 5, 6])})
    fills = torch.tensor([[False] * 3, [True] * 3])
    speed.before_step(run, None, {"input_ids": torch.zeros(2, 3), FILLER: fills})
    assert speed._sums is not None
    totals = [total for total, _ in speed._sums.totals(run.accelerator).values()]
    assert totals == [20, 4 * 9 + 16 + 16, 2 + 3, 17] and speed.trained_tokens(run) == 5
    assert Cost(2.0, 10.0, 0.5).of_batches(*totals[:3]) == 2 * 20 + 10 * 5 + 0.5 * 68
    assert speed.state(run) == {"tokens_read": 17, "labels": 5}
    speed.before_log(run, logs := {"loss": 1.0})
    assert (
        logs["tokens_per_second"] == 5.0 and speed.tokens == 17 and speed.state(run) == {"tokens_read": 17, "labels": 5}
    )
    resumed = Speed()
    resumed.load_state(run, speed.state(run))
    assert (resumed.tokens, resumed.trained_tokens(run)) == (17, 5)
    speed.before_log(run, end := {"loss": 1.0, "train_runtime": 2.0})
    assert "tokens_per_second" not in end and end["train_tokens_per_second"] == 10.0


def test_an_evaluation_between_two_logs_is_no_training() -> None:
    speed, run = Speed(), made_up.run()
    speed.before_step(run, None, {"input_ids": torch.zeros(2, 3)})
    speed.before_evaluate(run)
    time.sleep(0.2)
    speed.after_evaluate(run, {}, "eval")
    speed.before_log(run, logs := {"loss": 1.0})
    assert logs["tokens_per_second"] > 6 / 0.2


def test_processes_that_share_rows_or_matrices() -> None:
    """Two share matrices and see the same; two pairs share rows: each its own tokens and labels, and all lengths."""
    labels = torch.tensor([[5, -100]])
    inputs = {"input_ids": torch.zeros(1, 2), "shift_labels": labels, "cu_seq_lens_q": torch.tensor([0, 4])}
    run = made_up.run(args={"world_size": 4, "tensor_parallel_size": 2, "data_parallel_size": 1})
    run.accelerator = SimpleNamespace(reduce=lambda value, how: 4 * value)
    speed = Speed()
    speed.before_step(run, None, inputs)
    assert speed._totals(run) == {"tokens": 4, "squares": 16, "labels": 2, "of_data": 4}
