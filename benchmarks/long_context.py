"""Peak memory of a step by the length of rows: one process or several that share rows, MLPs in pieces or not.

python benchmarks/long_context.py                     on a CPU: a small model; on GPUs: Qwen3-8B's sizes with LoRA
python benchmarks/long_context.py --quick             one short row
python benchmarks/long_context.py --processes 8 --lengths 32768,131072,262144
python benchmarks/long_context.py --write-docs        the table goes into docs/parallel.md

Each cell is a run of run_pt.py by torchrun on a model of random weights and generated text, with whole layers
recomputed. Nothing is downloaded. What counts is the most that a process held above what it held before training: on a
CPU resident memory, with glibc's MALLOC_MMAP_THRESHOLD_ at 1 MiB, on a GPU `torch.cuda.max_memory_allocated`. A cell
that runs out of memory says so. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

import children  # noqa: E402
from made_up import SHAPES, make_tokenizer, make_weights  # noqa: E402
from memory import HELD_BACK, accelerator, machine, peak, resident  # noqa: E402

PAGE = ROOT / "docs" / "parallel.md"
SHARE = 0.65
"""Of one process's peak: the most that each of two may have, with weights and their gradients in both."""

SHAPES["small"] = {"vocab_size": 16384, "hidden_size": 256, "intermediate_size": 1024, "num_hidden_layers": 4,
                   "num_attention_heads": 8, "num_key_value_heads": 4}  # fmt: skip
SETTINGS = {
    "cpu": {"shape": "small", "lengths": [4096, 8192, 16384], "flags": []},
    "cuda": {
        "shape": "qwen3-8b",
        "lengths": [16384, 32768, 65536, 131072],
        "flags": ["--use_peft", "--lora_rank", "16", "--target_modules", "all", "--bf16", "True"],
    },
}
DOCUMENT = {"cpu": 1024, "cuda": 0}
"""Words of a document; 0: as many as fill the row. A CPU would need hours for attention over one long document."""

WAYS: dict[str, list[str]] = {
    "plain": [],
    "MLP in pieces": ["--tiled_mlp", "True"],
}


def main() -> int:
    """Run all cells, print the table, then JSON; 0 where every bar holds."""
    options = arguments()
    device = accelerator()
    if options.worker:
        return worker(options.worker, device)
    setting: dict[str, Any] = SETTINGS[device]
    lengths = [2048] if options.quick else options.lengths or setting["lengths"]
    cells: dict[str, dict[int, float | str]] = {}
    with tempfile.TemporaryDirectory() as folder:
        prepare(setting["shape"], max(lengths), DOCUMENT[device], Path(folder))
        for processes in dict.fromkeys((1, options.processes)):
            for way, flags in WAYS.items():
                name = f"{processes} process{'es' * (processes > 1)}, {way}"
                share = ["--sequence_parallel_size", str(processes)] if processes > 1 else []
                found = cells[name] = {}
                for length in lengths:
                    more = [*flags, *share, *setting["flags"], "--block_size", str(length)]
                    found[length] = run(setting["shape"], processes, more, Path(folder))
                print(row(name, found), flush=True)
    table = "\n".join([head(lengths), *(row(name, found) for name, found in cells.items())])
    bars = judged(cells, options.processes, lengths[-1]) if not options.quick else {}
    if options.write_docs:
        write_docs(device, table, setting["shape"])
    figures = {name: {str(length): value for length, value in found.items()} for name, found in cells.items()}
    result = {"benchmark": "long_context", "machine": machine(device), "figures": figures, "bars": bars}
    print(head(lengths), json.dumps(result), sep="\n")
    return 0 if all(bar["holds"] for bar in bars.values()) else 1


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="rows of 2048 tokens alone; bars are not judged")
    parser.add_argument("--processes", type=int, default=2, help="that share rows; on a GPU machine one each")
    parser.add_argument("--lengths", type=lambda text: [int(part) for part in text.split(",")], help="of rows, a,b,c")
    parser.add_argument("--write-docs", action="store_true", help="put the table into docs/parallel.md")
    parser.add_argument("--worker", nargs=argparse.REMAINDER, help="run run_pt.py with these arguments, here")
    return parser.parse_args()


def prepare(shape: str, longest: int, words: int, folder: Path) -> None:
    """A model of random weights, and text enough for every row."""
    make_weights(SHAPES[shape] | {"max_position_embeddings": longest}, folder / "model", make_tokenizer())
    drawn, each = random.Random(0), words or longest
    documents = ["".join(drawn.choices("abcdefghij ", k=6 * each)) for _ in range(4 * longest // each)]
    (folder / "data").mkdir()
    lines = (json.dumps({"text": document}) + "\n" for document in documents)
    (folder / "data" / "text.jsonl").write_text("".join(lines), encoding="utf-8")


def run(shape: str, processes: int, flags: list[str], folder: Path) -> float | str:
    """The largest peak of a process, MiB, or why there is none."""
    began = time.perf_counter()
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(processes)]
    common = [
        *("--model_name_or_path", str(folder / "model"), "--train_file_dir", str(folder / "data")),
        *("--output_dir", str(folder / "out"), "--overwrite_output_dir", "True", "--max_steps", "1"),
        *("--per_device_train_batch_size", "1", "--gradient_checkpointing", "True", "--save_strategy", "no"),
        *("--report_to", "none", "--disable_tqdm", "True", "--ignore_memory_check", "True"),
    ]
    environment = children.environment(folder, MALLOC_MMAP_THRESHOLD_=str(HELD_BACK), OMP_NUM_THREADS="1")
    command = [*launcher, __file__, "--worker", *common, *flags]
    finished = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    said = finished.stdout + finished.stderr
    peaks = [float(found) for found in re.findall(r"PEAK (\d+\.?\d*)", said)]  # two may share a line
    if finished.returncode or len(peaks) != processes:
        return "out of memory" if "out of memory" in said.lower() else f"failed: {said.strip()[-300:]}"
    print(f"  {max(peaks):.0f} MiB in {time.perf_counter() - began:.0f} s", file=sys.stderr, flush=True)
    return round(max(peaks), 1)


def worker(flags: list[str], device: str) -> int:
    """One process of a cell."""
    import torch
    from transformers import Trainer

    import run_pt

    before: list[float] = []
    train = Trainer.train

    def watched(self: Any, *args: Any, **kwargs: Any) -> Any:
        if device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        before.append(torch.cuda.memory_allocated() / 2**20 if device == "cuda" else resident())
        result = train(self, *args, **kwargs)
        print(f"PEAK {peak(device) - before[0]:.1f}", flush=True)
        return result

    Trainer.train = watched  # type: ignore[method-assign]
    sys.argv = ["run_pt.py", *flags]
    run_pt.main()
    return 0


def head(lengths: list[int]) -> str:
    """The table's first line."""
    return f"{'MiB a process, rows of':40}" + "".join(f"{length:>12,}" for length in lengths)


def row(name: str, found: dict[int, float | str]) -> str:
    """A line of the table."""
    shown = (f"{value:>12,.0f}" if isinstance(value, float) else f"{value[:40]:>12}" for value in found.values())
    return f"{name:40}" + "".join(shown)


def judged(cells: dict[str, dict[int, float | str]], processes: int, longest: int) -> dict[str, dict[str, Any]]:
    """Two processes need less than one, and pieces less than a whole, at the longest row."""
    one, many = "1 process", f"{processes} processes"
    pairs = {
        "shared rows": (f"{many}, MLP in pieces", f"{one}, MLP in pieces", SHARE),
        "MLP in pieces": (f"{one}, MLP in pieces", f"{one}, plain", 1.0),
    }
    bars = {}
    for name, (here, there, bar) in pairs.items():
        found, reference = cells[here][longest], cells[there][longest]
        if isinstance(found, float) and isinstance(reference, float):
            bars[name] = {"value": round(found / reference, 3), "bar": bar, "holds": found / reference < bar}
        else:
            bars[name] = {"value": str(found), "bar": bar, "holds": isinstance(found, float)}
    return bars


def write_docs(device: str, table: str, shape: str) -> None:
    """Put a device's table into the page, in the place of the one that it had."""
    start, end = f"<!-- long context: {device} -->", f"<!-- /long context: {device} -->"
    page = PAGE.read_text(encoding="utf-8")
    before, rest = page.split(start)
    sizes = {name: SHAPES[shape][name] for name in ("num_hidden_layers", "hidden_size", "vocab_size")}
    what = ", ".join(f"{name} {value:,}" for name, value in sizes.items())
    text = f"On {machine(device)}, by `python benchmarks/long_context.py --write-docs` ({what}):\n\n```\n{table}\n```"
    PAGE.write_text(f"{before}{start}\n{text}\n{end}{rest.split(end)[1]}", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
