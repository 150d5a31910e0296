"""Samples of a run's answers, in a file, and how many of their tokens were trained."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from hftune.distributed import ranks
from hftune.opening.own_file import open_own
from hftune.trainers.features.feature import Feature
from hftune.trainers.features.run import Run

COMPLETIONS_NAME = "completions.jsonl"
"""Samples of a run: a line a completion, with its step, prompt, rewards and advantage."""


class Completions(Feature):
    """Writes samples of the last batch of answers with every log, from what TRL's trainers (1.16) keep in `_logs`."""

    def __init__(self) -> None:
        self._shown = -1  # the step whose answers were written last

    def after_log(self, run: Run, logs: dict[str, float]) -> None:
        """TRL has just put the rewards of all ranks together."""
        # An evaluation logs at the same step, and TRL keeps the answers of training until the next batch.
        new = run.state.global_step != self._shown and run._logs["prompt"]
        if new and run.args.sample_completions and ranks.is_main():
            self._shown = run.state.global_step
            write_samples(run, Path(str(run.args.output_dir)) / COMPLETIONS_NAME)

    def trained_tokens(self, run: Run) -> int | None:
        """Tokens of all completions that were trained on, over all ranks; from the logged mean lengths."""
        args = run.args
        # An epoch over the same answers trains them again.
        per_step = args.per_device_train_batch_size * args.gradient_accumulation_steps * args.world_size
        logged = [entry for entry in run.state.log_history if "completions/mean_length" in entry]
        steps = [0, *(entry["step"] for entry in logged)]
        return round(
            sum(
                entry["completions/mean_length"] * per_step * (step - before)
                for entry, before, step in zip(logged, steps, steps[1:], strict=False)
            )
        )


def write_samples(run: Run, file: Path) -> None:
    """Append a line for each of the first answers of the last batch."""
    logs = run._logs
    columns = {name: list(values) for name, values in logs["rewards"].items()}
    rows = zip(logs["prompt"], logs["completion"], logs["advantages"], strict=False)
    # RL logs before anything else is written where evaluation comes first.
    file.parent.mkdir(parents=True, exist_ok=True)
    with open_own(file) as stream:
        for index, (prompt, completion, advantage) in enumerate(rows):
            if index == run.args.sample_completions:
                break
            row = {
                "step": run.state.global_step,
                "mode": "train" if run.model.training else "eval",
                "prompt": prompt,
                "completion": as_rewarded(completion),
                "rewards": {name: _known(values[index]) for name, values in columns.items() if index < len(values)},
                "advantage": _known(advantage),
            }
            stream.write((json.dumps(row, ensure_ascii=False, default=str) + "\n").encode())


def _known(value: float | None) -> float | None:
    """None for NaN, which stands for an answer without a reward and is no JSON; distillation has no advantages."""
    return None if value is None or math.isnan(value) else value


def as_rewarded(completion: Any) -> Any:
    """An answer to the letter, as it was rewarded; as messages where there are several, or calls of tools."""
    if isinstance(completion, str):
        return completion
    if len(completion) != 1 or completion[0].get("tool_calls"):
        return completion
    return str(completion[0]["content"])
