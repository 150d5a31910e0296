"""Processes of a world by fork, from a parent that has imported every library once.

A fork costs milliseconds where a launcher costs twelve seconds, and a run can neither see nor disturb another: no state
of transformers, accelerate or DeepSpeed has to be reset, and one that hangs or dies is ended alone. What a launcher
tells its processes (rank, world size, where to meet) is told here by the same variables.
"""

from __future__ import annotations

import gc
import importlib
import os
import pkgutil
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

LIMIT_SECONDS = 180
GRACE_SECONDS = 5.0
LATE: tuple[str, ...] = (
    "setuptools",
    "deepspeed.module_inject.auto_ep_layer",
    "numpy.ctypeslib",
    "transformers.models.llama.modeling_llama",
    "deepspeed.ops.op_builder.all_ops",
)
LATE += ("trl.scripts.utils", "trl.trainer.grpo_trainer", "trl.trainer.rloo_trainer", "peft.tuners.lora.bnb")
"""What the libraries import when it is asked for, in most runs or in slow ones."""


def import_everything() -> None:
    """What the scripts import, so that a fork has it already. Nothing may start a thread or a process group here."""
    import hftune
    from hftune.distributed import launch

    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # a fork cannot use a GPU that its parent has touched
    launch.prepare_environment()
    import bitsandbytes  # noqa: F401

    found = (module.name for module in pkgutil.walk_packages(hftune.__path__, "hftune."))
    for name in (*(name for name in found if not name.startswith("hftune.tools")), *LATE):
        importlib.import_module(name)
    _build_tables_of_transformers()
    gc.collect()
    gc.freeze()  # a child's collections, which the Trainer asks for, then pass over all that was imported


def _build_tables_of_transformers() -> None:
    """The renamings of weights that `from_pretrained` compiles on first use: a fifth of a small cell's time."""
    from transformers.conversion_mapping import get_checkpoint_conversion_mapping

    get_checkpoint_conversion_mapping("llama")


def fork_and_wait(work: Callable[[], object], log: Path, processes: int, limit: float = LIMIT_SECONDS) -> int:
    """Run `work` in forked processes of a world of their own; the exit code of the first that failed, else 0.

    As under a launcher, one that fails takes the others with it. After `limit` seconds all are ended with code 124.
    """
    port = free_port()
    running = {fork(work, log, rank, processes, port) for rank in range(processes)}
    began, failed_at, code = time.time(), 0.0, 0
    while running:
        child, status = os.waitpid(-1, os.WNOHANG)
        # This process may have other children, which others end.
        if child in running and code == 0 and os.waitstatus_to_exitcode(status) != 0:
            code, failed_at = os.waitstatus_to_exitcode(status), time.time()
        running.discard(child)
        if time.time() - began > limit:
            code, failed_at = code or 124, 1.0
        # Exit code 2 is a refusal, which rank 0 speaks alone; after a crash the others may still have words to say.
        if failed_at and (code == 2 or time.time() - failed_at > GRACE_SECONDS):
            for process in running:
                os.kill(process, signal.SIGKILL)
        time.sleep(0.005)
    return code


def fork(work: Callable[[], object], log: Path, rank: int, processes: int, port: int) -> int:
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
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
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
