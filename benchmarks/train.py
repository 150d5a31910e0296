"""Supervised fine-tuning beside other tools: real tokens a second, memory, time to the first step.

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
import shutil
import statistics
import tempfile
from pathlib import Path
from typing import Any

from harness import Figures, ask, bar, finish, in_turns, medians, parser_of, tools_of

WARM_UP = 3
PEERS = ("llamafactory", "ms_swift", "medicalgpt")
PACKS = ("hftune", "trl", "llamafactory")  # ms-swift packs with FlashAttention only, MedicalGPT never
BARS = {"unpacked": 1.2, "packed": 1.15, "memory": 0.75, "losses": 0.05}


def main() -> None:
    """Train with every tool in turns and print the table."""
    options = parse()
    results: dict[str, dict[str, Figures]] = {}
    with tempfile.TemporaryDirectory() as folder:
        data = write_conversations(options.data, options.records, Path(folder))
        model, pad_id = with_own_pad(options.model, Path(folder))
        for kind, packing in (("unpacked", []), ("packed", ["--packing"])):
            flags = ["--data", str(data), "--model", model, "--pad_id", str(pad_id), *packing]
            tools = [tool for tool in options.tools if not packing or tool in PACKS]
            found = in_turns(tools, options, lambda tool, flags=flags: speed_of(watched(tool, flags, options)))
            results[kind] = {tool: figures_of(runs) for tool, runs in found.items()}
    print(table(results))
    figures = {f"{kind} {tool}": found for kind, of_kind in results.items() for tool, found in of_kind.items()}
    finish("train", figures, bars(results))


def parse() -> argparse.Namespace:
    """The command line, with the tools that are there."""
    parser = parser_of(__doc__, 2, *PEERS)
    parser.add_argument("--model", required=True, help="a model folder, e.g. SmolLM2-135M-Instruct")
    parser.add_argument("--data", type=Path, required=True, help="Alpaca records, a JSON list")
    parser.add_argument("--records", type=int, default=1000)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--max_length", type=int, default=512)
    parser.add_argument("--only", nargs="*", help="these tools alone")
    parser.add_argument("--more", default="", help="further arguments of hftune's, as one word")
    options = parser.parse_args()
    if options.quick:
        options.steps = 8
    options.tools = [tool for tool in tools_of(options, "hftune", "trl") if not options.only or tool in options.only]
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


def watched(tool: str, flags: list[str], options: argparse.Namespace) -> Figures:
    """What was seen of one training in a fresh process.

    Args:
        flags: The data, the model and what is asked of every tool.
        options: `steps`, `max_length`, `more` and the tools' environments.
    """
    flags = [tool, *flags, "--steps", str(options.steps), "--max_length", str(options.max_length)]
    flags += options.more.split() if tool == "hftune" else []
    return ask("train_tools.py", flags, getattr(options, tool, None), TOKENIZERS_PARALLELISM="true")


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


def figures_of(runs: list[Figures]) -> Figures:
    """Medians over the rounds, with the spread of the speed."""
    speeds = [run["speed"] for run in runs]
    return medians(runs) | {"slowest": min(speeds), "fastest": max(speeds)}


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


def bars(results: dict[str, dict[str, Figures]]) -> dict[str, dict[str, Any]]:
    """Ratios to the best peer of the same run."""
    found = {}
    for kind, of_kind in results.items():
        peers = {tool: figures for tool, figures in of_kind.items() if tool != "hftune"}
        if "hftune" not in of_kind or not peers:
            continue
        ours = of_kind["hftune"]
        quickest = max(peer["speed"] for peer in peers.values())
        found[f"{kind}: speed / fastest peer's"] = bar(ours["speed"] / quickest, BARS[kind], above=True)
        if kind == "unpacked":
            least = min(peer["peak_mebibytes"] for peer in peers.values())
            found["memory / smallest peer's"] = bar(ours["peak_mebibytes"] / least, BARS["memory"])
            loss = statistics.median(peer["loss"] for peer in peers.values())
            found["mean loss: distance from the peers' median"] = bar(abs(ours["loss"] / loss - 1), BARS["losses"])
    return found


if __name__ == "__main__":
    main()
