"""Conversations to masked token ids: records a second beside TRL and other tools, and memory by size of data.

python benchmarks/preprocess.py --tokenizer MODEL --data sharegpt.jsonl        10 thousand records, then 100 thousand
python benchmarks/preprocess.py --tokenizer MODEL --quick                      2 thousand generated records
   --llamafactory PYTHON                                                        the fastest peer, by its environment

Records are repeated up to the number asked for. Every tool gets the same file, the same tokenizer, the same number of
processes and the same maximum length, in a process of its own (`preprocess_peers.py`); tools take turns, and the median
of their runs counts. TRL masks nothing.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from harness import ROOT, Figures, Peak, ask, bar, finish, in_turns, parser_of, tools_of

BAR_PEER = 2.5
BAR_GROWTH = 0.10


def write_records(file: Path, source: Path | None, count: int) -> None:
    """`count` conversations: those of `source` over and over, or generated ones."""
    if source is None:
        sys.path.insert(0, str(ROOT))
        from hftune.data.sources import dummy_chunks

        made = (row.value for chunk in dummy_chunks(count, "conversation") for row in chunk.rows())
        lines = [json.dumps(value, ensure_ascii=False) for value in made]  # type: ignore[union-attr]
    else:
        given = [line for line in source.read_text(encoding="utf-8").splitlines() if line.strip()]
        lines = [given[number % len(given)] for number in range(count)]
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")


def run(tool: str, file: Path, options: argparse.Namespace) -> Figures:
    """One measurement in a fresh process, with the most memory that it and its children held together (MiB)."""
    flags = [tool, "--data", str(file), "--tokenizer", options.tokenizer]
    flags += ["--workers", str(options.workers), "--max_length", str(options.max_length)]
    with Peak("Private_Dirty", 0.5) as peak:
        figures = ask(
            "preprocess_peers.py", flags, getattr(options, tool, None), RAYON_NUM_THREADS=str(options.workers)
        )
    return figures | {"peak_mebibytes": peak.mebibytes}


def main() -> None:
    """Measure in turns, show, and end with one line of JSON."""
    parser = parser_of(__doc__, 3, "llamafactory")
    parser.add_argument("--tokenizer", required=True, help="a folder or a Hub name")
    parser.add_argument("--data", type=Path, help="ShareGPT or messages records; left out: generated ones")
    parser.add_argument("--records", type=int, help="how many; 10,000, or 2,000 with --quick")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--max_length", type=int, default=512)
    options = parser.parse_args()
    records = options.records or (2000 if options.quick else 10_000)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "records.jsonl"
        write_records(file, options.data, records)
        found = in_turns(tools_of(options, "hftune", "trl"), options, lambda tool: run(tool, file, options))
        growth = None if options.quick else _growth(file, options, records, found["hftune"])
    report(found, growth, options)


def _growth(file: Path, options: argparse.Namespace, records: int, small: list[Figures]) -> dict[str, float]:
    """Peak memory with ten times as many records, relative to that of before."""
    write_records(file, options.data, 10 * records)
    large = run("hftune", file, options)
    before = max(figures["peak_mebibytes"] for figures in small)
    return {"small": before, "large": large["peak_mebibytes"], "growth": large["peak_mebibytes"] / before - 1}


def report(found: dict[str, list[Figures]], growth: dict[str, float] | None, options: argparse.Namespace) -> None:
    """The table and the last line."""
    speeds = {tool: [one["records"] / one["seconds"] for one in runs] for tool, runs in found.items()}
    middle = {tool: statistics.median(each) for tool, each in speeds.items()}
    print(f"{'tool':>12} {'records/s':>10} {'(least - most)':>18} {'tokens/s':>12} {'memory':>10}")
    for tool, runs in found.items():
        tokens = statistics.median(one["tokens"] / one["seconds"] for one in runs)
        memory = max(one["peak_mebibytes"] for one in runs)
        spread = f"({min(speeds[tool]):,.0f} - {max(speeds[tool]):,.0f})"
        print(f"{tool:>12} {middle[tool]:>10,.0f} {spread:>18} {tokens:>12,.0f} {memory:>6,.0f} MiB")
    fastest = max((tool for tool in middle if tool != "hftune"), key=lambda tool: middle[tool])
    over_fastest = middle["hftune"] / middle[fastest]
    print(f"hftune: {over_fastest:.1f} x the fastest peer ({fastest})")
    bars: dict[str, Any] = {"over_fastest_peer": bar(over_fastest, BAR_PEER, above=True)}
    if growth is not None:
        print(f"memory with ten times the records: {growth['small']:,.0f} to {growth['large']:,.0f} MiB")
        bars["memory_growth"] = bar(growth["growth"], BAR_GROWTH)
    sizes = {"workers": options.workers, "max_length": options.max_length}
    finish("preprocess", {"tools": found, "growth": growth, **sizes}, bars)


if __name__ == "__main__":
    main()
