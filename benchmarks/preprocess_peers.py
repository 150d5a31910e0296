"""What each tool does to conversations before it trains, timed; `preprocess.py` runs this in the tools' environments.

PYTHON benchmarks/preprocess_peers.py TOOL --data records.jsonl --tokenizer MODEL --workers 2 --max_length 512

Imports nothing of hftune unless that is the tool. Each tool's own code reads the file, tokenises and masks; the clock
runs from the file to the finished data set, without starting the tool or loading a model. Last a line of JSON.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from watching import for_llamafactory, messages_of, records_of

Figures = dict[str, float]


def _figures(seconds: float, dataset: Any) -> Figures:
    return {"seconds": seconds, "tokens": sum(map(len, dataset["input_ids"]))}


def hftune(options: argparse.Namespace, folder: Path) -> Figures:
    """From the file to masked token ids in an Arrow file."""
    from transformers import AutoTokenizer

    from hftune.data.encode import ChatEncoder
    from hftune.data.encoder import write_tokenised
    from hftune.data.files import chunks

    encoder = ChatEncoder(AutoTokenizer.from_pretrained(options.tokenizer), max_length=options.max_length)
    began = time.perf_counter()
    counts = write_tokenised(chunks([options.data]), encoder, folder, workers=options.workers)
    seconds = time.perf_counter() - began
    trained = counts.trained_tokens
    return {"seconds": seconds, "records": counts.rows, "tokens": counts.tokens, "trained_tokens": trained}


def trl(options: argparse.Namespace, folder: Path) -> Figures:
    """What TRL's SFTTrainer does to a conversational data set before training."""
    import trl as library
    from datasets import Dataset
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(options.tokenizer)
    turns = [value.get("messages") or messages_of(value["conversations"]) for value in records_of(options.data)]
    dataset = Dataset.from_list([{"messages": each} for each in turns])
    lengths = {"max_length": options.max_length, "dataset_num_proc": options.workers}
    args = library.SFTConfig(output_dir=str(folder), use_cpu=True, report_to=[], **lengths)
    trainer = object.__new__(library.SFTTrainer)
    # What `_prepare_dataset` reads of a trainer, so that no model has to be made for it.
    state = {"processing_class": tokenizer, "args": args, "chat_template": None, "completion_only_loss": False}
    trainer.__dict__.update(state | {"_is_vlm": False, "_is_vision_dataset": False, "tools": None})
    trainer._tokenizer = tokenizer
    began = time.perf_counter()
    prepared = trainer._prepare_dataset(dataset, tokenizer, args, False, None, "train")
    return _figures(time.perf_counter() - began, prepared) | {"records": len(prepared)}


def llamafactory(options: argparse.Namespace, folder: Path) -> Figures:
    """LLaMA-Factory: `get_dataset`."""
    from llamafactory.data import get_dataset, get_template_and_fix_tokenizer
    from llamafactory.hparams import get_train_args
    from llamafactory.model import load_tokenizer

    arguments = for_llamafactory(records_of(options.data), folder) | {
        "stage": "sft", "model_name_or_path": options.tokenizer, "template": "chatml", "cutoff_len": options.max_length,
        "preprocessing_num_workers": options.workers, "output_dir": str(folder / "out"), "report_to": "none",
        "use_cpu": True,
    }  # fmt: skip
    model_args, data_args, training_args, _, _ = get_train_args(arguments)
    tokenizer = load_tokenizer(model_args)["tokenizer"]
    template = get_template_and_fix_tokenizer(tokenizer, data_args)
    began = time.perf_counter()
    found = get_dataset(template, model_args, data_args, training_args, stage="sft", tokenizer=tokenizer)
    return _figures(time.perf_counter() - began, found["train_dataset"])


TOOLS: dict[str, Callable[[argparse.Namespace, Path], Figures]] = {
    "hftune": hftune,
    "trl": trl,
    "llamafactory": llamafactory,
}


def main() -> None:
    """Run one tool."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tool", choices=list(TOOLS))
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--tokenizer", required=True)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--max_length", type=int, default=512)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        figures = TOOLS[options.tool](options, Path(folder))
    # Of peers also those that the tool drops. A line at a time: the memory of this process is measured.
    with options.data.open("rb") as file:
        records = sum(bool(line.strip()) for line in file)
    print(json.dumps({"records": records} | figures))


if __name__ == "__main__":
    main()
