"""Replacements in other libraries, which are imported when needed: a merge needs few of them.

How a tensor is gathered is handed in: nothing here knows of ZeRO.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from hftune.compat.installing import replace_method, require, usable

if TYPE_CHECKING:
    from peft.tuners.trainable_tokens.layer import TrainableTokensLayer

_CONFIG = "transformers.integrations.deepspeed._hf_deepspeed_config_weak_ref"
_LOADER = "transformers.trainer.deepspeed_load_checkpoint"
_PATIENCE = "transformers.dynamic_module_utils.TIME_OUT_REMOTE_CODE"

Loader = Callable[..., Any]
"""(engine, checkpoint folder, **options), which fills the engine."""

Gather = Callable[[list[torch.Tensor]], AbstractContextManager[None]]
"""From tensors to a block in which they are whole."""


def never_ask_about_code() -> None:
    """Have transformers not ask on the standard input whether a model's code may run: it raises an error instead.

    Raises:
        UserError: It would ask in another way, and a piped `y` would be an answer.
    """
    require(_PATIENCE)
    from transformers import dynamic_module_utils

    dynamic_module_utils.TIME_OUT_REMOTE_CODE = 0  # seconds for an answer


@contextmanager
def no_deepspeed_config() -> Iterator[None]:
    """Have `from_pretrained` not see the DeepSpeed config in the block: it would partition the model.

    Raises:
        UserError: The config is kept elsewhere, and could not be put back.
    """
    require(_CONFIG)
    from transformers.integrations import deepspeed as hf_deepspeed

    # The weak reference itself: a new one could not be made without the object that the arguments keep.
    remembered = hf_deepspeed._hf_deepspeed_config_weak_ref
    hf_deepspeed.unset_hf_deepspeed_config()
    try:
        yield
    finally:
        hf_deepspeed._hf_deepspeed_config_weak_ref = remembered


@contextmanager
def checkpoint_loader(load: Callable[[Loader, Any, str, dict[str, Any]], None]) -> Iterator[None]:
    """Have the Trainer load DeepSpeed's checkpoints with `load(original, engine, folder, options)` in the block.

    Raises:
        UserError: It calls another loader, which would run whatever a file's pickle says.
    """
    require(_LOADER)
    import transformers.trainer

    original = transformers.trainer.deepspeed_load_checkpoint

    @functools.wraps(original)
    def replacement(engine: Any, checkpoint: str, **options: Any) -> None:
        load(original, engine, checkpoint, options)

    # In the Trainer's module, which has imported it by name.
    transformers.trainer.deepspeed_load_checkpoint = replacement
    try:
        yield
    finally:
        transformers.trainer.deepspeed_load_checkpoint = original


@contextmanager
def rows_on_any_device(gather: Gather) -> Iterator[None]:
    """Let peft fetch the rows of trainable tokens under ZeRO-3 in the block: peft 0.21 knows how on CUDA only.

    The rows are gathered on every rank instead, which works anywhere and needs no broadcast.
    """
    from peft.tuners.trainable_tokens.layer import TrainableTokensLayer

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
    from trl.trainer import add_fused_lm_head, grpo_trainer, rloo_trainer

    # In the trainers' modules, which have imported it by name.
    modules = [one for one in (grpo_trainer, rloo_trainer) if usable(f"{one.__name__}.add_fused_lm_head")]
    for module in modules:
        module.add_fused_lm_head = add
    try:
        yield
    finally:
        for module in modules:
            module.add_fused_lm_head = add_fused_lm_head


def write_no_card(adapted: Any) -> None:
    """Keep peft from writing its empty model card where hftune writes one from the manifest."""
    if usable("peft.peft_model.PeftModel.create_or_update_model_card"):
        replace_method(adapted, "create_or_update_model_card", lambda self, output_dir: None)


def look_for_engines(*, needed: bool) -> None:
    """Whether accelerate looks for DeepSpeed's engines around models, for which it imports DeepSpeed.

    A run without DeepSpeed starts some seconds sooner without. Only `other` is told: what else asks accelerate whether
    DeepSpeed is installed gets the true answer.
    """
    from accelerate.utils import imports, other

    # From where `other` has imported it: that one stays what it was, so that this works twice.
    original = imports.is_deepspeed_available
    if needed:
        other.is_deepspeed_available = original
    elif usable("accelerate.utils.other.is_deepspeed_available"):
        other.is_deepspeed_available = functools.wraps(original)(lambda: False)


def compile_no_shared_memory() -> None:
    """Keep DeepSpeed from compiling a shared-memory operator as it makes a gloo group.

    Only AutoTP inference uses it, and a machine without a compiler would stop there.
    """
    import deepspeed.ops

    if usable("deepspeed.ops.__compatible_ops__"):
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False


def keep_differentiable(model: nn.Module) -> None:
    """Let 4-bit weights be trained through, and read as they are stored, on a CPU with AVX512-BF16.

    There, the first forward pass in eval mode packs the weights of a `Linear4bit` anew for a kernel without a backward
    pass, and rounds their scales to bf16 (bitsandbytes 0.50, `Linear4bit.forward`). Training that follows would get no
    gradient through any of them, without a word.

    Raises:
        UserError: bitsandbytes has no such switch any more, and there is no GPU.
    """
    # A model has such layers only where somebody has imported bitsandbytes, which brings torch's compilers along.
    library = sys.modules.get("bitsandbytes.nn")
    layers: list[Any] = [one for one in model.modules() if library is not None and isinstance(one, library.Linear4bit)]
    if layers and not torch.accelerator.is_available():
        require("bitsandbytes.nn.modules.Linear4bit.support_avx512bf16_for_cpu")
    for layer in layers:
        layer.support_avx512bf16_for_cpu = False
