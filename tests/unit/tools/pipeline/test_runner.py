"""The runner on steps that are shell commands: order, failure, signals, the lock, and processes that leave nothing."""

from __future__ import annotations

import errno
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from hftune.checkpoints.manifest import read_manifest
from hftune.errors import ArgumentError, ManifestError, Preempted
from hftune.publishing import locks
from hftune.publishing.locks import OUTPUT_LOCK
from hftune.tools.pipeline import processes
from hftune.tools.pipeline import runner as runner_module
from hftune.tools.pipeline.runner import Choice, Runner, StageFailed, alone, command_of, watching
from hftune.tools.pipeline.steps import Step
from tests.unit.tools.pipeline.files import finish, model, steps


class Ended:
    """A command that has ended at once."""

    def __init__(self, code: int) -> None:
        self.code = code

    def poll(self) -> int:
        return self.code

    def ask_to_stop(self) -> None: ...

    def kill(self) -> None: ...


class Bench:
    """A pipeline of pt and sft with adapters, whose commands finish at once and are counted."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder, self.capsys = folder, capsys
        model(folder / "base")
        (folder / "data").mkdir()
        (folder / "data" / "a.jsonl").write_text("one\n")
        self.lr, self.more = "1e-3", ""
        self.started: list[str] = []
        self.fails: dict[str, tuple[int, str]] = {}
        self.said = ""

    @property
    def steps(self) -> list[Step]:
        stage = f"{{use_peft: true, train_file_dir: {self.folder}/data"
        return steps(
            self.folder,
            f"model: {self.folder}/base\noutput_dir: {self.folder}/out\nstages:\n"
            f"  pt: {stage}}}\n  sft: {stage}, learning_rate: {self.lr}}}\n{self.more}",
        )

    def start(self, command: Sequence[str], env: Mapping[str, str], log: Path) -> Ended:
        step = next(step for step in self.steps if f"--output_dir {step.folder} " in f"{' '.join(command)} ")
        self.started.append(step.name)
        code, words = self.fails.get(step.name, (0, ""))
        with log.open("a") as stream:
            stream.write(words)
        if code == 0:
            finish(step)
        return Ended(code)

    def run(self, choice: Choice | None = None) -> list[str]:
        """Names of the steps that were started."""
        self.started = []
        Runner(self.folder / "out", start=self.start).run(self.steps, choice or Choice())
        self.said = self.capsys.readouterr().out
        return self.started


@pytest.fixture
def bench(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Bench:
    return Bench(tmp_path, capsys)


ALL = ["pt", "merge pt", "sft", "merge sft"]


def test_what_has_not_changed_is_skipped(bench: Bench) -> None:
    assert bench.run() == ALL
    assert bench.run() == []
    assert "nothing had changed" in bench.said
    bench.lr = "2e-3"
    assert bench.run(Choice(force=("sft",))) == ["sft", "merge sft"]
    assert "sft: runs again, since learning_rate was 1e-3, is 2e-3" in bench.said
    former = read_manifest(bench.folder / "out" / "previous" / "sft")
    assert former is not None and "1e-3" in former["command"], "the former result is kept"


def test_what_is_trained_is_trained_again_only_when_asked(bench: Bench) -> None:
    bench.run()
    bench.lr = "2e-3"
    with pytest.raises(ArgumentError, match=r"sft .learning_rate was 1e-3, is 2e-3") as told:
        bench.run()
    assert bench.started == [] and "--force sft to train again" in told.value.render()
    assert bench.run(Choice(force=("sft",))) == ["sft", "merge sft"]
    # An interrupted one that has saved nothing is no loss.
    finish(next(step for step in bench.steps if step.name == "sft"), "running")
    bench.lr = "3e-3"
    assert bench.run() == ["sft", "merge sft"]
    finish(next(step for step in bench.steps if step.name == "sft"), "running")
    (bench.folder / "out" / "sft" / "checkpoint-2").mkdir()
    bench.lr = "4e-3"
    with pytest.raises(ArgumentError, match="learning_rate was 3e-3, is 4e-3"):
        bench.run()


def test_answers_are_asked_last_and_again_if_they_may_be_others(bench: Bench) -> None:
    bench.more = "answers: {questions: ['Who?']}\n"
    assert bench.run() == [*ALL, "answers"]
    assert f"finished: {bench.folder}/out/sft-merged\n" in bench.said, "what was made, not what it said"
    assert bench.run() == []
    bench.more = "answers: {questions: ['Who?', 'Why?']}\n"
    assert bench.run() == ["answers"] and "--resume_from_checkpoint" not in command_of(bench.steps[-1])
    bench.lr = "2e-3"
    assert bench.run(Choice(force=("sft",))) == ["sft", "merge sft"], (
        "what is merged is the same, and would say the same"
    )
    (bench.folder / "base" / "model.safetensors").write_text("other")
    assert bench.run(Choice(force=("*",)))[-1] == "answers"
    assert bench.run(Choice("answers", "answers", force=("*",))) == ["answers"]


def test_a_part(bench: Bench) -> None:
    with pytest.raises(ManifestError, match="pt is not finished"):
        bench.run(Choice(first="sft"))
    assert bench.run(Choice(last="pt")) == ["pt", "merge pt"]
    assert bench.run(Choice("sft", "sft")) == ["sft", "merge sft"]
    assert bench.run(Choice("pt", "pt", force=("*",))) == ["pt", "merge pt"]
    assert bench.run(Choice(force=("sft",))) == ["sft", "merge sft"]
    with pytest.raises(ArgumentError, match="there is no stage dpo"):
        bench.run(Choice(last="dpo"))


def test_a_failure_is_told_in_its_own_words(bench: Bench) -> None:
    bench.fails["sft"] = (
        2,
        "loading\n[2026-01-01 00:00:00,1] [INFO] [launch.py:1] noise\n\n"
        "error: no such thing\n  to do: fix it\n\nmore noise\n",
    )
    with pytest.raises(StageFailed) as caught:
        bench.run()
    assert bench.started == ["pt", "merge pt", "sft"]
    text = caught.value.render()
    assert "sft failed (exit code 2)" in text and "    no such thing\n      to do: fix it" in text
    assert "noise" not in text and "run_sft.py --model_name_or_path" in text and "--resume_from_checkpoint auto" in text
    del bench.fails["sft"]
    assert bench.run() == ["sft", "merge sft"], "the same command goes on"


TRACE = 'Traceback (most recent call last):\n  File "a", line 1\n'


@pytest.mark.parametrize(
    ("code", "words", "told"),
    [
        (1, f"{TRACE}OSError: [Errno 28] No space left on device\n", "disk is full"),
        (-9, "step 3\n", "killed from outside"),
        (1, "torch.OutOfMemoryError: CUDA out of memory. Tried\n", "out of memory"),
        (1, f"{TRACE}ValueError: odd\n[rank1]: Traceback\nlater\n", "    ValueError: odd$"),
        (1, "error: rank 0 on host has stopped at x\n\n[rank 1] error: mine\nmore\n\n", "    mine\n    more"),
        (1, "error: rank 0 on host has stopped at x\n\nlater\n", "rank 0 on host has stopped"),
        (1, f"error: rank 0 on host has stopped at x\n\n{TRACE}ValueError: odd\n", "ValueError: odd"),
        (1, "", "it said nothing"),
    ],
)
def test_known_causes(bench: Bench, code: int, words: str, told: str) -> None:
    bench.fails["pt"] = (code, words)
    with pytest.raises(StageFailed) as caught:
        bench.run()
    assert re.search(told, caught.value.render(), re.MULTILINE)


def test_a_damaged_result_stops_what_would_build_on_it(bench: Bench) -> None:
    bench.run(Choice(last="pt"))
    weights = bench.folder / "out" / "pt-merged" / "model.safetensors"
    good, stamp = weights.read_bytes(), weights.stat()
    weights.write_bytes(bytes([good[0] ^ 1]) + good[1:])
    os.utime(weights, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))  # as a failing disk does it
    with pytest.raises(ManifestError, match="changed after it was written") as caught:
        bench.run()
    assert "--force pt" in caught.value.render() and bench.started == []
    weights.write_bytes(good)
    assert bench.run() == ["sft", "merge sft"]


@pytest.mark.parametrize("call", ["mkdir", "rename"])
def test_what_the_disk_does_not_take_is_one_message(bench: Bench, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    """The lock, the folders of logs and of former results, and the move there; afterwards the same command works."""
    bench.run()
    bench.lr = "2e-3"

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, call, full)
        with pytest.raises(ArgumentError, match="out cannot be written: No space left on device"):
            bench.run(Choice(force=("sft",)))
    assert bench.run(Choice(force=("sft",))) == ["sft", "merge sft"]


def test_a_lock_of_somebodys_loses_nothing(tmp_path: Path) -> None:
    (tmp_path / "theirs").write_text("mine")
    (tmp_path / OUTPUT_LOCK).symlink_to(tmp_path / "theirs")
    with pytest.raises(ArgumentError, match="is in the way"), alone(tmp_path):
        pass
    assert (tmp_path / "theirs").read_text() == "mine"


def test_a_log_that_cannot_be_opened_is_the_runners_to_say(bench: Bench) -> None:
    """A keeper that found it out would be a second runner."""
    (bench.folder / "out" / "logs" / "pt.log").mkdir(parents=True)
    runner, pid = Runner(bench.folder / "out"), os.getpid()
    with pytest.raises(ArgumentError, match=r"cannot be written: Is a directory"):
        runner.run(bench.steps)
    assert os.getpid() == pid


# --- real processes ---


def alive(found: list[psutil.Process]) -> list[psutil.Process]:
    return [process for process in found if process.is_running() and process.status() != psutil.STATUS_ZOMBIE]


def wait(condition: object, seconds: float = 20.0) -> None:
    until = time.monotonic() + seconds
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < until, "it did not happen"
        time.sleep(0.02)


LAUNCHER = """
import subprocess, sys, time
sleeper = [sys.executable, "-c", "import time; time.sleep(600)"]
children = [subprocess.Popen(sleeper, start_new_session=True) for _ in "ab"]
print("up", flush=True)
time.sleep(600)
"""


@pytest.fixture
def launcher(tmp_path: Path) -> list[str]:
    """Something that starts two ranks in sessions of their own, as torchrun does."""
    (tmp_path / "launcher.py").write_text(LAUNCHER)
    return [sys.executable, str(tmp_path / "launcher.py")]


@pytest.mark.parametrize("launcher_dies", [False, True])
def test_no_rank_outlives_its_command(launcher_dies: bool, launcher: list[str], tmp_path: Path) -> None:
    kept = processes.start(launcher, os.environ, tmp_path / "log")
    wait(lambda: len(processes.descendants(kept.pid)) == 3)
    found = processes.descendants(kept.pid)
    found[0].kill() if launcher_dies else kept.kill()
    wait(lambda: kept.poll() is not None)
    assert alive(found) == [] and (kept.poll() == -9 or not launcher_dies)


def test_a_runner_that_dies_leaves_nothing_and_no_lock(
    launcher: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = f"""
import os, time
from pathlib import Path
from hftune.tools.pipeline import processes
from hftune.tools.pipeline.runner import alone
with alone(Path({str(tmp_path)!r})):
    kept = processes.start({launcher!r}, os.environ, Path({str(tmp_path / "log")!r}))
    while True:
        time.sleep(0.1)
"""
    runner = subprocess.Popen([sys.executable, "-c", code])
    wait(lambda: len(processes.descendants(runner.pid)) == 4)
    found = processes.descendants(runner.pid)
    with monkeypatch.context() as patch, pytest.raises(ArgumentError, match="another"):
        patch.setattr(locks, "OUTPUT_SECONDS", 0.1)
        with alone(tmp_path):
            pass
    runner.kill()
    runner.wait()
    with alone(tmp_path):
        wait(lambda: alive(found) == [])


def test_codes_and_what_cannot_start(tmp_path: Path) -> None:
    for command, code in ((["sh", "-c", "exit 75"], 75), (["no-such-command"], 127)):
        kept = processes.start(command, os.environ, tmp_path / "log")
        wait(lambda kept=kept: kept.poll() is not None)
        assert kept.poll() == code
    assert "no-such-command cannot be started" in (tmp_path / "log").read_text()


SCRIPT = """
import signal, sys, time
def note(number, frame):
    print("saved", flush=True)
    sys.exit(75)
signal.signal(signal.SIGTERM, note)
print("ready", flush=True)
time.sleep(600)
"""


def test_the_first_signal_asks_a_rank_to_save(bench: Bench, tmp_path: Path) -> None:
    (tmp_path / "run_pt.py").write_text(SCRIPT)
    log = bench.folder / "out" / "logs" / "pt.log"
    bench.start = lambda command, env, log: processes.start(  # type: ignore[assignment, method-assign]
        [sys.executable, str(tmp_path / "run_pt.py")], env, log
    )

    def tell() -> None:
        wait(lambda: log.is_file() and "ready" in log.read_text())
        os.kill(os.getpid(), signal.SIGINT)

    teller = threading.Thread(target=tell)
    teller.start()
    with pytest.raises(Preempted, match="a checkpoint is saved"):
        bench.run()
    teller.join()
    assert "saved" in log.read_text()


def test_checkpoints_without_an_optimizer_are_not_gone_on_from(bench: Bench) -> None:
    step = bench.steps[0]
    assert command_of(step)[-2:] == ["--resume_from_checkpoint", "auto"]
    assert command_of(replace(step, arguments={"save_only_model": ["True"]}))[-2:] == [
        "--resume_from_checkpoint",
        "none",
    ]


def test_a_token_is_handed_on_in_the_environment(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A launcher prints the commands that it starts, into a log, and `ps` shows them."""
    told: list[tuple[str, Mapping[str, str]]] = []
    arguments = {"seed": ["1"], "push_to_hub_token": ["first", "the-token-1"]}
    step = Step("a", "a", "sft", tmp_path / "a", arguments, {}, "f:1", env={"B": "c"})

    def start(command: Sequence[str], env: Mapping[str, str], log: Path) -> Ended:
        told.append((" ".join(command), env))
        return Ended(0)

    Runner(tmp_path, start=start)._execute(step, "a")
    ((command, env),), said = told, capsys.readouterr().out
    assert "the-token-1" not in command + said and "--seed 1" in command
    assert env["HF_TOKEN"] == "the-token-1" and env["B"] == "c" and "HF_TOKEN=***" in said


def test_where_a_step_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """In lines of a log, at most every half minute, and of this run alone; on a terminal in a line that changes."""
    lines = [json.dumps({"step": n, "max_steps": 10, "time": 2.0 * n, "loss": 4 - n / 2}) for n in (9, 1, 3)]
    (tmp_path / "progress.jsonl").write_text(f"{lines[0]}\n")
    look = watching(tmp_path, "[1/2] sft")
    (tmp_path / "progress.jsonl").write_text("\n".join([*lines, ""]))
    look()
    assert capsys.readouterr().out == "", "too soon"
    monkeypatch.setattr(runner_module, "_PLAIN_SECONDS", 0.0)
    look = watching(tmp_path, "[1/2] sft")
    look()
    with (tmp_path / "progress.jsonl").open("a") as stream:
        stream.write(f"{lines[1]}\n{lines[2]}\n")
    look()
    assert capsys.readouterr().out == "[1/2] sft: step 3/10, loss 2.5, 14 s left\n"
    shown: list[str] = []
    monkeypatch.setattr(runner_module.terminal, "err", lambda: SimpleNamespace(isatty=lambda: True))
    monkeypatch.setattr(runner_module.terminal, "show_progress", shown.append)
    watching(tmp_path, "[1/2] sft")()
    assert shown == ["[1/2] sft: loading, 0 s"] and capsys.readouterr().out == ""
