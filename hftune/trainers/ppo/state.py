"""What PPO keeps in addition to the policy: the critic next to its weights, and the KL coefficient in checkpoints."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from hftune.errors import ArgumentError
from hftune.trainers.features.feature import Feature
from hftune.trainers.features.run import Run
from hftune.trainers.ppo.critic import FOLDER, detached, load_critic, save_critic
from hftune.trainers.ppo.maths import KLController


class PPOState(Feature):
    """What is saved is the policy, a model like any other.

    Attributes:
        controller: Made with the trainer.
    """

    def __init__(self) -> None:
        self.controller: KLController | None = None
        self._gathered: dict[str, torch.Tensor] | None = None  # the critic's part of what is being saved

    def on_built(self, run: Run) -> None:
        """The arguments are there."""
        self.controller = KLController(run.args.beta, run.args.kl_target, run.args.kl_horizon)

    def state(self, run: Run) -> dict[str, Any]:
        """The KL coefficient."""
        assert self.controller is not None
        return {"beta": self.controller.beta}

    def load_state(self, run: Run, saved: dict[str, Any]) -> None:
        """Restore the KL coefficient.

        Raises:
            ArgumentError: The checkpoint has none.
        """
        assert self.controller is not None
        if "beta" not in saved:
            raise ArgumentError(
                "the checkpoint was not written by PPO, or by an earlier version",
                place="--resume_from_checkpoint",
                fix="resume with the algorithm that wrote it",
            )
        self.controller.beta = float(saved["beta"])

    def own_weights(self, weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """The policy's alone; DeepSpeed has gathered the critic's with them."""
        # As the child is called in the policy: DeepSpeed gathers all in one.
        begins = f"{FOLDER}."
        self._gathered = {name.removeprefix(begins): t for name, t in weights.items() if name.startswith(begins)}
        return {name: tensor for name, tensor in weights.items() if not name.startswith(begins)}

    @contextmanager
    def saving_weights(self, run: Run, folder: Path) -> Iterator[None]:
        """Save the policy without its critic, and that in a folder of its own."""
        # Without DeepSpeed nothing was gathered, and the critic has all of its tensors.
        state, self._gathered = self._gathered, None
        with detached(run.model) as critic:
            yield
            if run.args.should_save:
                save_critic(critic, folder, dict(critic.state_dict()) if state is None else state)

    @contextmanager
    def loading_weights(self, run: Run, checkpoint: str | None) -> Iterator[None]:
        """Load the policy without its critic; the best weights are the policy's alone."""
        with detached(run.model) as critic:
            yield
            if checkpoint is not None:
                load_critic(critic, checkpoint)
