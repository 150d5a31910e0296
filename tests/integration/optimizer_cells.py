"""Many runs of run_pt.py in one pair of processes, since starting a launcher costs more than training a tiny model.

deepspeed --num_gpus 2 tests/integration/optimizer_cells.py CELLS.json RESULT.json

CELLS.json holds {name: [arguments]}; RESULT.json gets, for each name, either {"refused": message} or the losses, the
rates of all groups before each step, and each group's weight decay and elements.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch

import run_pt
from hftune.distributed import ranks, zero
from hftune.errors import UserError
from hftune.trainers import pt

recorded: dict[str, Any] = {}


class Recorder(pt.PTTrainer):
    """Writes down the rates that are really used, before each step."""

    def training_step(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        used = self.optimizer.param_groups
        recorded.setdefault("rates", {})[str(self.state.global_step)] = [group["lr"] for group in used]
        recorded["decays"] = [group["weight_decay"] for group in used]
        recorded["elements"] = [sum(zero.full_numel(one) for _, one in group.members) for group in self.groups or []]
        recorded["optimizer"] = type(innermost(self.optimizer)).__name__
        return super().training_step(*args, **kwargs)


def innermost(optimizer: Any) -> Any:
    """The optimizer below accelerate's and ZeRO's wrappers."""
    while hasattr(optimizer, "optimizer"):
        optimizer = optimizer.optimizer
    return optimizer


def run(arguments: list[str]) -> dict[str, Any]:
    """One cell: what was recorded, or why it was refused."""
    recorded.clear()
    sys.argv = ["run_pt.py", *arguments]
    try:
        run_pt.main()
    except UserError as error:
        return {"refused": str(error)}
    folder = Path(arguments[arguments.index("--output_dir") + 1])
    history = json.loads((folder / "trainer_state.json").read_text())["log_history"]
    return {**recorded, "losses": [entry["loss"] for entry in history if "loss" in entry]}


if __name__ == "__main__":
    pt.PTTrainer = Recorder  # type: ignore[misc]
    cells_file, result_file = [argument for argument in sys.argv[1:] if argument.endswith(".json")]
    cells = json.loads(Path(cells_file).read_text())
    results = {name: run(arguments) for name, arguments in cells.items()}
    if ranks.is_main():
        Path(result_file).write_text(json.dumps(results, default=float))
