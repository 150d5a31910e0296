"""What argparse and the classes of arguments say against values, as messages with a place and a way out."""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Iterable

from hftune.errors import ArgumentError, did_you_mean, shown

_OF_ARGPARSE = re.compile(r"argument (?P<options>\S+): (?P<said>.*)", re.DOTALL)
_QUOTED = re.compile(r"(?:value|choice): '(?P<value>.*?)'", re.DOTALL)
# transformers' message on --load_best_model_at_end, with the two numbers of steps.
_FOUND = re.compile(r"found (?P<save>[\d.]+), which is not a (?:round )?multiple of (?P<evaluate>[\d.]+)")
# TRL's message where a batch of answers holds no whole groups.
_GROUPS = re.compile(
    r"generation_batch_size \((?P<size>\d+)\) must be divisible by num_generations \((?P<number>\d+)\)"
)
# What to do about what transformers and TRL say, by words of theirs (transformers 5.23, TRL 1.16).
_SAID = {
    "At most one of fp16 and bf16": "leave out --fp16, or --bf16",
    "requires the save and eval strategy to match": "add --eval_strategy and --save_strategy of one kind, steps or "
    "epoch, with held-out records (--validation_file_dir); or leave out --load_best_model_at_end",
    "doesn't support bf16/gpu": "leave out --bf16 (--fp16 where this GPU has it), or add --use_cpu to train without it",
    "requires an eval strategy": "add --eval_strategy steps with held-out records (--validation_file_dir), or another "
    "--lr_scheduler_type",
    "--dataloader_prefetch_factor can only": "add --dataloader_num_workers 2, or leave it out",
    "env:// rendezvous": "start under a launcher (deepspeed or torchrun), which sets RANK, WORLD_SIZE, MASTER_ADDR and "
    "MASTER_PORT; or unset RANK, LOCAL_RANK and WORLD_SIZE to start alone",
    "--tf32 requires": "leave out --tf32",
    "must have the same length as `loss_type`": "give --loss_weights a number for each of --loss_type",
}
# What an argument takes, and an example, by the name of its type.
_TAKES = {
    "int": ("a whole number", "100"),
    "float": ("a number", "1e-5"),
    "string_to_bool": ("True or False", "True"),
    "JSON object": ("an object of JSON", "'{\"name\": 1}'"),
}


def argparse_error(message: str, known: dict[str, argparse.Action], place: str) -> ArgumentError:
    """A complaint such as "argument --max_steps/--max-steps: invalid int value: 'x'".

    Args:
        known: Every argument by its name, without the dashes.
        place: Where arguments were given.
    """
    match = _OF_ARGPARSE.match(message)
    # argparse names an argument by all its spellings: `--max_steps/--max-steps`.
    action = known.get(match["options"].split("/")[0].lstrip("-")) if match else None
    if match is None or action is None:
        # Something about the command line as a whole; argparse has no other way to say it.
        return ArgumentError(message, place=place, fix="write --NAME VALUE for each argument")
    name = action.option_strings[0].lstrip("-")
    takes, example = _wanted(action)
    if "expected" in match["said"] and "argument" in match["said"]:
        return ArgumentError(f"--{name} needs a value", place=place, fix=f"write --{name} {example}, for instance")
    # The second form is that of transformers' `string_to_bool`.
    quoted = _QUOTED.search(match["said"]) or re.search(r"got (?P<value>.*?) but expected", match["said"])
    value = quoted["value"] if quoted else match["said"]
    if action.choices is not None:
        choices = [str(choice) for choice in action.choices]
        near = did_you_mean(value, choices, written=f"--{name} {{}}")
        fix = f"{near} one of: {', '.join(choices)}".strip()
        return ArgumentError(f"--{name} cannot be {shown(value)!r}", place=place, fix=fix)
    cause = f"--{name} cannot be {shown(value)!r}: it takes {takes}" if quoted else f"--{name}: {shown(value, 200)}"
    return ArgumentError(cause, place=place, fix=f"write --{name} {example}, for instance")


def _wanted(action: argparse.Action) -> tuple[str, str]:
    """What an argument takes, in words, and an example: its default where it has one."""
    kind = getattr(action.type, "__name__", "")
    takes, example = _TAKES.get(kind, ("a text", "VALUE"))
    if action.choices:
        example = str(next(iter(action.choices)))
    if kind in ("int", "float") and isinstance(action.default, (int, float)) and action.default > 0:
        example = f"{action.default:g}" if isinstance(action.default, float) else str(action.default)
    return takes, example


def class_error(error: Exception, known: Iterable[str], place: str) -> ArgumentError:
    """What `__post_init__` of a class says; the arguments that it names are the place."""
    said = str(error).strip() or type(error).__name__
    # Names with an underscore, and those few without one that transformers' messages mention: prose has none of them.
    words = set(re.findall(r"[a-z][a-z0-9_]*_[a-z0-9_]+|\b(?:bf16|fp16|tf32|optim|deepspeed)\b", said))
    named = sorted(words & set(known))
    flags = ", ".join(f"--{name}" for name in named)
    return ArgumentError(" ".join(said.split()), place=flags or place, fix=_fix(said, named))


def _fix(said: str, named: list[str]) -> str:
    """What to do: from `_SAID` where a message is known, else to leave out what it names."""
    if groups := _GROUPS.search(said):
        number = groups["number"]
        return (
            f"write --per_device_train_batch_size {number}, or another --num_generations that divides {groups['size']}"
        )
    found = _FOUND.search(said)
    if found is not None:
        save, evaluate = float(found["save"]), float(found["evaluate"])
        # The next multiple above: no more checkpoints than were asked for.
        return f"write --save_steps {math.ceil(save / evaluate) * evaluate:g}, for instance"
    known = next((fix for words, fix in _SAID.items() if words in said), None)
    if known is not None:
        return known
    explained = ", ".join(f"`hftune explain {name}`" for name in named[:3])
    flags = " or ".join(f"--{name}" for name in named)
    return f"leave out or change {flags}: {explained}" if named else "change the value that is named, or leave it out"
