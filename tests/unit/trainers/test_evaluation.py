"""The held-out loss is a mean over tokens, however they are batched."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from hftune.arguments import parse_arguments
from hftune.constants import IGNORE_INDEX
from hftune.data.packing import pack
from hftune.data.splits import Splits
from hftune.trainers.evaluation import filled_up
from hftune.trainers.pt import PTTrainer
from hftune.trainers.sft import SFTTrainer
from tests.unit.data.helpers import to_dataset

LENGTHS = [9, 2, 5, 3, 17]


def held_out() -> Any:
    generator = torch.Generator().manual_seed(0)
    ids = [torch.randint(3, 250, (length,), generator=generator).tolist() for length in LENGTHS]
    labels = [[IGNORE_INDEX, *row[1:]] if number % 2 else row for number, row in enumerate(ids)]
    return to_dataset({"input_ids": ids, "labels": labels})


def by_hand(folder: Path) -> float:
    """Mean over all targets of -log p, one document at a time."""
    model = AutoModelForCausalLM.from_pretrained(folder)
    total, count = 0.0, 0
    for row in held_out():
        ids = torch.tensor([row["input_ids"]])
        with torch.no_grad():
            log_p = model(ids).logits[0, :-1].log_softmax(-1)
        total -= log_p.gather(1, ids[0, 1:, None]).sum().item()
        count += len(row["input_ids"]) - 1
    return total / count


@pytest.mark.parametrize("layout", ["padded", "padding_free", "packed"])
@pytest.mark.parametrize("batch", [1, 2, 4])
@pytest.mark.parametrize("stage", ["pt", "sft"])
def test_loss_is_per_token(stage: str, batch: int, layout: str, tiny_model: Path, tmp_path: Path) -> None:
    flags = {
        "padded": ["--packing", "False"],
        "padding_free": ["--packing", "False", "--padding_free", "True"],
        "packed": ["--packing", "True"],
    }[layout]
    flags += ["--use_cpu", "True", "--report_to", "none", "--per_device_eval_batch_size", str(batch)]
    *_, args = parse_arguments(stage, ["--output_dir", str(tmp_path), *flags])
    data = held_out() if layout != "packed" else pack(held_out(), 17)[0]
    model = AutoModelForCausalLM.from_pretrained(tiny_model)
    trainer = {"pt": PTTrainer, "sft": SFTTrainer}[stage](
        model, args, AutoTokenizer.from_pretrained(tiny_model), Splits(data, data)
    )
    metrics = trainer.evaluate()
    # With documents side by side this is transformers' own SDPA on a dense mask.
    assert metrics["eval_loss"] == pytest.approx(by_hand(tiny_model), abs=1e-5)
    assert metrics["eval_perplexity"] == pytest.approx(torch.tensor(metrics["eval_loss"]).exp().item(), rel=1e-5)
    logged = [entry["eval_loss"] for entry in trainer.state.log_history if "eval_loss" in entry]
    assert logged == [metrics["eval_loss"]]
    # TRL was told a white lie about what is packed; it must not last.
    assert (args.packing, args.padding_free) == (layout == "packed", layout == "padding_free")


def test_filling_trains_nothing() -> None:
    data = held_out()
    filled = filled_up(data, 4)
    assert len(filled) == 8 and filled.features == data.features
    assert filled[:5] == data[:]
    assert all(set(row["labels"]) == {IGNORE_INDEX} for row in filled.select([5, 6, 7]))
    assert filled_up(data, 5) is data
