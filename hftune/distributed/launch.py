"""What must be decided before torch.distributed or DeepSpeed are imported or started.

On a machine without accelerators the Trainer, accelerate and DeepSpeed each guess the device and backend on their own
and disagree: every process then believes that it is alone. Here one decision is made and told to all three.
"""

from __future__ import annotations

import os
import shutil
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import torch

from hftune.compat import patches
from hftune.distributed import ranks, watchdog
from hftune.errors import ArgumentError, exit_hooks
from hftune.logging import get_logger, notice, quiet_libraries

_PATIENCE = 30.0
"""Seconds before a process says that it waits for the others."""


def has_accelerator() -> bool:
    """Whether torch sees a GPU or another accelerator, or a plan is made for one."""
    imagined = ranks.planned_world()
    if imagined is not None:
        return not imagined.on_cpu
    return torch.accelerator.is_available()


def supports_bf16() -> bool:
    """Whether the accelerator computes in bf16; emulating it, as before compute capability 8.0, does not count."""
    imagined = ranks.planned_world()
    # By default torch says yes to emulation, which is far slower than float16 and float32.
    return torch.cuda.is_bf16_supported(including_emulation=False) if imagined is None else imagined.bf16


def check_bf16() -> None:
    """Refuse bf16 on GPUs that would emulate it.

    Raises:
        ArgumentError: They are such, here or where a plan is made for.
    """
    if (torch.cuda.is_available() or ranks.planned_world() is not None) and not supports_bf16():
        raise ArgumentError(
            "this GPU emulates bf16, far slower than it computes in float16 (compute capability below 8.0)",
            place="--bf16",
            fix="use --fp16, or leave it out for float32",
        )


def put_ninja_on_path() -> None:
    """Put the ninja next to Python on PATH, where builds look for it, unless one is there.

    It is not where Python was started by its path, without the environment's `activate`.
    """
    own = Path(sys.executable).with_name("ninja")
    if not shutil.which("ninja") and os.access(own, os.X_OK):
        # Torch starts ninja by its name; the variable reaches the processes that are started later as well.
        os.environ["PATH"] = os.pathsep.join([str(own.parent), os.environ.get("PATH", os.defpath)])


def has_cpp_compiler() -> bool:
    """Whether a C++ compiler is here."""
    # As torch's builder chooses it: CXX, else g++.
    return shutil.which(os.environ.get("CXX", "g++")) is not None


def can_build_operators() -> bool:
    """Whether DeepSpeed could compile its C++ operators here."""
    put_ninja_on_path()
    return has_cpp_compiler() and shutil.which("ninja") is not None


def has_async_io() -> bool:
    """Whether DeepSpeed can build its asynchronous files, which NVMe offload needs. Imports DeepSpeed."""
    prepare_environment()
    from deepspeed.accelerator import get_accelerator

    # First: DeepSpeed's own check compiles a test program, and needs the compiler for it.
    if not can_build_operators():
        return False
    builder = get_accelerator().create_op_builder("AsyncIOBuilder")
    return builder is not None and bool(builder.is_compatible(verbose=False))


def prepare_environment() -> None:
    """Set the variables that libraries read at import. Call it before importing DeepSpeed; safe to call twice."""
    quiet_libraries()
    if watchdog.on_exit not in exit_hooks:
        exit_hooks.append(watchdog.on_exit)
    # What figures of a run are told to whom is the user's choice: MLflow's makers are none of them.
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    put_ninja_on_path()
    # Else DeepSpeed tries one kind of accelerator after the other, by the packages that are installed.
    if not torch.accelerator.is_available():
        os.environ.setdefault("DS_ACCELERATOR", "cpu")


@contextmanager
def report_waiting() -> Iterator[None]:
    """Log that this process waits for the others if the block takes long: torch would wait in silence."""
    variables = [os.environ.get(name, "?") for name in ("RANK", "MASTER_ADDR", "MASTER_PORT")]
    rank, *address = variables
    said = f"rank {rank} waits for the other {ranks.world_size() - 1} process(es) at {':'.join(address)}"
    # From a thread: the main one is inside torch's rendezvous.
    timer = threading.Timer(_PATIENCE, lambda: get_logger().warning(said))
    timer.daemon = True  # it must not keep a process alive that gives up
    if ranks.world_size() > 1 and ranks.local_rank() == 0 and ranks.planned_world() is None:
        timer.start()
    try:
        yield
    finally:
        timer.cancel()


def accelerator_device() -> torch.device:
    """The accelerator of this process, before a process group says so."""
    kind = torch.accelerator.current_accelerator()
    return torch.device("cpu") if kind is None else torch.device(kind.type, ranks.local_rank())


def tell_libraries(*, use_cpu: bool, deepspeed: bool) -> None:
    """Tell DeepSpeed and accelerate on what to train, before they are imported; no process group is joined.

    Args:
        use_cpu: Train on the CPU.
        deepspeed: Whether a DeepSpeed config was given.
    """
    prepare_environment()
    if ranks.planned_world() is not None:
        return
    # Before any model is unwrapped, which is when accelerate looks.
    patches.look_for_engines(needed=deepspeed)
    if use_cpu:
        os.environ["DS_ACCELERATOR"] = "cpu"
        # Told to accelerate by the Trainer's `use_cpu`; its own variable would switch DeepSpeed off.
        os.environ.pop("ACCELERATE_USE_CPU", None)
        _limit_threads()


def join_process_group(*, use_cpu: bool, deepspeed: bool, timeout: float = 1800) -> None:
    """Join the other processes, or become a world of one where DeepSpeed runs without a launcher.

    Args:
        use_cpu: Train on the CPU: the backend is gloo, and the group is made here, since ZeRO-3 loads models before
            DeepSpeed would make it. On accelerators the Trainer makes the group itself.
        deepspeed: Whether a DeepSpeed config was given.
        timeout: Seconds that a collective may take, for a group that is made here.
    """
    if ranks.planned_world() is not None:
        return
    # DeepSpeed otherwise looks for MPI, and fails where there is none.
    if deepspeed and "RANK" not in os.environ:
        _set_single_process_variables()
    if use_cpu and deepspeed and not ranks.is_distributed():
        _init_deepspeed_on_gloo(timeout)


def meet_for_objects() -> None:
    """Join the other processes of a tool that shares out work among them; nothing without a launcher.

    They exchange small objects alone, and one may be at work for hours while the others wait.
    """
    if ranks.world_size() == 1 or ranks.is_distributed():
        return
    if not torch.accelerator.is_available():
        _limit_threads()
    with report_waiting():
        torch.distributed.init_process_group("gloo", timeout=timedelta(days=7))


def _set_single_process_variables() -> None:
    with socket.socket() as probe:  # several runs of one process each may share a machine
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    alone = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"}
    # `setdefault`: what the user has set, such as a port, counts.
    for name, value in {**alone, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}.items():
        os.environ.setdefault(name, value)


def _limit_threads() -> None:
    """Give each process its share of the cores: launchers set one thread a process, plain python takes them all."""
    if ranks.world_size() == 1:
        return
    cores = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    threads = max(1, len(cores) // ranks.local_world_size())
    os.environ["OMP_NUM_THREADS"] = str(threads)  # accelerate reads it and would choose another number
    if torch.get_num_threads() != threads:
        torch.set_num_threads(threads)
        notice(f"{threads} CPU thread(s) for each of {ranks.local_world_size()} processes")


def _init_deepspeed_on_gloo(timeout: float) -> None:
    import deepspeed

    # The order matters: DeepSpeed compiles the operator as it makes the group.
    patches.compile_no_shared_memory()
    deepspeed.init_distributed("gloo", auto_mpi_discovery=False, verbose=False, timeout=timedelta(seconds=timeout))
