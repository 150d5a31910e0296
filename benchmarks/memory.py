"""The memory that `hftune plan` foretells against what a run really takes, case by case.

python benchmarks/memory.py                 on a GPU: `torch.cuda.max_memory_allocated`; on a CPU: resident memory
python benchmarks/memory.py --quick         two small cases
python benchmarks/memory.py --device cpu --only dpo-lora-kept '4b-*'
python benchmarks/memory.py --minutes 9 --output memory.json       the same again goes on where this has stopped
python benchmarks/memory.py --write-docs    the table goes into docs/planning.md

Each case is a process of its own that runs a stage's own script on a model of random weights and on generated records,
some of them exactly as long as a row may be. Nothing is downloaded. On a CPU what counts is the most that was resident
above what was after the imports, with glibc's MALLOC_MMAP_THRESHOLD_ at 1 MiB, so that freed tensors are not counted
(see HELD_BACK). The last line is JSON.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import platform
import random
import shutil
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

import children  # noqa: E402
from harness import mebibytes, paste  # noqa: E402
from made_up import SHAPES, make_in_own_process, make_tokenizer, make_weights  # noqa: E402

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


def main() -> int:
    """Run all cases, print a table, then JSON; 0 where every bar holds."""
    options = arguments()
    device = options.device or accelerator()
    every = {case.name: case for case in (*QUICK, *CPU, *GPU)}
    if options.measure:
        print(json.dumps(measure(every[options.measure], options)))
        return 0
    children.begin()
    usual = QUICK if options.quick else GPU if device == "cuda" else CPU
    found = children.Found(options.output, "memory", machine(device), quick=options.quick)
    names = [case.name for case in usual] + [name for name in every if name in (options.only or [])]
    todo = children.to_do(dict.fromkeys(names), found.cases("cases"), options.only)
    run_all([every[name] for name in todo], device, children.Clock(options.minutes), found)
    results = [found.cases("cases")[name] for name in every if name in found.cases("cases")]
    if options.write_docs:
        write_docs(device, results)
    found.say_bars()
    print(found.keep(complete=True))
    return 0 if all(map(children.is_good, results)) and found.holds else 1


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="two small cases, whose bars are not judged")
    parser.add_argument("--device", choices=["cpu", "cuda"], help="left out: a GPU where there is one")
    parser.add_argument("--only", nargs="+", metavar="CASE", help="these cases, of any device; also as '1b-*'")
    parser.add_argument("--minutes", type=float, default=60.0, help="start no further case after this time")
    parser.add_argument("--output", type=Path, help="the JSON, written anew after each case; gone on with if there")
    parser.add_argument("--write-docs", action="store_true", help="put the table into docs/planning.md")
    parser.add_argument("--measure", metavar="CASE", help="measure this case in this process")
    parser.add_argument("--folder", type=Path, help="of a case's files, with --measure")
    return parser.parse_args()


def run_all(chosen: list[Case], device: str, clock: children.Clock, found: children.Found) -> None:
    """Run these cases as far as time goes, and keep each result at once."""
    print(HEAD)
    found.figures["skipped"] = []
    with children.work_folder() as folder:
        for number, case in enumerate(chosen):
            if clock.left <= 0:
                found.figures["skipped"] = [later.name for later in chosen[number:]]
                print(f"no time left for: {', '.join(found.figures['skipped'])}", flush=True)
                return
            # A GPU must not keep what drawing left there. On a CPU it imports what is then not counted.
            unmade = make_in_own_process(case.shape, folder, clock) if device == "cuda" else None
            result = {"case": case.name, **unmade} if unmade else in_own_process(case, device, folder, clock)
            found.cases("cases")[case.name] = result
            found.bars.pop(case.name, None)
            found.bars |= bar_of(result, device)
            print(line(result), flush=True)
            shutil.rmtree(folder / case.name, ignore_errors=True)
            if not any(later.shape == case.shape for later in chosen[number + 1 :]):
                shutil.rmtree(folder / case.shape, ignore_errors=True)
            found.keep()


def in_own_process(case: Case, device: str, folder: Path, clock: children.Clock) -> dict[str, Any]:
    """What a case planned and took, or the end of what it said."""
    command = [sys.executable, __file__, "--measure", case.name, "--device", device, "--folder", str(folder)]
    environment = children.environment(folder, MALLOC_MMAP_THRESHOLD_=str(HELD_BACK))
    ended = clock.run(command, environment, CAP[device])
    if ended.code != 0:
        return {"case": case.name, **ended.failure}
    try:
        found: dict[str, Any] = json.loads(ended.out.strip().splitlines()[-1])
    except (ValueError, IndexError):
        return {"case": case.name, **ended.failure}
    return found if "skipped" in found else found | {"off": round(found["planned"] / found["measured"] - 1, 4)}


def bar_of(result: dict[str, Any], device: str) -> dict[str, dict[str, Any]]:
    """What was wanted of a case; nothing of one that did not run, or is too small to be judged."""
    name, bar = result["case"], BARS[device]
    if "skipped" in result or "cut" in result:
        return {}
    if "failed" in result:
        return {name: {"value": "failed", "bar": bar, "holds": False}}
    # A tiny model's few MiB lie below what allocators waste.
    tiny = name in [case.name for case in QUICK]
    return {} if tiny else {name: {"value": abs(result["off"]), "bar": bar, "holds": abs(result["off"]) <= bar}}


HEAD = f"{'case':24} {'planned MiB':>12} {'measured MiB':>13} {'off by':>8}  the peak is at"
PAGE = ROOT / "docs" / "planning.md"


def write_docs(device: str, results: list[dict[str, Any]]) -> None:
    """Put a device's table into the page, in the place of the one that it had."""
    table = "\n".join(["```", HEAD, *map(line, results), "```"])
    text = f"On {machine(device)}, by `python benchmarks/memory.py --write-docs`:\n\n{table}"
    paste(PAGE, f"measured: {device}", text)


def line(result: dict[str, Any]) -> str:
    """A case in the table."""
    if "failed" in result:
        why, *words = result["failed"].splitlines()
        return f"{result['case']:24} failed, {why}: {(words or [''])[-1][:120]}"
    if "skipped" in result:
        return f"{result['case']:24} skipped: {result['skipped']}"
    planned, measured = result["planned"], result["measured"]
    return f"{result['case']:24} {planned:12.0f} {measured:13.0f} {result['off']:+8.1%}  {result['when']}"


def measure(case: Case, options: argparse.Namespace) -> dict[str, Any]:
    """Plan a case, then run it. Figures in MiB."""
    flags = make(case, options.folder) + case.flags
    if options.device == "cpu":
        flags += ["--use_cpu", "True"]
    planned = plan_of(case, flags)
    module = __import__(f"run_{case.stage}")
    if options.device == "cuda":
        import torch

        has = torch.cuda.get_device_properties(0).total_memory
        if planned.moment.total > has:
            said = f"planned are {planned.moment.total / 2**30:.1f} GiB, and the device has {has / 2**30:.1f}"
            return {"case": case.name, "skipped": said}
        before = 0.0
        torch.cuda.reset_peak_memory_stats()
    else:
        import_all(case.stage)
        before = resident()
    sys.argv = [f"run_{case.stage}.py", *flags, "--ignore_memory_check", "True"]
    stdout = sys.stdout
    sys.stdout = sys.stderr
    try:
        module.main()
    finally:
        sys.stdout = stdout
    measured = peak(options.device) - before
    parts = {name: round(size / 2**20, 1) for name, size in planned.moment.parts.items() if size}
    figures = {"planned": round(planned.moment.total / 2**20, 1), "measured": round(measured, 1)}
    return {"case": case.name, "device": options.device, **figures, "when": planned.moment.name, "parts": parts}


def plan_of(case: Case, flags: list[str]) -> Any:
    """What hftune says before a run of these arguments."""
    from hftune.arguments.entry import parse_arguments
    from hftune.preflight.facts import resolve
    from hftune.tools.planning.planner import Planner

    given = parse_arguments(case.stage, flags)
    planner = Planner(resolve(case.stage, given))
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


def resident() -> float:
    """MiB of this process in memory now; the highest figure begins anew from here."""
    Path("/proc/self/clear_refs").write_text("5")
    return mebibytes("VmRSS")


def peak(device: str) -> float:
    """The most that was ever used, MiB."""
    if device == "cuda":
        import torch

        return torch.cuda.max_memory_allocated() / 2**20
    return mebibytes("VmHWM")


def accelerator() -> str:
    """Where cases run unless it is said."""
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def machine(device: str) -> str:
    """The device, in words."""
    import torch

    where = torch.cuda.get_device_name(0) if device == "cuda" else platform.machine()
    return f"{where}, torch {torch.__version__}"


if __name__ == "__main__":
    sys.exit(main())
