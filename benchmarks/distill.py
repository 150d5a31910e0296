"""Distillation beside other tools: tokens a second and peak memory on the same records, offline and on-policy.

python benchmarks/distill.py --student SMOLLM2 --teacher SMOLLM2        hftune, TRL's two trainers, in turns
   --medicalgpt FOLDER:PYTHON                                           its repository, and a Python that can run it
   --mode offline                                                       one of the two alone
   --recompute                                                          activations recomputed, by each tool in its way
   --peers trl                                                          beside these alone
   --quick                                                              fewer steps, one round
   --write-docs                                                         the table goes into docs/distillation.md, with
                                                                        --recompute into a place of its own there

LoRA r=8 on all linears, float32, SDPA, micro batch `--batch`, no accumulation, JSD with beta 0.5 at temperature 1,
activations recomputed where `--recompute` asks for it. Offline, answers of the records are trained, and tokens are
counted without padding; TRL's DistillationTrainer has no such mode. On-policy the student draws `--answer` tokens at
most, and the trained ones are counted. Time is from the end of the warm-up to the end of the last step, generation and
the teacher included.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "distillation.md"
SPEEDS, MEMORY = {"offline": 1.5, "on_policy": 1.0}, 0.6
PEERS = {"offline": ("gkd", "medicalgpt"), "on_policy": ("trl", "gkd", "medicalgpt")}
Figures = dict[str, Any]


def write_records(file: Path, source: Path, model: str, number: int, max_length: int) -> None:
    """Records of one turn, answers put together from those of `source` until they have a quarter to all of the room."""
    from transformers import AutoTokenizer

    tokenizer, drawn = AutoTokenizer.from_pretrained(model), random.Random(0)
    turns = [json.loads(line)["messages"][-2:] for line in source.read_text(encoding="utf-8").splitlines()]
    lines = []
    for _ in range(number):
        # What the template adds, and the question, are less than 96 tokens.
        question, room = drawn.choice(turns)[0], drawn.randint(max_length // 4, max_length - 96)
        text = ""
        while len(tokenizer(text)["input_ids"]) < room:
            text += drawn.choice(turns)[1]["content"] + " "
        text = tokenizer.decode(tokenizer(text)["input_ids"][:room])
        lines.append(json.dumps({"messages": [question, {"role": "assistant", "content": text}]}, ensure_ascii=False))
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")


def run(tool: str, mode: str, data: Path, options: argparse.Namespace) -> Figures | None:
    """One tool in a process of its own; None where a peer does not run here, which is said."""
    python, more = sys.executable, []
    if tool == "medicalgpt":
        repository, _, python = options.medicalgpt.rpartition(":")
        more = ["--repository", repository]
    with tempfile.TemporaryDirectory() as out:
        command = [python, str(Path(__file__).with_name("distill_peers.py")), tool, "--mode", mode, *more]
        command += ["--data", str(data), "--student", options.student, "--teacher", options.teacher, "--out", out]
        command += ["--steps", str(options.steps), "--warmup", str(options.warmup), "--answer", str(options.answer)]
        command += ["--max_length", str(options.max_length), "--batch", str(options.batch)]
        command += ["--recompute"] * options.recompute
        environment = os.environ | {"OMP_NUM_THREADS": str(options.threads), "HF_HUB_OFFLINE": "1"}
        environment |= {"CUDA_VISIBLE_DEVICES": "", "HF_DATASETS_CACHE": f"{out}/datasets"}
        environment["TRL_EXPERIMENTAL_SILENCE"] = "1"
        environment["PYTHONPATH"] = str(ROOT) if tool != "medicalgpt" else ""
        done = subprocess.run(command, env=environment, cwd=out, capture_output=True, text=True, check=False)
    if done.returncode and tool != "hftune":
        print(f"{tool} is left out, it failed: {done.stderr.strip().splitlines()[-1][:200]}")
        return None
    if done.returncode:
        raise SystemExit(f"{tool} failed:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")
    figures: Figures = json.loads(done.stdout.rstrip().splitlines()[-1])
    return figures


def report(mode: str, found: dict[str, list[Figures]]) -> tuple[str, dict[str, Any]]:
    """The table of a mode; its bars."""
    counted = "tokens" if mode == "offline" else "trained"
    speeds = {tool: [one[counted] / one["seconds"] for one in runs] for tool, runs in found.items()}
    middle = {tool: statistics.median(each) for tool, each in speeds.items()}
    memory = {tool: max(one["peak_mebibytes"] for one in runs) for tool, runs in found.items()}
    lines = [f"{mode:>12} {'tokens/s':>9} {'(least - most)':>18} {'memory':>11}"]
    for tool in found:
        spread = f"({min(speeds[tool]):.1f} - {max(speeds[tool]):.1f})"
        lines.append(f"{tool:>12} {middle[tool]:>9.1f} {spread:>18} {memory[tool]:>7,.0f} MiB")
    others = [tool for tool in found if tool != "hftune"]
    if not others:
        return "\n".join(lines), {}
    fastest, smallest = max(others, key=lambda tool: middle[tool]), min(others, key=lambda tool: memory[tool])
    speed, share = middle["hftune"] / middle[fastest], memory["hftune"] / memory[smallest]
    lines.append(f"hftune: {speed:.2f} x the fastest peer ({fastest}), {share:.2f} x the memory of {smallest}")
    return "\n".join(lines), {
        f"{mode}_over_fastest_peer": {"value": speed, "bar": SPEEDS[mode], "holds": speed >= SPEEDS[mode]},
        f"{mode}_memory_of_smallest_peer": {"value": share, "bar": MEMORY, "holds": share <= MEMORY},
    }


def write_docs(tables: dict[str, str], options: argparse.Namespace) -> None:
    """Put the tables into the page, each mode in its place."""
    page = PAGE.read_text(encoding="utf-8")
    rows = f"micro batch {options.batch}" + (f", {options.answer} tokens drawn" if "on_policy" in tables else "")
    rows += ", activations recomputed" if options.recompute else ""
    measured = f"{rows}, {options.steps} steps, {options.rounds} rounds, {os.cpu_count()} cores"
    for mode, table in tables.items():
        mark = f"{mode}, recomputed" if options.recompute else mode
        text = f"<!-- {mark} -->\n\n```text\n{table}\n({measured})\n```\n\n<!-- end of {mark} -->"
        page = re.sub(rf"(?ms)^<!-- {mark} -->.*^<!-- end of {mark} -->", lambda _, text=text: text, page)
    PAGE.write_text(page, encoding="utf-8")


def main() -> None:
    """Measure in turns, show, and end with one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--student", required=True, help="a folder or a Hub name")
    parser.add_argument("--teacher", required=True, help="a folder or a Hub name")
    parser.add_argument("--data", type=Path, default=ROOT / "examples" / "data" / "sft" / "chat.jsonl")
    parser.add_argument("--records", type=int, default=64)
    parser.add_argument("--mode", choices=list(PEERS), action="append", help="left out: both")
    parser.add_argument("--steps", type=int, help="10, or 4 with --quick; the first two warm up")
    parser.add_argument("--max_length", type=int, default=512)
    parser.add_argument("--answer", type=int, default=64, help="tokens that the student draws at most")
    parser.add_argument("--batch", type=int, default=2, help="rows of a micro batch")
    parser.add_argument("--recompute", action="store_true", help="as hftune and TRL do by default")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--quick", action="store_true", help="fewer steps, one round")
    parser.add_argument("--write-docs", action="store_true", help="put the tables into docs/distillation.md")
    parser.add_argument("--peers", nargs="+", choices=["trl", "gkd", "medicalgpt"], help="left out: all")
    parser.add_argument("--medicalgpt", metavar="FOLDER:PYTHON", help="its repository, and a Python that can run it")
    options = parser.parse_args()
    options.steps, options.warmup = options.steps or (4 if options.quick else 10), 1 if options.quick else 2
    if not options.medicalgpt:
        print("not measured, because no environment was given: medicalgpt")
    options.rounds = 1 if options.quick else options.rounds
    figures: dict[str, Any] = {}
    bars: dict[str, Any] = {}
    tables: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder)
        write_records(data / "records.jsonl", options.data, options.student, options.records, options.max_length)
        for mode in options.mode or PEERS:
            asked = [tool for tool in PEERS[mode] if tool in (options.peers or PEERS[mode])]
            peers = [tool for tool in asked if tool != "medicalgpt" or options.medicalgpt]
            found: dict[str, list[Figures]] = {tool: [] for tool in ("hftune", *peers)}
            for _ in range(options.rounds):
                for tool in list(found):
                    one = run(tool, mode, data, options)
                    if one is None:
                        del found[tool]
                        continue
                    found[tool].append(one)
                    print(f"# {mode} {tool}: {one}", file=sys.stderr)
            figures[mode] = found
            tables[mode], more = report(mode, found)
            print(tables[mode])
            bars |= more
    if options.write_docs:
        write_docs(tables, options)
    machine = f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores"
    figures["threads"] = options.threads
    print(json.dumps({"benchmark": "distill", "machine": machine, "figures": figures, "bars": bars}))


if __name__ == "__main__":
    main()
