"""run_sft.py, with every micro-batch that is trained written down in RECORD_TO.RANK: the step, then each row that has a
label, as token ids joined by dots.
"""

from __future__ import annotations

import os
from typing import Any

import torch

import run_sft
from hftune.distributed import ranks
from hftune.errors import run_script
from hftune.trainers import sft


class Recorder(sft.SFTTrainer):
    def training_step(self, model: Any, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> torch.Tensor:
        with open(f"{os.environ['RECORD_TO']}.{ranks.rank()}", "a") as record:
            print(self.state.global_step, *rows_with_labels(inputs), file=record)
        return super().training_step(model, inputs, *args, **kwargs)


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
    sft.SFTTrainer = Recorder  # type: ignore[misc]
    run_script(run_sft.main)
