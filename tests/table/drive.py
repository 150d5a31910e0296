"""Runs cells of the table: every library is imported once, then each cell gets processes of its own by fork.

python -m tests.table.drive --cells CELLS.jsonl --work FOLDER

A fork costs milliseconds where a launcher costs twelve seconds, and a cell can neither see nor disturb another: no
state of transformers, accelerate or DeepSpeed has to be reset, and a cell that hangs or dies is ended alone. What a
launcher tells its processes (rank, world size, where to meet) is told here by the same variables. `CELLS.jsonl` has a
line a cell: {"name", "script", "flags", "processes", "reload": ...}; with "reload" null nothing is reloaded. Cells that
have a result are not run again.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import shutil
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

RESULT = "result.json"
LIMIT_SECONDS = 180
GRACE_SECONDS = 5.0


def main() -> None:
    """Run all cells that have no result yet, in order."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--code", help="only results that were made with the same word here count")
    parser.add_argument("--seconds", type=float, help="stop after the cell in which this time is over")
    arguments = parser.parse_args()
    cells = [json.loads(line) for line in arguments.cells.read_text(encoding="utf-8").splitlines()]
    waiting = [cell for cell in cells if not is_done(cell, arguments.work / cell["name"], arguments.code)]
    if waiting:
        import_everything()
    began = time.time()
    for number, cell in enumerate(waiting, start=1):
        result = run_cell(cell, arguments.work / cell["name"], arguments.code)
        print(f"{number}/{len(waiting)} {cell['name']}: {result['code']} in {result['seconds']} s", flush=True)
        if arguments.seconds is not None and time.time() - began > arguments.seconds:
            break


def import_everything() -> None:
    """What the scripts import, so that a fork has it already. Nothing may start a thread or a process group here."""
    from hftune.distributed import launch

    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # a fork cannot use a GPU that its parent has touched
    launch.prepare_environment()
    import bitsandbytes  # noqa: F401
    import deepspeed  # noqa: F401

    import tests.table.reload
    import tests.table.witness  # noqa: F401

    _build_tables_of_transformers()
    gc.collect()
    gc.freeze()  # a child's collections, which the Trainer asks for, then pass over all that was imported


def _build_tables_of_transformers() -> None:
    """The renamings of weights that `from_pretrained` compiles on first use: a fifth of a small cell's time."""
    from transformers.conversion_mapping import get_checkpoint_conversion_mapping

    get_checkpoint_conversion_mapping("llama")


def is_done(cell: dict[str, Any], folder: Path, code: str | None) -> bool:
    """Whether this very cell, with the same flags, has a result; `code` None lets one of any code count."""
    file = folder / RESULT
    if not file.is_file():
        return False
    result = json.loads(file.read_text(encoding="utf-8"))
    return result["cell"] == cell and code in (None, result["made_by"])


def run_cell(cell: dict[str, Any], folder: Path, made_by: str | None) -> dict[str, Any]:
    """Train, reload, and write `result.json`: exit code, the last words of its log, seconds."""
    from tests.table import reload, witness

    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    began = time.time()
    log = folder / "log.txt"
    flags = [*cell["flags"], "--output_dir", str(folder / "out")]
    code = fork_and_wait(lambda: witness.run(cell["script"], flags, folder), log, cell["processes"])
    if code == 0 and cell["reload"]:
        code = fork_and_wait(lambda: reload.run(cell["reload"], folder), log, 1)
    said = log.read_text(encoding="utf-8", errors="replace")
    result = {
        "cell": cell,
        "made_by": made_by,
        "code": code,
        "seconds": round(time.time() - began, 2),
        "said": said[-4000:],
    }
    (folder / RESULT).write_text(json.dumps(result), encoding="utf-8")
    return result


def fork_and_wait(work: Callable[[], None], log: Path, processes: int) -> int:
    """Run `work` in forked processes of a world of their own; the exit code of the first that failed, else 0.

    As under a launcher, one that fails takes the others with it. Over the limit all are ended, and the code is 124.
    """
    port = free_port()
    running = {fork(work, log, rank, processes, port) for rank in range(processes)}
    began, failed_at, code = time.time(), 0.0, 0
    while running:
        child, status = os.waitpid(-1, os.WNOHANG)
        running.discard(child)
        if child and code == 0 and os.waitstatus_to_exitcode(status) != 0:
            code, failed_at = os.waitstatus_to_exitcode(status), time.time()
        if time.time() - began > LIMIT_SECONDS:
            code, failed_at = code or 124, 1.0
        # Exit code 2 is a refusal, which rank 0 speaks alone; after a crash the others may still have words to say.
        if failed_at and (code == 2 or time.time() - failed_at > GRACE_SECONDS):
            for process in running:
                os.kill(process, signal.SIGKILL)
        time.sleep(0.005)
    return code


def fork(work: Callable[[], None], log: Path, rank: int, processes: int, port: int) -> int:
    """A child that does `work` as one rank of a world, and its process id."""
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(output, 1)
        os.dup2(output, 2)
        if processes > 1:
            world = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": processes, "LOCAL_WORLD_SIZE": processes}
            meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "CROSS_RANK": 0, "CROSS_SIZE": 1}
            os.environ.update({name: str(value) for name, value in (world | meeting).items()})
        work()
        code = 0
    except BaseException:  # the child's end: what it met goes to its log, and nothing runs on into the parent's code
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def free_port() -> int:
    """A port where the processes of a cell can meet."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


if __name__ == "__main__":
    main()
