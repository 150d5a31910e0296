"""Runs of the scripts by fork, one after the other, with what was trained written down. Not a test: see test_resume.py.

python tests/integration/forked.py LEGS.jsonl FOLDER

A line a run: {"name", "script", "processes", "flags"}. FOLDER/NAME is its output folder, FOLDER/NAME.RANK gets a line a
micro-batch: the step, then each row that has a label, as token ids joined by dots. Prints "LEG name code seconds".
"""

from __future__ import annotations

import importlib
import json
import sys
import time
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.table import drive


def main(legs: Path, folder: Path) -> None:
    """All runs, in order; one that fails does not stop the others."""
    drive.import_everything()
    for line in legs.read_text(encoding="utf-8").splitlines():
        leg = json.loads(line)
        began = time.time()
        log = folder / f"{leg['name']}.log"
        code = drive.fork_and_wait(lambda leg=leg: run(leg, folder), log, leg["processes"])
        print(f"LEG {leg['name']} {code} {time.time() - began:.1f}", flush=True)


def run(leg: dict[str, Any], folder: Path) -> None:
    """One run in this process."""
    from hftune.distributed import ranks
    from hftune.errors import run_script
    from hftune.trainers.base import HftuneTrainerMixin

    step = HftuneTrainerMixin.training_step

    def recording(self: Any, model: Any, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> torch.Tensor:
        with open(folder / f"{leg['name']}.{ranks.rank()}", "a") as record:
            print(self.state.global_step, *rows_with_labels(inputs), file=record)
        return step(self, model, inputs, *args, **kwargs)

    HftuneTrainerMixin.training_step = recording  # type: ignore[method-assign]
    script = f"run_{leg['script']}"
    sys.argv = [f"{script}.py", *leg["flags"], "--output_dir", str(folder / leg["name"])]
    run_script(importlib.import_module(script).main)


def rows_with_labels(inputs: dict[str, Any]) -> list[str]:
    """Each row that is trained, as its token ids; rows end to end are taken apart where positions begin again."""
    ids, labels = inputs["input_ids"], inputs["labels"]
    if "position_ids" in inputs:
        starts = (inputs["position_ids"][0] == 0).nonzero().flatten().tolist()
        ends = [*starts[1:], ids.shape[1]]
        pairs = [(ids[0, start:end], labels[0, start:end]) for start, end in zip(starts, ends, strict=True)]
    else:
        pairs = list(zip(ids, labels, strict=True))
    return [".".join(map(str, row[: last_label(label)].tolist())) for row, label in pairs if (label != -100).any()]


def last_label(labels: torch.Tensor) -> int:
    """Where the padding, or what follows the last answer, begins."""
    return int((labels != -100).nonzero()[-1]) + 1


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
