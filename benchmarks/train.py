"""Supervised fine-tuning beside other tools: real tokens a second, memory, time to the first step, `--help`.

python benchmarks/train.py --model MODEL --data alpaca.json                    30 steps, unpacked and packed, 2 rounds
   --llamafactory PYTHON --ms_swift PYTHON --medicalgpt FOLDER:PYTHON          other tools, by their environments
   --quick                                                                     8 steps, one round

Every tool trains the same conversations with the same settings: LoRA of rank 8 on all linear layers, float32, SDPA,
maximum length 512, micro batch 2, no accumulation, no activation checkpointing, AdamW at 1e-4, loss on answers only,
each by its own entry point in a process of its own (`train_tools.py`); tools take turns and the median counts. Real
tokens are those that are not pads, between the third step's end and the last one's. `first step` is from the start of
the process, and has no bar here: `first_step.py` compares it in more rounds and with first batches of one size. The
tools cut and order records each in its own way, so losses are compared as means over the steps.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
TOOLS = Path(__file__).with_name("train_tools.py")
WARM_UP = 3
PEERS = ("llamafactory", "ms_swift", "medicalgpt")
PACKS = ("hftune", "trl", "llamafactory")  # ms-swift packs with FlashAttention only, MedicalGPT never
BARS = {"unpacked": 1.2, "packed": 1.15, "memory": 0.75, "help": 2.0, "losses": 0.05}
SCRIPTS = ("run_pt.py", "run_sft.py", "run_rm.py", "run_dpo.py", "run_rl.py", "merge_peft_adapter.py")

Figures = dict[str, float]


def main() -> None:
    """Train with every tool in turns and print the table."""
    options = parse()
    with tempfile.TemporaryDirectory() as folder:
        data = write_conversations(options.data, options.records, Path(folder))
        model, pad_id = with_own_pad(options.model, Path(folder))
        results = {
            kind: in_turns(kind, tools, data, model, pad_id, options)
            for kind, tools in {"unpacked": options.tools, "packed": [t for t in options.tools if t in PACKS]}.items()
        }
    helps = {script: help_seconds(script) for script in SCRIPTS}
    print(table(results))
    print("\n--help, s: " + ", ".join(f"{script} {seconds:.1f}" for script, seconds in helps.items()))
    figures = {f"{kind} {tool}": found for kind, of_kind in results.items() for tool, found in of_kind.items()}
    line = {"benchmark": "train", "machine": machine(), "figures": figures, "bars": bars(results, helps)}
    print(json.dumps(line))


def parse() -> argparse.Namespace:
    """The command line, with the tools that are there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="a model folder, e.g. SmolLM2-135M-Instruct")
    parser.add_argument("--data", type=Path, required=True, help="Alpaca records, a JSON list")
    parser.add_argument("--records", type=int, default=1000)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--max_length", type=int, default=512)
    parser.add_argument("--only", nargs="*", help="these tools alone")
    parser.add_argument("--more", default="", help="further arguments of hftune's, as one word")
    parser.add_argument("--quick", action="store_true")
    for peer in PEERS:
        parser.add_argument(f"--{peer}", metavar="[FOLDER:]PYTHON")
    options = parser.parse_args()
    if options.quick:
        options.steps, options.rounds = 8, 1
    absent = [peer for peer in PEERS if not getattr(options, peer)]
    if absent:
        print(f"not given, so not measured: {', '.join(absent)}")
    options.tools = ["hftune", "trl", *(peer for peer in PEERS if peer not in absent)]
    options.tools = [tool for tool in options.tools if not options.only or tool in options.only]
    return options


def write_conversations(source: Path, count: int, folder: Path) -> Path:
    """`count` Alpaca records as conversations of one question and one answer, in a form that every tool reads."""
    records = json.loads(source.read_text(encoding="utf-8"))
    lines = []
    for number in range(count):
        record = records[number % len(records)]
        question = "\n".join(part for part in (record["instruction"], record.get("input", "")) if part)
        turns = [{"from": "human", "value": question}, {"from": "gpt", "value": record["output"]}]
        lines.append(json.dumps({"conversations": turns}, ensure_ascii=False))
    file = folder / "conversations.jsonl"
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return file


def with_own_pad(model: str, folder: Path) -> tuple[str, int]:
    """The model with a pad token that stands for nothing else, so that pads can be counted; and the token's id."""
    from transformers import AutoTokenizer

    copy = folder / "model"
    shutil.copytree(Path(model).resolve(), copy)  # no links: hftune refuses those that lead out of a model's folder
    tokenizer = AutoTokenizer.from_pretrained(model)
    taken = {tokenizer.eos_token, tokenizer.bos_token}
    tokenizer.pad_token = next(token for token in tokenizer.all_special_tokens if token not in taken)
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja"):
        (copy / name).unlink(missing_ok=True)
    tokenizer.save_pretrained(copy)
    return str(copy), tokenizer.pad_token_id


def in_turns(
    kind: str, tools: list[str], data: Path, model: str, pad_id: int, options: argparse.Namespace
) -> dict[str, Figures]:
    """Medians of each tool's figures over the rounds, with the spread of its speed."""
    runs: dict[str, list[Figures]] = {tool: [] for tool in tools}
    for number in range(options.rounds):
        for tool in tools:
            found = run(tool, kind == "packed", data, model, pad_id, options)
            print(f"round {number + 1}, {kind}, {tool}: {found['speed']:.0f} tok/s", file=sys.stderr)
            runs[tool].append(found)
    results = {}
    for tool, several in runs.items():
        results[tool] = {name: statistics.median(found[name] for found in several) for name in several[0]}
        speeds = [found["speed"] for found in several]
        results[tool] |= {"slowest": min(speeds), "fastest": max(speeds)}
    return results


def run(tool: str, packing: bool, data: Path, model: str, pad_id: int, options: argparse.Namespace) -> Figures:
    """Figures of one training."""
    return speed_of(watched(tool, packing, data, model, pad_id, options))


def watched(
    tool: str, packing: bool, data: Path, model: str, pad_id: int, options: argparse.Namespace
) -> dict[str, Any]:
    """What was seen of one training in a fresh process.

    Args:
        options: `steps`, `max_length`, `more` and the tools' environments.
    """
    repository, _, python = (getattr(options, tool, None) or "").rpartition(":")
    command = [python or sys.executable, str(TOOLS), tool, "--data", str(data), "--model", model]
    command += ["--steps", str(options.steps), "--max_length", str(options.max_length), "--pad_id", str(pad_id)]
    command += ["--packing"] if packing else []
    command += ["--repository", repository] if repository else []
    command += options.more.split() if tool == "hftune" else []
    environment = os.environ | {
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "true",
        "OMP_NUM_THREADS": str(os.cpu_count()),
        "BENCHMARK_BEGAN": repr(time.time()),
        "PYTHONPATH": str(ROOT) if tool == "hftune" else "",
    }
    finished = subprocess.run(command, env=environment, capture_output=True, text=True)
    if finished.returncode:
        raise SystemExit(f"{tool} failed:\n{finished.stdout[-1000:]}\n{finished.stderr[-2000:]}")
    seen: dict[str, Any] = json.loads(finished.stdout.splitlines()[-1])
    return seen


def speed_of(seen: dict[str, Any]) -> Figures:
    """Figures of one run from what was watched."""
    seconds = seen["ended"][-1] - seen["ended"][WARM_UP - 1]
    real, places = sum(seen["real"][WARM_UP:]), sum(seen["places"][WARM_UP:])
    return {
        "speed": real / seconds,
        "padding": 1 - real / places,
        "first_step": seen["ended"][0],
        "peak_mebibytes": seen["peak_mebibytes"],
        "loss": statistics.mean(seen["losses"]),
    }


def help_seconds(script: str) -> float:
    """Seconds until a script of hftune has printed its help; the quicker of two."""
    times = []
    for _ in range(2):
        began = time.perf_counter()
        subprocess.run([sys.executable, str(ROOT / script), "--help"], cwd=ROOT, capture_output=True, check=True)
        times.append(time.perf_counter() - began)
    return min(times)


def table(results: dict[str, dict[str, Figures]]) -> str:
    """Lines for people."""
    lines = ["             tool  real tok/s  (least - most)  padding  first step  peak MiB   loss"]
    for kind, of_kind in results.items():
        lines.append(f"{kind}:")
        lines += [
            f"{tool:>17}  {found['speed']:10.0f}  {found['slowest']:6.0f} - {found['fastest']:<5.0f}"
            f"{found['padding']:8.0%}  {found['first_step']:8.1f} s  {found['peak_mebibytes']:8,.0f}"
            f"  {found['loss']:5.3f}"
            for tool, found in of_kind.items()
        ]
    return "\n".join(lines)


def bars(results: dict[str, dict[str, Figures]], helps: dict[str, float]) -> dict[str, dict[str, Any]]:
    """Ratios to the best peer of the same run."""
    found = {}
    for kind, of_kind in results.items():
        peers = {tool: figures for tool, figures in of_kind.items() if tool != "hftune"}
        if "hftune" not in of_kind or not peers:
            continue
        ours = of_kind["hftune"]
        quickest = max(peer["speed"] for peer in peers.values())
        found[f"{kind}: speed / fastest peer's"] = _bar(ours["speed"] / quickest, BARS[kind], above=True)
        if kind == "unpacked":
            least = min(peer["peak_mebibytes"] for peer in peers.values())
            found["memory / smallest peer's"] = _bar(ours["peak_mebibytes"] / least, BARS["memory"])
            loss = statistics.median(peer["loss"] for peer in peers.values())
            found["mean loss: distance from the peers' median"] = _bar(abs(ours["loss"] / loss - 1), BARS["losses"])
    found["slowest --help, s"] = _bar(max(helps.values()), BARS["help"])
    return found


def _bar(value: float, bar: float, *, above: bool = False) -> dict[str, Any]:
    return {"value": round(value, 3), "bar": bar, "holds": value >= bar if above else value <= bar}


def machine() -> str:
    """Its kind and size."""
    return f"{platform.machine()}, {os.cpu_count()} cores"


if __name__ == "__main__":
    main()
