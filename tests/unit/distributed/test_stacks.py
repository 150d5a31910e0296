"""What the main thread waits for."""

from __future__ import annotations

import json
import sys
import threading
import time
from typing import Any

import pytest

from hftune.distributed import stacks


def test_what_the_main_thread_waits_for() -> None:
    found: list[str | None] = []

    def look() -> None:
        time.sleep(0.1)
        found.extend([stacks.waiting_for(), stacks.innermost_frame(), stacks.main_thread_stack()])

    thread = threading.Thread(target=look)
    thread.start()
    time.sleep(0.3)
    thread.join()
    assert found[0] is None and "time.sleep(0.3)" in str(found[2])
    assert str(found[1]).startswith("test_stacks.py:") and str(found[1]).endswith("test_what_the_main_thread_waits_for")


def test_a_wait_within_wrappers() -> None:
    """As DeepSpeed waits for a handle of its own: `instrument_w_nvtx(self.__handle.wait)()`."""
    found: list[str | None] = []

    class Handle:
        def wait(self) -> None:
            found.append(stacks._other_wait(sys._getframe()))

    def instrumented(function: Any) -> Any:
        return lambda: function()

    instrumented(Handle().wait)()
    assert found == ["instrumented(Handle().wait)()"]


def test_what_nccl_has_not_finished(monkeypatch: pytest.MonkeyPatch) -> None:
    """The recorder's own fields, as torch's FlightRecorder writes them; there is no NCCL here."""
    done = {"profiling_name": "nccl:broadcast", "state": "completed", "collective_seq_id": 6}
    stuck = {"profiling_name": "nccl:all_reduce", "state": "started", "collective_seq_id": 7}
    dump = json.dumps({"entries": [done, {**stuck, "process_group": ["0", "default_pg"]}]})
    asked: dict[str, bool] = {}
    monkeypatch.setattr(stacks.torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(stacks.torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(
        stacks.torch._C._distributed_c10d,
        "_dump_nccl_trace_json",
        lambda **flags: asked.update(flags) or dump,
        raising=False,
    )
    assert stacks.waiting_for() == "all_reduce number 7 of default_pg"
    assert asked == {"includeCollectives": True, "onlyActive": True}
