"""A loss or a gradient that is NaN or infinite ends a run with one message, and nothing broken is saved."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from hftune import logging
from hftune.errors import UserError
from hftune.trainers.features import nan_guard
from hftune.trainers.features.nan_guard import broken_parameters
from tests.unit.data.helpers import to_dataset
from tests.unit.trainers.tiny import trainer_on

pytestmark = pytest.mark.long

IDS = [[5, 6, 7, 8], [9, 10, 11, 12], [40, 41, 42, 43]]


def trainer_for(stage: str, folder: Path, out: Path, *flags: str) -> Any:
    fixed = ["--packing", "False", "--save_strategy", "steps", "--save_steps", "1", "--max_steps", "3"]
    fixed += ["--per_device_train_batch_size", "1", "--max_grad_norm", "0", "--lr_scheduler_type", "constant"]
    return trainer_on(to_dataset({"input_ids": IDS, "labels": IDS}), stage, folder, out, *fixed, *flags)


def checkpoints(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("checkpoint-*"))


@pytest.mark.parametrize("stage", ["pt", "sft"])
def test_a_base_that_is_broken(stage: str, tiny_model: Path, tmp_path: Path) -> None:
    trainer = trainer_for(stage, tiny_model, tmp_path)
    with torch.no_grad():
        trainer.model.model.layers[1].mlp.up_proj.weight[3, 4] = float("inf")
    with pytest.raises(UserError, match="the loss is nan") as raised:
        trainer.train()
    said = str(raised.value)
    assert "step 1 of 3, rank 0" in said and "learning rate" in said
    assert "the base has weights that are NaN or infinite (model.layers.1.mlp.up_proj.weight)" in said
    assert checkpoints(tmp_path) == []


def test_a_rate_that_is_too_high(tiny_model: Path, tmp_path: Path) -> None:
    trainer = trainer_for("sft", tiny_model, tmp_path, "--learning_rate", "1e30")
    with pytest.raises(UserError, match="step 2 of 3") as raised:
        trainer.train()
    assert "learning rate 1e+30; gradient norm of the step before" in str(raised.value)
    assert "lower --learning_rate" in str(raised.value) and "--resume_from_checkpoint auto" in str(raised.value)
    assert checkpoints(tmp_path) == ["checkpoint-1"]


@pytest.mark.parametrize("norm", [float("nan"), float("inf"), -1.0])
def test_a_gradient_that_is_no_number(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, norm: float
) -> None:
    """The loss of that step is still good; what the step made of the weights is not. DeepSpeed says -1."""
    trainer = trainer_for("pt", tiny_model, tmp_path)
    measured = iter([1.0, norm])
    monkeypatch.setattr(trainer, "_get_grad_norm", lambda *args, **kwargs: next(measured))
    with pytest.raises(UserError, match="the gradient is not finite") as raised:
        trainer.train()
    assert "step 2 of 3" in str(raised.value)
    assert checkpoints(tmp_path) == ["checkpoint-1"]


def breaks_at_its_end(trainer: Any, name: str, step: int) -> None:
    """The optimizer's step of this number makes a weight NaN, and no loss will tell."""
    make = trainer.create_optimizer

    def create(*args: Any) -> Any:
        optimizer = make(*args)
        steps = iter(range(1, 9))

        def after(*args: Any) -> None:
            if next(steps) == step:
                trainer.model.get_parameter(name).data.view(-1)[3] = float("nan")

        optimizer.register_step_post_hook(after)
        return optimizer

    trainer.create_optimizer = create


@pytest.mark.parametrize("name", ["model.embed_tokens.weight", "model.norm.weight"])
def test_weights_that_the_step_before_a_checkpoint_broke(tiny_model: Path, tmp_path: Path, name: str) -> None:
    trainer = trainer_for("pt", tiny_model, tmp_path)
    breaks_at_its_end(trainer, name, 2)
    with pytest.raises(UserError, match=rf"weights are NaN or infinite \({name}\)") as raised:
        trainer.train()
    assert "step 2 of 3" in str(raised.value) and "lower --learning_rate" in str(raised.value)
    assert checkpoints(tmp_path) == ["checkpoint-1"]


def test_weights_that_the_last_step_broke(tiny_model: Path, tmp_path: Path) -> None:
    trainer = trainer_for("sft", tiny_model, tmp_path, "--save_strategy", "no")
    breaks_at_its_end(trainer, "model.norm.weight", 3)
    trainer.train()
    with pytest.raises(UserError, match="weights are NaN or infinite") as raised:
        trainer.before_saving()
    assert "step 3 of 3" in str(raised.value)


def test_weights_are_looked_at_once_a_checkpoint(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer, looks = trainer_for("sft", tiny_model, tmp_path), []
    monkeypatch.setattr(nan_guard, "broken_parameters", lambda model, **which: looks.append(1) or [])
    trainer.train()
    assert len(looks) == 1 + len(checkpoints(tmp_path)) == 4, "what the base came with, and each checkpoint"
    trainer.before_saving()
    trainer.save_model()
    assert len(looks) == 5, "the result, though it is written after that"


def test_what_the_base_came_with_loses_no_step(tiny_model: Path, tmp_path: Path) -> None:
    """A row of a token that no record has: every loss is good, and so is all that was trained."""
    trainer = trainer_for("sft", tiny_model, tmp_path)
    rows = trainer.model.model.embed_tokens  # apart from the head, which would see all of them
    rows.weight = torch.nn.Parameter(rows.weight.detach().clone())
    with torch.no_grad():
        rows.weight[-1] = float("inf")
    trainer.train()
    trainer.before_saving()
    assert checkpoints(tmp_path) == ["checkpoint-1", "checkpoint-2", "checkpoint-3"]
    with torch.no_grad():
        trainer.model.model.norm.weight[0] = float("nan")
    with pytest.raises(UserError, match=r"weights are NaN or infinite \(model.norm.weight\)"):
        trainer.before_saving()


def test_a_frozen_weight_is_the_base_s_own_affair(tiny_model: Path, tmp_path: Path) -> None:
    """Rows of an embedding that nobody uses may hold anything."""
    trainer = trainer_for("sft", tiny_model, tmp_path)
    trainer.model.model.norm.weight.requires_grad_(False)
    with torch.no_grad():
        trainer.model.model.norm.weight[0] = float("inf")
    assert list(broken_parameters(trainer.model)) == ["model.norm.weight"]
    assert list(broken_parameters(trainer.model, trained=False)) == ["model.norm.weight"]
    assert list(broken_parameters(trainer.model, trained=True)) == []
    trainer.before_saving()


@pytest.mark.parametrize("half", [True, False])
def test_a_step_that_is_left_out(tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, half: bool) -> None:
    """float16's loss scale is lowered after an overflow; in other precisions DeepSpeed leaves out all that follow."""
    trainer = trainer_for("pt", tiny_model, tmp_path, "--save_strategy", "no")
    trainer.args.fp16 = half
    monkeypatch.setattr(trainer, "_get_grad_norm", lambda *args, **kwargs: float("inf") if half else 1.0)
    monkeypatch.setattr(type(trainer.accelerator), "optimizer_step_was_skipped", True)
    if half:
        trainer.train()
    else:
        with pytest.raises(UserError, match="the gradient is not finite"):
            trainer.train()


def test_a_held_out_loss_is_said(tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = trainer_for("sft", tiny_model, tmp_path)
    monkeypatch.setattr(logging, "_notices", [])
    with torch.no_grad():
        trainer.model.model.norm.weight.fill_(float("nan"))
    trainer.evaluate()
    assert logging.notices() == ["eval_loss is nan at step 0"]
