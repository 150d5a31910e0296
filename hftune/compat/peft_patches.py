"""Replacements in peft, and in TRL for adapters: mostly to train rows of new tokens under ZeRO-3.

How a tensor is gathered is handed in: this room knows nothing of ZeRO.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from peft import PeftModel
from peft.tuners.trainable_tokens.layer import TrainableTokensLayer
from trl.trainer import utils as trl_utils

from hftune.compat.installing import replace_method, usable

Gather = Callable[[list[torch.Tensor]], AbstractContextManager[None]]
"""From tensors to a block in which they are whole."""


@contextmanager
def rows_on_any_device(gather: Gather) -> Iterator[None]:
    """Let peft fetch the rows of trainable tokens under ZeRO-3 in the block: peft 0.21 knows how on CUDA only.

    The rows are gathered on every rank instead, which works anywhere and needs no broadcast.
    """
    if not usable("peft.tuners.trainable_tokens.layer.TrainableTokensLayer._collect_token_weights"):
        yield
        return
    original = TrainableTokensLayer._collect_token_weights

    @functools.wraps(original)
    def collect(self: TrainableTokensLayer, weight: torch.Tensor, rows: Any, embed_dim: int) -> torch.Tensor:
        with gather([weight]):
            return weight[rows].detach().clone()

    TrainableTokensLayer._collect_token_weights = collect
    try:
        yield
    finally:
        TrainableTokensLayer._collect_token_weights = original


@contextmanager
def fused_heads(add: Callable[..., None]) -> Iterator[None]:
    """Have TRL's trainers that generate add their fused heads with `add(model, **options)` in the block."""
    from trl.trainer import grpo_trainer, rloo_trainer

    # In the trainers' modules, which have imported it by name.
    modules = [one for one in (grpo_trainer, rloo_trainer) if usable(f"{one.__name__}.add_fused_lm_head")]
    for module in modules:
        module.add_fused_lm_head = add
    try:
        yield
    finally:
        for module in modules:
            module.add_fused_lm_head = trl_utils.add_fused_lm_head


def write_no_card(adapted: PeftModel) -> None:
    """Keep peft from writing its empty model card where hftune writes one from the manifest."""
    if usable("peft.peft_model.PeftModel.create_or_update_model_card"):
        replace_method(adapted, "create_or_update_model_card", lambda self, output_dir: None)
