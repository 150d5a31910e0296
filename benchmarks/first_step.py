"""The time to the first SFT step: where it goes, and beside other tools.

python benchmarks/first_step.py --model MODEL --data alpaca.json        5 rounds of some 90 s, after one that warms up
   --llamafactory PYTHON --ms_swift PYTHON --medicalgpt FOLDER:PYTHON   other tools, by their environments

Everything runs in a process of its own, takes turns, and medians count. Parts are those of run_sft.py. Other tools are
run and watched as `train.py` does, hftune once more among them: from the start of the process to the end of the first
step. Tools shuffle and group records each in its own way: so that the first batch is as large for all, the records are
those of about the median length, over and over. Data is tokenised anew each time.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from harness import ROOT, ask, bar, finish, medians, parser_of, tools_of
from train import PEERS, watched, with_own_pad, write_conversations

BAR = 1.0
"""Of the quickest peer's time."""
ALIKE = 32
"""So many different records, of nearly one length."""
FLAGS = shlex.split(
    "--use_peft --lora_rank 8 --lora_alpha 16 --lora_dropout 0 --target_modules all --max_length 512 --max_steps 1 "
    "--per_device_train_batch_size 2 --gradient_checkpointing False --learning_rate 1e-4 --save_strategy no "
    "--report_to none --disable_tqdm True --overwrite_cache True"
)
# What has been reached when a function is entered or left, in order.
PARTS = {
    "imports and arguments": ("hftune.stage", "start_run", "enter"),
    "checks before the model": ("hftune.stage", "start_run", "leave"),
    "tokenizer": ("hftune.models.loading.tokenizer", "load_tokenizer", "leave"),
    "data": ("hftune.data.splits", "load_splits", "leave"),
    "model": ("hftune.models.loading.causal_lm", "load_causal_lm", "leave"),
    "adapter": ("hftune.models.adapters.preparation", "add_adapter", "leave"),
}


def main() -> int:
    """Measure and print the table, and a line of JSON."""
    parser = parser_of(__doc__, 5, *PEERS)
    parser.add_argument("--model", required=True)
    parser.add_argument("--data", type=Path, required=True, help="Alpaca records, a JSON list")
    parser.add_argument("--records", type=int, default=1000)
    parser.add_argument("--train", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.train is not None:
        train(options.train)
        return 0
    options.steps, options.max_length, options.more = 1, 512, ""  # for `watched`
    tools = tools_of(options, "hftune", "trl")
    rounds: list[dict[str, float]] = []
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "data"
        data.mkdir()
        records = alike(json.loads(options.data.read_text(encoding="utf-8")), options.model, options.records)
        (data / "records.json").write_text(json.dumps(records), encoding="utf-8")
        conversations = write_conversations(data / "records.json", options.records, Path(folder))
        model, pad_id = with_own_pad(options.model, Path(folder))
        flags = ["--data", str(conversations), "--model", model, "--pad_id", str(pad_id)]
        for number in range((1 if options.quick else options.rounds) + 1):
            found = one_run(options, data, Path(folder) / str(number))
            for tool in tools:
                seen = watched(tool, flags, options)
                found[tool], found[f"{tool}'s tokens"] = seen["ended"][0], seen["real"][0]
            if number:  # the first one warms the system's cache up
                rounds.append(found)
    middle = medians(rounds)
    print(table(middle, tools, rounds))
    quickest = min((tool for tool in tools if tool != "hftune"), key=lambda tool: middle[tool])
    ratios = sorted(found["hftune"] / found[quickest] for found in rounds)
    print(f"hftune / {quickest}, round by round: {ratios[0]:.2f} - {ratios[-1]:.2f}")
    finish("first_step", middle, {"first step / quickest peer's": bar(middle["hftune"] / middle[quickest], BAR)})
    return 0


def alike(records: list[dict[str, Any]], model: str, count: int) -> list[dict[str, Any]]:
    """`count` records, which are `ALIKE` different ones: those whose length in tokens is nearest to the median."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    texts = ["\n".join(str(value) for value in record.values()) for record in records]
    lengths = [len(ids) for ids in tokenizer(texts)["input_ids"]]
    middle = statistics.median(lengths)
    nearest = sorted(range(len(records)), key=lambda number: abs(lengths[number] - middle))[:ALIKE]
    return [records[nearest[number % len(nearest)]] for number in range(count)]


def one_run(options: argparse.Namespace, data: Path, folder: Path) -> dict[str, float]:
    """Seconds of each part of a run, by the marks that it left."""
    files = ["--model_name_or_path", options.model, "--train_file_dir", str(data), "--output_dir", str(folder / "out")]
    marks: dict[str, float] = ask("first_step.py", ["--model", "", "--data", "", "--train", *files, *FLAGS])
    parts, before = {}, 0.0
    for name, mark in marks.items():
        parts[name], before = mark - before, mark
    return parts | {"in all": before}


def train(flags: list[str]) -> None:
    """run_sft.py in this process; prints when each part was over."""
    sys.path.insert(0, str(ROOT))
    import run_sft
    from hftune.arguments import entry
    from hftune.errors import run_script

    began, marks = float(os.environ["BENCHMARK_BEGAN"]), dict[str, float]()
    parse = entry.parse_arguments

    def watched(stage: str) -> Any:
        parsed = parse(stage)
        for name, (module, function, when) in PARTS.items():
            watch(module, function, when, lambda name=name: marks.setdefault(name, time.time() - began))
        from transformers import Trainer

        for name, when in (("trainer", "enter"), ("first step", "leave")):
            watch(Trainer, "training_step", when, lambda name=name: marks.setdefault(name, time.time() - began))
        return parsed

    entry.parse_arguments = watched  # type: ignore[assignment]
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


def table(medians: dict[str, float], tools: list[str], rounds: list[dict[str, float]]) -> str:
    """A line a part, and a line a tool with its spread."""
    parts = [name for name in medians if name not in (*tools, *(f"{tool}'s tokens" for tool in tools))]
    lines = [f"{name:<32}{medians[name]:6.2f} s" for name in parts]
    lines.append("to the end of the first step:")
    for tool in tools:
        times = [found[tool] for found in rounds]
        tokens = medians[f"{tool}'s tokens"]
        lines.append(f"{tool:<32}{medians[tool]:6.2f} s   ({min(times):.2f} - {max(times):.2f})  {tokens:.0f} tokens")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
