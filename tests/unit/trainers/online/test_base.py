"""How answers are drawn: the mode of the model, which TRL leaves at training."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM

from hftune.trainers.online.base import OnlineTrainer, own_cache_in_eval_mode
from tests.conftest import tiny_tokenizer
from tests.table.tiny import tiny_config
from tests.unit.trainers.rl_runs import logged, make_trainer


def count_even(completion_ids: list[list[int]], **_: object) -> list[float]:
    """The share of even token ids."""
    return [sum(token % 2 == 0 for token in ids) / len(ids) for ids in completion_ids]


@pytest.mark.parametrize("method", ["full", "lora"])
def test_a_model_with_a_cache_of_its_own_make_draws_answers(method: str, tmp_path: Path) -> None:
    """Reformer refuses its cache in training mode, in which TRL samples."""
    tokenizer = tiny_tokenizer()
    config = tiny_config("reformer")
    config.vocab_size, config.eos_token_id, config.pad_token_id = len(tokenizer), tokenizer.eos_token_id, 0
    for part in (AutoModelForCausalLM.from_config(config), tokenizer):
        part.save_pretrained(tmp_path / "reformer")
    flags = ("--per_device_train_batch_size", "4", "--max_completion_length", "4", "--num_generations", "2")
    flags += ("--max_steps", "2", "--use_peft", str(method == "lora"))
    trainer = make_trainer(tmp_path / "reformer", tmp_path / "out", "grpo", count_even, *flags)
    trainer.train()
    assert len(logged(trainer, "reward")) == 2
    assert trainer.model.training and "generate" not in vars(trainer.accelerator.unwrap_model(trainer.model))


@pytest.mark.parametrize("algorithm", ["rloo", "online_dpo"])
@pytest.mark.parametrize("bf16", [False, True])
def test_the_old_policy_in_16_bits_is_what_a_pass_over_whole_answers_says(
    bf16: bool, algorithm: str, tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights are in float32 either way. What was said while drawing is another thing, rounded otherwise."""
    taken: list[bool] = []
    known = OnlineTrainer.drawn_log_probs
    monkeypatch.setattr(
        OnlineTrainer, "drawn_log_probs", lambda *args: taken.append((said := known(*args)) is not None) or said
    )
    flags = ("--per_device_train_batch_size", "4", "--max_completion_length", "8", "--num_generations", "2")
    flags += ("--max_steps", "1", "--learning_rate", "0", "--bf16", str(bf16))
    trainer = make_trainer(tiny_model, tmp_path / "out", algorithm, count_even, *flags)
    trainer.train()
    assert taken == [not bf16]
    assert next(trainer.model.parameters()).dtype == torch.float32
    if algorithm == "rloo":
        assert logged(trainer, "clip_ratio/region_mean") == [0.0], "the first step is on the policy that has drawn"


class Answering(nn.Module):
    """Tells the mode in which it is asked, of itself and of a part that is kept from training mode."""

    def __init__(self) -> None:
        super().__init__()
        self.kept = nn.Dropout().eval()

    def generate(self) -> tuple[bool, bool]:
        """The mode of both."""
        return self.training, self.kept.training


class WithOwnCache(Answering):
    """Its cache has a name of its own."""

    def forward(self, past_buckets_states: object = None) -> None:
        """Never called."""


class WithUsualCache(Answering):
    """Its cache is transformers' own."""

    def forward(self, past_key_values: object = None) -> None:
        """Never called."""


def test_others_draw_as_in_trl_and_all_are_left_as_they_were() -> None:
    for model, mode in ((WithOwnCache(), False), (WithUsualCache(), True)):
        with own_cache_in_eval_mode(model):
            assert model.generate() == (mode, False)
            assert (model.training, model.kept.training) == (True, False)
        assert "generate" not in vars(model)
