"""Errors of torch.distributed that mean that another process is gone, or was never reached."""

from __future__ import annotations

import os
import re

from torch.distributed import DistNetworkError, DistStoreError

# By their words: gloo and NCCL raise RuntimeError for this as for anything else (torch 2.11 to 2.13).
_LOST = re.compile(
    r"gloo[/.]|Connection (closed|reset) by peer|Connection refused|Broken pipe|connectFullMesh"
    r"|Timed out waiting .*(recv|send|barrier)|[Ww]ait timeout|NCCL error|ncclRemoteError|ncclSystemError"
    r"|NCCL communicator (was|is) aborted|collective operation timeout|monitoredBarrier"
)
_NEVER_MET = re.compile(r"client socket has timed out|Timed out after .* waiting for clients|failed to connect")


def lost_contact(error: BaseException | None) -> bool:
    """Whether an error, of any backend, means that other processes are gone."""
    if isinstance(error, DistNetworkError | DistStoreError):
        return True
    return isinstance(error, RuntimeError) and _LOST.search(str(error)) is not None


def describe_lost_contact(error: BaseException) -> str:
    """The message for such an error where it is not known which process is gone."""
    where = f"{os.environ.get('MASTER_ADDR', '?')}:{os.environ.get('MASTER_PORT', '?')}"
    first = str(error).strip().splitlines()[0][:300]  # the rest is the backend's advice
    if _NEVER_MET.search(str(error)):
        return (
            f"the processes have not met: {os.environ.get('WORLD_SIZE', '?')} were to come to {where}\n"
            f"  where: {first}\n"
            "  to do: start as many as the launchers say, each with the same MASTER_ADDR and MASTER_PORT, which every "
            "machine can reach"
        )
    return (
        "lost contact with the other processes, and nobody said why\n"
        f"  where: {first}\n"
        "  to do: see their output; where they never met, name the network interface that machines share in "
        "GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME"
    )
