"""A profile of some steps: a trace for a viewer, and a table to read at once.

`output_dir/profile/trace-rank0.json.gz` opens in Perfetto or chrome://tracing; `operators-rank0.txt` lists what cost
most, by operator and, under it, by operator and shape.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from hftune.distributed import ranks
from hftune.logging import get_logger, notice
from hftune.trainers.features.feature import Feature
from hftune.trainers.features.run import Run

FOLDER = "profile"
ROWS = 40


class Profiling(Feature):
    """For `--profile`."""

    def on_built(self, run: Run) -> None:
        """The Trainer's own callbacks see the beginning and the end of a step."""
        run.add_callback(ProfileSteps(run.args.profile_step_start, run.args.profile_step_end))


class ProfileSteps(TrainerCallback):
    """Profiles the steps `first` to `last` of those that this process takes, counted from 1."""

    def __init__(self, first: int, last: int) -> None:
        self.first, self.last = first, last
        self.taken = 0
        self.profiler: profile | None = None

    def on_step_begin(self, *args: Any, **kwargs: Any) -> None:
        """Start before the first step that is profiled."""
        self.taken += 1
        if self.taken == self.first:
            devices = [ProfilerActivity.CUDA] if torch.cuda.is_available() else []
            self.profiler = profile(
                activities=[ProfilerActivity.CPU, *devices], record_shapes=True, profile_memory=True, acc_events=True
            )
            self.profiler.__enter__()

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Write after the last one."""
        if self.profiler is not None and self.taken == self.last:
            self._write(args)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """A run that ends sooner has the profile of what there was."""
        if self.profiler is not None:
            self._write(args)
        elif self.taken < self.first:
            notice(f"nothing was profiled: --profile_step_start is {self.first}, and {self.taken} steps were taken")

    def _write(self, args: TrainingArguments) -> None:
        assert self.profiler is not None
        self.profiler.__exit__(None, None, None)
        folder = Path(str(args.output_dir)) / FOLDER
        folder.mkdir(parents=True, exist_ok=True)
        self.profiler.export_chrome_trace(str(folder / f"trace-rank{ranks.rank()}.json.gz"))
        table = folder / f"operators-rank{ranks.rank()}.txt"
        table.write_text(self._tables(), encoding="utf-8")
        get_logger().info("profile of steps %s to %s: %s", self.first, self.taken, table)
        self.profiler = None

    def _tables(self) -> str:
        assert self.profiler is not None
        order = "self_cuda_time_total" if torch.cuda.is_available() else "self_cpu_time_total"
        by_name, by_shape = (
            self.profiler.key_averages(group_by_input_shape=shapes).table(
                sort_by=order, row_limit=ROWS, max_name_column_width=60, max_shapes_column_width=80
            )
            for shapes in (False, True)
        )
        return f"{by_name}\n\nBy shape\n{by_shape}\n"
