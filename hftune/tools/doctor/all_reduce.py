"""One of the processes that `launching` starts: joins the others, adds up a tensor with them, measures how fast.

deepspeed --num_gpus N --module hftune.tools.doctor.all_reduce
"""

from __future__ import annotations

import json
import os
import time

import torch
import torch.distributed as dist

from hftune.tools.doctor.launching import MET
from hftune.visible import say

SIZE = 64 * 2**20
"""Bytes that are added up."""
# The fastest counts: slower rounds measure what else the machine does.
ROUNDS = 3


def main() -> None:
    """Rank 0 prints the result; every process checks its sum.

    The rate counts what a ring sends: 2 (n - 1) / n of the bytes for each process.
    """
    on_gpu = torch.cuda.is_available()
    if on_gpu:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    dist.init_process_group("nccl" if on_gpu else "gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    numbers = torch.full((SIZE // 4,), float(rank + 1), device="cuda" if on_gpu else "cpu")
    # The first one checks the sum. It also builds the connections, which with NCCL takes seconds: it is not timed.
    dist.all_reduce(numbers)
    wanted = size * (size + 1) / 2
    if float(numbers[0]) != wanted or float(numbers[-1]) != wanted:
        raise SystemExit(f"{size} processes added up to {float(numbers[0])} instead of {wanted}")
    fastest = min(_seconds(numbers) for _ in range(ROUNDS))
    if rank == 0:
        sent = 2 * (size - 1) / size * SIZE
        about = {"processes": size, "backend": dist.get_backend(), "bytes": SIZE, "bytes_per_second": sent / fastest}
        say(f"\n{MET}{json.dumps(about)}", flush=True)
    dist.destroy_process_group()


def _seconds(numbers: torch.Tensor) -> float:
    # All begin together: otherwise a process that came early would be timed while it waits.
    dist.barrier()
    began = time.perf_counter()
    dist.all_reduce(numbers)
    # NCCL only queues the operation: the clock is read when the GPU has done it.
    if numbers.is_cuda:
        torch.cuda.synchronize()
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
