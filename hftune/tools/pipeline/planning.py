"""`hftune pipeline plan`: prints the commands, what would run and why, and memory and time of each stage."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from hftune import child_processes
from hftune.tools.pipeline.exposed import with_quiet_token
from hftune.tools.pipeline.progress import Screen
from hftune.tools.pipeline.runner import environment, shown
from hftune.tools.pipeline.state import AGAIN, DAMAGED, DONE, RESUME, state_of
from hftune.tools.pipeline.step import Step
from hftune.visible import clock

_PLAN_SECONDS = 600
GIB = 1 << 30


def show_plan(steps: Sequence[Step], screen: Screen, *, measured: bool, gpus: str | None = None) -> None:
    """Print every command, and whether it would run.

    Args:
        measured: Ask `hftune plan` for memory and time; it loads libraries, some seconds a stage.
        gpus: The devices to plan for; None: those that are here.
    """
    # Names of steps that would run again; later steps that read their results may have to as well.
    again: set[str] = set()
    for number, step in enumerate(steps, start=1):
        verdict = _verdict(step, again)
        screen.say(f"[{number}/{len(steps)}] {step.name}: {verdict}")
        screen.say(f"  {shown(step.env, step.command())}")
        if measured and step.trains:
            for line in measure(step, gpus):
                screen.say(f"  {line}")


def _verdict(step: Step, again: set[str]) -> str:
    """A text that says what `run` would do, and why."""
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
    return "was interrupted, will resume" if state.verdict == RESUME else "will run"


def measure(step: Step, gpus: str | None = None) -> Iterator[str]:
    """Lines with memory and time as `hftune plan` estimates them, or one that says why it cannot.

    Args:
        gpus: `8xH200`: the devices of each machine; None: those that are here.
    """
    # What a stage before will make is not there yet: it has the shape of the model that it begins with.
    model = step.arguments.get("model_name_or_path", [""])[0]
    asked = step if Path(model).exists() or not step.base else step.given(model_name_or_path=step.base)
    asked = with_quiet_token(asked)
    # The adapter of an earlier stage may not exist yet: a new one of the same settings is planned for.
    flags = [
        token for name, values in asked.arguments.items() if name != "peft_path" for token in (f"--{name}", *values)
    ]
    processes = step.launcher.processes
    # `hftune plan` takes devices by machine.
    more = ["--nodes", str(processes[0] // processes[1])] if processes else []
    more += ["--gpus", gpus] if gpus else []
    # In a process of its own: planning pretends a world, and may fail, for each stage anew.
    finished = child_processes.run(
        child_processes.python("-m", "hftune.cli", "plan", f"run_{step.script}", *flags, *more, "--json"),
        env=environment(asked),
        capture_output=True,
        timeout=_PLAN_SECONDS,
    )
    found = _last_json(finished.stdout)
    if finished.returncode or found is None:
        told = [line.removeprefix("error: ") for line in finished.stderr.splitlines() if line.startswith("error: ")]
        yield f"memory and time: not estimated ({told[0] if told else 'hftune plan said nothing'})"
        return
    yield from _lines(found)


def _lines(plan: dict[str, Any]) -> Iterator[str]:
    """Lines for the stage as asked in the output of `hftune plan --json`, and for what would fit if it does not."""
    asked, free = plan["choices"][0], (plan.get("free") or {}).get("device")
    room = f" of {free / GIB:.1f} free on {plan['device']}" if free else ""
    guess = "" if asked.get("traced", True) else ", a rough guess"
    yield f"memory: {asked['peak'] / GIB:.1f} GiB a process at the peak{room}: {asked['verdict']}{guess}"
    if not asked["fits"]:
        best = plan.get("cheapest")
        yield f"  what would fit: {best['flags']}" if best else "  nothing of this fits there"
    seconds, steps = asked.get("seconds_per_step"), plan.get("steps")
    if seconds:
        whole = f", {steps:,} steps in about {clock(seconds * steps)}" if steps else ""
        yield f"time: about {seconds:.3g} s a step{whole}"


def _last_json(text: str) -> dict[str, Any] | None:
    """The JSON object that a command printed last, on one line or several; None without one."""
    start = text.find("\n{") + 1 if not text.lstrip().startswith("{") else 0
    try:
        found = json.loads(text[start:])
    except json.JSONDecodeError:
        return None
    return found if isinstance(found, dict) else None
