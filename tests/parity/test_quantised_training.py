"""What libraries do to a quantised run behind its back."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from hftune.arguments.entry import parse_arguments
from hftune.data.encode import ChatEncoder
from hftune.data.splits import load_splits
from hftune.models.adapters.preparation import add_adapter
from hftune.models.loading.causal_lm import load_causal_lm
from hftune.models.loading.tokenizer import load_tokenizer
from hftune.trainers.sft import SFTTrainer


@pytest.mark.parametrize("flag", ["--load_in_4bit", "--load_in_8bit"])
def test_what_is_trained_stays_in_float32(tiny_model: Path, tiny_data: Path, tmp_path: Path, flag: str) -> None:
    """As run_sft.py builds it."""
    argv = ["--model_name_or_path", str(tiny_model), "--train_file_dir", str(tiny_data / "sft")]
    argv += ["--output_dir", str(tmp_path), "--use_peft", flag, "--report_to", "none"]
    model_args, data_args, adapter_args, training_args = parse_arguments("sft", argv)
    tokenizer = load_tokenizer(model_args, training_args)
    data = load_splits(ChatEncoder.from_arguments(tokenizer, training_args), data_args, training_args)
    model = load_causal_lm(model_args, adapter_args, training_args, tokenizer)
    trainer = SFTTrainer(add_adapter(model, adapter_args, training_args), training_args, tokenizer, data)
    dtypes = {parameter.dtype for parameter in trainer.model.parameters() if parameter.requires_grad}
    assert dtypes == {torch.float32}
