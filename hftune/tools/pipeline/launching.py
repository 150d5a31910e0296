"""`hftune launch deepspeed --num_gpus 2 run_sft.py ...`: runs a command unchanged, in a session of its own.

Launchers answer Ctrl-C with tracebacks and end their processes after 30 seconds, or at once, and torchrun writes forty
lines and exits with 1 whatever its processes exit with. Here Ctrl-C reaches this process alone, which asks one rank to
stop, and waits; what the launcher itself says is kept, and shown where no rank could speak.
"""

from __future__ import annotations

import os
import re
import signal
import tempfile
import time
from pathlib import Path
from typing import NoReturn

from hftune import child_processes, interrupts, terminal
from hftune.constants import INTERRUPTED_EXIT_CODE
from hftune.errors import ArgumentError
from hftune.tools.pipeline import failure, processes
from hftune.visible import say

LAUNCHERS = ("deepspeed", "torchrun", "python")
_LOOK_SECONDS = 0.1
_REMOTE = ("hostfile", "num_nodes", "include", "exclude", "force_multi", "launcher")
"""Options of deepspeed with which processes run on other machines, whose output comes through the launcher."""

_HOSTFILE = Path("/job/hostfile")  # DeepSpeed's default
# torch 2.13 prints it in the summary of a failure (`elastic/multiprocessing/errors`).
_EXIT_CODE = re.compile(r"exitcode\s*: (-?\d+)")
_OF_TORCHRUN = re.compile(r"^Traceback \(most recent call last\):\n  File \"[^\"]*(torchrun|torch/distributed)", re.M)
_LINES = 15


def launch(argv: list[str]) -> None:
    """Run a command; ends with the exit code of its processes.

    Args:
        argv: The launcher, its options, the script and its arguments.

    Raises:
        ArgumentError: No launcher that is known.
        SystemExit: At the end.
    """
    if not argv or argv[0] not in LAUNCHERS:
        fix = f"hftune launch deepspeed --num_gpus 2 run_sft.py ...; one of: {', '.join(LAUNCHERS)}"
        raise ArgumentError("`hftune launch` needs a command that starts with a launcher", fix=fix)
    run_quietly(argv)


def run_quietly(argv: list[str]) -> NoReturn:
    """Run a command that starts with a launcher; ends with the exit code of its processes.

    Raises:
        SystemExit: At the end.
    """
    with tempfile.TemporaryDirectory(prefix="hftune-launch-") as folder, interrupts.paused():
        log = Path(folder) / "log" if _may_hide(argv) else None
        if log is not None:
            # The launcher's output goes to the log; ranks find this process's terminal by this variable and write
            # there.
            os.environ[terminal.ELSEWHERE] = f"/proc/{os.getpid()}/fd"
        code = _run(argv, log)
        if log is not None and code > 0:
            code = _code_of_ranks(log) or code
            _show_what_no_rank_said(log, code)
    raise SystemExit(code if code >= 0 else 128 - code)


def _run(argv: list[str], log: Path | None) -> int:
    """The exit code of the command, negative for a signal; the first Ctrl-C asks it to stop, the second ends it."""
    asked = 0

    def note(number: int, frame: object) -> None:
        nonlocal asked
        asked += 1

    # Not restored: this process ends with the command.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, note)
    running, answered = processes.start(argv, child_processes.environment(), log), 0
    # Polled, for a blocking wait is resumed after a handler (PEP 475), and nobody would look at `asked`.
    while (code := running.poll()) is None:
        if asked > answered:
            answered += 1
            if answered == 1:
                running.ask_to_stop()
            else:
                say("ended at once", file=terminal.err())
                running.kill()
        time.sleep(_LOOK_SECONDS)
    return INTERRUPTED_EXIT_CODE if answered > 1 else code


def _may_hide(argv: list[str]) -> bool:
    """Whether the launcher's output can be hidden: the ranks can write to this process's terminal themselves."""
    options = [word.lstrip("-").partition("=")[0].replace("-", "_") for word in argv if word.startswith("--")]
    remote = argv[0] == "deepspeed" and (_HOSTFILE.exists() or any(name in _REMOTE for name in options))
    # Plain python says nothing of its own; what a merge prints would be lost.
    if remote or argv[0] in ("python", "srun") or os.environ.get(terminal.SHOW_ALL, "") not in ("", "0"):
        return False
    try:
        for number in (1, 2):
            # Tried here, once: a terminal of another user or a closed descriptor cannot be opened again.
            os.close(terminal.reopen(f"/proc/{os.getpid()}/fd/{number}"))
    except OSError:
        return False
    return True


def _code_of_ranks(log: Path) -> int | None:
    """The exit code of the first process that failed, as torchrun prints it; None without one."""
    found = _EXIT_CODE.findall(log.read_text(encoding="utf-8", errors="replace"))
    if not found:
        return None
    code = int(found[-1])
    return 128 - code if code < 0 else code


def _show_what_no_rank_said(log: Path, code: int) -> None:
    """Print errors of the launcher itself, and of processes that ended before they could print."""
    text = log.read_text(encoding="utf-8", errors="replace")
    # torchrun's own traceback says that a process failed, which is known: what matters is before it.
    end = _OF_TORCHRUN.search(text)
    lines = failure.last_words(text[: end.start()] if end else text, _LINES)
    if code > 128 and code != INTERRUPTED_EXIT_CODE:
        lines = [*lines, f"a process was ended by signal {code - 128}"]
    if lines:
        say("\n".join(lines), file=terminal.err())
