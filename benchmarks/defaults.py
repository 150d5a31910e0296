"""Whether each stage's defaults train: held-out loss, accuracy or reward of a small model before and after 60 steps.

python benchmarks/defaults.py --model SMOLLM2                 PT, SFT, RM, DPO, ORPO, GRPO with --use_peft
python benchmarks/defaults.py --model SMOLLM2 --write-docs     the table goes into docs/defaults.md
   --work FOLDER       what was measured there with the same settings is not measured again
   --stages dpo grpo   these alone; GRPO's reward is the model that `rm` has trained in --work

Rates, schedules, warm-up, adapters and losses are those that the scripts choose; given are the model, data, --use_peft,
the number of steps, and what keeps a step short on a CPU: small batches, short rows, few held-out records.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "defaults.md"
HEAD = "## What they reach in 60 steps\n"
COMMON = {
    "use_peft": True, "save_strategy": "no", "gradient_checkpointing": False, "eval_on_start": True,
    "eval_strategy": "steps", "max_eval_samples": 16, "report_to": "none", "disable_tqdm": True,
}  # fmt: skip
PAIRS = {
    "train_file_dir": "examples/data/preference", "validation_file_dir": "examples/data/preference_eval",
    "max_length": 128, "per_device_train_batch_size": 2, "per_device_eval_batch_size": 8,
}  # fmt: skip


@dataclass(frozen=True)
class Stage:
    """A run, and the held-out figure that it shall improve.

    Args:
        script: "pt", "sft", "rm", "dpo" or "rl".
        given: Its arguments besides `COMMON`.
        figure: A metric of its evaluation.
        higher: Whether more of it is better.
    """

    script: str
    given: dict[str, Any]
    figure: str
    higher: bool = False


STAGES = {
    "pt": Stage(
        "pt",
        {"train_file_dir": "examples/data/pretrain", "validation_file_dir": "examples/data/pretrain_eval",
         "block_size": 64, "per_device_train_batch_size": 2},
        "eval_loss",
    ),
    "sft": Stage(
        "sft",
        {"train_file_dir": "examples/data/sft", "validation_file_dir": "examples/data/sft_eval", "max_length": 96,
         "per_device_train_batch_size": 2},
        "eval_loss",
    ),
    "rm": Stage("rm", PAIRS, "eval_accuracy", higher=True),
    "dpo": Stage(
        "dpo",
        PAIRS | {"max_length": 160, "per_device_train_batch_size": 4, "max_eval_samples": 24},
        "eval_rewards/accuracies",
        higher=True,
    ),
    "orpo": Stage("dpo", PAIRS | {"loss_type": "orpo"}, "eval_loss"),
    "grpo": Stage(
        "rl",
        {"train_file_dir": "examples/data/prompts", "validation_file_dir": "examples/data/prompts_eval",
         "per_device_train_batch_size": 4, "per_device_eval_batch_size": 4, "num_generations": 4,
         "max_completion_length": 20},
        "eval_reward",
        higher=True,
    ),
}  # fmt: skip
CHOSEN = ("learning_rate", "lr_scheduler_type", "warmup_steps")


def measured(name: str, options: argparse.Namespace, work: Path) -> dict[str, Any]:
    """As `measure`, from the folder of earlier runs where it lies there."""
    stage = STAGES[name]
    settings = COMMON | stage.given | {"max_steps": options.steps, "eval_steps": options.steps}
    about = settings | {"model": Path(options.model).name}
    file = work / f"{name}.json"
    if file.is_file() and (found := json.loads(file.read_text()))["settings"] == about:
        return dict(found["figures"])
    given = settings | {"model_name_or_path": options.model, "output_dir": str(work / name)}
    if name == "grpo":
        given |= {"reward_model_path": str(work / "rm")}
    figures = measure(stage, given)
    file.write_text(json.dumps({"settings": about, "figures": figures}))
    return figures


def measure(stage: Stage, given: dict[str, Any]) -> dict[str, Any]:
    """What the script chose, and its figure before and after training."""
    flags = [part for flag, value in given.items() for part in (f"--{flag}", str(value))]
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    command = [sys.executable, f"run_{stage.script}.py", *flags, "--overwrite_output_dir"]
    environment = os.environ | {"PYTHONPATH": path}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr[-4000:]}")
    folder = Path(given["output_dir"])
    history = json.loads((folder / "trainer_state.json").read_text())["log_history"]
    evaluated = [entry[stage.figure] for entry in history if stage.figure in entry]
    manifest = json.loads((folder / "hftune.json").read_text())
    arguments = manifest["arguments"]["training"]
    return {
        "before": evaluated[0],
        "after": evaluated[-1],
        "seconds": round(manifest["wall_seconds"]),
        "chosen": {name: arguments[name] for name in CHOSEN},
    }


def better(name: str, figures: dict[str, Any]) -> bool:
    """Whether the figure moved the right way."""
    gain = figures["after"] - figures["before"]
    return bool(gain > 0 if STAGES[name].higher else gain < 0)


def table(found: dict[str, dict[str, Any]], options: argparse.Namespace) -> str:
    """Markdown."""
    lines = [
        "| stage | learning rate | schedule | warm-up | held-out figure | before | after |",
        "| --- | ---: | --- | ---: | --- | ---: | ---: |",
    ]
    for name, figures in found.items():
        chosen = figures["chosen"]
        cells = [
            name, f"{chosen['learning_rate']:g}", str(chosen["lr_scheduler_type"]), f"{chosen['warmup_steps']:g}",
            f"`{STAGES[name].figure}`", f"{figures['before']:.4g}", f"{figures['after']:.4g}",
        ]  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    said = f"{options.steps} steps of {Path(options.model).name} with `--use_peft` and nothing else chosen"
    return f"{said}, on `examples/data`; GRPO's reward is the model of the row `rm`.\n\n" + "\n".join(lines) + "\n"


def write_docs(text: str) -> None:
    """Replace the section of the page."""
    page = PAGE.read_text(encoding="utf-8")
    marked = f"<!-- measured -->\n\n{text.rstrip()}\n\n<!-- end of measured -->\n"
    section = f"{HEAD}\nWritten by `python benchmarks/defaults.py --model MODEL --write-docs`.\n\n{marked}"
    page = re.sub(rf"(?ms)^{re.escape(HEAD)}.*?(?=^## |\Z)", "", page).rstrip()
    PAGE.write_text(f"{page}\n\n{section}", encoding="utf-8")


def main() -> None:
    """Train, show, and end with one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="a folder or a Hub name")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--stages", nargs="+", choices=list(STAGES), default=list(STAGES))
    parser.add_argument("--work", type=Path)
    parser.add_argument("--quick", action="store_true", help="SFT and DPO alone, 10 steps")
    parser.add_argument("--write-docs", action="store_true", dest="write_docs")
    options = parser.parse_args()
    if options.quick:
        options.stages, options.steps = ["sft", "dpo"], 10
    found = {}
    with tempfile.TemporaryDirectory() as aside:
        work = (options.work or Path(aside)).absolute()
        work.mkdir(parents=True, exist_ok=True)
        for name in options.stages:
            found[name] = measured(name, options, work)
            print(f"{name}: {found[name]}", file=sys.stderr)
    text = table(found, options)
    print(text)
    if options.write_docs:
        write_docs(text)
    bars = {
        name: {"value": figures["after"], "bar": figures["before"], "holds": better(name, figures)}
        for name, figures in found.items()
    }
    machine = f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores"
    print(json.dumps({"benchmark": "defaults", "machine": machine, "figures": found, "bars": bars}))


if __name__ == "__main__":
    main()
