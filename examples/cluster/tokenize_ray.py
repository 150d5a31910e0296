"""Tokenise on the machines of a Ray cluster with Ray Data: a part of the records a task, joined at the end.

    ray job submit -- python examples/cluster/tokenize_ray.py 16 /shared/parts /shared/tokenised \
        run_sft --model_name_or_path MODEL --train_file_dir DATA

Every machine has hftune, and the folders are shared. Started anew it makes the parts that are missing.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import ray

from hftune import child_processes

WORKERS = int(os.environ.get("WORKERS", "8"))
"""CPUs of a part."""


def tokenize(*words: str) -> None:
    """Run `hftune tokenize`; its message ends the job where it fails."""
    child_processes.run(child_processes.python("-m", "hftune.cli", "tokenize", *words), check=True)


def make_part(row: dict[str, int], of: int, folder: str, words: list[str]) -> dict[str, int]:
    """Part `id` + 1, unless an earlier job has finished it."""
    part = Path(folder) / f"{row['id'] + 1:05d}"
    if not (part / "part.json").is_file():
        workers = ["--preprocessing_num_workers", str(WORKERS)]
        tokenize(*words, *workers, "--shard", f"{row['id'] + 1}/{of}", "--output_dir", str(part))
    return row


def main() -> None:
    """Make all parts, then join them here."""
    of, folder, output, words = int(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4:]
    Path(folder).mkdir(parents=True, exist_ok=True)
    numbers = ray.data.range(of, override_num_blocks=of)
    numbers.map(make_part, fn_args=(of, folder, words), num_cpus=WORKERS).materialize()
    parts = [str(Path(folder) / f"{number:05d}") for number in range(1, of + 1)]
    tokenize(*words, "--join", *parts, "--output_dir", output)


if __name__ == "__main__":
    main()
