"""One step of the real trainers: same loss, same gradient, however the same documents are batched and accumulated."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest
import torch
from datasets import Dataset
from transformers import AutoTokenizer

from hftune.arguments.entry import parse_arguments
from hftune.constants import IGNORE_INDEX
from hftune.data.splits import Splits
from hftune.models.adapters.preparation import add_adapter
from hftune.models.loading.causal_lm import load_causal_lm
from hftune.trainers.pt import PTTrainer
from hftune.trainers.sft import SFTTrainer
from tests.parity.shared_models import cells
from tests.table.tiny import tiny_checkpoint
from tests.unit.data.helpers import pack, to_dataset

LENGTHS = [9, 7, 12, 4, 10, 6, 14, 2]
"""8 documents of 64 tokens, which fill 4 rows of 16."""

LAYOUTS = {
    # name: (flags, records a batch, batches a step)
    "padded": (["--packing", "False"], 8, 1),
    "padded, accumulated": (["--packing", "False"], 2, 4),
    "padding-free": (["--packing", "False", "--padding_free", "True"], 8, 1),
    "padding-free, accumulated": (["--packing", "False", "--padding_free", "True"], 2, 4),
    "packed": (["--packing", "True"], 4, 1),
    "packed, accumulated": (["--packing", "True"], 1, 4),
    "packed, recomputed": (["--packing", "True", "--gradient_checkpointing", "True"], 2, 2),
}


def documents() -> Dataset:
    """Every fifth token is not trained."""
    generator = torch.Generator().manual_seed(0)
    ids = [torch.randint(3, 250, (length,), generator=generator).tolist() for length in LENGTHS]
    labels = [[IGNORE_INDEX if place % 5 == 1 else token for place, token in enumerate(row)] for row in ids]
    return to_dataset({"input_ids": ids, "labels": labels})


def first_step(stage: str, method: str, layout: str, model: Path, out: Path) -> tuple[float, float]:
    """Loss and norm of the gradient, as logged."""
    flags, batch, accumulation = LAYOUTS[layout]
    sizes = ["--per_device_train_batch_size", str(batch), "--gradient_accumulation_steps", str(accumulation)]
    common = ["--use_cpu", "True", "--report_to", "none", "--max_steps", "1", "--logging_steps", "1"]
    common += ["--save_strategy", "no", "--max_grad_norm", "1e9"]
    common += ["--gradient_checkpointing", "False"] if "--gradient_checkpointing" not in flags else []
    adapter = ["--use_peft", "--lora_r", "4"] if method == "lora" else []
    model_args, _, adapter_args, args = parse_arguments(
        stage, ["--model_name_or_path", str(model), "--output_dir", str(out), *common, *adapter, *flags, *sizes]
    )
    tokenizer = AutoTokenizer.from_pretrained(model)
    data = documents()
    if args.packing:
        data, stats = pack(data, 16)
        assert stats.packs == 4
    loaded = add_adapter(load_causal_lm(model_args, adapter_args, args, tokenizer), adapter_args, args)
    trainer = {"pt": PTTrainer, "sft": SFTTrainer}[stage](loaded, args, tokenizer, Splits(data, None))
    trainer.train()
    logged = trainer.state.log_history[0]
    return logged["loss"], float(logged["grad_norm"])


# The last: a hybrid, whose layers with a state end it with each document.
@pytest.mark.parametrize(
    ("stage", "method", "model_type"),
    cells(
        [*product(("pt", "sft"), ("full", "lora"), (None,)), ("pt", "full", "qwen3_5_text")],
        [("pt", "full", None)],
    ),
)
def test_same_step(stage: str, method: str, model_type: str | None, tiny_model: Path, tmp_path: Path) -> None:
    folder = tiny_model if model_type is None else tiny_checkpoint(model_type, tmp_path / "model")
    steps = {layout: first_step(stage, method, layout, folder, tmp_path / layout) for layout in LAYOUTS}
    loss, norm = steps["padded"]
    assert loss > 1 and norm > 0.01
    for layout, found in steps.items():
        assert found == (pytest.approx(loss, abs=1e-5), pytest.approx(norm, rel=1e-4)), layout
