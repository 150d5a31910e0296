"""`--eval_tasks`: each checkpoint of a run goes through `hftune evaluate`, in a process of its own."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback

from hftune import child_processes
from hftune.arguments.data import DataArguments
from hftune.arguments.training import StageArguments
from hftune.distributed import phases, ranks
from hftune.logging import notice
from hftune.opening.files import MIB, read_bytes
from hftune.opening.json_file import parse_json

# A process that no launcher has started, whatever has started this one.
_ALONE = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"}
_LAUNCHED = ("MASTER_ADDR", "MASTER_PORT")
_RESULTS = "evaluation.json"
_SHARE = 0.9


class CheckpointTasks(TrainerCallback):
    """Evaluates each checkpoint while all processes wait; a failure costs no training.

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
        words = [
            "evaluate",
            str(checkpoint),
            "--eval_tasks",
            *(training.eval_tasks or []),
            "--output_dir",
            str(results),
        ]
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
