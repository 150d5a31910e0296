"""Whether a student comes nearer to its teacher: held-out KL before and after 60 steps, beside SFT on the same records.

python benchmarks/distill_quality.py --student SMOLLM2 --teacher outputs/demo/dpo-merged
python benchmarks/distill_quality.py --student SMOLLM2 --teacher FOLDER --write-docs     into docs/distillation.md
   --quick             5 steps, one seed
   --work FOLDER       what was measured there with the same settings is not measured again

All are measured alike: KL(teacher, student) per trained token of the held-out records (`--beta 0`, evaluation alone).
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "distillation.md"
HEAD = "## Measured\n"
COMMON = {
    "train_file_dir": "examples/data/sft", "validation_file_dir": "examples/data/sft_eval", "max_length": 128,
    "max_eval_samples": 32, "per_device_eval_batch_size": 8, "report_to": "none", "save_strategy": "no",
    "eval_strategy": "no", "disable_tqdm": True, "overwrite_output_dir": True,
}  # fmt: skip
TRAINED = {
    "use_peft": True, "per_device_train_batch_size": 4, "gradient_checkpointing": False, "learning_rate": 5e-4,
}  # fmt: skip
WAYS = {
    "on-policy, reverse KL": ("distill", {"distill_mode": "on_policy", "max_completion_length": 32}),
    "offline, reverse KL": ("distill", {"distill_mode": "offline"}),
    "offline, forward KL": ("distill", {"distill_mode": "offline", "beta": 0.0}),
    "SFT on the records": ("sft", {}),
}
BAR = 0.5


def run(script: str, folder: Path, given: dict[str, object]) -> dict:
    """The manifest of a run; one that is there with the same settings is not run again."""
    asked = folder.with_name(f"{folder.name}.json")
    text = json.dumps([script, given], default=str)
    if not (asked.is_file() and asked.read_text() == text and (folder / "hftune.json").is_file()):
        flags = [word for name, value in given.items() for word in (f"--{name}", str(value))]
        command = [sys.executable, f"run_{script}.py", *flags, "--output_dir", str(folder)]
        subprocess.run(
            command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL, env={**os.environ, "HF_HUB_OFFLINE": "1"}
        )
        asked.write_text(text)
    found: dict = json.loads((folder / "hftune.json").read_text())
    return found


def held_out(args: argparse.Namespace, folder: Path, adapter: Path | None) -> float:
    """KL(teacher, student) per trained token of the held-out records, nats."""
    given = {
        **COMMON, "model_name_or_path": args.student, "teacher_model_name_or_path": args.teacher, "beta": 0.0,
        "distill_mode": "offline", "do_train": False, "do_eval": True,
    }  # fmt: skip
    if adapter is not None:
        given["peft_path"] = adapter
    return float(run("distill", folder, given)["metrics"]["eval_loss"])


def measure(args: argparse.Namespace, work: Path) -> dict[str, dict[str, float]]:
    """By way and seed the KL before and after, and seconds of training."""
    before = held_out(args, work / "before", None)
    found: dict[str, dict[str, float]] = {}
    for way, (script, more) in WAYS.items():
        for seed in (1,) if args.quick else (1, 2):
            name = f"{script}-{'-'.join(map(str, more.values()))}-{seed}"
            given = {
                **COMMON,
                **TRAINED,
                **more,
                "model_name_or_path": args.student,
                "max_steps": args.steps,
                "seed": seed,
            }
            if script == "distill":
                given["teacher_model_name_or_path"] = args.teacher
            manifest = run(script, work / name, given)
            after = held_out(args, work / f"{name}-after", work / name)
            found[f"{way}, seed {seed}"] = {
                "before": before, "after": after, "left": after / before, "seconds": manifest["train_seconds"],
            }  # fmt: skip
            print(f"{way}, seed {seed}: {before:.4f} -> {after:.4f}", file=sys.stderr)
    return found


def table(found: dict[str, dict[str, float]]) -> str:
    """Markdown."""
    lines = ["| way | KL before | after | left |", "| --- | --: | --: | --: |"]
    lines += [f"| {way} | {row['before']:.4f} | {row['after']:.4f} | {row['left']:.0%} |" for way, row in found.items()]
    return "\n".join(lines) + "\n"


def write_docs(args: argparse.Namespace, found: dict[str, dict[str, float]]) -> None:
    """Put the table into the page, in the place of the one that is there."""
    text = PAGE.read_text(encoding="utf-8")
    machine = f"{platform.machine()}, {os.cpu_count()} cores"
    words = (
        f"SmolLM2-135M, LoRA (r 8, learning rate 5e-4), {args.steps} steps of 4 records of at most 128 tokens; the\n"
        f"teacher is the demo's own result. {machine}. KL(teacher, student) per held-out token, by\n"
        "`python benchmarks/distill_quality.py --student SMOLLM2 --teacher FOLDER --write-docs`:\n\n"
    )
    marked = f"<!-- measured -->\n\n{table(found)}\n<!-- end of measured -->\n"
    start = text.find(HEAD)
    end = text.find("\n## ", start + 1) if start >= 0 else -1
    rest = text[end:] if end >= 0 else ""
    PAGE.write_text(
        (text[:start] if start >= 0 else text.rstrip() + "\n\n") + HEAD + "\n" + words + marked + rest,
        encoding="utf-8",
    )


def main() -> None:
    """Measure, print the table and one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--student", required=True)
    parser.add_argument("--teacher", required=True)
    parser.add_argument("--work", type=Path)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--write-docs", action="store_true")
    args = parser.parse_args()
    args.student, args.teacher = (str(Path(folder).resolve()) for folder in (args.student, args.teacher))
    args.steps = 5 if args.quick else args.steps
    work = args.work or Path(tempfile.mkdtemp(prefix="distill_quality"))
    work.mkdir(parents=True, exist_ok=True)
    found = measure(args, work)
    print(table(found))
    taught = [row["left"] for way, row in found.items() if not way.startswith("SFT")]
    machine = {"cores": os.cpu_count(), "machine": platform.machine()}
    bars = {"KL left": {"value": max(taught), "bar": BAR, "holds": max(taught) <= BAR}}
    print(json.dumps({"benchmark": "distill_quality", "machine": machine, "figures": found, "bars": bars}))
    if args.write_docs:
        write_docs(args, found)


if __name__ == "__main__":
    main()
