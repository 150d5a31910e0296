"""Defaults in words: of each script, by what is trained, with the reason; for `hftune explain` and docs/defaults.md."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

from hftune.arguments.defaults.choosing import of_field, shown
from hftune.arguments.defaults.medicalgpt import MEDICALGPT
from hftune.arguments.defaults.run_kind import FULL, LORA, RL, SCRATCH, RunKind
from hftune.arguments.defaults.table import ODDS, OWN, SAME, SIMPO, own_defaults

SIGMOID = frozenset(["sigmoid"])
_BOTH = {"LoRA": LORA, "full": FULL}
_FROM_SCRATCH = {**_BOTH, "from scratch": SCRATCH}
RUN_KINDS: dict[str, dict[str, RunKind]] = {
    **{kind: {label: RunKind(kind, how) for label, how in _FROM_SCRATCH.items()} for kind in ("pt", "sft")},
    "rm": {label: RunKind("rm", how) for label, how in _BOTH.items()},
    "dpo": {
        f"{label}{loss}": RunKind("dpo", how, losses)
        for loss, losses in (("", SIGMOID), (" ORPO", ODDS), (" SimPO", SIMPO))
        for label, how in _BOTH.items()
    },
    "rl": {f"{kind} {label}": RunKind(kind, how) for kind in RL for label, how in _BOTH.items()},
}
"""What each script trains, by a word for it. DPO's first two are all its losses but those of the others."""


@dataclass(frozen=True)
class DefaultRow:
    """One row of a table of defaults.

    Args:
        where: What it is for; "" for all that the script trains.
        value: In a few characters.
        because: Its reason; "" where nobody chose it.
    """

    where: str
    value: str
    because: str


def default_rows(stage: str, name: str) -> list[DefaultRow]:
    """The defaults of an argument in a script, one a value; empty where the script does not have it."""
    groups: dict[tuple[str, str, bool], list[str]] = {}
    runs = {label: one for label, one in RUN_KINDS[stage].items() if name in _known(stage, one.kind)}
    for label, run in runs.items():
        # Some defaults depend on whether records are held out (evaluation, the best checkpoint).
        for held_out in (False, True):
            row = own_defaults(RunKind(run.kind, run.trained, run.losses, held_out)).get(name)
            # Only where that makes a difference: else every default would stand there twice.
            if held_out and (row is None or not row.held_out):
                continue
            plain = of_field(_known(stage, run.kind)[name])
            if row is None and plain is None and name not in SAME:
                continue
            found = (shown(plain), SAME.get(name, "")) if row is None else (shown(row.value), row.because)
            groups.setdefault((*found, held_out), []).append(label)
    return [
        DefaultRow(_where(labels, list(runs), held_out), value, because)
        for (value, because, held_out), labels in groups.items()
    ]


def _where(labels: list[str], every: list[str], held_out: bool) -> str:
    """The labels in few words; for RL an algorithm, or a kind of training, instead of all labels that have it."""
    words = list(labels)
    # Labels of RL are two words, `grpo LoRA`: where all of one word are among them, that word says it.
    for part in dict.fromkeys(word for label in every if " " in label for word in label.split(" ")):
        own = [label for label in every if part in label.split(" ")]
        if len(own) > 1 and {*own} <= {*words}:
            words = [part if label == own[0] else label for label in words if label not in own[1:]]
    which = "" if labels == every else ", ".join(words)
    return which if not held_out else f"{which}, with held-out records".removeprefix(", ")


# Every name asks for the same few parsers.
@functools.cache
def _known(stage: str, kind: str) -> dict[str, Any]:
    """The arguments of a script by name, as its parser defines them."""
    # A parser imports transformers, TRL and PEFT, which takes seconds: only once there is a question.
    from hftune.arguments.stages import stage_parser

    return stage_parser(stage, kind if stage == "rl" else None).known


def documented_names(stage: str) -> list[str]:
    """The arguments whose defaults have a reason, in the order of the table; those of this script."""
    known = {name for one in RUN_KINDS[stage].values() for name in _known(stage, one.kind)}
    return [name for name in dict.fromkeys([*(row.name for row in OWN), *SAME]) if name in known]


def medicalgpt_values(name: str) -> dict[str, str]:
    """What MedicalGPT's scripts have for an argument, by what they train."""
    return {script: shown(values[name]) for script, values in MEDICALGPT.items() if name in values}


def explain_default(name: str) -> list[str]:
    """Lines about the defaults of an argument; scripts with the same ones share a line."""
    by_script: dict[str, list[str]] = {}
    for stage in RUN_KINDS:
        for one in default_rows(stage, name):
            words = f"{one.value}" + (f" ({one.because})" if one.because else "")
            where = f" {one.where}:" if one.where else ""
            by_script.setdefault(f"{where} {words}", []).append(f"run_{stage}.py")
    lines = [
        f"    {', '.join(scripts)}:{words}" for words, scripts in sorted(by_script.items(), key=lambda item: item[1])
    ]
    if not lines:
        return []
    other = ", ".join(f"{script} {value}" for script, value in medicalgpt_values(name).items())
    return ["  default:", *lines] + ([f"  --defaults medicalgpt: {other}"] if other else [])
