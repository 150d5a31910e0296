"""What a name means, for `hftune explain NAME` and for the pages below docs/parameters."""

from __future__ import annotations

import itertools
from dataclasses import fields

from hftune.arguments.merging import MergeArguments
from hftune.arguments.names.row import ALIAS, OFF, WORKS, Row
from hftune.arguments.names.table import table, tools, tools_of
from hftune.arguments.parser import REMOVED
from hftune.arguments.special_fields import DONE_BY_HFTUNE, DONE_BY_HFTUNE_EVERYWHERE
from hftune.arguments.stage_table import STAGES, base_stage
from hftune.arguments.stages import known_arguments, script_of, scripts_with
from hftune.tools.explaining.defaults import explain_default


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
    if because := DONE_BY_HFTUNE_EVERYWHERE.get(name):
        return [f"  refused: {because}"]
    own = {stage: DONE_BY_HFTUNE.get(base_stage(stage), {}) | DONE_BY_HFTUNE.get(stage, {}) for stage in STAGES}
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
