"""What trainers that draw their own answers add: samples in a file, the seconds of each part, rounds that go on."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from accelerate.utils import send_to_device

from hftune.checkpoints.resume import steps_done
from hftune.distributed import phases, ranks
from hftune.logging import notice
from hftune.opening.own_file import open_own
from hftune.trainers.features.feature import Feature
from hftune.trainers.features.run import Inputs, Run

COMPLETIONS_NAME = "completions.jsonl"
"""Samples of a run: a line a completion, with its step, prompt, rewards and advantage."""


class Completions:
    """Writes samples of the last batch of answers with every log, from what TRL's trainers (1.16) keep in `_logs`."""

    def __init__(self) -> None:
        self._shown = -1  # the step whose answers were written last

    def write(self, run: Run) -> None:
        """After a log, for which TRL has put the rewards of all ranks together."""
        # An evaluation logs at the same step, and TRL keeps the answers of training until the next batch.
        new = run.state.global_step != self._shown and run._logs["prompt"]
        if new and run.args.sample_completions and ranks.is_main():
            self._shown = run.state.global_step
            write_samples(run, Path(str(run.args.output_dir)) / COMPLETIONS_NAME)

    def trained_tokens(self, run: Run) -> int:
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


class PartSeconds(Feature):
    """Logs `seconds/PART` of a step, a mean since the last log: generation, rewards, reference, forward, backward, ...

    Of this process. On a GPU a part that waits for the device has the time of what was queued before it.
    """

    def __init__(self) -> None:
        self._begun: int | None = None  # steps that were done when the seconds began to count

    def before_train(self, run: Run, checkpoint: str | None) -> None:
        """What was spent before is no part of a step."""
        phases.take_seconds()

    def before_step(self, run: Run, model: Any, inputs: Inputs) -> None:
        """A step begins, after an interruption perhaps."""
        if self._begun is None:
            self._begun = run.state.global_step

    def before_log(self, run: Run, logs: dict[str, float]) -> None:
        """Next to the loss."""
        steps = run.state.global_step - (self._begun or 0)
        if "loss" not in logs or self._begun is None or not steps:
            return
        for name, seconds in phases.take_seconds().items():
            logs[f"seconds/{name.replace(' ', '_')}"] = round(seconds / steps, 3)
        self._begun = run.state.global_step


class AnswerRound(Feature):
    """A round: `steps_per_generation` micro batches of answers, trained `num_iterations` times.

    TRL's trainers (1.16) keep both in memory alone: they would draw other answers when they resume within a round, and
    log the means of the steps from there on.
    """

    def before_train(self, run: Run, checkpoint: str | None) -> None:
        """TRL counts micro batches from 0 in each process."""
        if checkpoint is not None:
            run._step = steps_done(Path(checkpoint))[0] * run.args.gradient_accumulation_steps

    def state(self, run: Run) -> dict[str, Any]:
        """This process's answers, where the next step trains some of them, and its figures."""
        saved: dict[str, Any] = {
            "rank": ranks.rank(),
            "metrics": {name: [*values] for name, values in run._metrics["train"].items() if values},
            "sums": run.sums["train"].totals(run.accelerator),
        }
        if not _round_is_over(run):
            saved |= {"shape": _shape(run), "batches": run._buffered_inputs, "rollout": run.rollout}
        return saved

    def load_state(self, run: Run, saved: dict[str, Any]) -> None:
        """Go on in the round that the checkpoint was made in."""
        run.sums["train"].restore(saved.get("sums", {}))
        if saved.get("rank") != ranks.rank():  # this process is a new one
            saved = {}
        run._metrics["train"].update(saved.get("metrics", {}))
        if _round_is_over(run):
            return
        # Every process draws, or none: to generate is a collective.
        if ranks.all_agree(saved.get("shape") == _shape(run)):
            run._buffered_inputs = send_to_device(saved["batches"], run.args.device)
            run.rollout = send_to_device(saved["rollout"], run.args.device)
        elif ranks.is_main():
            notice(
                "the checkpoint lies within a round of answers and was made by other processes or batches, or by an "
                "earlier version: new answers are drawn for the rest of the round"
            )


def _round_is_over(run: Run) -> bool:
    return run._step % (run.args.steps_per_generation * run.num_iterations) == 0


def _shape(run: Run) -> list[int]:
    """What the answers of a process fit: processes, micro batches of a round, answers in each."""
    return [ranks.world_size(), run.args.steps_per_generation, run.args.per_device_train_batch_size]
