"""Where the time to the first SFT step goes, beside the imports alone that any tool on these libraries must make.

python benchmarks/first_step.py --model MODEL --data alpaca.json        5 rounds of some 12 s, after one that warms up

Settings are those of `train.py`, in a process of its own each. The libraries' share is a process that imports what LoRA
on TRL's trainer needs, and nothing else; the two take turns and medians count. Data is tokenised anew each time.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
IMPORTS = "import torch, transformers, peft, trl; transformers.Trainer; trl.SFTTrainer; peft.LoraConfig"
BEGAN = "FIRST_STEP_BEGAN"
FLAGS = shlex.split(
    "--use_peft --lora_rank 8 --lora_alpha 16 --lora_dropout 0 --target_modules all --max_length 512 --max_steps 1 "
    "--per_device_train_batch_size 2 --gradient_checkpointing False --learning_rate 1e-4 --save_strategy no "
    "--report_to none --disable_tqdm True --overwrite_cache True"
)
# What has been reached when a function is entered or left, in order.
PARTS = {
    "imports and arguments": ("hftune.stage", "start_run", "enter"),
    "checks before the model": ("hftune.stage", "start_run", "leave"),
    "tokenizer": ("hftune.models.tokenizer", "load_tokenizer", "leave"),
    "data": ("hftune.data.splits", "load_splits", "leave"),
    "model": ("hftune.models.loading", "load_causal_lm", "leave"),
    "adapter": ("hftune.models.adapters", "add_adapter", "leave"),
}


def main() -> int:
    """Measure and print the table, and a line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--data", type=Path, required=True, help="Alpaca records, a JSON list")
    parser.add_argument("--records", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--train", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.train is not None:
        train(options.train)
        return 0
    rounds: list[dict[str, float]] = []
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "data"
        data.mkdir()
        records = json.loads(options.data.read_text(encoding="utf-8"))[: options.records]
        (data / "records.json").write_text(json.dumps(records), encoding="utf-8")
        for number in range(options.rounds + 1):
            found = {"libraries": imports_alone(), **one_run(options, data, Path(folder) / str(number))}
            if number:  # the first one warms the system's cache up
                rounds.append(found)
    medians = {name: statistics.median(found[name] for found in rounds) for name in rounds[0]}
    print(table(medians))
    machine = f"{platform.machine()}, {len(os.sched_getaffinity(0))} cores"
    print(json.dumps({"benchmark": "first_step", "machine": machine, "figures": medians, "bars": {}}))
    return 0


def imports_alone() -> float:
    """Seconds of a process that imports the libraries."""
    began = time.time()
    subprocess.run([sys.executable, "-c", IMPORTS], check=True, capture_output=True)
    return time.time() - began


def one_run(options: argparse.Namespace, data: Path, folder: Path) -> dict[str, float]:
    """Seconds of each part of a run, by the marks that it left."""
    files = ["--model_name_or_path", options.model, "--train_file_dir", str(data), "--output_dir", str(folder / "out")]
    command = [sys.executable, __file__, "--model", "", "--data", "", "--train", *files, *FLAGS]
    own = {BEGAN: repr(time.time()), "HFTUNE_CACHE": str(folder.parent / "cache")}
    finished = subprocess.run(command, cwd=ROOT, env={**os.environ, **own}, capture_output=True, text=True)
    if finished.returncode:
        raise SystemExit(finished.stderr[-2000:])
    marks: dict[str, float] = json.loads(finished.stdout.strip().splitlines()[-1])
    parts, before = {}, 0.0
    for name, mark in marks.items():
        parts[name], before = mark - before, mark
    return parts | {"in all": before}


def train(flags: list[str]) -> None:
    """run_sft.py in this process; prints when each part was over."""
    sys.path.insert(0, str(ROOT))
    import run_sft
    from hftune.errors import run_script

    began, marks = float(os.environ[BEGAN]), dict[str, float]()
    parse = run_sft.parse_arguments

    def watched(stage: str) -> Any:
        parsed = parse(stage)
        for name, (module, function, when) in PARTS.items():
            watch(module, function, when, lambda name=name: marks.setdefault(name, time.time() - began))
        from transformers import Trainer

        for name, when in (("trainer", "enter"), ("first step", "leave")):
            watch(Trainer, "training_step", when, lambda name=name: marks.setdefault(name, time.time() - began))
        return parsed

    run_sft.parse_arguments = watched
    sys.argv = ["run_sft.py", *flags]
    try:
        run_script(run_sft.main)
    finally:
        print(json.dumps(marks))


def watch(place: Any, function: str, when: str, mark: Callable[[], Any]) -> None:
    """Have `mark` called as the function is entered or left."""
    import importlib

    owner = importlib.import_module(place) if isinstance(place, str) else place
    original = getattr(owner, function)

    def call(*args: Any, **kwargs: Any) -> Any:
        if when == "enter":
            mark()
        result = original(*args, **kwargs)
        if when == "leave":
            mark()
        return result

    setattr(owner, function, call)


def table(medians: dict[str, float]) -> str:
    """A line a part, and what the libraries take by themselves."""
    lines = [f"{name:<32}{seconds:6.2f} s" for name, seconds in medians.items() if name not in ("in all", "libraries")]
    for name, key in (("in all", "in all"), ("the same imports by themselves", "libraries")):
        lines.append(f"{name:<32}{medians[key]:6.2f} s")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
