"""RL and on-policy distillation beside TRL: seconds and processor seconds of a step, and peak memory.

python benchmarks/rollouts.py --model SMOLLM2                        hftune and TRL, in turns, every algorithm
   --algorithm grpo                                                  one of them
   --trl PYTHON                                                      TRL of another environment
   --before FOLDER:PYTHON                                            another version of hftune as well: TRL has no PPO
   --quick                                                           fewer steps, one round
   --write-docs                                                      the table goes into docs/rl.md
   --cuda                                                            on a GPU, in bfloat16; memory is the GPU's

LoRA r=8 on all linears, float32, one process, 16 answers of at most 64 tokens a step: 8 a prompt for GRPO and RLOO, 2
for online DPO, 1 for PPO (which goes over them 4 times) and distillation (whose teacher is as large as the student).
Rewards cost nothing. Time is from the end of the first step to the end of the last. That losses agree is shown by
`tests/parity/test_rollouts.py`.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from harness import ROOT, Figures, ask, bar, empty_folder, finish, in_turns, machine, parser_of, paste

BARS = {"grpo": 2.0, "rloo": 1.8, "ppo": 1.8, "online_dpo": 1.5, "distill": 1.0}
MEMORY = 0.6
PLACES = {False: "rollouts", True: "rollouts on a GPU"}
"""Marks in the page, with and without --cuda."""


def write_data(folder: Path, source: Path) -> None:
    """The same questions as prompts, and as records with an answer that is drawn anew."""
    questions = [json.loads(line)["prompt"] for line in source.read_text(encoding="utf-8").splitlines()]
    turns = [[("user", question), ("assistant", "Well.")] for question in questions]
    records = [{"messages": [{"role": role, "content": text} for role, text in turn]} for turn in turns]
    for name, rows in (("prompts", [{"prompt": question} for question in questions]), ("records", records)):
        (folder / name).mkdir()
        lines = [json.dumps(row, ensure_ascii=False) for row in rows]
        (folder / name / f"{name}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")


def run(tool: str, algorithm: str, data: Path, options: argparse.Namespace) -> Figures:
    """What was seen of one tool in a process of its own."""
    where = {"trl": options.trl, "before": options.before}.get(tool)
    flags = ["hftune" if tool == "before" else tool, "--algorithm", algorithm, "--data", str(data)]
    flags += ["--model", options.model, "--out", empty_folder(), "--steps", str(options.steps)]
    flags += ["--answers", str(options.answers), "--group", str(options.group), "--tokens", str(options.tokens)]
    environment = {"TRL_EXPERIMENTAL_SILENCE": "1"}
    environment |= {"HFTUNE_CACHE": empty_folder()}
    if options.cuda:
        flags += ["--cuda"]
        environment |= {"CUDA_VISIBLE_DEVICES": os.environ.get("CUDA_VISIBLE_DEVICES", "0")}
    return ask("rollouts_peers.py", flags, where, **environment)


def middle(runs: list[Figures], name: str) -> float:
    """The median over rounds of a figure of one step."""
    return statistics.median(one[name] / one["steps"] for one in runs)


def row(algorithm: str, found: dict[str, list[Figures]]) -> tuple[str, dict[str, Any]]:
    """The line of an algorithm in the table, and its bars: beside TRL, or what there is."""
    ours = found["hftune"]
    peer = next((tool for tool in ("trl", "before") if tool in found), None)
    memory = max(one["peak_mebibytes"] for one in ours)
    seconds, work = middle(ours, "seconds"), middle(ours, "processor_seconds")
    if peer is None:
        return f"| {algorithm} | {seconds:.1f} | | | {work:.1f} | | {memory:,.0f} | |", {}
    theirs = found[peer]
    speed = middle(theirs, "seconds") / seconds
    others = max(one["peak_mebibytes"] for one in theirs)
    words = "" if peer == "trl" else " (an earlier hftune)"
    line = (
        f"| {algorithm} | {seconds:.1f} | {middle(theirs, 'seconds'):.1f}{words} | {speed:.2f} | {work:.1f} | "
        f"{middle(theirs, 'processor_seconds'):.1f} | {memory:,.0f} | {others:,.0f} |"
    )
    bars = {f"{algorithm}_speed": bar(speed, BARS[algorithm], above=True)}
    return line, bars | {f"{algorithm}_memory": bar(memory / others, MEMORY)}


HEAD = """| algorithm | hftune, s a step | TRL, s a step | times as fast | hftune, processor s | TRL, processor s | \
hftune, MiB | TRL, MiB |
| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |"""


def main() -> None:
    """Measure in turns, show, and end with one line of JSON."""
    parser = parser_of(__doc__, 3)
    parser.add_argument("--model", required=True, help="a folder or a Hub name")
    parser.add_argument("--data", type=Path, default=ROOT / "examples" / "data" / "prompts" / "prompts.jsonl")
    parser.add_argument("--algorithm", choices=list(BARS), action="append", help="left out: all")
    parser.add_argument("--answers", type=int, default=16)
    parser.add_argument("--group", type=int, default=8, help="answers to a prompt, of GRPO and RLOO")
    parser.add_argument("--tokens", type=int, default=64, help="of an answer at most")
    parser.add_argument("--steps", type=int, help="5, or 3 with --quick; the first warms up")
    parser.add_argument("--trl", metavar="PYTHON", help="of an environment with TRL; left out: this one")
    parser.add_argument("--before", metavar="FOLDER:PYTHON", help="another version of hftune")
    parser.add_argument("--cuda", action="store_true")
    parser.add_argument("--write-docs", action="store_true", help="put the table into docs/rl.md")
    options = parser.parse_args()
    options.steps = options.steps or (3 if options.quick else 5)
    figures: dict[str, Any] = {}
    bars: dict[str, Any] = {}
    lines = []
    with tempfile.TemporaryDirectory() as folder:
        write_data(Path(folder), options.data)
        for algorithm in options.algorithm or BARS:
            tools = ["hftune", *(["trl"] if algorithm != "ppo" else []), *(["before"] if options.before else [])]
            found = in_turns(tools, options, lambda tool, name=algorithm: run(tool, name, Path(folder), options))
            line, more = row(algorithm, found)
            figures[algorithm], bars = found, bars | more
            lines.append(line)
    table = "\n".join(["", HEAD, *lines])
    print(table)
    if options.write_docs:
        options_said = " ".join(sys.argv[1:]).replace(options.model, "MODEL").replace(" --write-docs", "")
        said = f"`python benchmarks/rollouts.py {options_said}`, on {machine(cuda=options.cuda)}:"
        paste(ROOT / "docs" / "rl.md", PLACES[options.cuda], f"{said}\n{table}")
    finish("rollouts", figures, bars, cuda=options.cuda)


if __name__ == "__main__":
    main()
