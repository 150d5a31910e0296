"""DeepSpeed's engine at stage 0 in float32, of which only the parts that are asked are made up."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from hftune.trainers.features.gradient_norms import GradientNorms, clip_and_remember
from tests.unit.trainers.features import made_up


@pytest.fixture(autouse=True)
def one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """DeepSpeed's own clipping asks the process group; torch's is the same for one process."""

    def clip(parameters: Any, max_norm: float, mpu: Any) -> torch.Tensor:
        return torch.nn.utils.clip_grad_norm_(parameters, max_norm)

    monkeypatch.setattr("deepspeed.runtime.utils.clip_grad_norm_", clip)


class Engine:
    """What is asked of DeepSpeed's."""

    mpu = None

    def __init__(self) -> None:
        self.module = torch.nn.Linear(2, 1, bias=False)
        self.module.weight.grad = torch.tensor([[3.0, 4.0]])

    def gradient_clipping(self) -> float:
        return 1.0

    def clip_fp32_gradients(self) -> None:
        raise AssertionError("replaced")


def test_the_norm_is_kept_and_gradients_are_clipped() -> None:
    engine: Any = Engine()
    clip_and_remember(engine)
    assert engine._global_grad_norm == pytest.approx(5.0)
    assert engine.module.weight.grad.norm() == pytest.approx(1.0, abs=1e-4)


def test_the_engine_clips_with_it() -> None:
    run = made_up.run(is_deepspeed_enabled=True, args={"zero_stage": 0})
    engine: Any = Engine()
    for _ in range(2):
        GradientNorms().before_step(run, engine, {})
    engine.clip_fp32_gradients()
    assert engine._global_grad_norm == pytest.approx(5.0)


@pytest.mark.parametrize(("training", "same"), [(True, False), (False, True)])
def test_a_trained_loss_is_no_output_of_the_model(training: bool, same: bool) -> None:
    run = made_up.run(is_deepspeed_enabled=True, args={"zero_stage": 0}, model=SimpleNamespace(training=training))
    loss = torch.tensor(2.0)
    found = GradientNorms().after_loss(run, loss, None)
    assert (found is loss) is same and found == loss
