"""Conversations to masked token ids: records a second beside the tokenizer alone and TRL, and memory by size of data.

python benchmarks/preprocess.py --tokenizer MODEL --data sharegpt.jsonl        10 thousand records, then 100 thousand
python benchmarks/preprocess.py --tokenizer MODEL --quick                      2 thousand generated records

Records are repeated up to the number asked for. Every tool gets the same file, the same tokenizer, the same number of
processes and the same maximum length, in a process of its own; tools take turns, and the median of their runs counts.
`tokenizer` is the library under all of them on as many threads, given nothing but the text that has to be tokenised:
whole conversations as text, cut at the maximum length. TRL masks nothing.
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
import threading
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
BAR_TOKENIZER = 0.80
BAR_PEER = 2.0
BAR_GROWTH = 0.10
# MedicalGPT's preprocessing, the fastest of the peers, over TRL's on one machine: 822 and 482 records a second.
FASTEST_PEER_OVER_TRL = 822 / 482


def write_records(file: Path, source: Path | None, count: int) -> None:
    """`count` conversations: those of `source` over and over, or generated ones."""
    if source is None:
        from hftune.data.readers.dummy import dummy_chunks

        made = (row.value for chunk in dummy_chunks(count, "conversation") for row in chunk.rows())
        lines = [json.dumps(value, ensure_ascii=False) for value in made]  # type: ignore[union-attr]
    else:
        given = [line for line in source.read_text(encoding="utf-8").splitlines() if line.strip()]
        lines = [given[number % len(given)] for number in range(count)]
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")


# --- what each tool does, in a process of its own --------------------------------------------------------------------


def measure_hftune(file: Path, tokenizer: Any, options: argparse.Namespace) -> dict[str, float]:
    """From the file to masked token ids in an Arrow file."""
    from hftune.data.encoder import write_tokenised
    from hftune.data.sources import chunks
    from hftune.data.tokenization import ChatEncoder

    encoder = ChatEncoder(tokenizer, max_length=options.max_length)
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        counts = write_tokenised(chunks([file]), encoder, Path(folder), workers=options.workers)
        seconds = time.perf_counter() - began
    return {
        "seconds": seconds,
        "records": counts.rows,
        "tokens": counts.tokens,
        "trained_tokens": counts.trained_tokens,
    }


def measure_tokenizer(file: Path, tokenizer: Any, options: argparse.Namespace) -> dict[str, float]:
    """The tokenizers library on the texts that have to be tokenised, read and cut before the clock starts."""
    from hftune.data.prefixes import PrefixEncoder
    from hftune.data.schemas import to_conversation
    from hftune.data.sources import Row, chunks
    from hftune.data.spans import SpanFinder

    finder, prefixes = SpanFinder(tokenizer), PrefixEncoder(tokenizer, options.max_length)
    texts = []
    for chunk in chunks([file]):
        whole = [finder(to_conversation(row).messages)[0] for row in chunk.rows() if isinstance(row, Row)]
        for text, (encoding, _) in zip(whole, prefixes(whole), strict=True):
            last = encoding.token_to_chars(min(options.max_length, len(encoding)) - 1)
            texts.append(text[: last[1]] if last else text)
    backend = tokenizer.backend_tokenizer
    began, tokens = time.perf_counter(), 0
    for start in range(0, len(texts), 1000):
        tokens += sum(map(len, backend.encode_batch(texts[start : start + 1000], add_special_tokens=False)))
    return {"seconds": time.perf_counter() - began, "records": len(texts), "tokens": tokens}


def measure_trl(file: Path, tokenizer: Any, options: argparse.Namespace) -> dict[str, float]:
    """What TRL's SFTTrainer does to a conversational data set before training."""
    import trl
    from datasets import Dataset

    roles = {"human": "user", "gpt": "assistant", "system": "system"}
    records = []
    for line in file.read_text(encoding="utf-8").splitlines():
        value = json.loads(line)
        turns = value.get("messages") or [
            {"role": roles[turn["from"]], "content": turn["value"]} for turn in value["conversations"]
        ]
        records.append({"messages": turns})
    dataset = Dataset.from_list(records)
    with tempfile.TemporaryDirectory() as folder:
        args = trl.SFTConfig(
            output_dir=folder,
            max_length=options.max_length,
            dataset_num_proc=options.workers,
            use_cpu=True,
            report_to=[],
        )
        trainer = object.__new__(trl.SFTTrainer)
        trainer.__dict__.update(_trl_state(tokenizer, args))
        began = time.perf_counter()
        prepared = trainer._prepare_dataset(dataset, tokenizer, args, False, None, "train")
        seconds = time.perf_counter() - began
    return {"seconds": seconds, "records": len(prepared), "tokens": sum(map(len, prepared["input_ids"]))}


def _trl_state(tokenizer: Any, args: Any) -> dict[str, Any]:
    """What `_prepare_dataset` reads of a trainer, so that no model has to be made for it."""
    state = {"processing_class": tokenizer, "args": args, "chat_template": None, "completion_only_loss": False}
    return state | {"_is_vlm": False, "_is_vision_dataset": False, "tools": None, "_tokenizer": tokenizer}


TOOLS = {"hftune": measure_hftune, "tokenizer": measure_tokenizer, "trl": measure_trl}


# --- running them ----------------------------------------------------------------------------------------------------


def run(tool: str, file: Path, options: argparse.Namespace) -> dict[str, float]:
    """One measurement in a fresh process, with the most memory that it and its children held together (MiB)."""
    command = [sys.executable, __file__, "--measure", tool, "--data", str(file), "--tokenizer", options.tokenizer]
    command += ["--workers", str(options.workers), "--max_length", str(options.max_length)]
    environment = os.environ | {
        "PYTHONPATH": str(ROOT),
        "HF_HUB_OFFLINE": "1",
        "RAYON_NUM_THREADS": str(options.workers),
    }
    child = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    peak = _PeakMemory(child.pid)
    peak.start()
    out, err = child.communicate()
    peak.stopped = True
    if child.returncode:
        raise SystemExit(f"{tool} failed:\n{err[-2000:]}")
    figures: dict[str, float] = json.loads(out.splitlines()[-1])
    return figures | {"peak_mebibytes": peak.mebibytes}


class _PeakMemory(threading.Thread):
    """Watches the memory of a process and its children: pages of their own, without mapped files."""

    def __init__(self, process: int) -> None:
        super().__init__(daemon=True)
        self.process, self.mebibytes, self.stopped = process, 0.0, False

    def run(self) -> None:
        while not self.stopped:
            self.mebibytes = max(self.mebibytes, sum(map(_private_mebibytes, _family(self.process))))
            time.sleep(0.05)


def _family(process: int) -> list[int]:
    children = Path(f"/proc/{process}/task/{process}/children")
    try:
        found = [int(child) for child in children.read_text().split()]
    except OSError:
        return []
    return [process, *(member for child in found for member in _family(child))]


def _private_mebibytes(process: int) -> float:
    """Private pages: what a forked child shares with its parent is not counted twice."""
    try:
        lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()[1:]
    except OSError:
        return 0.0
    fields = dict(line.split(":", 1) for line in lines if ":" in line)
    return int(fields["Private_Dirty"].split()[0]) / 1024


def main() -> None:
    """Measure in turns, show, and end with one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokenizer", required=True, help="a folder or a Hub name")
    parser.add_argument("--data", type=Path, help="ShareGPT or messages records; left out: generated ones")
    parser.add_argument("--records", type=int, help="how many; 10,000, or 2,000 with --quick")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--max_length", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="fewer records, one round, no memory")
    parser.add_argument("--measure", choices=list(TOOLS), help=argparse.SUPPRESS)
    options = parser.parse_args()
    sys.path.insert(0, str(ROOT))
    if options.measure:
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(options.tokenizer)
        print(json.dumps(TOOLS[options.measure](options.data, tokenizer, options)))
        return
    records, rounds = options.records or (2000 if options.quick else 10_000), 1 if options.quick else options.rounds
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "records.jsonl"
        write_records(file, options.data, records)
        found: dict[str, list[dict[str, float]]] = {tool: [] for tool in TOOLS}
        for _ in range(rounds):
            for tool in TOOLS:
                found[tool].append(run(tool, file, options))
        growth = None if options.quick else _growth(file, options, records, found["hftune"])
    report(found, growth, options)


def _growth(file: Path, options: argparse.Namespace, records: int, small: list[dict[str, float]]) -> dict[str, float]:
    """Peak memory with ten times as many records, relative to that of before."""
    write_records(file, options.data, 10 * records)
    large = run("hftune", file, options)
    before = max(figures["peak_mebibytes"] for figures in small)
    return {"small": before, "large": large["peak_mebibytes"], "growth": large["peak_mebibytes"] / before - 1}


def report(
    found: dict[str, list[dict[str, float]]], growth: dict[str, float] | None, options: argparse.Namespace
) -> None:
    """The table and the last line."""
    speeds = {tool: [one["records"] / one["seconds"] for one in runs] for tool, runs in found.items()}
    middle = {tool: statistics.median(each) for tool, each in speeds.items()}
    print(f"{'tool':>10} {'records/s':>10} {'(least - most)':>18} {'tokens/s':>12} {'memory':>10}")
    for tool, runs in found.items():
        tokens = statistics.median(one["tokens"] / one["seconds"] for one in runs)
        memory = max(one["peak_mebibytes"] for one in runs)
        spread = f"({min(speeds[tool]):,.0f} - {max(speeds[tool]):,.0f})"
        print(f"{tool:>10} {middle[tool]:>10,.0f} {spread:>18} {tokens:>12,.0f} {memory:>6,.0f} MiB")
    share = middle["hftune"] / middle["tokenizer"]
    over_trl = middle["hftune"] / middle["trl"]
    over_fastest = over_trl / FASTEST_PEER_OVER_TRL
    print(f"hftune: {share:.0%} of the tokenizer alone, {over_trl:.1f} x TRL, so {over_fastest:.1f} x the fastest peer")
    bars: dict[str, Any] = {
        "share_of_tokenizer": {"value": share, "bar": BAR_TOKENIZER, "holds": share >= BAR_TOKENIZER},
        "over_fastest_peer": {"value": over_fastest, "bar": BAR_PEER, "holds": over_fastest >= BAR_PEER},
    }
    if growth is not None:
        print(f"memory with ten times the records: {growth['small']:,.0f} to {growth['large']:,.0f} MiB")
        bars["memory_growth"] = {"value": growth["growth"], "bar": BAR_GROWTH, "holds": growth["growth"] <= BAR_GROWTH}
    machine = f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores"
    figures = {"tools": found, "growth": growth, "workers": options.workers, "max_length": options.max_length}
    print(json.dumps({"benchmark": "preprocess", "machine": machine, "figures": figures, "bars": bars}))


if __name__ == "__main__":
    main()
