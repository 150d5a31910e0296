"""Runs a cell's script, unchanged, in this process, and writes down what its training did to every parameter.

The script's `finish_run` is wrapped: parameters are read before and after, groups at every step, logits at the end.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors.torch import save_file
from transformers import TrainerCallback

from hftune.distributed import ranks, zero
from hftune.errors import run_script

RECORD = "record.json"
LOGITS = "logits.safetensors"
PROBE = torch.stack([torch.arange(3, 19), torch.arange(40, 56)])
"""Token ids (2, 16) whose logits stand for the model."""


def run(script: str, flags: list[str], folder: Path) -> None:
    """Run `run_SCRIPT.py FLAGS` and leave `record.json` and `logits.safetensors` in `folder`.

    A `UserError` ends this process with its message and exit code 2, as it does for a user.
    """
    import hftune.stage

    finish = hftune.stage.finish_run

    def watched(run: Any, trainer: Any, data: Any) -> Any:
        return watch(finish, run, trainer, data, folder)

    hftune.stage.finish_run = watched
    sys.argv = [f"run_{script}.py", *flags]
    run_script(importlib.import_module(f"run_{script}").main)


def watch(finish: Callable[..., Any], run: Any, trainer: Any, data: Any, folder: Path) -> Any:
    """`finish_run`, with a record of it."""
    rates = Rates()
    trainer.add_callback(rates)
    before = values(trainer.model)
    manifest = finish(run, trainer, data)
    after = values(trainer.model)
    record = {
        "losses": [entry["loss"] for entry in trainer.state.log_history if "loss" in entry],
        "zero_stage": working_stage(trainer),
        "parameters": parameters(trainer.model, before, after),
        "groups": rates.named(trainer.model),
        "ranks_agree": ranks_agree(after),
        "notices": manifest["notices"],
    }
    found = logits(trainer)
    if ranks.is_main():
        save_file({"logits": found}, folder / LOGITS)
        (folder / RECORD).write_text(json.dumps(record), encoding="utf-8")
    ranks.barrier()
    return manifest


def values(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """A copy of every parameter, whole, also where ZeRO-3 holds it in pieces."""
    named = dict(model.named_parameters())
    with zero.gathered(named.values()):
        return {name: parameter.detach().clone() for name, parameter in named.items()}


def parameters(
    model: torch.nn.Module, before: dict[str, torch.Tensor], after: dict[str, torch.Tensor]
) -> dict[str, dict[str, Any]]:
    """What became of each parameter."""
    assert before.keys() == after.keys()
    return {
        name: {
            "shape": list(before[name].shape),
            "requires_grad": parameter.requires_grad,
            "changed": not torch.equal(bits(before[name]), bits(after[name])),
            "finite": not parameter.requires_grad or bool(torch.isfinite(after[name]).all()),
        }
        for name, parameter in model.named_parameters()
    }


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor as bytes: 4-bit weights that ZeRO-3 keeps as floats are no numbers, and many are NaN."""
    return tensor.contiguous().flatten().view(torch.uint8)


def ranks_agree(after: dict[str, torch.Tensor]) -> bool:
    """Whether all processes end with the same weights, bit by bit."""
    digest = hashlib.sha256()
    for name, tensor in after.items():
        digest.update(name.encode())
        digest.update(bits(tensor).numpy().tobytes())
    if not ranks.is_distributed():
        return True
    digests: list[Any] = [None] * ranks.world_size()
    dist.all_gather_object(digests, digest.hexdigest())
    return len(set(digests)) == 1


def logits(trainer: Any) -> torch.Tensor:
    """Logits of the trained model, as it lives, on `PROBE`: (2, 16, vocabulary), or (2, 1) with a score head."""
    model = trainer.model_wrapped if trainer.is_deepspeed_enabled else trainer.model
    model.eval()
    with torch.no_grad():
        return model(input_ids=PROBE, attention_mask=torch.ones_like(PROBE)).logits.float().contiguous()


def working_stage(trainer: Any) -> int | None:
    """The ZeRO stage that is really at work; None without DeepSpeed."""
    return trainer.model_wrapped.zero_optimization_stage() if trainer.is_deepspeed_enabled else None


@dataclass
class Rates(TrainerCallback):
    """The optimizer's groups as it uses them, and the learning rate of each at every step."""

    members: list[list[torch.nn.Parameter]] = field(default_factory=list)
    decays: list[float] = field(default_factory=list)
    rates: list[list[float]] = field(default_factory=list)

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Read them before a step is made, so that these are the rates it is made with."""
        groups = list(groups_of(kwargs["optimizer"]))
        if not self.members:
            self.members = [list(members) for members, _ in groups]
            self.decays = [float(group["weight_decay"]) for _, group in groups]
        self.rates.append([float(group["lr"]) for _, group in groups])

    def named(self, model: torch.nn.Module) -> list[dict[str, Any]]:
        """As the record has them: members by name, weight decay, and a rate a step."""
        names = {id(parameter): name for name, parameter in model.named_parameters()}
        return [
            {
                "members": [names[id(member)] for member in members],
                "weight_decay": self.decays[place],
                "rates": [step[place] for step in self.rates],
            }
            for place, members in enumerate(self.members)
        ]


def groups_of(optimizer: Any) -> Iterator[tuple[list[torch.nn.Parameter], dict[str, Any]]]:
    """Each group of an optimizer: its parameters, and the settings it steps with.

    ZeRO's optimizers (DeepSpeed 0.19) put flat pieces into the groups of the optimizer that they wrap, and keep the
    parameters in lists beside it: one a group at stages 1 and 2, one a sub-group at stage 3.
    """
    inner = optimizer.optimizer if hasattr(optimizer, "optimizer") else optimizer  # accelerate's wrapper
    if hasattr(inner, "bit16_groups"):
        yield from zip(inner.bit16_groups, inner.optimizer.param_groups, strict=True)
    elif hasattr(inner, "fp16_groups"):
        together: dict[int, list[torch.nn.Parameter]] = {}
        for place, members in enumerate(inner.fp16_groups):
            together.setdefault(inner.sub_group_to_group_id[place], []).extend(members)
        for place, group in enumerate(inner.optimizer.param_groups):
            yield together.get(place, []), group
    else:
        for group in inner.param_groups:
            yield group["params"], group
