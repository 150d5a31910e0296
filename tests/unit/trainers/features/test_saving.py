"""Weights as any other tool reads them, without a pickle of the arguments, and back into a model."""

from __future__ import annotations

import pickle
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from hftune import logging
from hftune.trainers.features import saving
from tests.unit.trainers.features import made_up


def test_exported_weights_go_back_into_the_model() -> None:
    model = nn.Linear(2, 1)
    model.bias.requires_grad_(False)
    assert saving.load_exported(model, {"weight": torch.tensor([[1.0, 2.0]], dtype=torch.float64)}) == []
    assert model.weight.tolist() == [[1.0, 2.0]] and model.weight.dtype == torch.float32
    assert saving.load_exported(model, {"bias": torch.tensor([5.0])}) == ["weight"] and model.bias.tolist() == [5.0]


def test_the_best_weights_come_back_under_deepspeed(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(saving, "tensors_by_parameter", lambda model, best: asked.append(best) or {})
    run = made_up.run(model=nn.Linear(1, 1), is_deepspeed_enabled=True)
    run.state.best_model_checkpoint = "best"
    assert saving.load_best(run) is True and asked == [Path("best")]
    assert "best lacks 2 trained tensors (weight, ...)" in "\n".join(map(str, logging._notices))


def test_no_secret_is_written_even_for_a_moment(tmp_path: Path) -> None:
    run = made_up.run(args={"hub_token": "hf_secret", "should_save": True})
    args = run.args
    with saving.no_pickled_arguments(run, tmp_path):
        assert run.args.hub_token == "hf_secret", "the Trainer still uses them"
        torch.save(run.args, tmp_path / "training_args.bin")
        assert b"hf_secret" not in (tmp_path / "training_args.bin").read_bytes()
        assert "hftune.json" in pickle.loads(pickle.dumps(run.args))
    assert run.args is args and not (tmp_path / "training_args.bin").exists()


def test_a_process_that_does_not_save_removes_nothing(tmp_path: Path) -> None:
    (tmp_path / "training_args.bin").write_text("another process is at it")
    run = made_up.run(args={"should_save": False})
    with saving.no_pickled_arguments(run, tmp_path):
        pass
    assert (tmp_path / "training_args.bin").exists()


def test_arguments_come_back_after_an_error(tmp_path: Path) -> None:
    run = made_up.run(args=vars(SimpleNamespace(should_save=True)))
    args = run.args
    with pytest.raises(KeyError), saving.no_pickled_arguments(run, tmp_path):
        raise KeyError
    assert run.args is args
