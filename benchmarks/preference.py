"""DPO beside other tools: real tokens a second and peak memory on the same pairs.

python benchmarks/preference.py --model SMOLLM2 --data pairs.jsonl                hftune and TRL, in turns
   --llamafactory PYTHON --ms_swift PYTHON                                       other tools, by their environments
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
import statistics
import tempfile
from pathlib import Path

from harness import ROOT, Figures, ask, bar, empty_folder, finish, in_turns, parser_of, tools_of

BAR_SPEED, BAR_MEMORY, TOLERANCE = 1.5, 0.6, 2e-3
WARM_UP = 2


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


def run(tool: str, pairs: Path, options: argparse.Namespace) -> Figures:
    """What was seen of one training, with its tokens a second."""
    flags = [tool.partition("_once")[0], "--stage", "dpo", "--data", str(pairs), "--model", options.model]
    flags += ["--steps", str(options.steps), "--max_length", str(options.max_length)]
    if tool.startswith("hftune"):
        flags += ["--precompute_ref_log_probs", str(tool == "hftune_once")]
    # An empty cache: hftune keeps the reference's numbers.
    environment = {"USE_HF": "1", "HFTUNE_CACHE": empty_folder()}
    seen = ask("train_tools.py", flags, getattr(options, tool, None), **environment)
    seconds = seen["ended"][-1] - seen["ended"][WARM_UP - 1]
    return {"speed": sum(seen["real"][WARM_UP:]) / seconds, **seen}


def agreement(found: dict[str, list[Figures]]) -> float:
    """The largest difference between losses of TRL and hftune, of all steps; their tokens must be the same."""
    ours, theirs = found["hftune"][0], found["trl"][0]
    assert ours["real"] == theirs["real"], (ours["real"], theirs["real"])
    return max(abs(one - other) for one, other in zip(ours["losses"], theirs["losses"], strict=True))


def report(found: dict[str, list[Figures]]) -> None:
    """The table and the last line."""
    speeds = {tool: [one["speed"] for one in runs] for tool, runs in found.items()}
    middle = {tool: statistics.median(each) for tool, each in speeds.items()}
    memory = {tool: max(one["peak_mebibytes"] for one in runs) for tool, runs in found.items()}
    print(f"{'tool':>14} {'tokens/s':>9} {'(least - most)':>18} {'memory':>11} {'first step':>12}")
    for tool, runs in found.items():
        spread = f"({min(speeds[tool]):.0f} - {max(speeds[tool]):.0f})"
        start = statistics.median(one["ended"][0] for one in runs)
        print(f"{tool:>14} {middle[tool]:>9.0f} {spread:>18} {memory[tool]:>7,.0f} MiB {start:>10.1f} s")
    others = [tool for tool in found if not tool.startswith("hftune")]
    fastest, smallest = max(others, key=lambda tool: middle[tool]), min(others, key=lambda tool: memory[tool])
    speed, share = middle["hftune"] / middle[fastest], memory["hftune"] / memory[smallest]
    off = agreement(found)
    print(f"hftune: {speed:.2f} x the fastest peer ({fastest}), {share:.2f} x the memory of the smallest ({smallest});")
    print(f"losses of {len(found['trl'][0]['losses'])} steps differ from TRL's by {off:.1e} at most")
    bars = {
        "over_fastest_peer": bar(speed, BAR_SPEED, above=True),
        "memory_of_smallest_peer": bar(share, BAR_MEMORY),
        "loss_difference": {"value": off, "bar": TOLERANCE, "holds": off <= TOLERANCE},
    }
    finish("preference", {"tools": found}, bars)


def main() -> None:
    """Measure in turns, show, and end with one line of JSON."""
    parser = parser_of(__doc__, 3, "llamafactory", "ms_swift")
    parser.add_argument("--model", required=True, help="a folder or a Hub name")
    parser.add_argument("--data", type=Path, default=ROOT / "examples" / "data" / "preference" / "pairs.jsonl")
    parser.add_argument("--pairs", type=int, default=120)
    parser.add_argument("--steps", type=int, help="10, or 4 with --quick; the first two warm up")
    parser.add_argument("--max_length", type=int, default=512)
    options = parser.parse_args()
    options.steps = options.steps or (4 if options.quick else 10)
    tools = tools_of(options, "hftune", "hftune_once", "trl")
    with tempfile.TemporaryDirectory() as folder:
        pairs = Path(folder) / "pairs.jsonl"
        write_pairs(pairs, options.data, options.model, options.pairs, options.max_length)
        found = in_turns(tools, options, lambda tool: run(tool, pairs, options))
    report(found)


if __name__ == "__main__":
    main()
