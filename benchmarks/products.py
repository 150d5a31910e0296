"""Matrix products of training with frozen float32 weights on this CPU: oneDNN beside torch's own.

python benchmarks/products.py                      the matrices of SmolLM2-135M, 394 tokens
python benchmarks/products.py --tokens 2048 --threads 2

`forward` is x W^T, `back` the gradient of x, which is the other way through the same weight. The two take turns and the
median counts. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from hftune.models.products import multiply, project

WEIGHTS = {"q, o": (576, 576), "k, v": (192, 576), "gate, up": (1536, 576), "down": (576, 1536), "head": (49152, 576)}
"""Names of SmolLM2-135M's matrices and their sizes, (out, in)."""


def main() -> None:
    """Measure each matrix both ways and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=394)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    figures: dict[str, dict[str, float]] = {}
    print(f"{'weights':>9} {'way':>8} {'torch, ms':>10} {'oneDNN, ms':>11} {'torch / oneDNN':>15}")
    for name, (out, size) in WEIGHTS.items():
        x, weight = torch.randn(options.tokens, size), torch.randn(out, size)
        gradient = torch.randn(options.tokens, out)
        forward = in_turns(lambda: torch.nn.functional.linear(x, weight), lambda: project(x, weight), options.rounds)  # noqa: B023
        back = in_turns(lambda: gradient @ weight, lambda: multiply(gradient, weight), options.rounds)  # noqa: B023
        for way, (theirs, ours) in {"forward": forward, "back": back}.items():
            print(f"{name:>9} {way:>8} {theirs * 1e3:>10.2f} {ours * 1e3:>11.2f} {theirs / ours:>15.2f}")
            figures[f"{name} {way}"] = {"torch": theirs, "onednn": ours}
    machine = f"{platform.machine()}, {options.threads} of {os.cpu_count()} cores"
    print(json.dumps({"benchmark": "products", "machine": machine, "figures": figures, "bars": {}}))


def in_turns(first: Callable[[], object], second: Callable[[], object], rounds: int) -> tuple[float, float]:
    """Median seconds of each."""
    seconds: tuple[list[float], list[float]] = ([], [])
    for number in range(rounds + 2):
        for call, found in zip((first, second), seconds, strict=True):
            began = time.perf_counter()
            call()
            if number > 1:
                found.append(time.perf_counter() - began)
    return statistics.median(seconds[0]), statistics.median(seconds[1])


if __name__ == "__main__":
    main()
