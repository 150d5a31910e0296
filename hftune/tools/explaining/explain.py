"""What a name means and which defaults it has, for `hftune explain NAME`, docs/parameters and docs/defaults.md."""

from __future__ import annotations

import functools
import itertools
from dataclasses import fields
from typing import Any, NamedTuple

from hftune.arguments.defaults.choosing import of_field, shown
from hftune.arguments.defaults.medicalgpt import MEDICALGPT
from hftune.arguments.defaults.table import FULL, LORA, ODDS, OWN, RL, SAME, SCRATCH, SIMPO, RunKind, own_defaults
from hftune.arguments.merging import MergeArguments
from hftune.arguments.names.row import ALIAS, OFF, WORKS, Row
from hftune.arguments.names.table import table, tools, tools_of
from hftune.arguments.ranges import REMOVED, done_by_hftune
from hftune.arguments.stage_table import STAGES
from hftune.arguments.stages import known_arguments, script_of, scripts_with, stage_parser

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


def explanations() -> dict[str, str]:
    """Every name of hftune's and of the other tools -> a few lines on it."""
    merging = (entry.name for entry in fields(MergeArguments))
    names = {*table(), *itertools.chain(*tools().values(), *map(known_arguments, STAGES), merging, REMOVED)}
    return {name: explain(name) for name in sorted(names) if name.isidentifier()}


def explain(name: str) -> str:
    """A few lines on a name: which tools have it, what it does, and what hftune does with it."""
    row, help_text = table().get(name), help_of(name)
    if row is None and help_text is None and name in REMOVED:
        return f"--{name}\n  removed: {REMOVED[name]}"
    lines = [f"--{name}"]
    if row is not None:
        lines += [f"  {row.does}", f"  {outcome(row)}"]
        lines += [f"  in {', '.join(tools_of(name))}"] if tools_of(name) else []
    if help_text is not None:
        lines += [f"  hftune: {help_text}", f"  in {', '.join(scripts_with(name))}", *_done_by_hftune(name)]
    # One name may become another argument in another stage; each is explained once.
    targets = [name] if row is None else [row.target(stage) for stage in STAGES]
    for target in dict.fromkeys(target for target in targets if target):
        lines += explain_default(target)
    return "\n".join(lines)


def _done_by_hftune(name: str) -> list[str]:
    """The scripts that refuse an argument of their trainer, and why."""
    if because := done_by_hftune("").get(name):
        return [f"  refused: {because}"]
    own = {stage: done_by_hftune(stage) for stage in STAGES}
    return [f"  refused by {script_of(stage)}: {names[name]}" for stage, names in own.items() if name in names]


def outcome(row: Row) -> str:
    """What hftune does with a name, in one line."""
    if row.verdict == WORKS:
        return "works" + ("; some values are translated" if row.translation else "")
    if row.verdict == ALIAS:
        return f"alias of {counterpart(row)}"
    # OFF (False, 0, none, ...) is what most names take; only other values are worth naming.
    special = [value for value in row.harmless if value] if row.harmless != OFF else []
    return f"{row.verdict}: {row.because}" + (f" ({', '.join(special)} passes)" if special else "")


def counterpart(row: Row) -> str:
    """The argument that an alias becomes; where it differs by stage, each with its scripts."""
    if isinstance(row.to, str):
        return row.to
    by_name: dict[str, list[str]] = {}
    for stage, name in row.to.items():
        by_name.setdefault(name, []).append(f"run_{stage}")
    return ", ".join(f"{name} ({' '.join(scripts)})" for name, scripts in by_name.items())


def help_of(name: str) -> str | None:
    """The help text of one of hftune's own arguments; None where it has no such argument."""
    # Most arguments are SFT's, too, and each further class takes seconds to import.
    for stage in ("sft", *STAGES):
        action = known_arguments(stage).get(name)
        if action is not None:
            return " ".join((action.help or "").replace("%%", "%").split())
    return next((entry.metadata.get("help") for entry in fields(MergeArguments) if entry.name == name), None)


# --- defaults ---


class DefaultRow(NamedTuple):
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
    return stage_parser(stage, kind if stage == "rl" else None).known


def documented_names(stage: str) -> list[str]:
    """The arguments whose defaults have a reason, in the order of the table; those of this script."""
    known = {name for one in RUN_KINDS[stage].values() for name in _known(stage, one.kind)}
    return [name for name in dict.fromkeys([*(row.name for row in OWN), *SAME]) if name in known]


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
    other = ", ".join(f"{script} {shown(values[name])}" for script, values in MEDICALGPT.items() if name in values)
    return ["  default:", *lines] + ([f"  --defaults medicalgpt: {other}"] if other else [])
