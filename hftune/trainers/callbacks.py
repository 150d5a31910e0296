"""Callbacks that a run names: early stopping, the user's own, and `--eval_tasks`."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from transformers import EarlyStoppingCallback, TrainerCallback

from hftune import child_processes
from hftune.arguments.data import DataArguments
from hftune.arguments.training import StageArguments
from hftune.distributed import phases, ranks
from hftune.logging import notice
from hftune.opening.files import MIB, read_bytes
from hftune.opening.json_file import parse_json
from hftune.preflight.rules.callbacks import callback_class

# A process that no launcher has started, whatever has started this one.
_ALONE = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"}
_LAUNCHED = ("MASTER_ADDR", "MASTER_PORT")
_RESULTS = "evaluation.json"
_SHARE = 0.9


class CheckpointTasks(TrainerCallback):
    """Evaluates each checkpoint by `hftune evaluate` in a process of its own; all wait, a failure costs no training.

    Args:
        log: The Trainer's `log`.
    """

    def __init__(self, data: DataArguments, training: StageArguments, log: Callable[[dict[str, float]], None]) -> None:
        self.data, self.training, self.log = data, training, log

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The checkpoint is whole; its figures are logged as `tasks/NAME`."""
        phases.enter(phases.EVALUATION)
        found: list[dict[str, float]] = [{}]
        if ranks.is_main():
            found = [self.figures(f"checkpoint-{state.global_step}")]
        if ranks.world_size() > 1:
            torch.distributed.broadcast_object_list(found, src=0)
        if found[0]:
            self.log(found[0])

    def figures(self, checkpoint: str) -> dict[str, float]:
        """What `hftune evaluate` measures; empty, with a notice, where it ends with an error."""
        training, output = self.training, Path(str(self.training.output_dir))
        results = output.with_name(f"{output.name}-tasks") / checkpoint
        command = child_processes.python("-m", "hftune.cli", *self.words(output / checkpoint, results))
        if torch.cuda.is_available():
            # The other process needs what this one's allocator keeps for later.
            torch.cuda.empty_cache()
        # The others wait in a collective, which must not be taken for a hang.
        patience = _SHARE * (training.hang_timeout or training.ddp_timeout)
        try:
            done = child_processes.run(command, env=alone(os.environ), capture_output=True, timeout=patience)
        except child_processes.TimeoutExpired:
            notice(f"{checkpoint} was not evaluated within {patience:.0f} s, a share of --hang_timeout")
            return {}
        if done.returncode:
            said = [line.strip() for line in done.stderr.splitlines() if line.strip()]
            notice(f"{checkpoint} was not evaluated: {'; '.join(said[-3:]) or f'exit code {done.returncode}'}")
            return {}
        found = parse_json(read_bytes(results / _RESULTS, limit=64 * MIB), str(results))
        (figures,) = found["models"].values()
        return {f"tasks/{name}": figure["value"] for name, figure in figures.items()}

    def words(self, checkpoint: Path, results: Path) -> list[str]:
        """The command behind `hftune`."""
        data, training = self.data, self.training
        words = ["evaluate", str(checkpoint), "--eval_tasks", *(training.eval_tasks or [])]
        words += ["--output_dir", str(results)]
        words += ["--overwrite_output_dir", "True", "--trust_remote_code", str(training.trust_remote_code)]
        words += ["--use_cpu", str(training.use_cpu)]
        if data.validation_file_dir:
            words += ["--validation_file_dir", str(data.validation_file_dir)]
        if data.max_eval_samples > 0:
            words += ["--max_eval_samples", str(data.max_eval_samples)]
        return words


def alone(variables: Mapping[str, str]) -> dict[str, str]:
    """The environment of a process that no launcher has started."""
    return {name: value for name, value in variables.items() if name not in _LAUNCHED} | _ALONE


def asked_callbacks(args: StageArguments) -> list[TrainerCallback]:
    """New callbacks for `--early_stopping_patience` and for each of `--callbacks`, in this order."""
    patience = args.early_stopping_patience
    stopping = [EarlyStopping(patience, args.early_stopping_threshold)] if patience else []
    asked = (callback_class(text) for text in args.callbacks or [])
    return [*stopping, *(cls(**given) for cls, given in asked)]


class EarlyStopping(EarlyStoppingCallback):
    """transformers' early stopping, which says that it stops, and counts on where a run was interrupted."""

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Take up the count of a checkpoint, which transformers writes and does not read."""
        super().on_train_begin(args, state, control, **kwargs)
        saved = state.stateful_callbacks.get(type(self).__name__, {})
        self.early_stopping_patience_counter = saved.get("attributes", {}).get("early_stopping_patience_counter", 0)

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Say it once: a run that ends before its last step is a surprise otherwise."""
        before = control.should_training_stop
        super().on_evaluate(args, state, control, **kwargs)
        if control.should_training_stop and not before:
            count, name = self.early_stopping_patience_counter, args.metric_for_best_model
            notice(f"stopped early, at step {state.global_step}: {name} was no better in {count} evaluations")
