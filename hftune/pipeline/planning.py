"""`hftune pipeline plan`: the commands, what would run and why, and the memory and time of each stage."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from hftune.pipeline.progress import Screen, clock
from hftune.pipeline.runner import environment, shown
from hftune.pipeline.state import AGAIN, DAMAGED, DONE, RESUME, state_of
from hftune.pipeline.steps import MERGE, Step

_PLAN_SECONDS = 600


def show_plan(steps: Sequence[Step], screen: Screen, *, measured: bool) -> None:
    """Print every command with what would become of it.

    Args:
        measured: Ask `hftune plan` for memory and time; it loads libraries, some seconds a stage.
    """
    again: set[str] = set()
    for number, step in enumerate(steps, start=1):
        verdict = _verdict(step, again)
        screen.say(f"[{number}/{len(steps)}] {step.name}: {verdict}")
        screen.say(f"  {shown(step.env, step.command())}")
        if measured and step.script != MERGE:
            for line in measure(step):
                screen.say(f"  {line}")


def _verdict(step: Step, again: set[str]) -> str:
    """What `run` would do, and why."""
    state = state_of(step)
    changed = sorted(again & {*step.needs})
    if state.verdict == DONE and not changed:
        return "finished and unchanged, will be skipped"
    again.add(step.name)
    if state.verdict == DAMAGED:
        return f"its result was changed after it was written: {'; '.join(state.reasons)}"
    if state.verdict == AGAIN:
        return f"will run again, since {'; '.join(state.reasons)}"
    if state.verdict == DONE:
        return f"will run again if {' or '.join(changed)} comes to another result"
    return "was interrupted, will go on" if state.verdict == RESUME else "will run"


def measure(step: Step) -> Iterator[str]:
    """Memory and time as `hftune plan` estimates them, a line each; one line that says why where it cannot."""
    # What a stage before will make is not there yet: it has the shape of the model that it begins with.
    model = step.arguments.get("model_name_or_path", [""])[0]
    asked = step if Path(model).exists() or not step.base else step.given(model_name_or_path=step.base)
    flags = [
        token for name, values in asked.arguments.items() if name != "peft_path" for token in (f"--{name}", *values)
    ]
    processes = step.launcher.processes
    more = ["--num_gpus", str(processes[0])] if processes else []
    finished = subprocess.run(
        [sys.executable, "-m", "hftune.cli", "plan", f"run_{step.script}", *flags, *more, "--json"],
        env=environment(step),
        capture_output=True,
        text=True,
        timeout=_PLAN_SECONDS,
    )
    found = _last_json(finished.stdout)
    if finished.returncode or found is None:
        told = [line.removeprefix("error: ") for line in finished.stderr.splitlines() if line.startswith("error: ")]
        yield f"memory and time: not estimated ({told[0] if told else 'hftune plan said nothing'})"
        return
    yield from _lines(found)


def _lines(plan: dict[str, Any]) -> Iterator[str]:
    """The figures that a plan may have, by the names that `hftune plan --json` gives them."""
    for name in ("peak_bytes", "memory_bytes"):
        if isinstance(plan.get(name), int | float):
            yield f"memory: {plan[name] / 1e9:.1f} GB a process"
    for name in ("seconds", "total_seconds"):
        if isinstance(plan.get(name), int | float):
            yield f"time: about {clock(plan[name])}"
    if "summary" in plan:
        yield from str(plan["summary"]).splitlines()


def _last_json(text: str) -> dict[str, Any] | None:
    """The JSON object that a command printed last, on one line or several."""
    start = text.find("\n{") + 1 if not text.lstrip().startswith("{") else 0
    try:
        found = json.loads(text[start:])
    except json.JSONDecodeError:
        return None
    return found if isinstance(found, dict) else None
