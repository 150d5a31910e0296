"""Conversations to masked token ids: records a second beside TRL and other tools, and memory by size of data.

python benchmarks/preprocess.py --tokenizer MODEL --data sharegpt.jsonl        10 thousand records, then 100 thousand
python benchmarks/preprocess.py --tokenizer MODEL --quick                      2 thousand generated records
   --llamafactory PYTHON --ms_swift PYTHON --medicalgpt FOLDER:PYTHON           other tools, by their environments

Records are repeated up to the number asked for. Every tool gets the same file, the same tokenizer, the same number of
processes and the same maximum length, in a process of its own; tools take turns, and the median of their runs counts.
TRL masks nothing.
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
BAR_PEER = 4.0
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
    from hftune.data.readers.files import chunks
    from hftune.data.tokenizing.chats import ChatEncoder
    from hftune.data.tokenizing.encoder import write_tokenised

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


TOOLS = {
    "hftune": measure_hftune,
    "trl": measure_trl,
}
PEERS = ("llamafactory", "ms_swift", "medicalgpt")


# --- running them ----------------------------------------------------------------------------------------------------


def run(tool: str, file: Path, options: argparse.Namespace) -> dict[str, float]:
    """One measurement in a fresh process, with the most memory that it and its children held together (MiB)."""
    command = _peer(tool, options) if tool in PEERS else [sys.executable, __file__, "--measure", tool]
    command += ["--data", str(file), "--tokenizer", options.tokenizer]
    command += ["--workers", str(options.workers), "--max_length", str(options.max_length)]
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "RAYON_NUM_THREADS": str(options.workers)}
    environment["PYTHONPATH"] = "" if tool in PEERS else str(ROOT)
    child = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    peak = _PeakMemory(child.pid)
    peak.start()
    out, err = child.communicate()
    peak.stopped = True
    if child.returncode:
        raise SystemExit(f"{tool} failed:\n{err[-2000:]}")
    figures: dict[str, float] = json.loads(out.splitlines()[-1])
    return figures | {"peak_mebibytes": peak.mebibytes}


def _peer(tool: str, options: argparse.Namespace) -> list[str]:
    """The command that measures another tool in its own environment."""
    repository, _, python = getattr(options, tool).rpartition(":")
    command = [python, str(Path(__file__).with_name("preprocess_peers.py")), tool]
    return [*command, "--repository", repository] if repository else command


class _PeakMemory(threading.Thread):
    """Watches the memory of a process and its children: pages of their own, without mapped files."""

    def __init__(self, process: int) -> None:
        super().__init__(daemon=True)
        self.process, self.mebibytes, self.stopped = process, 0.0, False

    def run(self) -> None:
        while not self.stopped:
            self.mebibytes = max(self.mebibytes, sum(map(_private_mebibytes, _family(self.process))))
            # Adding up the pages of a family of processes holds it up: at 20 times a second by a fifth.
            time.sleep(0.5)


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
    parser.add_argument("--llamafactory", metavar="PYTHON", help="the Python of an environment that has it")
    parser.add_argument("--ms_swift", metavar="PYTHON")
    parser.add_argument("--medicalgpt", metavar="FOLDER:PYTHON", help="its repository, and a Python that can run it")
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
        absent = [tool for tool in PEERS if not getattr(options, tool)]
        if absent:
            print(f"not measured, because no environment was given: {', '.join(absent)}")
        tools = [*TOOLS, *(tool for tool in PEERS if tool not in absent)]
        found: dict[str, list[dict[str, float]]] = {tool: [] for tool in tools}
        for _ in range(rounds):
            for tool in tools:
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
    print(f"{'tool':>12} {'records/s':>10} {'(least - most)':>18} {'tokens/s':>12} {'memory':>10}")
    for tool, runs in found.items():
        tokens = statistics.median(one["tokens"] / one["seconds"] for one in runs)
        memory = max(one["peak_mebibytes"] for one in runs)
        spread = f"({min(speeds[tool]):,.0f} - {max(speeds[tool]):,.0f})"
        print(f"{tool:>12} {middle[tool]:>10,.0f} {spread:>18} {tokens:>12,.0f} {memory:>6,.0f} MiB")
    fastest, over_fastest = _over_fastest_peer(middle)
    print(f"hftune: {middle['hftune'] / middle['trl']:.1f} x TRL, {over_fastest:.1f} x the fastest peer ({fastest})")
    bars: dict[str, Any] = {
        "over_fastest_peer": {"value": over_fastest, "bar": BAR_PEER, "holds": over_fastest >= BAR_PEER},
    }
    if growth is not None:
        print(f"memory with ten times the records: {growth['small']:,.0f} to {growth['large']:,.0f} MiB")
        bars["memory_growth"] = {"value": growth["growth"], "bar": BAR_GROWTH, "holds": growth["growth"] <= BAR_GROWTH}
    machine = f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores"
    figures = {
        "tools": found,
        "growth": growth,
        "workers": options.workers,
        "max_length": options.max_length,
    }
    print(json.dumps({"benchmark": "preprocess", "machine": machine, "figures": figures, "bars": bars}))


def _over_fastest_peer(speeds: dict[str, float]) -> tuple[str, float]:
    """The fastest peer, and how many times its speed hftune has; reckoned from TRL's where no other was measured."""
    measured = {tool: speed for tool, speed in speeds.items() if tool in PEERS}
    if not measured:
        return "MedicalGPT, reckoned from TRL", speeds["hftune"] / speeds["trl"] / FASTEST_PEER_OVER_TRL
    fastest = max(measured | {"trl": speeds["trl"]}, key=lambda tool: speeds[tool])
    return fastest, speeds["hftune"] / speeds[fastest]


if __name__ == "__main__":
    main()
