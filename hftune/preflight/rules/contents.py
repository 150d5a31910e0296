"""Rules about the folders of weights that a run begins with: unchanged since written, without foreign links."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hftune.arguments.training import StageArguments
from hftune.checkpoints.folder_checks import check_recorded, check_recorded_whole
from hftune.distributed import ranks
from hftune.errors import UserError
from hftune.preflight.facts import Facts

_READ = ("ref_model", "reward_model_path", "judge_reward", "teacher_targets")
"""Arguments of some stages that name folders."""


def check_contents(facts: Facts) -> Iterator[UserError]:
    """Problems of damaged, exchanged and linked files; looked for by one process of each machine."""
    # The files of a machine are the same for all of its processes.
    if ranks.local_rank() != 0:
        return
    model_args, training_args = facts.model_args, facts.training_args
    # These lie on --model_name_or_path, whatever base their manifests name.
    adapters = {
        "--peft_path": facts.adapter_args.adapter_chain,
        "--ref_adapters": _asked(training_args, "ref_adapters"),
    }
    models = {
        "--model_name_or_path": model_args.model_name_or_path,
        "--tokenizer_name_or_path": model_args.tokenizer_name_or_path,
        "--teacher_model_name_or_path": _asked(training_args, "teachers"),
        **{f"--{name}": _asked(training_args, name) for name in _READ},
    }
    seen = set()
    for flag, named in (*adapters.items(), *models.items()):
        check = check_recorded if flag in adapters else check_recorded_whole
        # Several flags may name one folder, which is looked at once.
        for folder in named if isinstance(named, list) else [named]:
            if folder and folder not in seen:
                seen.add(folder)
                yield from check(folder, flag)


def _asked(training_args: StageArguments, name: str) -> Any:
    """The value of an argument that only some stages have; None elsewhere."""
    return getattr(training_args, name, None)
