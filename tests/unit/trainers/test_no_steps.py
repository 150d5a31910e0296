"""A run without a step is an error, before training where the loader's length says so, and at its end in any case."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from hftune import stage
from hftune.errors import DataError, UserError
from tests.unit.trainers.features.test_phases import ROWS, stage_trainer

pytestmark = pytest.mark.long

FEW = ("--per_device_train_batch_size", str(ROWS + 1), "--dataloader_drop_last", "True")


@pytest.mark.parametrize(
    "stage", [("pt", "--max_steps", "2"), ("rm", "--reward_kind", "process"), ("dpo", "--num_train_epochs", "0.01")]
)
def test_records_that_fill_no_batch(stage: tuple[str, ...], tiny_model: Path, tmp_path: Path) -> None:
    trainer = stage_trainer(stage[0], tiny_model, tmp_path, *stage[1:], *FEW)
    with pytest.raises(DataError) as error:
        trainer.train()
    assert f"{ROWS} training records fill no batch of {ROWS + 1}" in str(error.value)
    assert "--dataloader_drop_last" in str(error.value) and not [*tmp_path.glob("checkpoint-*")]


def test_no_step_is_no_result() -> None:
    with pytest.raises(UserError, match="no step was trained"):
        stage.check_trained(0)


def test_a_run_that_has_all_its_steps_goes_on_to_its_end(tiny_model: Path, tmp_path: Path) -> None:
    """Nothing is left to train, which `report_nothing_left` says: it has steps behind it."""
    first = stage_trainer("sft", tiny_model, tmp_path, "--max_steps", "2", "--save_strategy", "steps")
    first.train()
    checkpoint = str(tmp_path / "checkpoint-2")
    again = stage_trainer("sft", tiny_model, tmp_path, "--max_steps", "2", "--save_strategy", "steps")
    again.train(resume_from_checkpoint=checkpoint)
    stage.check_trained(again.state.global_step)
    assert again.state.global_step == 2
    for name, tensor in first.model.state_dict().items():
        assert torch.equal(tensor, again.model.state_dict()[name])
