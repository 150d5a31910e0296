"""The memory that `hftune plan` foretells against what a run really takes, case by case.

python benchmarks/gpu_suite.py --parts memory --output memory.json        on a GPU, or with what a CPU has room for
python benchmarks/gpu_suite.py --publish memory.json                      the table goes into docs/planning.md

Measured is `torch.cuda.max_memory_allocated`, or resident memory. Each case is a process of its own, which is this
file, and runs a stage's own script on a model of random weights and on generated records, some of them exactly as long
as a row may be. Nothing is downloaded. On a CPU what counts is the most that was resident above what was after the
imports, with glibc's MALLOC_MMAP_THRESHOLD_ at 1 MiB, so that freed tensors are not counted (see HELD_BACK).
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import random
import shutil
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import children
from harness import mebibytes, paste
from made_up import SHAPES, make_in_own_process, make_tokenizer, make_weights

BARS = {"cpu": 0.15, "cuda": 0.10}
"""How far from the measured peak a plan may be."""

CAP = {"cpu": 900.0, "cuda": 300.0}
"""Seconds that a case may take."""

STEPS = 2
"""The optimizer's states appear at the end of the first step: the second is a whole one."""

HELD_BACK = 2**20
"""Bytes from which freed memory goes back to the system at once. glibc by itself raises this to 32 MiB as tensors are
freed, and then keeps what they had: resident memory is above what lives, by up to a fifth in these cases."""

LORA = ["--use_peft", "--lora_rank", "16", "--target_modules", "all"]
QLORA = ["--qlora", "--lora_rank", "16", "--target_modules", "all"]
KEPT = ["--gradient_checkpointing", "False"]


@dataclass(frozen=True)
class Case:
    """One run.

    Args:
        name: Unique.
        stage: Whose script runs.
        shape: A key of `SHAPES`.
        length: Tokens of a row.
        rows: Of a micro batch.
        flags: Further arguments.
    """

    name: str
    stage: str
    shape: str
    length: int
    rows: int
    flags: list[str] = field(default_factory=list)


QUICK = [
    Case("quick-full", "sft", "tiny", 256, 4, KEPT),
    Case("quick-dpo-lora", "dpo", "tiny", 256, 2, LORA),
]
CPU = [
    Case("sft-full-kept", "sft", "smollm2-135m", 256, 2, KEPT),
    Case("sft-full", "sft", "smollm2-135m", 512, 2),
    Case("sft-lora-kept", "sft", "smollm2-135m", 512, 2, LORA + KEPT),
    Case("sft-lora-360m", "sft", "smollm2-360m", 512, 2, LORA),
    Case("sft-qlora-kept", "sft", "smollm2-135m", 512, 1, QLORA + KEPT),
    Case("pt-packed-full", "pt", "smollm2-135m", 512, 1, []),
    Case("dpo-full-reference", "dpo", "smollm2-135m", 256, 1, ["--precompute_ref_log_probs", "False"]),
    Case("dpo-lora-kept", "dpo", "smollm2-135m", 256, 1, LORA + KEPT),
]
GPU = [
    Case("1b-full", "sft", "llama-3.2-1b", 2048, 4),
    Case("1b-full-kept", "sft", "llama-3.2-1b", 2048, 4, KEPT),
    Case("4b-lora", "sft", "qwen3-4b", 2048, 4, LORA),
    Case("4b-lora-kept", "sft", "qwen3-4b", 2048, 2, LORA + KEPT),
    Case("8b-qlora", "sft", "qwen3-8b", 4096, 2, QLORA),
    Case("8b-qlora-kept", "sft", "qwen3-8b", 2048, 1, QLORA + KEPT),
    Case("1b-pt-packed-2k", "pt", "llama-3.2-1b", 2048, 4),
    Case("1b-sft-packed-8k", "sft", "llama-3.2-1b", 8192, 1, ["--packing"]),
    Case("8b-lora-packed-32k", "sft", "qwen3-8b", 32768, 1, [*LORA, "--packing"]),
    Case("1b-dpo-full-reference", "dpo", "llama-3.2-1b", 1024, 2, ["--precompute_ref_log_probs", "False"]),
    Case("4b-dpo-lora", "dpo", "qwen3-4b", 1024, 2, LORA),
    Case("1b-zero2", "sft", "llama-3.2-1b", 2048, 4, ["--deepspeed", "ds_configs/zero2.json"]),
]
EVERY = {case.name: case for case in (*QUICK, *CPU, *GPU)}


def main() -> None:
    """Measure one case in this process."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("case", choices=EVERY)
    parser.add_argument("--device", choices=["cpu", "cuda"], required=True)
    parser.add_argument("--folder", type=Path, required=True, help="of its files")
    options = parser.parse_args()
    print(json.dumps(measure(EVERY[options.case], options)))


def cases(*, quick: bool) -> list[str]:
    """Those for this machine."""
    return [case.name for case in (QUICK if quick else GPU if accelerator() == "cuda" else CPU)]


def in_own_process(name: str, folder: Path, clock: children.Clock) -> dict[str, Any]:
    """What a case planned and took, or the end of what it said."""
    device, case = accelerator(), EVERY[name]
    # A GPU must not keep what drawing left there. On a CPU it imports what is then not counted.
    unmade = make_in_own_process(case.shape, folder, clock) if device == "cuda" else None
    if unmade:
        return unmade
    command = [sys.executable, __file__, name, "--device", device, "--folder", str(folder)]
    environment = children.environment(folder, MALLOC_MMAP_THRESHOLD_=str(HELD_BACK))
    ended = clock.run(command, environment, CAP[device])
    shutil.rmtree(folder / name, ignore_errors=True)
    try:
        found: dict[str, Any] = json.loads(ended.out.strip().splitlines()[-1]) if ended.code == 0 else ended.failure
    except (ValueError, IndexError):
        return ended.failure
    return found | {"off": round(found["planned"] / found["measured"] - 1, 4)} if "measured" in found else found


def bar_of(name: str, result: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """What was wanted of a case; nothing of one that did not run, or is too small to be judged."""
    wanted = BARS[accelerator()]
    if "skipped" in result or "cut" in result:
        return {}
    if "failed" in result:
        return {name: {"value": "failed", "bar": wanted, "holds": False}}
    # A tiny model's few MiB lie below what allocators waste.
    tiny = name in [case.name for case in QUICK]
    return {} if tiny else {name: {"value": abs(result["off"]), "bar": wanted, "holds": abs(result["off"]) <= wanted}}


HEAD = f"{'case':24} {'planned MiB':>12} {'measured MiB':>13} {'off by':>8}  the peak is at"
PAGE = children.ROOT / "docs" / "planning.md"


def write_docs(results: dict[str, dict[str, Any]], where: str) -> None:
    """Put the table of a machine into the page, in the place of that of the same kind of device."""
    device = next(one["device"] for one in results.values() if "device" in one)
    table = "\n".join(["```", HEAD, *(line(name, one) for name, one in results.items()), "```"])
    paste(PAGE, f"measured: {device}", f"On {where}, by `python benchmarks/gpu_suite.py --parts memory`:\n\n{table}")


def line(name: str, result: dict[str, Any]) -> str:
    """A case in the table."""
    if "failed" in result:
        why, *words = result["failed"].splitlines()
        return f"{name:24} failed, {why}: {(words or [''])[-1][:120]}"
    if "skipped" in result:
        return f"{name:24} skipped: {result['skipped']}"
    planned, measured = result["planned"], result["measured"]
    return f"{name:24} {planned:12.0f} {measured:13.0f} {result['off']:+8.1%}  {result['when']}"


def measure(case: Case, options: argparse.Namespace) -> dict[str, Any]:
    """Plan a case, then run it. Figures in MiB."""
    import torch

    flags = make(case, options.folder) + case.flags
    if options.device == "cpu":
        flags += ["--use_cpu", "True"]
    planned = plan_of(case, flags)
    module = __import__(f"run_{case.stage}")
    if options.device == "cuda":
        has = torch.cuda.get_device_properties(0).total_memory
        if planned.moment.total > has:
            said = f"planned are {planned.moment.total / 2**30:.1f} GiB, and the device has {has / 2**30:.1f}"
            return {"skipped": said}
        before = 0.0
        torch.cuda.reset_peak_memory_stats()
    else:
        import_all(case.stage)
        Path("/proc/self/clear_refs").write_text("5")  # the highest figure begins anew from here
        before = mebibytes("VmRSS")
    sys.argv = [f"run_{case.stage}.py", *flags, "--ignore_memory_check", "True"]
    stdout = sys.stdout
    sys.stdout = sys.stderr
    try:
        module.main()
    finally:
        sys.stdout = stdout
    peak = torch.cuda.max_memory_allocated() / 2**20 if options.device == "cuda" else mebibytes("VmHWM")
    parts = {name: round(size / 2**20, 1) for name, size in planned.moment.parts.items() if size}
    figures = {"planned": round(planned.moment.total / 2**20, 1), "measured": round(peak - before, 1)}
    return {"device": options.device, **figures, "when": planned.moment.name, "parts": parts}


def plan_of(case: Case, flags: list[str]) -> Any:
    """What hftune says before a run of these arguments."""
    from hftune.arguments.entry import parse_arguments
    from hftune.preflight.estimating.planner import Planner
    from hftune.preflight.estimating.traced_step import traced_step
    from hftune.preflight.facts import resolve

    given = parse_arguments(case.stage, flags)
    planner = Planner(resolve(case.stage, given), traced_step)
    plan = planner.plan(planner.asked())
    assert plan.untraced is None, plan.untraced
    return plan


def import_all(stage: str) -> None:
    """What the script imports itself, and what a first training step loads, so that neither is counted as resident."""
    # accelerate and peft import these two when a step asks them for the model, or for its kind.
    for name in ("bitsandbytes", "deepspeed"):
        if importlib.util.find_spec(name) is not None:
            importlib.import_module(name)
    import torch
    from torch.optim import AdamW

    import hftune.models.loading.causal_lm
    import hftune.stage  # noqa: F401

    trainers = {"rm": "reward"}
    __import__(f"hftune.trainers.{trainers.get(stage, stage)}")
    weight = torch.nn.Linear(8, 8)
    weight(torch.ones(2, 8)).sum().backward()
    AdamW(weight.parameters(), fused=True).step()


def make(case: Case, folder: Path) -> list[str]:
    """A model of random weights and records long enough for every row; the arguments that name them."""
    model, data = folder / case.shape, folder / f"{case.stage}-{case.length}"
    if not model.is_dir():
        make_weights(SHAPES[case.shape], model, make_tokenizer())
    if not data.is_dir():
        write_records(case, data)
    return [
        *("--model_name_or_path", str(model), "--train_file_dir", str(data), "--output_dir", str(folder / case.name)),
        *("--max_steps", str(STEPS), "--per_device_train_batch_size", str(case.rows), "--report_to", "none"),
        *("--block_size" if case.stage == "pt" else "--max_length", str(case.length)),
        *("--save_strategy", "no", "--disable_tqdm", "True", "--seed", "0", "--preprocessing_num_workers", "1"),
    ]


def write_records(case: Case, folder: Path) -> None:
    """Records of which every other one fills a row, and the others most of one: so rows are padded, as they are."""
    folder.mkdir(parents=True)
    count, drawn = 4 * STEPS * case.rows, random.Random(0)
    records = []
    for number in range(count):
        words = case.length if number % 2 == 0 else case.length // 3
        text = " ".join("".join(drawn.choices("abcdefghij", k=6)) for _ in range(words))
        question, answer = [{"role": "user", "content": "go on"}], [{"role": "assistant", "content": text}]
        records.append(
            {"text": text}
            if case.stage == "pt"
            else {"prompt": question, "chosen": answer, "rejected": [{"role": "assistant", "content": text[::-1]}]}
            if case.stage in ("dpo", "rm")
            else {"messages": question + answer}
        )
    (folder / "data.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))


def accelerator() -> str:
    """Where cases run unless it is said."""
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


if __name__ == "__main__":
    main()
