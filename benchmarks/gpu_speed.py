"""How fast models of real sizes train on one GPU: share of its matmul rate, FP8 over bf16, long context, other tools.

python benchmarks/gpu_speed.py                            all cases, some 12 minutes on an H200; bars at the end
python benchmarks/gpu_speed.py --only 1b-full 1b-fp8      these alone; --minutes 9 starts no further one after this time
python benchmarks/gpu_speed.py --unsloth PYTHON --llamafactory PYTHON     their environments; TRL is always there
python benchmarks/gpu_speed.py --quick                    tiny models on any machine, to see whether it runs

Weights are drawn and records made up; rows are packed. Tokens a second are real ones, of the steps after the first two,
as the run's own logs have them. MFU is the arithmetic of those tokens (without what is recomputed) over the rate of a
large bf16 product measured just before, not over a data sheet. Other tools train the same records by their own entry
points (`train_tools.py --cuda`), and are compared by the same watch. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

import memory  # noqa: E402

WARM_UP = 2
BARS = {"mfu": 0.55, "fp8": 1.2, "unsloth": 1.0, "others": 1.3, "memory": 1.0}
PACKED = ["--packing", "--bf16", "True", "--logging_steps", "1", "--activation_checkpointing", "auto"]
COMPILED = ["--torch_compile", "True"]
LONG = ["--packing", "--bf16", "True", "--logging_steps", "1", "--tiled_mlp", "True"]
LONG += ["--activation_checkpointing", "full", "--activation_checkpointing_offload", "True"]


@dataclass(frozen=True)
class Case:
    """One training.

    Args:
        name: Unique.
        shape: A key of `memory.SHAPES`.
        length: Tokens of a row.
        rows: Of a micro batch.
        flags: Further arguments of run_sft.py.
        steps: Optimizer steps, of which the first `WARM_UP` do not count.
    """

    name: str
    shape: str
    length: int
    rows: int
    flags: list[str] = field(default_factory=list)
    steps: int = 8


CASES = [
    Case("1b-full", "llama-3.2-1b", 4096, 4, PACKED),
    Case("1b-full-compiled", "llama-3.2-1b", 4096, 4, PACKED + COMPILED),
    Case("1b-fp8", "llama-3.2-1b", 4096, 4, [*PACKED, *COMPILED, "--fp8", "tensorwise"]),
    Case("4b-full", "qwen3-4b", 4096, 2, PACKED),
    Case("4b-full-compiled", "qwen3-4b", 4096, 2, PACKED + COMPILED),
    Case("4b-fp8", "qwen3-4b", 4096, 2, [*PACKED, *COMPILED, "--fp8", "tensorwise"]),
    Case("8b-lora-128k", "qwen3-8b", 131072, 1, [*memory.LORA, *LONG], 3),
]
QUICK = [
    Case("quick-full", "tiny", 256, 2, PACKED, 4),
    Case("quick-lora-long", "tiny", 1024, 1, [*memory.LORA, *LONG], 3),
]
COMPARED = {"lora": 16, "qlora": 4}
"""Bits of the frozen base that other tools train upon, too."""
MFU_OF = ("1b", "4b")


def main() -> int:
    """Run what fits into the time; 0 where all that ran ended well and every bar holds."""
    options = arguments()
    began, results, skipped = time.perf_counter(), {}, []
    rate = matmul_rate()
    print(f"bf16 products here: {rate / 1e12:.0f} TFLOP/s" if rate else "no GPU: MFU is not measured", flush=True)
    late = lambda: time.perf_counter() - began > 60 * options.minutes  # noqa: E731
    with tempfile.TemporaryDirectory() as folder:
        for case in (case for case in (QUICK if options.quick else CASES) if wanted(case.name, options)):
            if late():
                skipped.append(case.name)
                continue
            results[case.name] = train(case, Path(folder), rate)
            print(f"{case.name}: {results[case.name]}", flush=True)
        beside: dict[str, dict[str, Any]] = {}
        for kind, bits in COMPARED.items():
            tools = {tool: python for tool, python in tools_of(options).items() if wanted(f"{kind}-{tool}", options)}
            for tool, python in tools.items():
                if late():
                    skipped.append(f"{kind}-{tool}")
                    continue
                beside.setdefault(kind, {})[tool] = compare(tool, python, bits, Path(folder), quick=options.quick)
                print(f"{kind}, {tool}: {beside[kind][tool]}", flush=True)
    bars = {} if options.quick else bars_of(results, beside)
    figures = {"matmul_tflops": rate / 1e12 if rate else None, "cases": results, "tools": beside, "skipped": skipped}
    print(json.dumps({"benchmark": "gpu_speed", "machine": machine(), "figures": figures, "bars": bars}))
    failed = [one for one in [*results.values(), *(one for kind in beside.values() for one in kind.values())]]
    return 1 if any("failed" in one for one in failed) or not all(bar["holds"] for bar in bars.values()) else 0


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", help="cases, or lora-TOOL and qlora-TOOL")
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--unsloth", metavar="PYTHON")
    parser.add_argument("--llamafactory", metavar="PYTHON")
    parser.add_argument("--quick", action="store_true")
    return parser.parse_args()


def wanted(name: str, options: argparse.Namespace) -> bool:
    """Whether it was asked for."""
    return not options.only or name in options.only


def tools_of(options: argparse.Namespace) -> dict[str, str]:
    """Tools and their interpreters: ours, TRL beside it, and what was given."""
    given = {tool: getattr(options, tool) for tool in ("unsloth", "llamafactory")}
    return {"hftune": sys.executable, "trl": sys.executable} | {tool: path for tool, path in given.items() if path}


def matmul_rate(size: int = 8192, times: int = 20) -> float | None:
    """Operations a second of a large bf16 product; None without a GPU."""
    import torch

    if not torch.cuda.is_available():
        return None
    left, right = (torch.randn(size, size, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    for _ in range(5):
        left @ right
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for _ in range(times):
        left @ right
    end.record()
    torch.cuda.synchronize()
    return 2 * size**3 * times / (begin.elapsed_time(end) / 1e3)


def train(case: Case, folder: Path, rate: float | None) -> dict[str, Any]:
    """Speed and memory of one case, or the end of what it said."""
    made = memory.Case(case.name, "sft", case.shape, case.length, case.rows)
    flags = [*memory.make(made, folder), *case.flags, "--max_steps", str(case.steps)]
    if rate is None:
        flags += ["--use_cpu", "True", "--bf16", "False"]
    command = [sys.executable, "run_sft.py", *flags, "--num_train_epochs", "1000"]
    finished = subprocess.run(command, cwd=ROOT, env=environment(folder), capture_output=True, text=True)
    if finished.returncode:
        return {"failed": (finished.stdout + finished.stderr)[-1500:]}
    history = json.loads((folder / case.name / "trainer_state.json").read_text())["log_history"]
    steps = [entry for entry in history if "tokens_per_second" in entry][WARM_UP:]
    found = {"tokens_per_second": round(statistics.median(entry["tokens_per_second"] for entry in steps), 1)}
    found["peak_gigabytes"] = next(one for one in history if "train_runtime" in one)["train_peak_memory_gb"]
    if rate and all("mfu" in entry for entry in steps):
        from hftune.preflight.planning.devices import cluster_here

        sheet = (cluster_here().device.tflops or 0.0) * 1e12  # which the log's MFU is measured against
        found["mfu"] = round(statistics.median(entry["mfu"] for entry in steps) * sheet / rate, 4)
    return found


def compare(tool: str, python: str, bits: int, folder: Path, *, quick: bool) -> dict[str, Any]:
    """One tool on the shared records: LoRA of rank 8 on the 8B shape, rows of 4,096 tokens, packed."""
    shape, length, steps = ("tiny", 256, 4) if quick else ("qwen3-8b", 4096, 8)
    case = memory.Case("compared", "sft", shape, length, 2)
    memory.make(case, folder)
    data = folder / "compared.jsonl"
    with data.open("w") as file:
        for line in (folder / f"sft-{length}" / "data.jsonl").read_text().splitlines() * 4:
            question, answer = (turn["content"] for turn in json.loads(line)["messages"])
            turns = [{"from": "human", "value": question}, {"from": "gpt", "value": answer}]
            file.write(json.dumps({"conversations": turns}) + "\n")
    command = [python, str(ROOT / "benchmarks" / "train_tools.py"), tool, "--data", str(data), "--packing"]
    command += ["--model", str(folder / shape), "--max_length", str(length), "--steps", str(steps), "--pad_id", "0"]
    command += [] if quick else ["--cuda"]
    command += ["--bits", str(bits)]
    finished = subprocess.run(command, cwd=ROOT, env=environment(folder), capture_output=True, text=True)
    if finished.returncode:
        return {"failed": (finished.stdout + finished.stderr)[-1500:]}
    seen = json.loads(finished.stdout.splitlines()[-1])
    seconds = seen["ended"][-1] - seen["ended"][WARM_UP - 1]
    speed = sum(seen["real"][WARM_UP:]) / seconds
    return {"tokens_per_second": round(speed, 1), "peak_gigabytes": seen.get("peak_gigabytes")}


def environment(folder: Path) -> dict[str, str]:
    """Of every process."""
    own = {"PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", "HFTUNE_CACHE": str(folder / "cache")}
    return os.environ | own | {"BENCHMARK_BEGAN": repr(time.time())}


def bars_of(results: dict[str, Any], beside: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """What was wanted of what was measured."""
    bars: dict[str, Any] = {}
    for size in MFU_OF:
        bf16 = [results[name] for name in (f"{size}-full", f"{size}-full-compiled") if name in results]
        shares = [one["mfu"] for one in bf16 if "mfu" in one]
        if shares:
            bars[f"{size}: MFU in bf16"] = bar(max(shares), BARS["mfu"])
        speeds = [one["tokens_per_second"] for one in bf16 if "tokens_per_second" in one]
        ours = results.get(f"{size}-fp8", {}).get("tokens_per_second")
        if speeds and ours:
            bars[f"{size}: FP8 over bf16"] = bar(ours / max(speeds), BARS["fp8"])
    if "8b-lora-128k" in results:
        bars["8b: 131,072 tokens train"] = bar(float("failed" not in results["8b-lora-128k"]), 1.0)
    for kind, tools in beside.items():
        ran = {tool: found for tool, found in tools.items() if "failed" not in found}
        if "hftune" not in ran:
            continue
        ours, peers = ran["hftune"], {tool: found for tool, found in ran.items() if tool != "hftune"}
        others = [found["tokens_per_second"] for tool, found in peers.items() if tool != "unsloth"]
        if "unsloth" in peers:
            ratio = ours["tokens_per_second"] / peers["unsloth"]["tokens_per_second"]
            bars[f"{kind}: speed over Unsloth's"] = bar(ratio, BARS["unsloth"])
        if others:
            bars[f"{kind}: speed over the best of the others"] = bar(
                ours["tokens_per_second"] / max(others), BARS["others"]
            )
        peaks = [found["peak_gigabytes"] for found in peers.values() if found["peak_gigabytes"]]
        if peaks and ours["peak_gigabytes"]:
            ratio = ours["peak_gigabytes"] / min(peaks)
            bars[f"{kind}: memory over the smallest peer's"] = bar(ratio, BARS["memory"], above=False)
    return bars


def bar(value: float, wanted: float, *, above: bool = True) -> dict[str, Any]:
    """As every benchmark prints it."""
    return {"value": round(value, 3), "bar": wanted, "holds": value >= wanted if above else value <= wanted}


def machine() -> str:
    """The device, in words."""
    return memory.machine(memory.accelerator())


if __name__ == "__main__":
    sys.exit(main())
