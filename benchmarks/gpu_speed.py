"""How fast models of real sizes train on one GPU: share of its matmul rate, FP8 over bf16, long context, other tools.

The part `speed` of `gpu_suite.py`. Weights are drawn and records made up; rows are packed. Tokens a second are real
ones, of the steps after the first two, as the run's own logs have them. MFU is the arithmetic of those tokens (without
what is recomputed) over the rate of a large bf16 product measured just before, not over a data sheet. Other tools train
the same records by their own entry points (`train_tools.py --cuda`), and are compared by the same watch.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import children
import memory
from harness import bar
from made_up import make_in_own_process

WARM_UP = 2
CAP = 420.0
"""Seconds that a case may take unless it says otherwise."""
BARS = {"mfu": 0.55, "fp8": 1.2, "unsloth": 1.0, "others": 1.3, "alike": 1.0, "memory": 1.0}
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
        needs: GiB of a device without which it is not tried: the least that `hftune plan` gives, and a tenth.
        cap: Seconds that it may take.
    """

    name: str
    shape: str
    length: int
    rows: int
    flags: list[str] = field(default_factory=list)
    steps: int = 8
    needs: int = 0
    cap: float = CAP


CASES = [
    Case("1b-full", "llama-3.2-1b", 4096, 4, PACKED),
    Case("1b-full-compiled", "llama-3.2-1b", 4096, 4, PACKED + COMPILED),
    Case("1b-fp8", "llama-3.2-1b", 4096, 4, [*PACKED, *COMPILED, "--fp8", "tensorwise"]),
    Case("4b-full", "qwen3-4b", 4096, 2, PACKED, needs=70),
    Case("4b-full-compiled", "qwen3-4b", 4096, 2, PACKED + COMPILED, needs=70),
    Case("4b-fp8", "qwen3-4b", 4096, 2, [*PACKED, *COMPILED, "--fp8", "tensorwise"], needs=70),
    Case("8b-lora-128k", "qwen3-8b", 131072, 1, [*memory.LORA, *LONG], 3, needs=66, cap=540.0),
]
QUICK = [
    Case("quick-full", "tiny", 256, 2, PACKED, 4),
    Case("quick-lora-long", "tiny", 1024, 1, [*memory.LORA, *LONG], 3),
]
COMPARED = {"lora": 16, "qlora": 4}
"""Bits of the frozen base that other tools train upon, too."""
GIVEN = ("unsloth", "llamafactory")
"""Tools whose environments may be given; TRL is always there."""
PEERS = ("trl", *GIVEN)
RECOMPUTING = "hftune-recomputing"
"""hftune computes again what memory has no room for; its peers all of it, as this one does."""
MFU_OF = ("1b", "4b")


class Rate(NamedTuple):
    """Operations a second of a large bf16 product.

    Args:
        measured: Here.
        sheet: As the device's data sheet has it, which the MFU of hftune's logs is a share of.
    """

    measured: float
    sheet: float


Job = Callable[[Path, children.Clock, Rate | None], dict[str, Any]]
"""Gives a result, from a folder, the clock and the rate of a large product."""


def jobs_of(options: argparse.Namespace) -> dict[str, Job]:
    """All there are, in their order: cases, and `lora-TOOL` and `qlora-TOOL`."""
    ours = dict.fromkeys(("hftune", RECOMPUTING, "trl"), sys.executable)
    tools = ours | {tool: getattr(options, tool) for tool in GIVEN if getattr(options, tool)}
    jobs: dict[str, Job] = {case.name: partial(train, case) for case in (QUICK if options.quick else CASES)}
    return jobs | {
        f"{kind}-{tool}": partial(compare, tool, python, bits, quick=options.quick)
        for kind, bits in COMPARED.items()
        for tool, python in tools.items()
    }


def in_words(name: str) -> str:
    """A job's name in a table."""
    kind, _, tool = name.partition("-")
    how = "recomputes what memory has no room for" if tool == "hftune" else "recomputes all"
    return f"{kind} of 8 billion weights, {tool} ({how})" if kind in COMPARED else name


def rate_here(folder: Path, clock: children.Clock) -> Rate | None:
    """From a process of its own, which leaves nothing on the GPU; None without one, or where that fails."""
    ended = clock.run([sys.executable, __file__], children.environment(folder), CAP)
    if ended.code != 0:
        children.say("rate", ended.failure)
        return None
    rate = json.loads(ended.out.splitlines()[-1])
    return rate and Rate(*rate)


def rate_of_products(size: int = 8192, times: int = 20) -> Rate | None:
    """Measured here and now; None without a GPU."""
    import torch

    from hftune.preflight.devices import known_gpu

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
    sheet = (known_gpu().tflops or 0.0) * 1e12
    return Rate(2 * size**3 * times / (begin.elapsed_time(end) / 1e3), sheet)


def train(case: Case, folder: Path, clock: children.Clock, rate: Rate | None) -> dict[str, Any]:
    """Speed and memory of one case, or the end of what it said."""
    unmade = make_in_own_process(case.shape, folder, clock)
    if unmade:
        return unmade
    has = memory_here()
    if has is not None and has < case.needs:
        return {"skipped": f"it needs a device of {case.needs} GiB, and this one has {has:.1f}"}
    made = memory.Case(case.name, "sft", case.shape, case.length, case.rows)
    flags = [*memory.make(made, folder), *case.flags, "--max_steps", str(case.steps)]
    if has is None:
        flags += ["--use_cpu", "True", "--bf16", "False"]
    command = [sys.executable, "run_sft.py", *flags, "--num_train_epochs", "1000"]
    ended = clock.run(command, children.environment(folder), case.cap)
    try:
        return ended.failure if ended.code != 0 else speed_of(folder / case.name, rate)
    except children.NO_FIGURES as error:
        return {"failed": f"no figures: {error!r}"}
    finally:
        shutil.rmtree(folder / case.name, ignore_errors=True)


def speed_of(out: Path, rate: Rate | None) -> dict[str, Any]:
    """Figures of a finished run; its MFU over the rate that was measured here."""
    figures = children.figures_of(out, WARM_UP)
    found = {name: figures[name] for name in ("tokens_per_second", "peak_gigabytes")}
    if rate and "mfu" in figures:
        found["mfu"] = round(figures["mfu"] * rate.sheet / rate.measured, 4)
    return found


def memory_here() -> float | None:
    """GiB of the device; None without a GPU."""
    import torch

    return torch.cuda.get_device_properties(0).total_memory / 2**30 if torch.cuda.is_available() else None


def compare(
    tool: str, python: str, bits: int, folder: Path, clock: children.Clock, _: Rate | None, *, quick: bool
) -> dict[str, Any]:
    """One tool on the shared records: LoRA of rank 8 on the 8B shape, rows of 4,096 tokens, packed."""
    shape, length, steps = ("tiny", 256, 4) if quick else ("qwen3-8b", 4096, 8)
    unmade = make_in_own_process(shape, folder, clock)
    if unmade:
        return unmade
    case = memory.Case("compared", "sft", shape, length, 2)
    memory.make(case, folder)
    data = folder / "compared.jsonl"
    with data.open("w") as file:
        for line in (folder / f"sft-{length}" / "data.jsonl").read_text().splitlines() * 4:
            question, answer = (turn["content"] for turn in json.loads(line)["messages"])
            turns = [{"from": "human", "value": question}, {"from": "gpt", "value": answer}]
            file.write(json.dumps({"conversations": turns}) + "\n")
    name = tool.partition("-")[0]
    command = [python, str(Path(__file__).with_name("train_tools.py")), name, "--data", str(data), "--packing"]
    command += ["--model", str(folder / shape), "--max_length", str(length), "--steps", str(steps), "--pad_id", "0"]
    command += [] if quick else ["--cuda"]
    command += ["--bits", str(bits)]
    command += ["--recompute"] if tool == RECOMPUTING else []
    environment = children.environment(folder, BENCHMARK_BEGAN=repr(time.time()))
    environment |= {} if python == sys.executable else {"PYTHONPATH": ""}  # packages of another interpreter
    ended = clock.run(command, environment, CAP)
    if ended.code != 0:
        return ended.failure
    try:
        seen = json.loads(ended.out.splitlines()[-1])
        seconds = seen["ended"][-1] - seen["ended"][WARM_UP - 1]
    except children.NO_FIGURES as error:
        return {"failed": f"no figures: {error!r}\n{ended.out[-children.SHOWN :]}"}
    speed = sum(seen["real"][WARM_UP:]) / seconds
    return {"tokens_per_second": round(speed, 1), "peak_gigabytes": seen.get("peak_gigabytes")}


def bars_of(results: dict[str, dict[str, Any]], *, quick: bool) -> dict[str, Any]:
    """What was wanted: that all of hftune's end well, and, of what is not tiny, figures."""
    ours = {name: one for name, one in results.items() if not name.endswith(PEERS) and "cut" not in one}
    bars = {name: {"value": "failed", "bar": "ends", "holds": False} for name, one in ours.items() if "failed" in one}
    beside: dict[str, dict[str, Any]] = {}
    for name, one in results.items():
        kind, _, tool = name.partition("-")
        if kind in COMPARED:
            beside.setdefault(kind, {})[tool] = one
    return bars if quick else bars | bars_of_cases(results) | bars_of_tools(beside)


def bars_of_cases(results: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Of hftune alone."""
    bars: dict[str, Any] = {}
    for size in MFU_OF:
        bf16 = [results[name] for name in (f"{size}-full", f"{size}-full-compiled") if name in results]
        shares = [one["mfu"] for one in bf16 if "mfu" in one]
        if shares:
            bars[f"{size}: MFU in bf16"] = bar(max(shares), BARS["mfu"], above=True)
        speeds = [one["tokens_per_second"] for one in bf16 if "tokens_per_second" in one]
        ours = results.get(f"{size}-fp8", {}).get("tokens_per_second")
        if speeds and ours:
            bars[f"{size}: FP8 over bf16"] = bar(ours / max(speeds), BARS["fp8"], above=True)
    if "tokens_per_second" in results.get("8b-lora-128k", {}):
        bars["8b: 131,072 tokens train"] = bar(1.0, 1.0, above=True)
    return bars


def bars_of_tools(beside: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Of tools beside each other."""
    bars: dict[str, Any] = {}
    for kind, tools in beside.items():
        ran = {tool: found for tool, found in tools.items() if "failed" not in found}
        if "hftune" not in ran:
            continue
        ours, peers = ran["hftune"], {tool: found for tool, found in ran.items() if tool in PEERS}
        others = [found["tokens_per_second"] for tool, found in peers.items() if tool != "unsloth"]
        if "unsloth" in peers:
            ratio = ours["tokens_per_second"] / peers["unsloth"]["tokens_per_second"]
            bars[f"{kind}: speed over Unsloth's"] = bar(ratio, BARS["unsloth"], above=True)
        if others:
            bars[f"{kind}: speed over the best of the others"] = bar(
                ours["tokens_per_second"] / max(others), BARS["others"], above=True
            )
        peaks = [found["peak_gigabytes"] for found in peers.values() if found["peak_gigabytes"]]
        alike = ran.get(RECOMPUTING, {})
        if others and "tokens_per_second" in alike:
            ratio = alike["tokens_per_second"] / max(others)
            bars[f"{kind}: speed over the best of the others, all recomputing"] = bar(ratio, BARS["alike"], above=True)
        if peaks and alike.get("peak_gigabytes"):
            ratio = alike["peak_gigabytes"] / min(peaks)
            bars[f"{kind}: memory over the smallest peer's, all recomputing"] = bar(ratio, BARS["memory"])
    return bars


if __name__ == "__main__":
    print(json.dumps(rate_of_products()))
