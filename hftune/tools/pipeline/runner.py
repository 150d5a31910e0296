"""Runs the steps of a pipeline, each in processes of its own. What is finished and unchanged is skipped.

There is no state but the manifests: a runner that is killed at any moment leaves nothing that the next one must know.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from hftune import child_processes, terminal
from hftune.checkpoints.manifest import is_complete
from hftune.errors import ArgumentError, ManifestError, Preempted, UserError
from hftune.publishing.disk import disk_errors
from hftune.publishing.locks import folder_lock
from hftune.secrets import to_copy
from hftune.tools.pipeline import processes
from hftune.tools.pipeline.gates import GateFailed, check_gates
from hftune.tools.pipeline.state import AGAIN, DAMAGED, DONE, RESUME, START, State, damage, state_of
from hftune.tools.pipeline.steps import COMMANDS, Step
from hftune.tools.reporting.progress import Log
from hftune.visible import clock, say, visible

_PLAIN_SECONDS = 30.0


LOGS, PREVIOUS = "logs", "previous"
# The code of a script that saved a checkpoint because it was told to stop (EX_TEMPFAIL of sysexits.h).
_PREEMPTED = 75

Start = Callable[[Sequence[str], Mapping[str, str], Path], processes.SupervisedProcess]


class StageFailed(UserError):
    """A stage ended with an error; what it said, its log, and the command that repeats it."""


@dataclass(frozen=True)
class Choice:
    """Which stages run.

    Args:
        first: Begin with this stage; what is before it must be finished and is taken as it is.
        last: End with this stage.
        force: Stages to run again even if nothing has changed; `*` is all that are chosen.
    """

    first: str | None = None
    last: str | None = None
    force: tuple[str, ...] = ()

    def split(self, steps: list[Step]) -> tuple[list[Step], list[Step]]:
        """Steps before those that are chosen, and the chosen ones.

        Raises:
            ArgumentError: A stage that is not there.
        """
        stages = list(dict.fromkeys(step.stage for step in steps))
        for name in (self.first, self.last, *(name for name in self.force if name != "*")):
            if name is not None and name not in stages:
                raise ArgumentError(f"there is no stage {name}", fix=f"one of: {', '.join(stages)}")
        begin, end = stages.index(self.first or stages[0]), stages.index(self.last or stages[-1])
        before = [step for step in steps if step.stage in stages[:begin]]
        return before, [step for step in steps if step.stage in stages[begin : end + 1]]

    def forces(self, step: Step) -> bool:
        """Whether a step runs again whatever its folder says."""
        return "*" in self.force or step.stage in self.force


@dataclass
class Runner:
    """Runs the steps of a pipeline in its folder.

    Args:
        folder: The pipeline's output folder: the lock, logs and former results lie in it.
        start: Starts a command; tests give one that needs no launcher.
        check: Called before the first step starts, and not at all if none does.
        ignore_gates: Go on after a stage that hurt a capability more than its gate allows.
    """

    folder: Path
    start: Start = processes.start
    check: Callable[[], None] = lambda: None
    ignore_gates: bool = False
    _signals: list[int] = field(default_factory=list)
    _checked: bool = False

    def run(self, steps: list[Step], choice: Choice = Choice()) -> None:
        """Run the steps that are not finished and unchanged.

        Raises:
            StageFailed: A stage failed; what was finished before stays finished.
            GateFailed: One hurt a capability more than its gate allows.
            ArgumentError: The disk of the folder does not take logs or former results.
            ManifestError: A result was damaged since it was written.
            Preempted: A signal asked for an end.
        """
        before, chosen = choice.split(steps)
        with alone(self.folder), processes.counted_signals() as self._signals:
            _must_be_complete(before)
            self._refuse_to_train_again([step for step in chosen if step.trains and not choice.forces(step)])
            done = 0
            for number, step in enumerate(chosen, start=1):
                title = f"[{number}/{len(chosen)}] {step.name}"
                if self._signals:
                    raise Preempted(f"stopped before {step.name}; the same command resumes")
                # Read just before the step: what has run since may have changed its inputs.
                state = state_of(step)
                if choice.forces(step) and state.verdict not in (START, AGAIN):
                    state = State(AGAIN, ("it was asked for (--force)",))
                if state.verdict == DONE:
                    done += 1
                    tell(f"{title}: unchanged, skipped")
                    self._gate(step)
                    continue
                if state.verdict == DAMAGED:
                    raise _damaged(step.folder, state.reasons, step.stage)
                # Not before the loop: the parsers import torch and TRL for seconds, and a pipeline without a change
                # needs none.
                if not self._checked:
                    self.check()
                    self._checked = True
                self._run_step(step, state, title, steps)
                self._gate(step)
            tell(f"finished: {_result(chosen)}" + (" (nothing had changed)" if done == len(chosen) else ""))

    def _refuse_to_train_again(self, steps: list[Step]) -> None:
        """Hours of training are replaced only by --force, or because a stage before them is trained again."""
        states = [(step, state_of(step)) for step in steps]
        again = [(step, state) for step, state in states if state.verdict == AGAIN and _is_trained(step.folder)]
        if again:
            told = "; ".join(f"{step.name} ({'; '.join(_few(state.reasons))})" for step, state in again)
            stages = " ".join(dict.fromkeys(step.stage for step, _ in again))
            raise ArgumentError(
                f"what is trained already is not what the file says now: {told}",
                place=str(self.folder),
                fix=f"--force {stages} to train again (the former result is kept in {PREVIOUS}/), --from a later stage "
                "to go on from the result as it is, or undo the change",
            )

    def _gate(self, step: Step) -> None:
        """Stop, or say that it would, where an evaluation does not open the gates of its stage."""
        try:
            table = check_gates(step.gates, step.stage, step.folder)
        except GateFailed as problem:
            if not self.ignore_gates:
                raise
            table = f"{problem.cause}gone on with all the same (--ignore_gates)"
        if table:
            tell(table)

    def _run_step(self, step: Step, state: State, title: str, steps: list[Step]) -> None:
        for needed in (other for other in steps if other.name in step.needs):
            # Every byte is read: a step must not spend hours on weights that were damaged after they were finished.
            found = damage(needed.folder)
            if found:
                raise _damaged(needed.folder, tuple(found), needed.stage)
        if state.verdict == AGAIN:
            # Before the start: the stage would resume from checkpoints of the former result.
            aside = set_aside(step.folder, self.folder)
            tell(f"{title}: runs again, since {'; '.join(_few(state.reasons))}")
            tell(f"  the former result is in {aside}")
        elif state.verdict == RESUME:
            tell(f"{title}: was interrupted, resumes")
        began = time.monotonic()
        code, log, offset = self._execute(step, title)
        # 0 alone proves little, it is the launcher's word; the stage writes its manifest last.
        if code == 0 and is_complete(step.folder):
            tell(f"{title}: done in {clock(time.monotonic() - began)}, {step.folder}")
            return
        if self._signals:
            saved = "a checkpoint is saved" if code == _PREEMPTED else "it resumes from its last checkpoint"
            raise Preempted(f"{step.name} was stopped ({saved}); the same command resumes")
        if code == _PREEMPTED:
            raise Preempted(f"{step.name} was told to stop and saved a checkpoint; the same command resumes")
        raise _failed(step, code, log, offset, time.monotonic() - began)

    def _execute(self, step: Step, title: str) -> tuple[int, Path, int]:
        """Start a step and wait for it; returns its exit code, its log, and where in the log it begins."""
        log = self.folder / LOGS / f"{step.name.replace('/', '_').replace(' ', '-')}.log"
        if log.parent.is_symlink():
            raise ArgumentError(f"{log.parent} is a link", place="output_dir", fix="move it away")
        log.parent.mkdir(parents=True, exist_ok=True)
        step = replace(step, launcher=step.launcher.with_free_port()).with_quiet_token()
        command = command_of(step)
        # Logs are appended to; an error of an earlier run must not explain this one's.
        offset = log.stat().st_size if log.is_file() else 0
        tell(f"{title}\n  {to_copy(step.env, command)}\n  log: {log}")
        # Before the start, so that it skips what earlier runs left and misses nothing of this one.
        look = watching(step.folder, title)
        try:
            return processes.attend(self.start(command, environment(step), log), self._signals, tell, look), log, offset
        finally:
            terminal.clear_progress()


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Hold the lock of a pipeline's folder, which is made where there is none.

    Raises:
        ArgumentError: Another runner works in the folder, or it cannot be written.
    """
    with disk_errors(folder, "output_dir"):
        folder.mkdir(parents=True, exist_ok=True)
        with folder_lock(folder):
            yield


def tell(text: str) -> None:
    """Print a line that stays."""
    terminal.clear_progress()
    say(text, flush=True)


def watching(folder: Path, title: str) -> Callable[[], None]:
    """A function that shows where a step is: on a terminal in a line that changes, else at most every half minute."""
    log, began = Log(folder, skip=True), time.monotonic()
    spoken = began

    def look() -> None:
        nonlocal spoken
        new, now = log.read(), time.monotonic()
        if terminal.err().isatty():
            terminal.show_progress(visible(f"{title}: {str(log.moment()) or 'loading'}, {clock(now - began)}"))
        elif new and now - spoken >= _PLAIN_SECONDS:
            spoken = now
            tell(f"{title}: {log.moment()}")

    return look


def command_of(step: Step) -> list[str]:
    """The command that is started: a stage resumes from its newest whole checkpoint, if it has one."""
    # Without the optimizer's state nothing can be resumed: such a stage starts anew.
    weights_only = step.arguments.get("save_only_model", ["false"])[0].lower() in ("true", "yes", "1")
    if not step.trains:
        return step.command()
    return step.command("--resume_from_checkpoint", "none" if weights_only else "auto")


def environment(step: Step) -> dict[str, str]:
    """The environment of a step: the runner's own, the step's variables, and this installation's programs first."""
    return child_processes.environment({**os.environ, **step.env})


def set_aside(folder: Path, pipeline: Path) -> Path:
    """Move a result to a free name below `previous`, and return its new folder; nothing is ever deleted."""
    place = pipeline / PREVIOUS / folder.relative_to(pipeline)
    place.parent.mkdir(parents=True, exist_ok=True)
    number, free = 1, place
    while free.exists():
        number += 1
        free = place.with_name(f"{place.name}-{number}")
    # Within the pipeline's folder, so on one disk: atomic, and no copy of the weights.
    os.rename(folder, free)
    return free


def _is_trained(folder: Path) -> bool:
    """Whether there is a result, or a checkpoint: hours of somebody's machine."""
    return is_complete(folder) or any(folder.glob("checkpoint-*"))


def _must_be_complete(before: list[Step]) -> None:
    for step in before:
        if not is_complete(step.folder):
            raise ManifestError(
                f"{step.name} is not finished, and what comes after it needs it",
                place=str(step.folder),
                fix=f"begin earlier: --from {step.stage}",
            )


def _result(steps: list[Step]) -> str:
    made = [step for step in steps if step.script not in COMMANDS] or steps
    ends = [step for step in made if not any(step.name in other.needs for other in made)]
    return ", ".join(str(step.folder) for step in ends)


def _few(reasons: Sequence[str]) -> list[str]:
    return [*reasons[:3], *([f"and {len(reasons) - 3} more"] if len(reasons) > 3 else [])]


def _damaged(folder: Path, reasons: tuple[str, ...], stage: str) -> ManifestError:
    return ManifestError(
        f"a finished result was changed after it was written: {'; '.join(_few(reasons))}",
        place=str(folder),
        fix=f"bring the file back, or make the result anew: --force {stage}",
    )


def _failed(step: Step, code: int, log: Path, offset: int, seconds: float) -> StageFailed:
    lines = processes.explain(log, code, offset)
    how = f"killed by signal {-code}" if code < 0 else f"exit code {code}"
    return StageFailed(
        "\n".join([f"{step.name} failed ({how}) after {clock(seconds)}:", *(f"    {line}" for line in lines)]),
        place=str(log),
        fix=f"the same command resumes from here. This stage alone:\n    {to_copy(step.env, command_of(step))}",
    )
