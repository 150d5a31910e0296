"""How answers are drawn: the mode of the model, which TRL leaves at training."""

from __future__ import annotations

from pathlib import Path

import pytest
from torch import nn
from transformers import AutoModelForCausalLM

from hftune.trainers.online.base import own_cache_in_eval_mode
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
