"""What other tools do to conversations before they train, timed; `preprocess.py` runs this in their environments.

PYTHON benchmarks/preprocess_peers.py TOOL --data records.jsonl --tokenizer MODEL --workers 2 --max_length 512

Imports nothing of hftune. Each tool's own code reads the file, tokenises and masks; the clock runs from the file to the
finished data set, without starting the tool or loading a model. Last a line of JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import runpy
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

Figures = dict[str, float]


def _figures(seconds: float, dataset: Any) -> Figures:
    dataset = getattr(dataset, "dataset", dataset)  # ms-swift keeps lengths, and tokenises again while it trains
    column = next(name for name in ("input_ids", "length", "lengths") if name in dataset.column_names)
    tokens = sum(map(len, dataset[column])) if column == "input_ids" else sum(np.ravel(dataset[column]).tolist())
    return {"seconds": seconds, "tokens": tokens}


def llamafactory(options: argparse.Namespace, folder: Path) -> Figures:
    """LLaMA-Factory: `get_dataset`."""
    from llamafactory.data import get_dataset, get_template_and_fix_tokenizer
    from llamafactory.hparams import get_train_args
    from llamafactory.model import load_tokenizer

    (folder / "records.jsonl").write_bytes(options.data.read_bytes())
    info = {"records": {"file_name": "records.jsonl", "formatting": "sharegpt"}}
    (folder / "dataset_info.json").write_text(json.dumps(info))
    model_args, data_args, training_args, _, _ = get_train_args(
        {
            "stage": "sft",
            "do_train": True,
            "model_name_or_path": options.tokenizer,
            "dataset": "records",
            "dataset_dir": str(folder),
            "template": "chatml",
            "cutoff_len": options.max_length,
            "preprocessing_num_workers": options.workers,
            "overwrite_cache": True,
            "output_dir": str(folder / "out"),
            "report_to": "none",
            "use_cpu": True,
        }
    )
    tokenizer = load_tokenizer(model_args)["tokenizer"]
    template = get_template_and_fix_tokenizer(tokenizer, data_args)
    began = time.perf_counter()
    found = get_dataset(template, model_args, data_args, training_args, stage="sft", tokenizer=tokenizer)
    return _figures(time.perf_counter() - began, found["train_dataset"])


def ms_swift(options: argparse.Namespace, folder: Path) -> Figures:
    """ms-swift: what `swift sft` does between loading its model and making its trainer."""
    from swift.pipelines.train.sft import SwiftSft

    arguments = {
        "model": options.tokenizer,
        "model_type": "llama",
        "template": "chatml",
        "dataset": str(options.data),
        "split_dataset_ratio": 0,
        "max_length": options.max_length,
        "truncation_strategy": "right",
        "dataset_num_proc": options.workers,
        "lazy_tokenize": "false",
        "load_from_cache_file": "false",
        "output_dir": str(folder / "out"),
    }
    run = SwiftSft([part for name, value in arguments.items() for part in (f"--{name}", str(value))])
    began = time.perf_counter()
    dataset = run._prepare_dataset()[0]
    return _figures(time.perf_counter() - began, dataset)


def medicalgpt(options: argparse.Namespace, folder: Path) -> Figures:
    """MedicalGPT: `map` and `filter` of its script, which is stopped where it would load the model."""
    import datasets
    import transformers

    (folder / "data").mkdir()
    (folder / "data" / "records.jsonl").write_bytes(options.data.read_bytes())
    timed = _Timed(datasets.Dataset)
    transformers.AutoModelForCausalLM.from_pretrained = timed.stop
    script = options.repository / "training" / "supervised_finetuning.py"
    sys.path.insert(0, str(script.parent))
    sys.argv = [str(script), "--model_name_or_path", options.tokenizer, "--train_file_dir", str(folder / "data")]
    sys.argv += ["--do_train", "--model_max_length", str(options.max_length), "--output_dir", str(folder / "out")]
    sys.argv += ["--preprocessing_num_workers", str(options.workers), "--overwrite_cache", "--report_to", "none"]
    sys.argv += ["--validation_file_dir", str(folder / "data"), "--cache_dir", str(folder / "cache"), "--use_cpu"]
    try:
        runpy.run_path(str(script), run_name="__main__")
    except _Stopped:
        return _figures(timed.seconds, timed.last)
    raise SystemExit("MedicalGPT's script did not come to loading its model")


class _Stopped(Exception):
    """Where a model would be loaded."""


class _Timed:
    """Adds up the time in `map` and `filter` of a class of data sets."""

    def __init__(self, kind: type) -> None:
        self.seconds, self.last = 0.0, None
        for name in ("map", "filter"):
            setattr(kind, name, self._wrapped(getattr(kind, name)))
        self.inside = False

    def _wrapped(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def run(dataset: Any, *args: Any, **kwargs: Any) -> Any:
            if self.inside:  # filter is built on map
                return method(dataset, *args, **kwargs)
            self.inside, began = True, time.perf_counter()
            self.last = method(dataset, *args, **kwargs)
            self.seconds += time.perf_counter() - began
            self.inside = False
            return self.last

        return run

    def stop(self, *_: Any, **__: Any) -> None:
        """In place of loading a model."""
        raise _Stopped


TOOLS: dict[str, Callable[[argparse.Namespace, Path], Figures]] = {
    "llamafactory": llamafactory,
    "ms_swift": ms_swift,
    "medicalgpt": medicalgpt,
}


def main() -> None:
    """Run one tool."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tool", choices=list(TOOLS))
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--tokenizer", required=True)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--max_length", type=int, default=512)
    parser.add_argument("--repository", type=Path, help="of a tool that is no package")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        # Nothing may be taken from a cache of an earlier run.
        os.environ["HF_DATASETS_CACHE"] = str(Path(folder) / "datasets")
        os.environ.setdefault("HF_HUB_OFFLINE", "1")
        figures = TOOLS[options.tool](options, Path(folder))
    # Also those that the tool drops.
    records = sum(bool(line.strip()) for line in options.data.read_bytes().split(b"\n"))
    print(json.dumps(figures | {"records": records}))


if __name__ == "__main__":
    main()
