"""run_pt.py, with every micro-batch that is trained written down: a line of token ids a row, in RECORD_TO.RANK."""

from __future__ import annotations

import os
from typing import Any

import torch

import run_pt
from hftune.distributed import ranks
from hftune.errors import run_script
from hftune.trainers import pt


class Recorder(pt.PTTrainer):
    def training_step(self, model: Any, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> torch.Tensor:
        with open(f"{os.environ['RECORD_TO']}.{ranks.rank()}", "a") as record:
            print(self.state.global_step, *inputs["input_ids"].flatten().tolist(), file=record)
        return super().training_step(model, inputs, *args, **kwargs)


if __name__ == "__main__":
    pt.PTTrainer = Recorder  # type: ignore[misc]
    run_script(run_pt.main)
