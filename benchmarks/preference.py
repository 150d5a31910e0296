"""DPO beside other tools: real tokens a second and peak memory on the same pairs.

python benchmarks/preference.py --model SMOLLM2 --data pairs.jsonl                hftune and TRL, in turns
   --llamafactory PYTHON --ms_swift PYTHON --medicalgpt FOLDER:PYTHON             other tools, by their environments
   --quick                                                                       fewer steps, one round

LoRA r=8 on all linears, float32, SDPA, micro batch 2, no accumulation, no recomputation, AdamW 1e-4. Answers are cut as
text before, so that every pair fits into the maximum length and all tools see the same tokens. Counted are tokens of
the policy without padding, a prompt once an answer (hftune computes it once a pair), between the end of the warm-up and
the end of the last step. `hftune` computes the reference in each step, as the others do; `hftune_once` before the first
step, which is in the time to it and not in the tokens a second. Losses of hftune and TRL, which
draw the same pairs in the same order, must agree.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
BAR_SPEED, BAR_MEMORY, TOLERANCE = 1.5, 0.6, 2e-3
PEERS = ("llamafactory", "ms_swift", "medicalgpt")
# Real tokens a second and MiB of the fastest and smallest peer (ms-swift), measured once on an idle machine.
PEER_SPEED, PEER_MEMORY = 101.0, 6904.0
Figures = dict[str, Any]


def write_pairs(file: Path, source: Path, model: str, number: int, max_length: int) -> None:
    """The first `number` pairs, texts cut so that prompt and answer fit into `max_length` tokens."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)

    def cut(text: str, tokens: int) -> str:
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        # A character may be several tokens: what is cut within one is left out.
        return text if len(ids) <= tokens else tokenizer.decode(ids[:tokens]).rstrip("\N{REPLACEMENT CHARACTER}")

    lines = []
    for line in source.read_text(encoding="utf-8").splitlines()[:number]:
        record = json.loads(line)
        question = cut(record["conversations"][-1]["value"], max_length // 4)
        # What the template adds is less than an eighth.
        chosen, rejected = (cut(record[side], max_length // 2 + max_length // 8) for side in ("chosen", "rejected"))
        made = {"conversations": [{"from": "human", "value": question}], "chosen": chosen, "rejected": rejected}
        lines.append(json.dumps(made, ensure_ascii=False))
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")


def run(tool: str, pairs: Path, options: argparse.Namespace) -> Figures | None:
    """One tool in a process of its own; None where a peer does not run here, which is said."""
    script = str(Path(__file__).with_name("preference_peers.py"))
    name, python, more = tool, sys.executable, []
    if tool in PEERS:
        repository, _, python = getattr(options, tool).rpartition(":")
        more = ["--repository", repository] if repository else []
    elif tool == "hftune_once":
        name, more = "hftune", ["--precompute", "True"]
    with tempfile.TemporaryDirectory() as out:
        command = [python, script, name, "--data", str(pairs), "--model", options.model, "--out", out, *more]
        command += ["--steps", str(options.steps), "--max_length", str(options.max_length)]
        environment = os.environ | {"OMP_NUM_THREADS": str(options.threads), "HF_HUB_OFFLINE": "1"}
        environment |= {"CUDA_VISIBLE_DEVICES": "", "HF_DATASETS_CACHE": f"{out}/datasets", "USE_HF": "1"}
        environment["PYTHONPATH"] = str(ROOT) if tool not in PEERS else ""
        done = subprocess.run(command, env=environment, cwd=out, capture_output=True, text=True, check=False)
    if done.returncode and tool in PEERS:
        print(f"{tool} is left out, it failed: {done.stderr.strip().splitlines()[-1][:200]}")
        return None
    if done.returncode:
        raise SystemExit(f"{tool} failed:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")
    figures: Figures = json.loads(done.stdout.rstrip().splitlines()[-1])
    return figures


def agreement(found: dict[str, list[Figures]]) -> float:
    """The largest difference between losses of TRL and hftune, of all steps; their tokens must be the same."""
    ours, theirs = found["hftune"][0], found["trl"][0]
    assert ours["tokens_of_steps"] == theirs["tokens_of_steps"], (ours["tokens_of_steps"], theirs["tokens_of_steps"])
    return max(abs(one - other) for one, other in zip(ours["losses"], theirs["losses"], strict=True))


def report(found: dict[str, list[Figures]], options: argparse.Namespace) -> None:
    """The table and the last line."""
    speeds = {tool: [one["tokens"] / one["seconds"] for one in runs] for tool, runs in found.items()}
    middle = {tool: statistics.median(each) for tool, each in speeds.items()}
    memory = {tool: max(one["peak_mebibytes"] for one in runs) for tool, runs in found.items()}
    print(f"{'tool':>14} {'tokens/s':>9} {'(least - most)':>18} {'memory':>11} {'to first step':>14}")
    for tool, runs in found.items():
        spread = f"({min(speeds[tool]):.0f} - {max(speeds[tool]):.0f})"
        start = statistics.median(one["before_first_step"] for one in runs)
        print(f"{tool:>14} {middle[tool]:>9.0f} {spread:>18} {memory[tool]:>7,.0f} MiB {start:>12.1f} s")
    others = [tool for tool in found if not tool.startswith("hftune")]
    fastest, smallest = max(others, key=lambda tool: middle[tool]), min(others, key=lambda tool: memory[tool])
    speed, share = middle["hftune"] / middle[fastest], memory["hftune"] / memory[smallest]
    off = agreement(found)
    print(f"hftune: {speed:.2f} x the fastest peer ({fastest}), {share:.2f} x the memory of the smallest ({smallest});")
    print(f"losses of {len(found['trl'][0]['losses'])} steps differ from TRL's by {off:.1e} at most")
    bars = {
        "over_fastest_peer": {"value": speed, "bar": BAR_SPEED, "holds": speed >= BAR_SPEED},
        "memory_of_smallest_peer": {"value": share, "bar": BAR_MEMORY, "holds": share <= BAR_MEMORY},
        "loss_difference": {"value": off, "bar": TOLERANCE, "holds": off <= TOLERANCE},
    }
    machine = f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores"
    figures = {"tools": found, "known_peers": {"tokens/s": PEER_SPEED, "MiB": PEER_MEMORY}, "threads": options.threads}
    print(json.dumps({"benchmark": "preference", "machine": machine, "figures": figures, "bars": bars}))


def main() -> None:
    """Measure in turns, show, and end with one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="a folder or a Hub name")
    parser.add_argument("--data", type=Path, default=ROOT / "examples" / "data" / "preference" / "pairs.jsonl")
    parser.add_argument("--pairs", type=int, default=120)
    parser.add_argument("--steps", type=int, help="10, or 4 with --quick; the first two warm up")
    parser.add_argument("--max_length", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--quick", action="store_true", help="fewer steps, one round")
    parser.add_argument("--llamafactory", metavar="PYTHON", help="the Python of an environment that has it")
    parser.add_argument("--ms_swift", metavar="PYTHON")
    parser.add_argument("--medicalgpt", metavar="FOLDER:PYTHON", help="its repository, and a Python that can run it")
    options = parser.parse_args()
    options.steps = options.steps or (4 if options.quick else 10)
    absent = [tool for tool in PEERS if not getattr(options, tool)]
    if absent:
        print(f"not measured, because no environment was given: {', '.join(absent)}")
    tools = ["hftune", "hftune_once", "trl", *(tool for tool in PEERS if tool not in absent)]
    found: dict[str, list[Figures]] = {tool: [] for tool in tools}
    with tempfile.TemporaryDirectory() as folder:
        pairs = Path(folder) / "pairs.jsonl"
        write_pairs(pairs, options.data, options.model, options.pairs, options.max_length)
        for _ in range(1 if options.quick else options.rounds):
            for tool in list(found):
                figures = run(tool, pairs, options)
                if figures is None:
                    del found[tool]
                    continue
                found[tool].append(figures)
                print(f"# {tool}: {figures['tokens'] / figures['seconds']:.0f}", file=sys.stderr)
    report(found, options)


if __name__ == "__main__":
    main()
