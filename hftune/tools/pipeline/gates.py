"""Gates: what a stage may not cost a model; decided by intervals, so that noise stops no pipeline.

`gate: {math: {min: 0.3, drop: 0.02}}` on a stage: its result must not be below `min` (above `max`, for a loss), nor
worse by more than `drop` than what the stage started from. It is so only where the whole interval is; that of a drop is
of differences on the same records.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hftune.constants import GATE_EXIT_CODE
from hftune.errors import ArgumentError, UserError
from hftune.tools.pipeline.spec import Block
from hftune.tools.reporting.tables import format_cell, format_table, read_evaluation, shown

KEYS = ("min", "max", "drop")
# Other batches and processors give the same model losses that differ by less, all to one side by chance.
_ROUNDING = 1e-4


class GateFailed(UserError):
    """A stage hurt a capability more than its gate allows."""

    exit_code = GATE_EXIT_CODE


@dataclass(frozen=True)
class Gate:
    """What a capability may come to.

    Args:
        least, most: Of the figure itself; None: anything.
        drop: By how much it may be worse than before; None: by anything.
    """

    task: str
    least: float | None = None
    most: float | None = None
    drop: float | None = None


def read_gates(asked: Block, tasks: Sequence[str]) -> tuple[Gate, ...]:
    """The gates of a stage.

    Args:
        asked: What stands behind `gate`, with references resolved.
        tasks: That are evaluated; `TASK/METRIC` and `TASK/SOURCE` are of them as well.

    Raises:
        ArgumentError: A task that is not evaluated, or something that is no limit.
    """
    found = []
    for task in asked:
        place = asked.places[task]
        if task.partition("/")[0] not in tasks:
            fix = f"add it to eval_tasks below evaluate, or name one of: {', '.join(tasks) or 'none'}"
            raise ArgumentError(f"{task} is not evaluated", place=place, fix=fix)
        limits = asked.block(task)
        if not limits or not all(name in KEYS and _is_limit(name, limit) for name, limit in limits.items()):
            fix = "min (max of a loss): NUMBER, drop: NUMBER of 0 or more"
            raise ArgumentError(f"the gate of {task} has no such limit", place=place, fix=fix)
        found.append(Gate(task, *(float(limits[name]) if name in limits else None for name in KEYS)))
    return tuple(found)


def _is_limit(name: str, value: object) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and (name != "drop" or float(str(value)) >= 0)


def failures(gate: Gate, figure: Mapping[str, float], difference: Mapping[str, float] | None) -> Iterator[str]:
    """Why a gate does not open; nothing where it does.

    Args:
        figure: `value`, `low` and `high` of the stage's result, and `less_is_better` for a loss.
        difference: The same of the result less what the stage started from; None: they do not compare.
    """
    if gate.least is not None and figure["high"] < gate.least:
        yield f"below {format_cell(gate.least)}"
    if gate.most is not None and figure["low"] > gate.most:
        yield f"above {format_cell(gate.most)}"
    if gate.drop is None:
        return
    if difference is None:
        # Losses of other tokens. A gate that nobody can decide does not open.
        yield "does not compare with before"
        return
    # The smallest harm that the interval allows.
    harm = difference["low"] if figure.get("less_is_better") else -difference["high"]
    if harm > gate.drop + _ROUNDING:
        yield f"worse by more than {format_cell(gate.drop)}"


def check_gates(gates: Sequence[Gate], stage: str, folder: Path) -> str:
    """Decide the gates of a stage by its evaluation.

    Args:
        folder: Of `hftune evaluate`.

    Returns:
        The table of what was measured; "" without gates.

    Raises:
        GateFailed: One does not open; the message has the table.
        ManifestError: There is no such evaluation.
    """
    if not gates:
        return ""
    found = read_evaluation(folder)
    (figures,) = list(found["models"].values())[:1]
    (differences,) = list((found.get("differences") or {}).values())[:1] or [{}]
    rows, failed = [], []
    for gate in gates:
        if gate.task not in figures:
            fix = f"one of: {', '.join(figures)}"
            raise ArgumentError(f"nothing was measured for the gate {gate.task} of {stage}", place=str(folder), fix=fix)
        figure, difference = figures[gate.task], differences.get(gate.task)
        why = list(failures(gate, figure, difference))
        rows.append((gate.task, shown(figure), shown(difference), "; ".join(why) or "passed"))
        failed += [gate.task] if why else []
    table = format_table(("capability", "now", "less before", "gate"), rows)
    if failed:
        raise GateFailed(
            f"{stage} hurt {', '.join(failed)} more than its gate allows:\n\n{table}\n",
            place=str(folder),
            fix="change the stage and run again, or go on all the same with --ignore_gates",
        )
    return table
