"""Where the main thread is, and which collective it waits in."""

from __future__ import annotations

import json
import linecache
import re
import sys
import threading
import traceback
from pathlib import Path
from types import FrameType

import torch

_FRAMES, _WRAPPERS = 10, 4

# Ends of file names: packages may lie anywhere.
_COLLECTIVES = "torch/distributed/distributed_c10d.py"
_CALLED = re.compile(r"\bdist\.(_?\w+)\(")
_WAITS = re.compile(r"\.(wait|synchronize|item|tolist|cpu)\)?\(")
_NOT_DONE = ("scheduled", "started")


def main_thread_stack(frames: int = _FRAMES) -> str:
    """The innermost frames of the main thread, the innermost last, with their source lines."""
    # Read from the watchdog's thread: the main thread may wait in C and run nothing.
    frame = sys._current_frames().get(_main())
    found = traceback.extract_stack(frame)[-frames:] if frame else []
    return "".join(traceback.format_list(found)).rstrip()


def innermost_frame() -> str:
    """The innermost frame of the main thread: `file.py:12 function`."""
    frame = sys._current_frames().get(_main())
    return "" if frame is None else f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno} {frame.f_code.co_name}"


def waiting_for() -> str | None:
    """The collective (or the device) that this process waits for, as far as can be seen.

    A collective on a GPU is queued, and the main thread waits later for something else: there NCCL's own record of
    collectives that have not finished tells which one.
    """
    threads = sys._current_frames()
    main = threads.pop(_main(), None)
    threads.pop(threading.get_ident(), None)  # this one waits in nothing
    # Hooks of a backward pass on a GPU run in a thread of autograd's.
    for frame in (main, *threads.values()):
        name = _collective(frame)
        if name:
            return name
    return _pending_in_nccl() or _other_wait(main)


def _main() -> int:
    return int(threading.main_thread().ident or 0)


def _collective(frame: FrameType | None) -> str | None:
    """The function of torch.distributed that the program called, from the inner end of a stack."""
    found = None
    while frame is not None:
        if frame.f_code.co_filename.endswith(_COLLECTIVES):
            found = frame.f_code.co_name
        # torch wraps each function in a logger of its own: such frames lie between two of one call.
        elif found and "c10d_logger" not in frame.f_code.co_filename:
            return found
        frame = frame.f_back
    return found


def _other_wait(frame: FrameType | None) -> str | None:
    """The source line of a wait, among the innermost frames: DeepSpeed wraps its handles in functions of its own."""
    for _ in range(_WRAPPERS):
        if frame is None:
            return None
        # By the line: a wait in C++ has no Python frame of its own.
        line = linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()
        if called := _CALLED.search(line):  # collectives of DistributedDataParallel are no Python functions
            return called[1].lstrip("_")
        if _WAITS.search(line):
            return line[:60]
        frame = frame.f_back
    return None


def _pending_in_nccl() -> str | None:
    """The first collective in NCCL's flight recorder that is not done; torch keeps the last 2000."""
    if not torch.cuda.is_available() or not torch.distributed.is_initialized():
        return None
    dump = getattr(torch._C._distributed_c10d, "_dump_nccl_trace_json", None)
    if dump is None:  # a build of torch without NCCL
        return None
    entries = json.loads(dump(includeCollectives=True, onlyActive=True)).get("entries") or []
    return next((_named(entry) for entry in entries if entry.get("state") in _NOT_DONE), None)


def _named(entry: dict[str, object]) -> str:
    name = str(entry.get("profiling_name", "a collective")).removeprefix("nccl:")
    group = entry.get("process_group") or ("",)
    where = group[1] if isinstance(group, list) and len(group) > 1 else ""
    return f"{name} number {entry.get('collective_seq_id')}" + (f" of {where}" if where else "")
