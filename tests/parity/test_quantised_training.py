"""What libraries do to a quantised run behind its back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from hftune.arguments.entry import parse_arguments
from hftune.data.encode import ChatEncoder
from hftune.data.splits import load_splits
from hftune.models.adapters.preparation import add_adapter
from hftune.models.loading.causal_lm import load_causal_lm
from hftune.models.loading.tokenizer import load_tokenizer
from hftune.trainers.sft import SFTTrainer

IDS = torch.arange(3, 19)[None]


def quantised_trainer(tiny_model: Path, tiny_data: Path, folder: Path, flag: str) -> SFTTrainer:
    """As run_sft.py builds it."""
    model_args, data_args, adapter_args, training_args = parse_arguments(
        "sft",
        [
            *("--model_name_or_path", str(tiny_model), "--train_file_dir", str(tiny_data / "sft")),
            *("--output_dir", str(folder), "--use_peft", flag, "--report_to", "none"),
        ],
    )
    tokenizer = load_tokenizer(model_args, training_args)
    data = load_splits(ChatEncoder.from_arguments(tokenizer, training_args), data_args, training_args)
    model = load_causal_lm(model_args, adapter_args, training_args, tokenizer)
    model = add_adapter(model, adapter_args, training_args)
    return SFTTrainer(model, training_args, tokenizer, data)


@pytest.mark.parametrize("flag", ["--load_in_4bit", "--load_in_8bit"])
def test_what_is_trained_stays_in_float32(tiny_model: Path, tiny_data: Path, tmp_path: Path, flag: str) -> None:
    trainer = quantised_trainer(tiny_model, tiny_data, tmp_path, flag)
    dtypes = {parameter.dtype for parameter in trainer.model.parameters() if parameter.requires_grad}
    assert dtypes == {torch.float32}


def test_gradients_are_the_same_after_an_evaluation(tiny_model: Path, tiny_data: Path, tmp_path: Path) -> None:
    model: Any = quantised_trainer(tiny_model, tiny_data, tmp_path, "--load_in_4bit").model
    first = gradients(model)
    model.eval()
    with torch.no_grad():
        model(input_ids=IDS)
    again = gradients(model)
    assert any(gradient.abs().max() > 0 for gradient in first.values())
    for name, gradient in first.items():
        assert torch.allclose(again[name], gradient, rtol=1e-4, atol=1e-7), name


def gradients(model: Any) -> dict[str, torch.Tensor]:
    model.train()
    model.zero_grad()
    model(input_ids=IDS).logits.pow(2).mean().backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
