"""What transformers cannot load while ZeRO-3 takes its parameters apart is one message, with the way out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from hftune.arguments.model import ModelArguments
from hftune.errors import ArgumentError
from hftune.models.loading import causal_lm


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (IndexError("tuple index out of range"), "IndexError: tuple index out of range"),
        (ValueError("not enough values\nto unpack"), "ValueError: not enough values"),
        (RuntimeError(), "RuntimeError: no words"),
        (torch.OutOfMemoryError("no memory"), None),  # no fault of the model
    ],
)
def test_a_model_that_cannot_be_taken_apart(
    fault: Exception, said: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    args = ModelArguments(model_name_or_path=str(tmp_path))

    def fail(*_: Any, **__: Any) -> None:
        raise fault

    monkeypatch.setattr(causal_lm, "pretrained", fail)
    with pytest.raises(type(fault)):
        causal_lm._from_pretrained(AutoModelForCausalLM, LlamaConfig(), args, {})
    monkeypatch.setattr(causal_lm, "is_deepspeed_zero3_enabled", lambda: True)
    with pytest.raises(ArgumentError if said else type(fault)) as error:
        causal_lm._from_pretrained(AutoModelForCausalLM, LlamaConfig(), args, {})
    if said is None:
        return
    assert error.value.cause == f"transformers cannot load llama partitioned: {said}"
    assert error.value.place == "--deepspeed" and "zero2" in str(error.value.fix)
