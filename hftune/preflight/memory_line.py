"""Before every run: one line on the memory that it needs, and a notice where it probably does not fit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from hftune.logging import get_logger, notice
from hftune.preflight.memory import GIB, Free, ModelSize, Setup, estimate, fits, in_one_memory, ways_out


def say_memory(size: ModelSize, setup: Setup, activations: float, free: Free, adapter: Callable[[], int]) -> None:
    """Log the memory of one process; what probably does not fit is only a notice, since activations are a formula.

    Args:
        size: Of the model and what is trained.
        setup: How the run keeps it.
        activations: Bytes of them in one process at the peak.
        free: What is free now.
        adapter: Counts the parameters of a LoRA adapter, which takes a while; asked where the run does not fit.
    """
    need = estimate(size, setup)
    parts = {
        "weights": need.weights,
        "gradients": need.gradients,
        "optimizer": need.optimizer,
        "activations": activations,
    }
    # Loading may need more than training does: the line names the larger of the two.
    whole = in_one_memory(need) if setup.on_cpu else need.device
    # Below half a hundredth of a GiB it would be shown as 0.00.
    named = ", ".join(f"{part} {count / GIB:.2f}" for part, count in parts.items() if count >= 0.005 * GIB)
    host = f", {need.on_host / GIB:.1f} in the machine's memory" if need.on_host and not setup.on_cpu else ""
    get_logger().info(
        "memory: about %.2f GiB a process%s%s; %.1f GiB free",
        max(whole, sum(parts.values()) + (need.host if setup.on_cpu else 0.0)) / GIB,
        f" ({named})" if named else "",
        host,
        free.device / GIB,
    )
    if _fits(size, setup, activations, free):
        return
    # Counted here and not before: most runs fit, and making an adapter takes 0.2 s.
    ways = ways_out(size, setup, adapter())
    first = next((flags for flags, its, changed in ways if _fits(its, changed, activations, free)), None)
    notice(
        "this will probably run out of memory at its peak. "
        + (f"To fix it, add {first}" if first else "Smaller micro batches, shorter rows or more processes may fix it")
        + "; `hftune plan` shows more ways"
    )


def _fits(size: ModelSize, setup: Setup, activations: float, free: Free) -> bool:
    """Whether everything fits, activations included."""
    # On the CPU the activations of all processes of the machine come out of one memory.
    taken = activations * (setup.local_processes if setup.on_cpu else 1)
    left = replace(free, device=free.device - activations, host=free.host - (taken if setup.on_cpu else 0.0))
    return fits(estimate(size, setup), left, setup)
