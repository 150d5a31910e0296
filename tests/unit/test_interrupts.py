"""Signals: an untouched start, a note for the trainer, an end at once; nothing of it twice for one request."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from hftune import interrupts

SCRIPT = """
import os, signal, subprocess, sys, time
from hftune import interrupts
from hftune.errors import {run}
def told(): print("ready", flush=True)
def main():
{body}
if __name__ == "__main__":
    {run}(main)
"""


@pytest.fixture
def started(tmp_path: Path) -> Iterator:
    """Start a script with this main; it says `ready` on its real standard error, by way of hftune."""
    running: list[subprocess.Popen[str]] = []
    late: list[threading.Timer] = []

    def start(body: str, run: str = "run_script", **variables: str) -> subprocess.Popen[str]:
        file = tmp_path / "script.py"
        body = "from hftune.visible import say\n" + body
        lines = "\n".join(f"    {line}" for line in body.splitlines())
        file.write_text(SCRIPT.format(run=run, body=lines))
        process = subprocess.Popen(
            [sys.executable, str(file)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            env={**os.environ, **variables}, start_new_session=True,
        )  # fmt: skip
        running.append(process)
        late.append(threading.Timer(60, process.kill))  # no test waits for ever for a line
        late[-1].start()
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        return process

    yield start
    for timer in late:
        timer.cancel()
    for process in running:
        process.kill()
        process.wait()


def ended(process: subprocess.Popen[str], seconds: float = 60) -> tuple[int, str]:
    """Exit code and what was said after `ready`."""
    said, _ = process.communicate(timeout=seconds)
    return process.returncode, said


def is_gone(pid: int, seconds: float = 10) -> bool:
    """Whether a process has ended, or does within this time: the kernel takes a moment to end what was killed."""
    until = time.monotonic() + seconds
    while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
        if time.monotonic() > until:
            return False
        time.sleep(0.05)
    return True


WAITS = """
try:
    say("ready", flush=True)
    time.sleep(60)
finally:
    say("tidied", flush=True)
"""
SWALLOWS = """
said = False
while True:
    try:
        said = said or say("ready", flush=True) or True
        time.sleep(60)
    except BaseException:
        pass
"""
BREAKS = """
try:
    say("ready", flush=True)
    time.sleep(60)
except BaseException:
    raise RuntimeError("worker died")
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGUSR1])
def test_before_training_a_script_leaves_nothing_and_says_so_in_a_line(started, number: int) -> None:
    process = started(WAITS)
    process.send_signal(number)
    code, said = ended(process)
    assert code == 75
    line = "stopped before the first step, nothing was written: the same command starts again"
    assert [each for each in said.splitlines() if each] == ["tidied", line]


def test_a_tool_ends_as_a_shell_expects(started) -> None:
    process = started(WAITS, run="run_tool")
    process.send_signal(signal.SIGINT)
    code, said = ended(process)
    assert code == 130 and said.split("\n", 1)[0] == "tidied" and "nothing is left half written" in said
    assert "Traceback" not in said


def test_only_rank_0_speaks(started) -> None:
    process = started(WAITS.replace('say("tidied", flush=True)', "pass"), RANK="1", LOCAL_RANK="1")
    process.send_signal(signal.SIGTERM)
    assert ended(process) == (75, "")


def test_what_swallows_the_interruption_is_not_waited_for(started) -> None:
    process = started(SWALLOWS)
    began = time.monotonic()
    process.send_signal(signal.SIGINT)
    code, said = ended(process)
    assert code == 75 and time.monotonic() - began > 2 and "Traceback" not in said and "stopped" in said


def test_what_breaks_because_of_a_signal_is_no_error(started) -> None:
    """A library that makes an error of its own of KeyboardInterrupt."""
    process = started(BREAKS)
    process.send_signal(signal.SIGINT)
    code, said = ended(process)
    assert code == 75 and "Traceback" not in said and "worker died" not in said


TRAINS = """
interrupts.defer(True)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
say("ready", flush=True)
while not interrupts.stop_signal():
    time.sleep(0.01)
say(f"noted {interrupts.stop_signal()} child {child.pid}", flush=True)
time.sleep(60)
"""


def test_while_it_trains_a_signal_is_noted_and_the_second_ends_all_at_once(started) -> None:
    process = started(TRAINS)
    assert process.stdout is not None
    process.send_signal(signal.SIGINT)
    said = [process.stdout.readline(), process.stdout.readline()]
    assert any("SIGINT: finishing this step" in line for line in said), said
    (noted,) = [line for line in said if line.startswith("noted 2 ")]
    child = int(noted.split()[-1])
    # What launchers pass on, and the same within a moment, are the same request.
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGTERM)
    time.sleep(interrupts.TOGETHER + 0.3)
    process.send_signal(signal.SIGHUP)
    time.sleep(0.3)
    assert process.poll() is None and psutil.pid_exists(child)
    process.send_signal(signal.SIGINT)
    code, rest = ended(process, 10)
    assert code == 130 and rest.strip() == "ended at once"
    assert is_gone(child)


def test_an_error_while_it_trains_stays_an_error(started) -> None:
    body = TRAINS.replace("time.sleep(60)", "child.kill(); child.wait(); {}['no such key']")
    process = started(body)
    process.send_signal(signal.SIGTERM)
    code, said = ended(process)
    assert code == 1 and "KeyError: 'no such key'" in said


def test_nohup_is_respected(started) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        process = started(WAITS)
    finally:
        signal.signal(signal.SIGHUP, before)
    process.send_signal(signal.SIGHUP)
    time.sleep(0.5)
    assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    assert ended(process)[0] == 75


FORKS = """
from hftune import interrupts
{parent}
child = os.fork()
if child == 0:
    {before}
    say("ready", flush=True)
    time.sleep(20)
    os._exit(7)
time.sleep({delay})
say(f"ended {{os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])}}", flush=True)
"""


def test_a_forked_worker_leaves_ctrl_c_to_its_parent_and_dies_of_sigterm(started) -> None:
    process = started(FORKS.format(parent="interrupts.defer(True)", before="", delay=0))
    (worker,) = psutil.Process(process.pid).children()
    worker.send_signal(signal.SIGINT)
    time.sleep(0.5)
    assert worker.is_running() and process.poll() is None
    worker.send_signal(signal.SIGTERM)
    assert ended(process) == (0, "ended -15\n")


def test_a_data_worker_outlives_the_sigterm_that_its_parent_was_sent_too(started) -> None:
    """DeepSpeed's launcher sends it to the workers first."""
    process = started(FORKS.format(parent="interrupts.defer(True)", before="interrupts.keep_working()", delay=0))
    (worker,) = psutil.Process(process.pid).children()
    worker.send_signal(signal.SIGTERM)
    process.send_signal(signal.SIGTERM)
    time.sleep(1.0)
    assert worker.is_running() and worker.status() != psutil.STATUS_ZOMBIE, "its parent finishes a step"


def test_a_data_worker_that_is_told_alone_ends(started) -> None:
    process = started(FORKS.format(parent="interrupts.defer(True)", before="interrupts.keep_working()", delay=0))
    (worker,) = psutil.Process(process.pid).children()
    worker.send_signal(signal.SIGTERM)
    code, said = ended(process)
    assert (code, said) == (0, "ended -15\n")


def test_in_a_thread_nothing_is_heard_and_nothing_breaks() -> None:
    """As in a notebook that trains in the background: Python allows handlers in the main thread alone."""
    found: list[object] = []
    thread = threading.Thread(target=lambda: found.append(interrupts.listen(exits=False)))
    thread.start()
    thread.join()
    assert found == [None] and interrupts.stop_signal() == 0 and not interrupts.deferring()


def test_without_a_script_the_second_ctrl_c_is_a_keyboard_interrupt(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a notebook, which must live on."""
    monkeypatch.setattr(interrupts, "TOGETHER", 0.1)
    before = signal.getsignal(signal.SIGINT)
    assert interrupts.listen(exits=False) is not None
    try:
        interrupts.defer(True)
        os.kill(os.getpid(), signal.SIGINT)
        assert interrupts.stop_signal() == signal.SIGINT
        time.sleep(interrupts.TOGETHER + 0.1)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(1)
    finally:
        interrupts.stop_listening()
    assert signal.getsignal(signal.SIGINT) is before and interrupts.stop_signal() == 0
