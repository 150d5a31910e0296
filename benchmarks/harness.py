"""What benchmarks share that compare tools: processes, turns, memory, bars, a line of JSON, a table in a page."""

from __future__ import annotations

import argparse
import atexit
import json
import os
import platform
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any, Self

import children

ROOT = children.ROOT
LIMIT = 7200.0
"""Seconds of one process."""
Figures = dict[str, Any]


class Failed(Exception):
    """A process ended with another code than 0; the end of its words."""


def parser_of(text: str, rounds: int, *peers: str) -> argparse.ArgumentParser:
    """With what all take: rounds, and a flag for each tool that lives in an environment of its own."""
    parser = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=rounds)
    parser.add_argument("--quick", action="store_true", help="less of all, in one round")
    for peer in peers:
        parser.add_argument(f"--{peer}", metavar="[FOLDER:]PYTHON", help="of its environment; FOLDER: its repository")
    parser.set_defaults(peers=peers)
    return parser


def tools_of(options: argparse.Namespace, *ours: str) -> list[str]:
    """Ours, and the peers whose environments were given."""
    absent = [peer for peer in options.peers if not getattr(options, peer)]
    if absent:
        print(f"not measured, because no environment was given: {', '.join(absent)}")
    return [*ours, *(peer for peer in options.peers if peer not in absent)]


def ask(script: str, flags: list[str], where: str | None = None, **environment: str) -> Figures:
    """The figures that a script of this folder prints last, in a fresh process without a GPU.

    Args:
        script: Its file's name.
        flags: Its arguments.
        where: `[FOLDER:]PYTHON` of another environment, whose packages alone are found; left out: this one.
        environment: Further variables, or others.

    Raises:
        Failed: It ended with another code than 0.
    """
    repository, _, python = (where or "").rpartition(":")
    command = [python or sys.executable, str(Path(__file__).with_name(script)), *flags]
    command += ["--repository", repository] if repository else []
    given = {"OMP_NUM_THREADS": str(os.cpu_count()), "CUDA_VISIBLE_DEVICES": "", "BENCHMARK_BEGAN": repr(time.time())}
    given |= {"PYTHONPATH": ""} if python not in ("", sys.executable) else {}
    return json.loads(words_of(command, **given | environment).rstrip().splitlines()[-1])  # type: ignore[no-any-return]


def words_of(command: list[str], **environment: str) -> str:
    """What a command writes to stdout. Tokenised data is not kept for the next one; hftune's own cache is.

    Raises:
        Failed: It ended with another code than 0.
    """
    given = {"HF_DATASETS_CACHE": empty_folder()} | environment
    ended = children.run(command, children.environment(_folder(), **given), LIMIT)
    if ended.code != 0:
        raise Failed(ended.failure["failed"])
    return ended.out


def empty_folder() -> str:
    """One that is gone when the benchmark has ended."""
    return tempfile.mkdtemp(dir=_folder())


@cache
def _folder() -> Path:
    stack = ExitStack()
    atexit.register(stack.close)
    return stack.enter_context(children.work_folder())


def in_turns(
    tools: Iterable[str], options: argparse.Namespace, run: Callable[[str], Figures]
) -> dict[str, list[Figures]]:
    """The figures of each tool, which take turns; a peer that fails is left out, which is said."""
    found: dict[str, list[Figures]] = {tool: [] for tool in tools}
    for _ in range(1 if options.quick else options.rounds):
        for tool in list(found):
            try:
                found[tool].append(run(tool))
            except Failed as error:
                if tool.startswith("hftune"):
                    raise SystemExit(f"{tool} failed: {error}") from error
                print(f"{tool} is left out, it failed: {str(error).splitlines()[-1][:200]}")
                del found[tool]
            else:
                print(f"# {tool}: {found[tool][-1]}"[:300], file=sys.stderr)
    return found


def medians(runs: list[Figures]) -> dict[str, float]:
    """Of each number over the rounds."""
    numbers = [name for name, value in runs[0].items() if isinstance(value, int | float)]
    return {name: statistics.median(one[name] for one in runs) for name in numbers}


class Peak(threading.Thread):
    """The most memory that all processes below this one hold together while it is entered, MiB.

    Args:
        field: "Pss" shares out mapped files and what processes have in common; "Private_Dirty" has neither.
        every: Seconds between looks. Adding up the pages of many processes holds them up: at 20 times a second by a
            fifth.
    """

    def __init__(self, field: str, every: float) -> None:
        super().__init__(daemon=True)
        self.field, self.every, self.mebibytes, self._over = field, every, 0.0, threading.Event()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self.join()

    def run(self) -> None:
        """Look until it is left."""
        while not self._over.wait(self.every):
            below = _family(os.getpid())[1:]
            seen = [sum(mebibytes(self.field, process, "smaps_rollup") for process in below)]
            # The kernel's own figure of one process misses no moment.
            seen += [mebibytes("VmHWM", process) for process in below] if self.field == "Pss" else []
            self.mebibytes = max(self.mebibytes, *seen)


def _family(process: int) -> list[int]:
    found = [process]
    for task in Path(f"/proc/{process}/task").glob("*/children"):
        try:
            found += [member for child in task.read_text().split() for member in _family(int(child))]
        except OSError:  # it has ended
            continue
    return found


def mebibytes(field: str, process: int | str = "self", file: str = "status") -> float:
    """A figure of a process by the kernel's name; 0 where the process has ended."""
    try:
        lines = Path(f"/proc/{process}/{file}").read_text().splitlines()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith(f"{field}:")), 0.0)


def bar(value: float, wanted: float, *, above: bool = False) -> dict[str, Any]:
    """What was measured, what is wanted (at most, or at least), and whether it holds."""
    return {"value": round(value, 3), "bar": wanted, "holds": value >= wanted if above else value <= wanted}


def machine(*, cuda: bool = False) -> str:
    """Its processors, or its GPU, in words."""
    if not cuda:
        return f"{platform.machine()}, {os.cpu_count()} cores"
    import torch

    return f"{torch.cuda.device_count()} x {torch.cuda.get_device_name(0)}, torch {torch.__version__}"


def finish(benchmark: str, figures: Figures, bars: dict[str, Any], *, cuda: bool = False) -> None:
    """Print the last line: JSON."""
    print(json.dumps({"benchmark": benchmark, "machine": machine(cuda=cuda), "figures": figures, "bars": bars}))


def paste(page: Path, name: str, text: str) -> None:
    """Put a text between `<!-- NAME -->` and `<!-- /NAME -->` of a page."""
    start, end = f"<!-- {name} -->", f"<!-- /{name} -->"
    before, rest = page.read_text(encoding="utf-8").split(start)
    page.write_text(f"{before}{start}\n{text}\n{end}{rest.split(end)[1]}", encoding="utf-8")
