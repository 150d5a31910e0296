"""The loader of tokenised folders: tokens a second on one core, memory and time to resume, by size of the corpus.

python benchmarks/loader.py                 corpora of 10 thousand and 1 million documents (a minute, 2 GB of disk)
python benchmarks/loader.py --quick         10 and 100 thousand

Each corpus is measured in a process of its own. Memory is what the process holds for itself (not the file's pages that
the system caches), at its peak, less what it held before the corpus was opened.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path

from harness import ask, bar, finish, mebibytes

BLOCK_SIZE = 2048
MEAN_LENGTH = 500
BAR_TOKENS_PER_SECOND = 5e6
BAR_GROWTH = 0.10


def write_corpus(folder: Path, documents: int) -> None:
    """Random documents of 500 tokens on average, written as a tokeniser would: in Arrow chunks of 1,000."""
    import numpy as np
    import pyarrow as pa
    from datasets import Dataset

    draw = np.random.default_rng(0)
    chunks = []
    for _ in range(documents // 1000):
        lengths = draw.integers(1, 2 * MEAN_LENGTH, 1000)
        ends = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
        tokens = draw.integers(0, 49152, ends[-1], dtype=np.int32)
        chunks.append(pa.ListArray.from_arrays(pa.array(ends), pa.array(tokens)))
    Dataset(pa.table({"input_ids": pa.chunked_array(chunks)})).save_to_disk(folder)


def measure(folder: Path, seconds: float) -> dict[str, float]:
    """Figures of one corpus, on one core, in this process."""
    import torch

    from hftune.data.blocks import BlockDataset, Settings
    from hftune.data.documents import Documents

    torch.set_num_threads(1)
    base, began = mebibytes("RssAnon"), time.perf_counter()
    data = BlockDataset([Documents(folder)], BLOCK_SIZE, settings=Settings(seed=1), vocabulary=49152)
    opened, peak, block = time.perf_counter() - began, base, 0
    began = time.perf_counter()
    while time.perf_counter() - began < seconds:
        for number in range(block, block + 256):
            data[number]
        block += 256
        peak = max(peak, mebibytes("RssAnon"))
    rate = block * BLOCK_SIZE / (time.perf_counter() - began)
    fresh = BlockDataset([Documents(folder)], BLOCK_SIZE, settings=Settings(seed=1))
    began = time.perf_counter()
    fresh.resume(data.state(len(data) * 3 // 2))
    fresh[len(data) * 3 // 2]
    resumed = time.perf_counter() - began
    return {
        "documents": len(data.sources[0].documents),
        "tokens": data.tokens,
        "open_seconds": opened,
        "tokens_per_second": rate,
        "base_mebibytes": base,
        "peak_mebibytes": peak,
        "resume_milliseconds": 1000 * resumed,
    }


def show(rows: list[dict[str, float]]) -> None:
    """A table, a line a corpus."""
    print(f"{'documents':>12} {'tokens':>16} {'open':>8} {'tokens/s':>12} {'memory':>10} {'resume':>9}")
    for row in rows:
        own = row["peak_mebibytes"] - row["base_mebibytes"]
        print(
            f"{row['documents']:>12,} {row['tokens']:>16,} {row['open_seconds']:>6.2f} s "
            f"{row['tokens_per_second'] / 1e6:>10.1f} M {own:>6.1f} MiB {row['resume_milliseconds']:>6.1f} ms"
        )


def main() -> None:
    """Measure, show, and end with one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="smaller corpora, less time")
    parser.add_argument("--seconds", type=float, help="time to read from each corpus; 10, or 3 with --quick")
    parser.add_argument("--measure", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    seconds = options.seconds or (3.0 if options.quick else 10.0)
    if options.measure:
        print(json.dumps(measure(options.measure, seconds)))
        return
    rows = []
    for documents in (10_000, 100_000) if options.quick else (10_000, 1_000_000):
        with tempfile.TemporaryDirectory() as folder:
            write_corpus(Path(folder) / "corpus", documents)
            flags = ["--measure", str(Path(folder) / "corpus"), "--seconds", str(seconds)]
            # In a process of its own no corpus profits or suffers from the one before.
            rows.append(ask("loader.py", flags, OMP_NUM_THREADS="1"))
    show(rows)
    slowest = min(row["tokens_per_second"] for row in rows)
    growth = rows[-1]["peak_mebibytes"] / rows[0]["peak_mebibytes"] - 1
    bars = {
        "tokens_per_second": bar(slowest, BAR_TOKENS_PER_SECOND, above=True),
        "memory_growth": bar(growth, BAR_GROWTH),
    }
    finish("loader", {"corpora": rows}, bars)


if __name__ == "__main__":
    main()
