"""DeepSpeed's engine at stage 0 in float32, of which only the parts that are asked are made up."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from hftune.distributed import phases
from hftune.trainers.features.engine import clip_and_remember, prepare_engine, quantisation_hidden


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

    def step(self, given: int) -> int:
        return given

    def gradient_clipping(self) -> float:
        return 1.0

    def clip_fp32_gradients(self) -> None:
        raise AssertionError("DeepSpeed's own")


def test_the_norm_is_kept_and_gradients_are_clipped() -> None:
    engine: Any = Engine()
    clip_and_remember(engine)
    assert engine._global_grad_norm == pytest.approx(5.0)
    assert engine.module.weight.grad.norm() == pytest.approx(1.0, abs=1e-4)


@pytest.mark.parametrize("stage", [0, 2])
def test_the_engine_reports_its_steps_and_clips_with_it(stage: int) -> None:
    engine: Any = Engine()
    for _ in range(2):
        prepare_engine(engine, SimpleNamespace(ds_resolved={}, zero_stage=stage))  # type: ignore[arg-type]  # made up
    phases.enter(phases.BACKWARD)
    before = phases.now().count
    assert engine.step(3) == 3 and (phases.now().name, phases.now().count) == (phases.OPTIMIZER, before + 1)
    if stage:
        with pytest.raises(AssertionError, match="DeepSpeed's own"):
            engine.clip_fp32_gradients()
    else:
        engine.clip_fp32_gradients()
        assert engine._global_grad_norm == pytest.approx(5.0)


@pytest.mark.parametrize("bits", [4, 8])
def test_that_a_base_is_quantised_is_hidden_inside_and_back_after_an_error(bits: int) -> None:
    model = SimpleNamespace(**{f"is_loaded_in_{bits}bit": True})
    with pytest.raises(KeyError), quantisation_hidden(model):
        assert not getattr(model, f"is_loaded_in_{bits}bit")
        raise KeyError
    assert vars(model) == {f"is_loaded_in_{bits}bit": True}, "and nothing else was set"
