"""What a user wrote, on the command line or in a YAML file, as names and values; and what is wrong with them."""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Iterable, Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from hftune.arguments.ranges import JOINED
from hftune.errors import ArgumentError, UserError, did_you_mean, raise_together, shown
from hftune.on_demand import on_demand
from hftune.path_hints import path_hint
from hftune.secrets import command_without_secrets, learn_command, learn_config, says_secret

RawArguments = list[tuple[str, list[Any]]]
COMMAND_LINE = "command line"
LEFT_OUT = "leave it out; `hftune explain {}` knows the names of other tools, --help shows all of this script's"
"""What to do about a name that is like no other."""

_NAME = re.compile(r"[\w.-]*")
_ONE_DASH = re.compile(r"-([A-Za-z][\w.-]+)(=|$)")
# En and em dash, horizontal bar, minus and the hyphens of other scripts, alone or next to a real one.
_OTHER_DASHES = re.compile(r"-?[\u2010-\u2015\u2212\ufe58\ufe63\uff0d]+-*([A-Za-z][\w.-]+)")

# Not a global: parsers of a pipeline's check run in one process, one within another.
GIVEN_NAMES: ContextVar[frozenset[str]] = ContextVar("GIVEN_NAMES", default=frozenset())
"""Arguments that were given, as hftune calls them, while dataclasses are made of them: a default given counts, too."""


def take_config(argv: list[str]) -> tuple[str | None, list[str]]:
    """The file that `--config` names, if any, and the other arguments."""
    for position, token in enumerate(argv):
        if token.startswith("--config="):
            return token.split("=", 1)[1], _without_config(argv[:position] + argv[position + 1 :])
        if token == "--config":
            if position + 1 == len(argv):
                raise ArgumentError("--config needs a value", place=COMMAND_LINE, fix="write --config FILE.yaml")
            return argv[position + 1], _without_config(argv[:position] + argv[position + 2 :])
    return None, argv


def _without_config(rest: list[str]) -> list[str]:
    """The arguments without `--config FILE`, which is read once."""
    if any(token.split("=", 1)[0] == "--config" for token in rest):
        fix = "put all of it into one file, or what differs on the command line, which wins over the file"
        raise ArgumentError("--config is given twice", place=COMMAND_LINE, fix=fix)
    return rest


def given_on_command_line(argv: list[str]) -> RawArguments:
    """`--a 1 2 --b=3 --c` as [("a", ["1", "2"]), ("b", ["3"]), ("c", [])].

    Raises:
        ArgumentError: A word that is neither a name nor behind one; of `-name=value` the value is not told.
    """
    # First: every message below may quote the command line.
    learn_command(argv)
    given: RawArguments = []
    for token in argv:
        if token.startswith("--") or token == "-h":
            name, _, value = token.lstrip("-").partition("=")
            raise_together(bad_name(name, COMMAND_LINE))
            given.append((name, [value] if "=" in token else []))
            continue
        _refuse_stray(given, token)
        given[-1][1].append(token)
    return given


def _refuse_stray(given: RawArguments, token: str) -> None:
    # A secret that begins with a dash would become a name, and be shown as unknown.
    if given and not given[-1][1] and says_secret(given[-1][0]) and token.startswith("-"):
        fix = f"where the value begins with a dash: --{given[-1][0]}=VALUE"
        raise ArgumentError(f"--{given[-1][0]} has no value", place=COMMAND_LINE, fix=fix)
    refuse_one_dash(token)
    if not given:
        fix = f"write --config {token}" if token.endswith((".yaml", ".yml")) else "write --NAME VALUE"
        fix = "write --help" if token == "help" else fix
        raise ArgumentError(f"cannot place {token!r}", place=COMMAND_LINE, fix=fix)


def refuse_one_dash(token: str) -> None:
    """Refuse `-name` and `-name=value`, of which the value is not told: argparse would."""
    written = _ONE_DASH.match(token)
    if written is not None and not _is_number(token):
        fix = f"write it with two dashes: --{written[1]}"
        raise ArgumentError(f"cannot place '-{written[1]}'", place=COMMAND_LINE, fix=fix)
    # Word processors and input methods make them of hyphens; to the shell they are letters of a value.
    if dashed := _OTHER_DASHES.match(token):
        cause = f"'{dashed[0]}' begins with a dash that is no hyphen"
        raise ArgumentError(cause, place=COMMAND_LINE, fix=f"write it with two hyphens: --{dashed[1]}")


def _is_number(token: str) -> bool:
    """-nan and -inf are: of a range, to be refused with its flag."""
    try:
        float(token)
    except ValueError:
        return False
    return True


def bad_name(name: str, place: str) -> list[UserError]:
    """A problem where a name has a value glued to it (`hub_token:X` for `hub_token: X`), which is not told."""
    found = _NAME.match(name)
    if found is None or found[0] == name:
        return []
    cause = f"what begins with {found[0]!r} is no name of an argument"
    return [ArgumentError(cause, place=place, fix="--NAME VALUE on a command line; NAME: VALUE in a file")]


def several(name: str, values: list[Any]) -> Iterator[ArgumentError]:
    """A problem where a secret has several values: a parser would quote those that it cannot place."""
    if says_secret(name) and len(values) > 1:
        yield ArgumentError(f"--{name} takes one value", place=f"--{name}", fix="quote it if it has spaces")


def given_in_file(path: str | None) -> RawArguments:
    """The arguments of a file of YAML, with the places where they stand."""
    if path is None:
        return []
    # Before it is opened: a slip in the path deserves the nearest one, not an error of the system.
    if not Path(path).is_file():
        raise ArgumentError(f"there is no file {path}", place="--config", fix=path_hint(path, "a YAML file"))
    content = on_demand("hftune.opening.yaml_file:read_yaml")(Path(path))
    if not isinstance(content, dict):
        raise ArgumentError("the file must hold names and values", place=path, fix="write name: value, a line each")
    # The same for a file.
    learn_config(content)
    raise_together(problem for name in content for problem in bad_name(str(name), path))
    return [(str(name), value if isinstance(value, list) else [value]) for name, value in content.items()]


def joined(name: str, values: list[Any]) -> list[Any]:
    """Several values as one text where the argument takes a text that may name several."""
    if name in JOINED and len(values) > 1:
        return [JOINED[name].join(map(str, values))]
    return values


def yaml_value(values: list[Any]) -> Any:
    """The one value, or the list of several."""
    return values[0] if len(values) == 1 else values


def given_twice(name: str, old: list[Any], new: list[Any]) -> str:
    """What is said where the last of two values of a name counts; secrets are `***`, however short."""
    # Through the redaction of commands, which masks by name, also what is too short to be searched for.
    before, after = (command_without_secrets([f"--{name}", *map(str, of)])[1:] for of in (old, new))
    return f"--{name} was given twice (an alias counts too): {after} replaces {before}"


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


def converted(action: argparse.Action, word: str) -> Any:
    """What an argument makes of one word.

    Raises:
        ArgumentError: It is of another type, or none of the choices.
    """
    name = action.option_strings[0].lstrip("-")
    try:
        value = action.type(word) if callable(action.type) else word
    except (TypeError, ValueError, argparse.ArgumentTypeError) as error:
        takes = _TAKES.get(_type_of(action), ("a text", ""))[0]
        cause = f"--{name} cannot be {shown(word)!r}: it takes {takes}"
        fix = f"write --{name} {example_of(action)}, for instance"
        raise ArgumentError(cause, place=COMMAND_LINE, fix=fix) from error
    if action.choices is not None and value not in action.choices:
        choices = [str(choice) for choice in action.choices]
        near = did_you_mean(word, choices, written=f"--{name} {{}}")
        fix = f"{near} one of: {', '.join(choices)}".strip()
        raise ArgumentError(f"--{name} cannot be {shown(word)!r}", place=COMMAND_LINE, fix=fix)
    return value


def example_of(action: argparse.Action) -> str:
    """A value that an argument takes: its default where it has one."""
    if action.choices:
        return str(next(iter(action.choices)))
    kind = _type_of(action)
    if kind in ("int", "float") and isinstance(action.default, (int, float)) and action.default > 0:
        return f"{action.default:g}" if isinstance(action.default, float) else str(action.default)
    return _TAKES.get(kind, ("", "VALUE"))[1]


def _type_of(action: argparse.Action) -> str:
    return getattr(action.type, "__name__", "")


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
