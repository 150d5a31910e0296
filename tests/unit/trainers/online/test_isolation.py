"""The proof that answers behind one prompt are scored as if each stood alone, and what it leads to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from hftune.errors import ArgumentError
from hftune.models.attention import shared_prompts
from hftune.trainers.online.base import is_reference
from tests.unit.trainers.rl_runs import count_even, make_trainer

FLAGS = ("--per_device_train_batch_size", "4", "--num_generations", "2", "--max_completion_length", "4")


def trainer_of(model: Path, folder: Path, *flags: str) -> Any:
    return make_trainer(model, folder, "grpo", count_even, *FLAGS, "--shared_prompts", "True", "--beta", "0.1", *flags)


def test_a_model_that_keeps_answers_apart_passes(tiny_model: Path, tmp_path: Path) -> None:
    trainer = trainer_of(tiny_model, tmp_path)
    trainer.model.train()
    trainer.prove_isolation(trainer.model)
    assert trainer.model.training


def test_one_that_mixes_them_up_is_refused(tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys of a prompt that come from the row's beginning: right for the first prompt alone."""
    trainer = trainer_of(tiny_model, tmp_path)
    whole = shared_prompts.SharedPrompts.with_prompts

    def first_prompt_only(self: Any, states: torch.Tensor, dim: int) -> list[torch.Tensor]:
        return [torch.zeros_like(one) if self.prompts[1:] else one for one in whole(self, states, dim)]

    monkeypatch.setattr(shared_prompts.SharedPrompts, "with_prompts", first_prompt_only)
    with pytest.raises(ArgumentError, match="--shared_prompts"):
        trainer.prove_isolation(trainer.model)


def test_a_reference_is_a_policy_whose_adapter_is_off(tiny_model: Path, tmp_path: Path) -> None:
    trainer = trainer_of(tiny_model, tmp_path, "--use_peft")
    assert not is_reference(trainer.model)
    with trainer.model.disable_adapter():
        assert is_reference(trainer.model)
    assert not is_reference(trainer.model) and not is_reference(trainer.model.get_base_model().model.embed_tokens)


@pytest.mark.parametrize(
    "flags", [(), pytest.param(("--use_peft",), marks=pytest.mark.slow), ("--critic", "shared")], ids=str
)
def test_ppo_reads_shared_rows_as_padded_ones(flags: tuple[str, ...], tiny_model: Path, tmp_path: Path) -> None:
    """The same values, log-probabilities and gradients."""
    found = []
    for shared in ("False", "True"):
        more = ("--shared_prompts", shared, "--beta", "0.05", "--per_device_train_batch_size", "4", *flags)
        made = make_trainer(tiny_model, tmp_path / shared, "ppo", count_even, "--max_completion_length", "5", *more)
        torch.nn.init.normal_(made.critic.head.weight, generator=torch.Generator().manual_seed(1))
        torch.manual_seed(3)
        rows = [{"prompt": made.train_dataset[number % 2]["prompt"]} for number in range(4)]
        batch = made._generate_and_score_completions(rows)
        made._compute_loss(made.model, batch).backward()
        gradients = [one.grad for one in made.model.parameters() if one.grad is not None]
        found.append([batch[name] for name in ("completion_ids", "logps", "values", "advantages")] + gradients)
    assert len(found[0]) == len(found[1]) > 10
    mask = batch["completion_mask"]
    for number, (padded, row) in enumerate(zip(*found, strict=True)):
        both = (padded * mask, row * mask) if 0 < number < 4 else (padded, row)
        torch.testing.assert_close(*both, rtol=1e-3, atol=1e-5)
