"""Time and memory of forward and backward on packed rows, by attention.

python benchmarks/attention.py --quick

A row of 2,048 tokens holds 8 documents. Every attention is given the same row, and one run pads the same documents
instead. Each is measured in a process of its own, forward and backward with recomputed activations, as a run trains,
but without the head, which is the same for all. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import platform
import resource
import subprocess
import sys
import time
from typing import Any

import torch

LENGTHS = [610, 415, 322, 251, 180, 130, 90, 50]
"""Tokens of the documents, 2,048 in all: of the shape that conversations have."""

SMOLLM2 = {
    "vocab_size": 49152, "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30,
    "num_attention_heads": 9, "num_key_value_heads": 3,
}  # fmt: skip
"""SmolLM2-135M's sizes; with random weights, which take the same time."""

CPU = ["hftune_segments", "sdpa", "eager", "padded"]
GPU = ["hftune_varlen", "flash_attention_2", "flex_attention", *CPU]
BARS = {"sdpa": 1.0, "eager": 1.0}
"""How many times faster than this attention ours must be."""


def main() -> None:
    """Measure every attention, print a table, then JSON."""
    args = arguments()
    if args.only:
        print(json.dumps(measure(args)))
        return
    figures: dict[str, dict[str, float]] = {}
    for name in GPU if args.device == "cuda" else CPU:
        found = in_own_process(name)
        if found is None:
            print(f"{name}: skipped, it does not run here")
        else:
            figures[name] = found
    print_table(figures)
    print(json.dumps(summary(figures, args)))


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="3 layers instead of 30, and one step")
    parser.add_argument("--steps", type=int, default=2, help="timed steps; the fastest counts")
    parser.add_argument("--threads", type=int, default=1, help="of the CPU")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--only", help="measure this attention, in this process")
    return parser.parse_args()


def in_own_process(name: str) -> dict[str, float] | None:
    """The figures of one attention, or None where it cannot run."""
    finished = subprocess.run([sys.executable, *sys.argv, "--only", name], capture_output=True, text=True)
    if finished.returncode != 0:
        print(finished.stderr.strip().splitlines()[-1], file=sys.stderr)
        return None
    figures: dict[str, float] = json.loads(finished.stdout.strip().splitlines()[-1])
    return figures


def measure(args: argparse.Namespace) -> dict[str, float]:
    """Seconds a step, and MiB that steps need beyond model and gradients."""
    from transformers import LlamaConfig, LlamaModel

    from hftune.models.attention.names import registered

    torch.set_num_threads(args.threads)
    config = LlamaConfig(**{**SMOLLM2, **({"num_hidden_layers": 3} if args.quick else {})})
    model = LlamaModel(config).to(args.device).train()
    model.set_attn_implementation("sdpa" if args.only == "padded" else registered(args.only))
    model.gradient_checkpointing_enable({"use_reentrant": False})
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    padded = args.only == "padded"
    # Compiling and first touches are not what is measured; on a GPU kernels are compiled for the lengths at hand.
    step(model, batch(LENGTHS if args.device == "cuda" else [40, 24], padded=padded, device=args.device), args.device)
    inputs = batch(LENGTHS, padded=padded, device=args.device)
    before = memory(args.device)
    seconds = [step(model, inputs, args.device) for _ in range(1 if args.quick else args.steps)]
    return {"seconds": round(min(seconds), 4), "mib": round(memory(args.device) - before, 1)}


def step(model: torch.nn.Module, inputs: dict[str, Any], device: str) -> float:
    """Forward and backward; seconds. On a CPU those of the processor, which others on the machine do not change."""
    clock = time.perf_counter if device == "cuda" else time.process_time
    began = clock()
    with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
        model(**inputs | {"use_cache": False}).last_hidden_state.float().square().mean().backward()
    if device == "cuda":
        torch.cuda.synchronize()
    return clock() - began


def batch(lengths: list[int], *, padded: bool, device: str) -> dict[str, Any]:
    """Documents side by side in a row, or padded to the longest."""
    from hftune.data.batches.collators import CausalCollator, FlatCollator

    generator = torch.Generator().manual_seed(0)
    ids = [torch.randint(3, SMOLLM2["vocab_size"], (length,), generator=generator).tolist() for length in lengths]
    collate = CausalCollator(pad_token_id=0) if padded else FlatCollator()
    made = collate([{"input_ids": row, "labels": row} for row in ids])
    del made["labels"]
    return {name: value.to(device) if isinstance(value, torch.Tensor) else value for name, value in made.items()}


def memory(device: str) -> float:
    """The most that was ever used, MiB."""
    if device == "cuda":
        return torch.cuda.max_memory_allocated() / 2**20
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10  # kB on Linux


def print_table(figures: dict[str, dict[str, float]]) -> None:
    """An attention a line."""
    ours = next(iter(figures.values()))
    print(f"{'attention':20} {'s/step':>8} {'MiB':>8} {'times ours':>11}")
    for name, found in figures.items():
        ratio = found["seconds"] / ours["seconds"]
        print(f"{name:20} {found['seconds']:8.2f} {found['mib']:8.0f} {ratio:11.2f}")


def summary(figures: dict[str, dict[str, float]], args: argparse.Namespace) -> dict[str, Any]:
    """All figures, and which bars hold."""
    ours = next(iter(figures.values()))["seconds"]
    bars = {}
    for name, bar in BARS.items():
        if name in figures:
            value = round(figures[name]["seconds"] / ours, 3)
            bars[f"times_faster_than_{name}"] = {"value": value, "bar": bar, "holds": value >= bar}
    machine = f"{platform.machine()}, {args.threads} thread(s), torch {torch.__version__}, {args.device}"
    return {"benchmark": "attention", "quick": args.quick, "machine": machine, "figures": figures, "bars": bars}


if __name__ == "__main__":
    main()
