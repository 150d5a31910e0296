"""Replacements in transformers, whose modules are imported only when needed: a merge needs few of them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from hftune.compat.installing import require

_CONFIG = "transformers.integrations.deepspeed._hf_deepspeed_config_weak_ref"
_LOADER = "transformers.trainer.deepspeed_load_checkpoint"
_PATIENCE = "transformers.dynamic_module_utils.TIME_OUT_REMOTE_CODE"


Loader = Callable[..., Any]
"""(engine, checkpoint folder, **options), which fills the engine."""


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
