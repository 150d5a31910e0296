"""How answers are drawn: the mode of the model, which TRL leaves at training."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from hftune.trainers.online.base import OnlineTrainer
from tests.unit.trainers.rl_runs import count_even, logged, make_trainer


@pytest.mark.parametrize(
    ("bf16", "algorithm"),
    [
        (False, "rloo"),
        (True, "online_dpo"),
        *(pytest.param(*more, marks=pytest.mark.slow) for more in ((True, "rloo"), (False, "online_dpo"))),
    ],
)
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
