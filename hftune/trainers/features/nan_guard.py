"""A loss or a gradient that is NaN or infinite ends a run, before anything broken is saved."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch

from hftune.distributed import ranks, zero
from hftune.errors import UserError
from hftune.logging import notice
from hftune.models.kernels.finite import finite
from hftune.trainers.features.feature import Feature
from hftune.trainers.features.run import Run


class NanGuard(Feature):
    """Ends a run whose loss or gradient is NaN or infinite.

    The Trainer logs the mean of earlier losses in the place of a NaN (`--logging_nan_inf_filter`, off here), which
    reads like a loss of 0 for ever, and saves what such a step has made of the weights.
    """

    def __init__(self) -> None:
        self._losses: list[torch.Tensor] = []
        self._last_norm: float | None = None
        self._broken_before: set[str] = set()
        self._looked_at: int | None = None  # the step whose weights were found whole

    def before_train(self, run: Run, checkpoint: str | None) -> None:
        """What the base came with is not training's doing: a row for a token that nobody uses may hold anything."""
        self._broken_before = set(broken_parameters(run.model, trained=True))

    def after_step(self, run: Run, loss: torch.Tensor) -> None:
        """A loss on an accelerator is looked at when the step ends: looking waits for the device.

        Raises:
            UserError: The loss of this micro batch is NaN or infinite on this rank.
        """
        self._losses.append(loss)
        if loss.device.type == "cpu":
            self._look_at_losses(run, ended=False)

    def on_step_end(self, run: Run, norm: Any) -> None:
        """Stop before a step is logged or saved that had gradients which are NaN or infinite.

        DeepSpeed leaves such steps out in any precision, for ever if need be, and the run would end as if it had
        trained. A loss scale for float16 does so now and then, and is lowered: only then does the run continue.

        Raises:
            UserError: It had.
        """
        self._look_at_losses(run, ended=True)
        norm = None if norm is None else float(norm)
        left_out = bool(run.accelerator.optimizer_step_was_skipped)
        # DeepSpeed writes -1 for a norm that is NaN or infinite.
        broken = left_out or (norm is not None and (norm < 0 or not math.isfinite(norm)))
        # A scale that is too high is expected in float16 at the beginning, and is halved.
        if broken and not (left_out and run.args.fp16):
            raise self._fault(run, "the gradient is not finite")
        self._last_norm = norm

    def before_save(self, run: Run) -> None:
        """A checkpoint is not written of weights that the step just made has broken.

        Raises:
            UserError: A trained weight is NaN or infinite on this rank.
        """
        # A checkpoint saves its weights by themselves as well, and a result has been looked at: once a step is enough.
        if self._looked_at != run.state.global_step:
            self.look_at_weights(run)

    def after_evaluate(self, run: Run, metrics: dict[str, float], prefix: str) -> None:
        """Say that a held-out loss is NaN or infinite."""
        loss = metrics.get(f"{prefix}_loss")
        if loss is not None and not math.isfinite(loss):
            notice(f"{prefix}_loss is {loss} at step {run.state.global_step}")

    def _look_at_losses(self, run: Run, *, ended: bool) -> None:
        """Stop at the first micro batch since the last look whose loss is NaN or infinite; one wait for all of them."""
        seen, self._losses = self._losses, []
        if not seen:
            return
        # One transfer for all micro batches of the step.
        values = torch.stack([loss.float().reshape(()) for loss in seen]).tolist()
        for value in values:
            if not math.isfinite(value):
                raise self._fault(run, f"the loss is {value}", ended=ended)

    def look_at_weights(self, run: Run) -> None:
        """Weights are about to be saved as the result.

        Raises:
            UserError: A trained weight is NaN or infinite on this rank.
        """
        broken = [name for name in broken_parameters(run.model, trained=True) if name not in self._broken_before]
        if broken:
            raise self._fault(run, f"weights are NaN or infinite ({', '.join(broken[:3])})")
        self._looked_at = run.state.global_step

    def _fault(self, run: Run, what: str, *, ended: bool = True) -> UserError:
        # The Trainer counts a step when it has ended.
        begun = run.state.global_step + (0 if ended else 1)
        place = [f"step {begun} of {run.state.max_steps}, rank {ranks.rank()}"]
        place += [f"learning rate {rate:.3g}" for rate in run.lr_scheduler.get_last_lr()[:1]]
        place += [f"gradient norm of the step before {self._last_norm:.3g}"] if self._last_norm is not None else []
        return UserError(
            f"{what}: training has broken down, and nothing was saved of this step",
            place="; ".join(place),
            fix=self._way_out(run),
        )

    def _way_out(self, run: Run) -> str:
        # DeepSpeed has made its step with these gradients already: only what is frozen still tells of the base.
        broken = broken_parameters(run.model, trained=False if run.is_deepspeed_enabled else None)
        if broken and not run.state.global_step and self._last_norm is None:
            return f"the base has weights that are NaN or infinite ({', '.join(broken[:3])}): get it anew"
        lower = "lower --learning_rate, or raise --warmup_steps"
        if run.args.fp16:
            lower = "use --bf16 or float32 instead of --fp16, whose numbers end at 65504; " + lower
        if any(Path(str(run.args.output_dir)).glob("checkpoint-*")):
            return f"{lower}; --resume_from_checkpoint auto resumes from the last checkpoint"
        return lower


def broken_parameters(model: torch.nn.Module, *, trained: bool | None = None) -> list[str]:
    """Names of parameters with a value that is NaN or infinite; of ZeRO-3's, this rank's part is looked at.

    Args:
        trained: Those that are trained, or frozen, alone.
    """
    asked = {name: one for name, one in model.named_parameters() if trained in (None, one.requires_grad)}
    values = {name: zero.local_values(parameter) for name, parameter in asked.items()}
    whole = {name: finite(one) for name, one in values.items() if one.is_floating_point()}
    # A device is waited for once, not for each parameter; those that are offloaded are on another one.
    devices = {one.device for one in whole.values()}
    broken = set()
    for device in devices:
        names = [name for name, one in whole.items() if one.device == device]
        flags = torch.stack([whole[name] for name in names]).tolist()
        broken |= {name for name, flag in zip(names, flags, strict=True) if not flag}
    return [name for name in whole if name in broken]
