"""What runs left in their folders: what they logged, curves, counts, samples, answers and commands.

Anything may be missing: a stage may have been stopped, or have logged nothing. What is not there is None.
"""

from __future__ import annotations

import math
import os
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from hftune.checkpoints.manifest import Manifest, read_manifest
from hftune.constants import MANIFEST_NAME, SAMPLES_NAME
from hftune.errors import ManifestError, shown
from hftune.opening.files import read_bytes
from hftune.opening.json_file import LARGE, parse_json, read_json
from hftune.secrets import command_without_secrets
from hftune.tools.reporting.progress import PROGRESS, Line, read_progress
from hftune.visible import say

SHAPES = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
"""What reading raises where a file is JSON of another shape than hftune writes: somebody else's file of the name."""


@contextmanager
def written_by_hftune(
    folder: str | Path, what: str = "the files", fix: str = "copy the folder again, or move what was edited away"
) -> Iterator[None]:
    """Turn what reading a folder's files ends in where they have another shape into one message.

    Raises:
        ManifestError: They have.
    """
    try:
        yield
    except SHAPES as error:
        # With what went wrong: it may as well be a fault of hftune's own, which nobody could tell from the rest.
        found = f"{type(error).__name__}: {shown(error)}"
        cause = f"{what} of {folder} have another shape than those that hftune writes ({found})"
        raise ManifestError(cause, place=str(folder), fix=fix) from error


OVERVIEW = ("stage", "steps", "first loss", "last loss", "trained tokens", "trained tokens/s", "wall time (s)")
"""What a report says of each stage in a row. The last loss is the mean of the last 10 % of those that were logged: one
alone is mostly noise."""


def series(logged: Sequence[Line], key: str) -> tuple[list[int], list[float]]:
    """Steps and values of one logged quantity; where a step was logged twice, its last value."""
    # A resumed run logs some steps again; the later value is that of the weights that were kept.
    points = {line["step"]: line[key] for line in logged if key in line}
    steps = sorted(points)
    return steps, [points[step] for step in steps]


def overview(name: str, manifest: Mapping[str, Any], logged: Sequence[Line]) -> tuple[object, ...]:
    """A stage as a row under `OVERVIEW`; None for what its manifest and its log do not tell.

    The speed is over the time spent in training (`train_seconds`) where that is known, not over loading and saving.
    """
    steps, losses = series(logged, "loss")
    # That of the last start alone, where a run was resumed.
    runtime = (manifest.get("metrics") or {}).get("train_runtime")
    wall, tokens = manifest.get("wall_seconds") or runtime, manifest.get("trained_tokens")
    seconds = manifest.get("train_seconds") or runtime or wall
    speed = tokens / seconds if tokens is not None and seconds else None
    # Rounded up: a short run has at least one value at its end.
    end = losses[-math.ceil(len(losses) / 10) :]
    first, last = (losses[0], sum(end) / len(end)) if end else (None, None)
    return name, manifest.get("steps") or (steps[-1] if steps else None), first, last, tokens, speed, wall


ANSWERS, COMPLETIONS = "answers.json", "completions.jsonl"
ASKED = "answers"
"""The stage of a folder of `hftune ask`."""
EVALUATED, RESULTS = "evaluate", "evaluation.json"
"""The stage of a folder of `hftune evaluate`, and the file with its figures."""
UNTRAINED = ("merge", ASKED, EVALUATED, "sample")
"""Stages of folders in which nothing was trained."""
_SHOWN = 2
# What a pipeline keeps next to its stages: results that were replaced, and what its steps printed.
SKIPPED = {"previous", "logs"}
# Folders of stages, of pipelines and of sweeps; without an end, a report of a home folder would search all of it.
DEPTH = 3
MOST_RUNS, MOST_FOLDERS = 200, 5_000

CURVES: tuple[tuple[str, tuple[tuple[str, str], ...]], ...] = (
    ("Loss", (("loss", "training"), ("eval_loss", "held out"))),
    ("Reward", (("reward", "mean reward"), ("eval_reward", "held out"))),
    ("Reward margin", (("margin", "training"), ("rewards/margins", "training"), ("eval_margin", "held out"))),
    ("Accuracy", (("accuracy", "pairs"), ("rewards/accuracies", "pairs"), ("mean_token_accuracy", "tokens"))),
    ("KL to the reference", (("kl", "kl"),)),
    ("Completion length (tokens)", (("completions/mean_length", "mean"),)),
    ("Entropy", (("entropy", "entropy"),)),
    ("Learning rate", (("learning_rate", "learning rate"),)),
    ("Gradient norm", (("grad_norm", "gradient norm"),)),
    ("Tokens per second", (("tokens_per_second", "tokens/s"),)),
    ("Peak memory (GB)", (("memory_gb", "rank 0"),)),
)
"""Title to logged names and what they are called; what was not logged is left out."""

Points = tuple[list[int], list[float]]


@dataclass
class Stage:
    """What a report shows of one folder.

    Args:
        name: The folder relative to what is reported.
        overview: Its row under `OVERVIEW`.
        curves: Title to label to steps and values; empty ones are left out.
        samples: What was trained on: for each sample its pieces of text and whether they were trained.
        answers: Questions, and what each model answered, where the stage has written them.
        completions: Of RL: some answers of the first and of the last logged step, with their rewards.
        evaluation: What `hftune evaluate` has found.
    """

    name: str
    folder: Path
    manifest: Manifest
    overview: tuple[object, ...] = ()
    curves: dict[str, dict[str, Points]] = field(default_factory=dict)
    samples: list[list[tuple[str, bool]]] = field(default_factory=list)
    answers: dict[str, Any] = field(default_factory=dict)
    completions: list[dict[str, Any]] = field(default_factory=list)
    evaluation: dict[str, Any] = field(default_factory=dict)

    @property
    def command(self) -> str:
        """The command of the stage, as its manifest has it, without the secrets that older versions wrote there."""
        # DeepSpeed's launcher adds it to every process's command.
        words = [word for word in self.manifest.get("command") or [] if not word.startswith("--local_rank")]
        return shlex.join(command_without_secrets(words))


def read_stages(folder: str | Path) -> list[Stage]:
    """All stages and merges at or below a folder, in the order in which they were finished.

    Raises:
        ManifestError: There are none.
    """
    folder = Path(folder)
    found = [place for place in run_folders(folder) if os.path.isfile(place / MANIFEST_NAME)]
    if not found:
        raise ManifestError(
            f"there is no {MANIFEST_NAME} in {folder} or below it"
            if folder.is_dir()
            else f"there is no folder {folder}",
            place=str(folder),
            fix="give the output folder of a stage or of a pipeline",
        )
    if len(found) == MOST_RUNS:
        say(f"{folder}: only the first {MOST_RUNS} runs are shown; give a folder with fewer")
    return [_read(place, folder) for place in sorted(found, key=lambda place: (place / MANIFEST_NAME).stat().st_mtime)]


def run_folders(top: Path) -> Iterator[Path]:
    """The folders of runs at and below a folder, in the order of their names. Links are not followed."""
    found = 0
    # A home folder given by mistake ends as well.
    for place, folders, files in islice(os.walk(top), MOST_FOLDERS):
        if {MANIFEST_NAME, PROGRESS} & {*files}:
            yield Path(place)
            folders.clear()  # what lies within a result (checkpoints) belongs to it
            found += 1
            if found == MOST_RUNS:
                return
        elif len(Path(place).relative_to(top).parts) == DEPTH:
            folders.clear()
        else:
            beside = (".", "checkpoint-")
            folders[:] = sorted(name for name in folders if name not in SKIPPED and not name.startswith(beside))


def _read(folder: Path, top: Path) -> Stage:
    manifest = read_manifest(folder) or {}
    logged = read_progress(folder)
    name = folder.name if folder == top else str(folder.relative_to(top))
    with written_by_hftune(folder):
        stage = Stage(name, folder, manifest, overview(name, manifest, logged))
        stage.curves = curves_of(logged)
        read_texts(stage)
    return stage


def curves_of(logged: Sequence[Line]) -> dict[str, dict[str, Points]]:
    """What was logged as curves: title to label to steps and values."""
    curves: dict[str, dict[str, Points]] = {}
    for title, names in CURVES:
        # Reversed: where two names share a label, the one that stands first in the table is written last and stays.
        found = {label: points for key, label in reversed(names) if (points := series(logged, key))[0]}
        # A curve of zeros was not measured, such as GPU memory on a CPU.
        if found and any(any(points[1]) for points in found.values()):
            curves[title] = dict(reversed(found.items()))
    return curves


def read_texts(stage: Stage, limit: int = LARGE) -> None:
    """Fill in samples, answers and completions of a stage from its folder; no file may have more bytes than `limit`."""
    folder = stage.folder
    stage.samples = [[(str(t), bool(b)) for t, b in sample] for sample in _json(folder / SAMPLES_NAME, limit) or []]
    stage.answers = _json(folder / ANSWERS, limit) or {}
    stage.evaluation = _json(folder / RESULTS, limit) or {}
    stage.completions = _first_and_last(_lines(folder / COMPLETIONS, limit))


def _lines(file: Path, limit: int = LARGE) -> Iterator[dict[str, Any]]:
    """The objects of a JSONL file that a run appends to; a line that a kill has cut off is skipped."""
    if file.is_file():
        for line in read_bytes(file, limit=limit).splitlines():
            with suppress(ManifestError):
                yield parse_json(line, str(file))


def _first_and_last(lines: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    trained = [line for line in lines if line.get("mode") == "train"]
    steps = sorted({line["step"] for line in trained})
    # With one step alone, the first is not shown as the last again.
    return [line for step in steps[:1] + steps[1:][-1:] for line in [x for x in trained if x["step"] == step][:_SHOWN]]


def _json(file: Path, limit: int) -> Any:
    if not file.is_file():
        return None
    # Models write NaN and halves of surrogate pairs; a report shows what there is.
    return read_json(file, limit=limit, kind=None, fix="delete it")
