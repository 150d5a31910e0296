"""What a script shows, and what goes to the log: by process, as a user has it."""

from __future__ import annotations

import fcntl
import io
import os
import pty
import struct
import subprocess
import sys
import termios
from collections.abc import Callable
from pathlib import Path

import pytest

from hftune import terminal
from hftune.arguments.asking import AskArguments
from hftune.arguments.parser import HftuneParser
from hftune.visible import say

SCRIPT = """
import ctypes, logging, os, subprocess, sys, time, warnings
from hftune import terminal
from hftune.errors import DataError, run_script
from hftune.logging import get_logger, notice
from hftune.visible import say
from pathlib import Path
log = Path(sys.argv[1])
def main():
{body}
if __name__ == "__main__":
    run_script(main)
"""
NOISE = """
print("printed by a library")
print("and on standard error", file=sys.stderr)
logging.getLogger("some.library").warning("logged by a library")
warnings.warn("warned by a library", FutureWarning)
libc = ctypes.CDLL(None)
libc.puts(b"said in C"); libc.fflush(None)
subprocess.run([sys.executable, "-c", "print('said by another program')"])
notice("hftune has something to say")
"""
ALL = (
    "printed by a library",
    "and on standard error",
    "logged by a library",
    "FutureWarning: warned by a library",
)
OF_OTHERS = ["said in C", "said by another program"]
"""What goes past Python's streams is shown as it is."""


@pytest.fixture
def run_main(tmp_path: Path) -> Callable[..., tuple[int, str, Path]]:
    """Run a script with this main: exit code, all that was shown, the log."""

    def run(body: str, at_terminal: bool = False, **variables: str) -> tuple[int, str, Path]:
        file, log = tmp_path / "script.py", tmp_path / "out" / "run.log"
        file.write_text(SCRIPT.format(body="\n".join(f"    {line}" for line in body.splitlines())))
        environment = {**os.environ, **variables}
        command = [sys.executable, str(file), str(log)]
        if not at_terminal:
            shown = subprocess.run(
                command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
            )
            return shown.returncode, shown.stdout, log
        master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        process = subprocess.Popen(command, stdin=slave, stdout=slave, stderr=slave, env=environment)
        os.close(slave)
        said = b""
        while True:
            try:
                data = os.read(master, 1 << 16)
            except OSError:
                break
            if not data:
                break
            said += data
        os.close(master)
        return process.wait(), said.decode(), log

    return run


def test_only_hftune_s_lines_are_shown_and_the_log_has_all(run_main) -> None:
    code, shown, log = run_main(NOISE + "terminal.open_log(log)\nprint('later', flush=True)\nsay('result')")
    assert code == 0
    own = ["hftune has something to say", "result"]
    assert [line.split(" INFO ")[-1] for line in shown.splitlines()] == [*OF_OTHERS, *own]
    text = log.read_text()
    assert all(words in text for words in ALL), text
    own = [line for line in text.splitlines() if line.startswith("> ")]
    assert own[0].endswith("INFO hftune has something to say") and own[1] == "> result"
    assert text.index("warned by a library") < text.index("hftune has something") < text.index("later")


def test_a_refusal_leaves_no_folder(run_main) -> None:
    code, shown, log = run_main(NOISE + "raise DataError('this cannot be read', place='a.jsonl:3')")
    assert code == 2 and not log.parent.exists()
    assert shown.split("\n", 3)[3] == "\nerror: this cannot be read\n  where: a.jsonl:3\n\n"


def test_an_unexpected_error_shows_the_last_words_of_libraries_and_where_the_rest_is(run_main) -> None:
    many = "for number in range(40): print(f'line {number}.')\n"
    code, shown, log = run_main(many + "terminal.open_log(log)\n{}['no such key']")
    assert code == 1 and "line 39." in shown and "line 25." in shown and "line 24." not in shown
    assert str(log) in shown and shown.rstrip().endswith("KeyError: 'no such key'")
    assert shown.count("Traceback") == 1
    text = log.read_text()
    assert "line 0." in text and "KeyError: 'no such key'" in text, "who sends the log sends the error"


def test_secrets_do_not_reach_the_log(run_main) -> None:
    secret = "hunter2hunter2hunter2x9"
    code, _, log = run_main(
        f"print('key {secret} and \\x1b[31mred\\x1b[0m and \\x07bell', flush=True)\nterminal.open_log(log)",
        WANDB_API_KEY=secret,
    )
    assert code == 0 and secret not in log.read_text() and "key *** and red and \\x07bell" in log.read_text()
    assert oct(0o777 & log.stat().st_mode & ~0o644) == "0o0"


def test_everything_can_be_shown(run_main) -> None:
    code, shown, log = run_main(NOISE + "terminal.open_log(log)", HFTUNE_SHOW_ALL="1")
    assert code == 0 and all(words in shown for words in (*ALL, *OF_OTHERS)) and not log.exists()


def test_a_process_that_ends_in_the_middle_has_its_words_in_the_log(run_main) -> None:
    """All ways out of a script write the rest first."""
    body = "terminal.open_log(log)\nsys.stdout.write('x' * 300_000 + '\\nthe end')\nraise DataError('no')"
    code, _, log = run_main(body)
    assert code == 2 and "the end" in log.read_text().splitlines()[-2:][0] + log.read_text().splitlines()[-1]


def test_a_full_disk_takes_no_log_and_ends_nothing(run_main) -> None:
    code, shown, _ = run_main("terminal.open_log(Path('/dev/full'))\nprint('lost')\nsay('result')")
    assert code == 0 and shown.splitlines() == ["result"]


def test_loggers_that_libraries_have_made_before(run_main) -> None:
    body = """
from hftune import terminal
terminal.release()
logging.getLogger("deepspeed").addHandler(logging.StreamHandler(sys.stdout))
terminal.capture(str)
terminal.open_log(log)
logging.getLogger("deepspeed").warning("the first")
terminal.release()
logging.getLogger("deepspeed").warning("the second")
"""
    _, shown, log = run_main(body)
    assert shown == "the second\n" and "the first" in log.read_text() and "the second" not in log.read_text()


def test_bars_of_libraries_are_one_line_that_moves(run_main) -> None:
    body = """
from tqdm import tqdm
for _ in tqdm(range(3), desc="Loading checkpoint shards", mininterval=0): time.sleep(0.05)
terminal.open_log(log)
say("loaded")
"""
    code, shown, log = run_main(body, at_terminal=True)
    assert code == 0 and "Loading checkpoint shards:  33%" in shown
    stays = [line.rpartition("\r")[2].replace("\x1b[2K", "") for line in shown.replace("\r\n", "\n").split("\n")]
    assert [line for line in stays if line] == ["loaded"]
    bars = [line for line in log.read_text().splitlines() if "Loading" in line]
    assert len(bars) == 1 and "3/3" in bars[0], "its last state"


def test_other_ranks_do_not_draw(run_main) -> None:
    body = "terminal.show_progress('step 1/2'); time.sleep(0.1)"
    assert "step 1/2" in run_main(body, at_terminal=True)[1]
    assert "step 1/2" not in run_main(body, at_terminal=True, RANK="1", LOCAL_RANK="1")[1]


def test_the_page_of_help_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """argparse prints it to standard output, which leads to the log."""
    shown = io.StringIO()
    monkeypatch.setattr(terminal, "out", lambda: shown)
    with pytest.raises(SystemExit):
        HftuneParser([AskArguments]).parse(["--help"])
    assert "--questions" in shown.getvalue()


def test_forked_processes_write_to_the_same_log(run_main) -> None:
    body = """
terminal.open_log(log)
child = os.fork()
if child == 0:
    print("said by a worker", flush=True)
    say("shown by a worker", flush=True)
    os._exit(0)
os.waitpid(child, 0)
"""
    code, shown, log = run_main(body)
    assert code == 0 and "said by a worker" in log.read_text() and shown == "shown by a worker\n"


def test_a_log_is_added_to(run_main) -> None:
    for _ in range(2):
        _, _, log = run_main("terminal.open_log(log)\nprint('again')")
    assert log.read_text().count("again") == 2 and log.read_text().count("--- 2") == 2


@pytest.mark.parametrize(("runner", "file"), [("run_script", "out"), ("run_tool", "err")])
def test_who_reads_may_leave(run_main, tmp_path: Path, runner: str, file: str) -> None:
    """`hftune ... | head`, and `run_sft.py ... | tee` of which Ctrl-C ends `tee` first."""
    done = tmp_path / "done"
    body = (
        "from hftune import errors\n"
        "def work():\n"
        "    read, write = os.pipe()\n"
        "    os.close(read)\n"
        f"    os.dup2(write, terminal.{file}().fileno())\n"
        f"    say('for nobody', file=terminal.{file}(), flush=True)\n"
        f"    print('nor this', file=terminal.{file}())\n"
        "    terminal.write_unbuffered('nor this')\n"
        "    terminal.open_log(log)\n"
        f"    Path({str(done)!r}).touch()\n"
        "terminal.release()\n"
        f"errors.{runner}(work)\n"
    )
    code, shown, log = run_main(body)
    assert code == 0 and done.exists() and "Error" not in shown and "Exception" not in shown
    assert runner == "run_tool" or "> for nobody\n> nor this\n" in log.read_text()


def test_a_line_and_its_end_are_one_write() -> None:
    """Else a line of another thread comes between."""
    written: list[str] = []

    class Stream(io.StringIO):
        def write(self, text: str) -> int:
            written.append(text)
            return super().write(text)

    say("one line", file=Stream())
    assert [text for text in written if text] == ["one line\n"]
