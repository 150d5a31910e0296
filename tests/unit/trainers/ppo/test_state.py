"""What PPO keeps next to the policy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from hftune.errors import ArgumentError
from hftune.trainers.ppo import state
from hftune.trainers.ppo.critic import Critic
from hftune.trainers.ppo.state import PPOState
from tests.unit.trainers.features import made_up


def run_with(policy: Any = None) -> Any:
    return made_up.run(model=policy, args={"beta": 0.1, "kl_target": 6.0, "kl_horizon": 100, "should_save": True})


def test_the_coefficient_is_restored(tmp_path: Path) -> None:
    first, second = PPOState(), PPOState()
    for feature in (first, second):
        feature.on_built(run_with())
    assert first.controller is not None and second.controller is not None
    first.controller.beta = 0.7
    second.load_state(run_with(), first.state(run_with()))
    assert second.controller.beta == 0.7
    with pytest.raises(ArgumentError, match="was not written by PPO"):
        second.load_state(run_with(), {})


def test_policy_and_critic_are_saved_separately(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """With DeepSpeed both come gathered in one; without, the critic has its own."""
    policy = torch.nn.Module()
    policy.critic = Critic(2, torch.float32)
    saved: list[Any] = []
    monkeypatch.setattr(state, "save_critic", lambda critic, folder, tensors: saved.append((folder, {*tensors})))
    monkeypatch.setattr(state, "load_critic", lambda critic, folder: saved.append(folder))
    feature, run = PPOState(), run_with(policy)
    weights = {"lm_head": torch.ones(1), "critic.head.weight": torch.ones(1)}
    assert {*feature.own_weights(weights)} == {"lm_head"}
    for names in ({"head.weight"}, {"head.weight", "head.bias"}):
        with feature.saving_weights(run, tmp_path):
            assert "critic" not in policy._modules
        assert saved.pop() == (tmp_path, names)
    with feature.loading_weights(run, "folder"):
        assert "critic" not in policy._modules
    with feature.loading_weights(run, None):
        pass
    assert saved == ["folder"] and "critic" in policy._modules
