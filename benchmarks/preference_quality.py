"""What preference losses reach on held-out pairs: margins and accuracies before and after training.

python benchmarks/preference_quality.py --model SMOLLM2                 DPO, IPO, SimPO, ORPO, KTO on the demo's pairs
python benchmarks/preference_quality.py --model SMOLLM2 --write-docs     the table goes into docs/preference.md
   --work FOLDER                          what was measured there with the same settings is not measured again

Each loss trains a LoRA adapter (r=8, all linears, float32) on examples/data/preference and is measured on
examples/data/preference_eval: the implicit rewards of both answers, whose difference is the margin, and the share of
pairs in which the chosen answer has the higher one. For all losses alike these are log ratios to the model before
training times beta; for the losses without a reference, log-probabilities a token times beta.
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
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "preference.md"
BAR = 0.9
COMMON = {
    "train_file_dir": "examples/data/preference", "validation_file_dir": "examples/data/preference_eval",
    "use_peft": True, "lora_r": 8, "lora_alpha": 16, "lora_target_modules": "all", "max_length": 512,
    "per_device_train_batch_size": 4, "per_device_eval_batch_size": 8, "lr_scheduler_type": "cosine",
    "warmup_steps": 5, "dtype": "float32", "gradient_checkpointing": False, "save_strategy": "no",
    "report_to": "none", "logging_steps": 10, "eval_strategy": "steps", "eval_on_start": True,
}  # fmt: skip
LOSSES: dict[str, dict[str, Any]] = {
    "DPO": {"loss_type": "sigmoid", "beta": 0.1, "learning_rate": 2e-4},
    "IPO": {"loss_type": "ipo", "beta": 0.1, "learning_rate": 2e-4},
    # Without a reference the chosen answers start as the less likely ones, a token, and have to overtake.
    "SimPO": {"loss_type": "simpo", "beta": 2.0, "simpo_gamma": 1.0, "learning_rate": 1e-3},
    "ORPO": {"loss_type": "orpo", "beta": 0.5, "learning_rate": 1e-3},
    "KTO": {"loss_type": "kto", "beta": 0.1, "learning_rate": 2e-4},
}


def measured(name: str, options: argparse.Namespace) -> dict[str, float]:
    """As `measure`, from `--work` where it lies there."""
    if options.work is None:
        return measure(name, options)
    settings = COMMON | LOSSES[name] | {"steps": options.steps, "model": Path(options.model).name}
    file = options.work / f"{name}.json"
    if file.is_file() and (found := json.loads(file.read_text()))["settings"] == settings:
        return dict(found["figures"])
    figures = measure(name, options)
    options.work.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps({"settings": settings, "figures": figures}))
    return figures


def measure(name: str, options: argparse.Namespace) -> dict[str, float]:
    """Margin and accuracy on held-out pairs before and after training."""
    with tempfile.TemporaryDirectory() as out:
        arguments = COMMON | LOSSES[name]
        arguments |= {"model_name_or_path": options.model, "output_dir": f"{out}/run", "max_steps": options.steps}
        arguments |= {"eval_steps": options.steps}
        flags = [part for flag, value in arguments.items() for part in (f"--{flag}", str(value))]
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        environment = os.environ | {"PYTHONPATH": path, "HFTUNE_CACHE": f"{out}/cache"}
        done = subprocess.run(
            [sys.executable, "run_dpo.py", *flags],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise SystemExit(f"{name} failed:\n{done.stderr[-4000:]}")
        history = json.loads((Path(out) / "run" / "trainer_state.json").read_text())["log_history"]
    evaluated = [entry for entry in history if "eval_rewards/accuracies" in entry]
    before, after = evaluated[0], evaluated[-1]
    return {
        "margin_before": before["eval_rewards/margins"],
        "margin_after": after["eval_rewards/margins"],
        "accuracy_before": before["eval_rewards/accuracies"],
        "accuracy_after": after["eval_rewards/accuracies"],
    }


def table(found: dict[str, dict[str, float]], options: argparse.Namespace) -> str:
    """Markdown."""
    lines = [
        "| loss | learning rate | margin before | margin after | accuracy before | accuracy after |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for name, figures in found.items():
        cells = [
            f"{figures[key]:.3f}" for key in ("margin_before", "margin_after", "accuracy_before", "accuracy_after")
        ]
        lines.append(f"| {name} | {LOSSES[name]['learning_rate']:g} | {' | '.join(cells)} |")
    said = f"{options.steps} steps of 4 pairs, {Path(options.model).name}"
    return f"{said}; held-out pairs of `examples/data/preference_eval`.\n\n" + "\n".join(lines) + "\n"


def write_docs(text: str) -> None:
    """Replace the section of the page."""
    head = "## Measured\n"
    page = PAGE.read_text(encoding="utf-8")
    marked = f"<!-- measured -->\n\n{text.rstrip()}\n\n<!-- end of measured -->\n"
    section = f"{head}\nWritten by `python benchmarks/preference_quality.py --model MODEL --write-docs`.\n\n{marked}"
    page = re.sub(rf"(?ms)^{re.escape(head)}.*?(?=^## |\Z)", "", page).rstrip()
    PAGE.write_text(f"{page}\n\n{section}", encoding="utf-8")


def main() -> None:
    """Train, show, and end with one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="a folder or a Hub name")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--losses", nargs="+", choices=list(LOSSES), default=list(LOSSES))
    parser.add_argument("--work", type=Path)
    parser.add_argument("--quick", action="store_true", help="DPO and SimPO alone, 10 steps")
    parser.add_argument("--write-docs", action="store_true", dest="write_docs")
    options = parser.parse_args()
    if options.quick:
        options.losses, options.steps = ["DPO", "SimPO"], 10
    found = {}
    for name in options.losses:
        found[name] = measured(name, options)
        print(f"{name}: {found[name]}", file=sys.stderr)
    text = table(found, options)
    print(text)
    if options.write_docs:
        write_docs(text)
    bars = {}
    for name, figures in found.items():
        accuracy, gained = figures["accuracy_after"], figures["margin_after"] > figures["margin_before"]
        bars[f"{name}_accuracy"] = {"value": accuracy, "bar": BAR, "holds": accuracy >= BAR and gained}
    machine = f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores"
    print(json.dumps({"benchmark": "preference_quality", "machine": machine, "figures": found, "bars": bars}))


if __name__ == "__main__":
    main()
