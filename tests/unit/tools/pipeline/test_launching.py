"""`hftune launch`: whose exit code, whose words, and who is asked to stop."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hftune import terminal
from hftune.errors import ArgumentError
from hftune.tools.pipeline import starting as launching
from hftune.tools.pipeline.starting import launch

OF_TORCHRUN = """
W1123 08:13:18.308000 918 torch/distributed/elastic/multiprocessing/api.py:1028] Sending process 1005 closing signal
Traceback (most recent call last):
  File "/somewhere/bin/torchrun", line 8, in <module>
    sys.exit(main())
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
Failures:
[1]:
  rank      : 1 (local_rank: 1)
  exitcode  : -15 (pid: 1005)
Root Cause (first observed failure):
[0]:
  rank      : 0 (local_rank: 0)
  exitcode  : {code} (pid: 1004)
"""


@pytest.mark.parametrize("code, wanted", [(2, 2), (75, 75), (-9, 137)])
def test_the_exit_code_is_that_of_the_first_that_failed(tmp_path: Path, code: int, wanted: int) -> None:
    log = tmp_path / "log"
    log.write_text(OF_TORCHRUN.format(code=code))
    assert launching._code_of_ranks(log) == wanted
    log.write_text("nothing of the kind")
    assert launching._code_of_ranks(log) is None


def test_what_the_launcher_says_is_shown_where_no_rank_could_speak(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "log"
    log.write_text(OF_TORCHRUN.format(code=2))
    launching._show_what_no_rank_said(log, 2)
    assert capsys.readouterr().err == "", "the rank has said it"
    log.write_text("SyntaxError: invalid syntax\n" + OF_TORCHRUN.format(code=1))
    launching._show_what_no_rank_said(log, 1)
    assert capsys.readouterr().err == "SyntaxError: invalid syntax\n"
    log.write_text(OF_TORCHRUN.format(code=-9))
    launching._show_what_no_rank_said(log, 137)
    assert capsys.readouterr().err == "a process was ended by signal 9\n"


def test_only_launchers_are_launched() -> None:
    with pytest.raises(ArgumentError, match="starts with a launcher"):
        launch(["run_sft.py"])


@pytest.mark.parametrize(
    "argv, hides",
    [
        ("deepspeed run_sft.py --hostfile_of_mine x", True),
        ("python merge_peft_adapter.py", False),
        ("srun --nodes 2 bash -c x", False),
        ("torchrun --nnodes 2 run_sft.py", True),
        ("deepspeed --num_gpus 2 run_sft.py", True),
        ("deepspeed --hostfile hosts run_sft.py", False),
        ("deepspeed --num_nodes=2 run_sft.py", False),
    ],
)
def test_words_of_other_machines_come_through_the_launcher(
    argv: str, hides: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(terminal.SHOW_ALL, raising=False)
    with (tmp_path / "terminal").open("w") as stream:
        monkeypatch.setattr(terminal, "reopen", lambda path: os.dup(stream.fileno()))
        assert launching._may_hide(argv.split()) is hides


def test_of_a_terminal_that_ranks_cannot_open_nothing_is_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    def closed(path: str) -> int:
        raise OSError(9, os.strerror(9))

    monkeypatch.setattr(terminal, "reopen", closed)
    assert not launching._may_hide(["torchrun", "run_sft.py"])


def own_script(folder: Path, body: str) -> list[str]:
    """A command that launches a script whose main is `body`."""
    script = folder / "run_own.py"
    lines = "\n".join(f"    {line}" for line in body.splitlines())
    script.write_text(
        "import os, sys, time\nfrom hftune import interrupts\n"
        "from hftune.errors import DataError, Preempted, run_script\n"
        f"from hftune.visible import say\ndef main():\n{lines}\nrun_script(main)\n"
    )
    return ["python", str(script)]


def test_the_first_ctrl_c_asks_and_the_second_ends_all(tmp_path: Path) -> None:
    words = own_script(tmp_path, "interrupts.defer(True)\nsay('ready', flush=True)\ntime.sleep(100)")
    command = [sys.executable, "-u", "-m", "hftune.cli", "launch", *words]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGINT)
    assert "SIGTERM: finishing this step" in process.stdout.readline()
    time.sleep(0.3)
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    said, _ = process.communicate(timeout=30)
    assert process.returncode == 130 and said == "ended at once\n"


@pytest.mark.parametrize(
    "body, code, said",
    [
        ("print('a library speaks')\nsay('done')", 0, "done\n"),
        ("raise DataError('cannot be read')", 2, "\nerror: cannot be read\n\n"),
        ("raise Preempted('stopped at step 3')", 75, "\nstopped at step 3\n\n"),
        ("os._exit(3)", 3, ""),
    ],
)
def test_exit_codes_and_words_are_those_of_the_script(
    tmp_path: Path, body: str, code: int, said: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        launch(own_script(tmp_path, body))
    assert (ended.value.code, "".join(capfd.readouterr())) == (code, said)
