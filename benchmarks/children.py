"""Processes that end in time, folders that do not stay, results that do: what every benchmark runs on.

One for GPUs may be stopped at any moment. What it has found by then is in its `--output`, its processes end with it,
and its folder is removed by the next one. A later call with the same `--output` goes on: what ended well stays.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).resolve().parents[1]
PREFIX = "hftune-bench-"
GRACE = 30.0
"""Seconds after a benchmark's time in which what runs may still end."""
SHOWN = 3000
"""Characters of a failed process's last words that are kept."""
POLLED = 0.3
"""Seconds between looks at a process whose words are shown at once."""
_PRCTL = getattr(ctypes.CDLL(None), "prctl", None)  # Linux has it; looked up before a process is forked


@dataclass(frozen=True)
class Ended:
    """A process that has ended.

    Args:
        code: Its exit code; None where it was stopped.
        out: What it wrote to stdout.
        words: That, then what it wrote to stderr.
        seconds: How long it ran.
        cut: Whether it was stopped because the benchmark's own time was up.
    """

    code: int | None
    out: str
    words: str
    seconds: float
    cut: bool = False

    @property
    def failure(self) -> dict[str, Any]:
        """As a result: why there is nothing else, and the end of its words."""
        why = f"stopped after {self.seconds:.0f} s" if self.code is None else f"exit code {self.code}"
        last = self.words.rstrip()[-SHOWN:]
        return {"failed": f"{why}\n{last}".rstrip(), **({"cut": True} if self.cut else {})}


class Clock:
    """The time that a benchmark was given."""

    def __init__(self, minutes: float) -> None:
        self._end = time.perf_counter() + 60 * minutes

    @property
    def left(self) -> float:
        """Seconds in which something may still be started."""
        return self._end - time.perf_counter()

    def run(self, command: list[str], environment: dict[str, str], cap: float, **how: Any) -> Ended:
        """`run` for `cap` seconds at most, and no longer than the benchmark has with its grace."""
        left = max(1.0, self.left + GRACE)
        ended = run(command, environment, min(cap, left), **how)
        return Ended(None, ended.out, ended.words, ended.seconds, left < cap) if ended.code is None else ended


def run(
    command: list[str],
    environment: dict[str, str],
    limit: float,
    *,
    show: bool = False,
    meanwhile: Callable[[], None] = lambda: None,
) -> Ended:
    """Run a command in the repository; stopped after `limit` seconds, with all that it started.

    Args:
        show: Whether what it writes to stdout is written to ours as it comes.
        meanwhile: Called now and then while it runs, with `show`.
    """
    began = time.perf_counter()
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            preexec_fn=_end_with_parent if _PRCTL else None,
        )
        try:
            code = _shown(process, out.fileno(), limit, meanwhile) if show else process.wait(limit)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            if process.poll() is None:
                _stop(process, environment)
        said = [_read(stream.fileno(), 0) for stream in (out, err)]
    return Ended(code, said[0], "".join(said), time.perf_counter() - began)


def _shown(process: subprocess.Popen[bytes], stream: int, limit: float, meanwhile: Callable[[], None]) -> int:
    """As `Popen.wait`, with the words passed on."""
    ends, seen = time.perf_counter() + limit, 0
    while True:
        code = process.poll()
        words = os.pread(stream, 2**20, seen)
        seen += len(words)
        print(words.decode(errors="replace"), end="", flush=True)
        meanwhile()
        if code is not None and not words:
            return code
        if code is None and time.perf_counter() > ends:
            raise subprocess.TimeoutExpired(process.args, limit)
        if code is None:
            time.sleep(POLLED)


def _read(stream: int, start: int) -> str:
    return os.pread(stream, os.fstat(stream).st_size - start, start).decode(errors="replace")


def _end_with_parent() -> None:
    """In a new process: end when the one that started it is killed, or it would train on beside what comes next."""
    _PRCTL(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def _stop(process: subprocess.Popen[bytes], environment: dict[str, str]) -> None:
    """End a process and all below it, and what they had locked."""
    below: list[psutil.Process] = []
    with suppress(psutil.NoSuchProcess):
        below = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    process.wait()
    for child in below:
        with suppress(psutil.NoSuchProcess):
            child.kill()
    # A lock of torch's is a file: one that stays makes all later builds of that operator wait for ever.
    for lock in Path(environment.get("TORCH_EXTENSIONS_DIR", os.devnull)).glob("**/lock"):
        lock.unlink(missing_ok=True)


def environment(folder: Path, **more: str) -> dict[str, str]:
    """Of every process: hftune is found here, all else where it was found; caches and temporary files in `folder`."""
    own = {
        "PYTHONPATH": os.pathsep.join(dict.fromkeys([str(ROOT), *_python_path()])),
        "PATH": search_path(),
        "HF_HUB_OFFLINE": "1",
        "TQDM_DISABLE": "1",
        "HFTUNE_CACHE": str(folder / "cache"),
        "TORCH_EXTENSIONS_DIR": str(folder / "extensions"),
        "TMPDIR": str(folder),
    }
    return os.environ | own | more


def search_path() -> str:
    """PATH of every process, with the programs of this Python and of packages in a folder (`pip install --target`)."""
    beside = [Path(sys.executable).parent, *(Path(part) / "bin" for part in _python_path())]
    programs = [str(folder) for folder in beside if folder.is_dir()]
    return os.pathsep.join(dict.fromkeys([*programs, *os.environ.get("PATH", os.defpath).split(os.pathsep)]))


def _python_path() -> list[str]:
    return [part for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part]


@contextmanager
def work_folder() -> Iterator[Path]:
    """A folder for weights and runs; those that killed benchmarks left behind are removed first, or disks fill up."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        _remove_left(folder)
    with tempfile.TemporaryDirectory(prefix=PREFIX, ignore_cleanup_errors=True) as name:
        holder = os.open(name, os.O_RDONLY)
        fcntl.flock(holder, fcntl.LOCK_SH)
        try:
            yield Path(name)
        finally:
            os.close(holder)


def _remove_left(folder: Path) -> None:
    """Unless a benchmark lives in it, or it is so young that one may be about to."""
    with suppress(OSError):  # another user's, or another benchmark has just removed it
        holder = os.open(folder, os.O_RDONLY)
        try:
            fcntl.flock(holder, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if time.time() - folder.stat().st_mtime > 10:
                shutil.rmtree(folder, ignore_errors=True)
        finally:
            os.close(holder)


def begin() -> None:
    """Use one GPU; and have SIGTERM end this process as an exception does, so that folders and processes go with it."""
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "0")  # where a process sees several, hftune wants a launcher
    signal.signal(signal.SIGTERM, _end)


def _end(*_: object) -> None:
    """Processes first: whoever waits for one of them, in whichever thread, is then free to end."""
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            child.kill()
    sys.exit(128 + signal.SIGTERM)


class Found:
    """What a benchmark has found, in a file that is whole at any moment.

    Args:
        file: None keeps it in memory alone. One that is there is gone on with.
        benchmark: Its name.
        machine: In words. Results of another machine are not added to.
        quick: Whether sizes are tiny; likewise.

    Attributes:
        quick: As given.
        figures: By a name of the benchmark's own.
        bars: By name: "value", "bar" and whether it "holds".
    """

    def __init__(self, file: Path | None, benchmark: str, machine: str, *, quick: bool) -> None:
        self.file, self.quick = file, quick
        self.figures: dict[str, Any] = {}
        self.bars: dict[str, dict[str, Any]] = {}
        self._head = {"benchmark": benchmark, "machine": machine, "quick": quick}
        if file is None or not file.is_file():
            return
        before = json.loads(file.read_text(encoding="utf-8"))
        other = {name: before.get(name) for name, value in self._head.items() if before.get(name) != value}
        if other:
            raise SystemExit(f"{file} holds results of {other}, and this is {self._head}: give another --output")
        self.figures, self.bars = before["figures"], before["bars"]

    def cases(self, name: str) -> dict[str, dict[str, Any]]:
        """The results of a kind, by case, to be added to."""
        return self.figures.setdefault(name, {})  # type: ignore[no-any-return]

    def keep(self, *, complete: bool = False) -> str:
        """Write the file; its one line. `complete`: the benchmark came to its end."""
        line = json.dumps({**self._head, "figures": self.figures, "bars": self.bars, "complete": complete})
        if self.file:
            part = self.file.with_name(f"{self.file.name}.part")
            part.write_text(line + "\n", encoding="utf-8")
            part.replace(self.file)
        return line

    def say_bars(self, set_for: str = "") -> None:
        """A line for each, and which machine they were measured on."""
        if self.bars:
            print(f"bars on {self._head['machine']}{set_for}:")
        for name, bar in self.bars.items():
            print(f"  {'holds' if bar['holds'] else 'FAILS'}  {name}: {bar['value']}, wanted {bar['bar']}")

    @property
    def holds(self) -> bool:
        """Whether all bars do."""
        return all(bar["holds"] for bar in self.bars.values())


def say(name: str, result: dict[str, Any]) -> None:
    """A line for a result, and the last words of one that failed below it."""
    shown = {key: value for key, value in result.items() if key != "failed"}
    print(f"{name}: {shown}" + (f"\n{result['failed']}" if "failed" in result else ""), flush=True)


def is_good(result: dict[str, Any] | None) -> bool:
    """Whether a case ended well, so that it need not run again."""
    return result is not None and "failed" not in result


def to_do(names: Iterable[str], known: dict[str, dict[str, Any]], patterns: list[str] | None = None) -> list[str]:
    """Which cases to run: those asked for that have no good result yet, and last those that have failed before."""
    asked = [name for name in names if not patterns or any(fnmatch(name, pattern) for pattern in patterns)]
    return sorted((name for name in asked if not is_good(known.get(name))), key=lambda name: name in known)


def figures_of(folder: Path, warm_up: int = 2) -> dict[str, Any]:
    """Speed and memory of a finished run, from its own logs.

    Returns:
        "losses", and as far as they were logged (RL has no speed): "tokens_per_second" and "mfu", medians of the steps
        after the first `warm_up`, and "peak_gigabytes", in 10^9 bytes.

    Raises:
        OSError, ValueError, KeyError, IndexError: The run has left no such logs.
    """
    history = json.loads((folder / "trainer_state.json").read_text(encoding="utf-8"))["log_history"]
    steps = [entry for entry in history if "tokens_per_second" in entry]
    steps = steps[warm_up:] or steps
    last = [entry for entry in history if "train_runtime" in entry][-1]
    found: dict[str, Any] = {"losses": [entry["loss"] for entry in history if "loss" in entry]}
    for name in ("tokens_per_second", "mfu"):
        if steps and all(name in entry for entry in steps):
            found[name] = statistics.median(entry[name] for entry in steps)
    if "train_peak_memory_gb" in last:
        found["peak_gigabytes"] = last["train_peak_memory_gb"]
    return found


NO_FIGURES = (OSError, ValueError, KeyError, IndexError)
"""What `figures_of` may raise."""
