"""Gates in the demo's pipeline: whether a bad stage is stopped, and a stage that changes nothing is not.

python benchmarks/gates.py --model outputs/base/SmolLM2-135M-Instruct      two seeds
python benchmarks/gates.py --model MODEL --quick                           one seed, 8 steps a stage
python benchmarks/gates.py --model MODEL --write-docs                      the table goes into docs/evaluation.md

The pipeline is examples/pipelines/demo.yaml with PT of few steps and SFT of `--steps`, on its data, with its settings
and evaluated on its held-out records. Behind SFT come three stages of SFT that each start from its result: one with a
learning rate of 1e-6; one with the answers of the records exchanged at random; one with records that another tool's
template has been written into. All four have the gate `loss: {drop: 0.05}`. The last one does the loss no harm: it is
shown what ROUGE of its answers says.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
DEMO = ROOT / "examples" / "pipelines" / "demo.yaml"
HELD_OUT = ROOT / "examples" / "data" / "sft_eval"
PAGE = ROOT / "docs" / "evaluation.md"
GATE = {"loss": {"drop": 0.05}}
GOOD = ("sft", "unchanged")
BAD = "shuffled"
UNSEEN = "template"
"""Bad as well, but not by what the gate measures."""
ANSWERS = ("--eval_tasks", "rouge", "--max_new_tokens", "48")
STOPPED = 3
SAYS = """\
Each stage has the gate `loss: {drop: 0.05}`: SFT as it is; and three that start from its result: SFT that changes next
to nothing (a learning rate of 1e-6), SFT with the answers of other records (shuffled), and SFT on records in which
another tool's template was left, `### Human: ...` (template). The loss is that of a token; less before is the
difference, with its interval. A gate sees what it measures: the template does no harm to the loss of clean records, but
the model writes it into its answers. ROUGE of these sees it as far as 30 records can show it (last column), and a gate
may be on that."""


def main() -> None:
    """Run, show, and end with one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--model", type=Path, required=True, help="SmolLM2-135M-Instruct (python examples/base_model.py)"
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--steps", type=int, default=32, help="of each stage")
    parser.add_argument("--processes", type=int, default=2, help="of each stage")
    parser.add_argument("--quick", action="store_true", help="one seed, 8 steps a stage")
    parser.add_argument("--work", type=Path, help="keep the outputs there, and continue there")
    parser.add_argument("--write-docs", action="store_true", dest="write_docs")
    options = parser.parse_args()
    if options.quick:
        options.seeds, options.steps = options.seeds[:1], 8
    with tempfile.TemporaryDirectory() as folder:
        found = {
            seed: run(seed, (options.work or Path(folder)).resolve() / str(seed), options) for seed in options.seeds
        }
    report(found, options)


def run(seed: int, folder: Path, options: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Of each stage with a gate: its loss, the difference from what it started from, and whether it was stopped."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "gates.yaml"
    file.write_text(yaml.safe_dump(pipeline(seed, folder, options), sort_keys=False))
    codes = {}
    for stage in (*GOOD, BAD, UNSEEN):
        # What is finished is skipped: each run ends with the gate of its last stage.
        parts = ["--to", stage] if stage == "sft" else ["--only", stage]
        codes[stage] = hftune("pipeline", "run", str(file), *parts)
        if codes[stage] not in (0, STOPPED):
            raise SystemExit(f"{stage} ended with {codes[stage]}, which is no verdict of a gate")
    found = {
        stage: {"stopped": code == STOPPED, **measured(folder / "out" / f"{stage}-evaluated")}
        for stage, code in codes.items()
    }
    found[UNSEEN]["rouge"] = rouge(folder)
    return found


def rouge(folder: Path) -> dict[str, float]:
    """ROUGE of the answers to the held-out records, less that of the stage before, with its interval."""
    for stage, against in (("sft", ()), (UNSEEN, ("--against", str(folder / "sft-answers")))):
        words = ["--models", str(folder / "out" / f"{stage}-merged"), "--validation_file_dir", str(HELD_OUT), *ANSWERS]
        output = folder / f"{stage}-answers"
        if not (output / "evaluation.json").is_file() and hftune("evaluate", *words, *against, "--output_dir", output):
            raise SystemExit(f"the answers of {stage} were not evaluated")
    (differences,) = json.loads((folder / f"{UNSEEN}-answers" / "evaluation.json").read_text())["differences"].values()
    return dict(differences["rouge"])


def pipeline(seed: int, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """The demo's file, with the stages that are tried behind SFT."""
    demo = yaml.safe_load(DEMO.read_text())
    sft = demo["stages"]["sft"] | {"max_steps": options.steps, "gate": GATE}
    again = sft | {"script": "sft", "from": "sft"}
    stages = {
        "pt": demo["stages"]["pt"] | {"max_steps": 4},
        "sft": sft,
        "unchanged": again | {"learning_rate": 1e-6, "max_steps": 2},
        "shuffled": again | {"train_file_dir": str(written(folder / "shuffled.jsonl", exchanged(records(), seed)))},
        "template": again | {"train_file_dir": str(written(folder / "template.jsonl", map(templated, records())))},
    }
    return {
        "model": str(options.model.resolve()),
        "output_dir": str(folder / "out"),
        "launcher": {"deepspeed": {"num_gpus": options.processes}},
        "values": {"data": str(ROOT / "examples" / "data")},
        "shared": demo["shared"] | {"seed": seed},
        "stages": stages,
        "evaluate": demo["evaluate"],
    }


def records() -> list[list[dict[str, str]]]:
    """The conversations that the demo's SFT trains."""
    from hftune.data.readers.base import Row
    from hftune.data.readers.files import chunks, find_files
    from hftune.data.records.conversations import to_conversation

    files = find_files(str(ROOT / "examples" / "data" / "sft"), "--data")
    rows = (row for chunk in chunks(files) for row in chunk.rows())
    return [to_conversation(row).messages for row in rows if isinstance(row, Row)]


def exchanged(conversations: list[list[dict[str, Any]]], seed: int) -> list[list[dict[str, Any]]]:
    """Each answer at the place of another one."""
    answers = [turn["content"] for turns in conversations for turn in turns if turn["role"] == "assistant"]
    random.Random(seed).shuffle(answers)
    left = iter(answers)
    return [
        [{**turn, "content": next(left)} if turn["role"] == "assistant" else turn for turn in turns]
        for turns in conversations
    ]


def templated(turns: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """As data looks that went through the template of Vicuna or its like before."""
    names = {"user": "### Human: {}\n", "assistant": "### Assistant: {}\n###"}
    return [{**turn, "content": names.get(turn["role"], "{}").format(turn["content"])} for turn in turns]


def written(file: Path, conversations: Any) -> Path:
    lines = [json.dumps({"messages": turns}, ensure_ascii=False) for turns in conversations]
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return file


def hftune(*words: str | Path) -> int:
    """The exit code of a command."""
    given = [str(word) for word in words]
    print(f"\nhftune {' '.join(given)}", flush=True)
    return subprocess.run([sys.executable, "-m", "hftune.cli", *given], cwd=ROOT, check=False).returncode


def measured(folder: Path) -> dict[str, Any]:
    """What the evaluation of a stage says of its loss."""
    found = json.loads((folder / "evaluation.json").read_text())
    (figures,), (differences,) = found["models"].values(), found["differences"].values()
    return {"loss": figures["loss"]["value"], "less": differences["loss"]}


def report(found: dict[int, dict[str, dict[str, Any]]], options: argparse.Namespace) -> None:
    """The table, and the last line."""
    lines = [SAYS, "", "| stage | seed | loss | less before | the gate |", "| --- | ---: | ---: | ---: | --- |"]
    for stage in (*GOOD, BAD, UNSEEN):
        for seed, stages in found.items():
            one = stages[stage]
            verdict = "stops the pipeline" if one["stopped"] else "passed"
            verdict += f"; ROUGE {within(one['rouge'])}" if "rouge" in one else ""
            less = within(one["less"])
            lines.append(f"| {stage} | {seed} | {one['loss']:.3f} | {less} | {verdict} |")
    table = "\n".join(lines)
    print(f"\n{table}\n")
    if options.write_docs:
        write_docs(table)
    caught, planted = sum(stages[BAD]["stopped"] for stages in found.values()), len(found)
    alarms = sum(stages[stage]["stopped"] for stages in found.values() for stage in GOOD)
    bars = {
        "bad_stages_stopped": {"value": caught, "bar": planted, "holds": caught == planted},
        "good_stages_stopped": {"value": alarms, "bar": 0, "holds": alarms == 0},
    }
    machine = f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores"
    print(json.dumps({"benchmark": "gates", "machine": machine, "figures": found, "bars": bars}))


def within(found: dict[str, float]) -> str:
    """A difference with its interval."""
    return f"{found['value']:+.3f} ({found['low']:+.3f} - {found['high']:+.3f})"


def write_docs(table: str) -> None:
    """Replace the table on the page."""
    page = PAGE.read_text(encoding="utf-8")
    head, _, rest = page.partition("<!-- gates -->\n")
    PAGE.write_text(
        f"{head}<!-- gates -->\n\n{table}\n\n<!-- end of gates -->{rest.partition('<!-- end of gates -->')[2]}",
        encoding="utf-8",
    )


if __name__ == "__main__":
    main()
