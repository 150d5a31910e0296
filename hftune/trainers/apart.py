"""The proof, before the first step, that documents in a row do not see each other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from hftune.data.collators import FlatCollator
from hftune.distributed import zero
from hftune.errors import ArgumentError

Read = Callable[[Any, dict[str, Any]], torch.Tensor]

LENGTHS = (100, 156)
"""Tokens of the two documents: more than a block of any kernel in all, with the border inside a block."""

SHORT = (8, 16)
"""Where no kernel works in blocks: a run on a CPU would wait seconds for the other."""

TOLERANCE = 0.02
"""Of the largest logit. A mask that leaks moves logits by 0.3 to 1.5 of it (measured on SmolLM2 and random models);
bf16 rounds to 0.004, where the order of sums depends on the other document at all."""


@torch.no_grad()
def prove_apart(
    model: Any, vocabulary: int, attention: str | None, device: torch.device, read: Read | None = None
) -> None:
    """Change the first of two documents in a row, and compare the logits of the second.

    Whatever stands between the borders and the softmax (a model's own mask, a kernel, a patch) is covered: a rule about
    names would not be. It costs two forward passes of 256 tokens a run, of 24 on a CPU; every rank must take part.

    Args:
        model: As it is trained, an engine or a wrapper included.
        vocabulary: Token ids from 0 to below this are used.
        read: From model and inputs to (1, tokens, outputs); None: the model's logits.

    Raises:
        ArgumentError: The second document noticed.
    """
    was_training = model.training
    model.eval()  # dropout is no leak
    read = read or _logits
    lengths = SHORT if device.type == "cpu" and attention != "flex_attention" else LENGTHS
    before, after = (_logits_of_second(model, vocabulary, shift, device, read, lengths) for shift in (1, 7))
    model.train(was_training)
    zero.forget_order(model)
    noticed = (before - after).abs().max() / before.abs().max().clamp(min=1e-6)
    if float(noticed) > TOLERANCE:
        raise ArgumentError(
            f"documents in a row see each other in {type(_plain(model)).__name__} with attention {attention}",
            place="--packing / --padding_free / --attn_implementation",
            fix="use --attn_implementation hftune_segments, or train without --packing (for text: --packing False)",
        )


def _logits(model: Any, inputs: dict[str, Any]) -> torch.Tensor:
    logits: torch.Tensor = model(**inputs).logits
    return logits


def _logits_of_second(
    model: Any, vocabulary: int, shift: int, device: torch.device, read: Read, lengths: tuple[int, int]
) -> torch.Tensor:
    # From the middle of the vocabulary: its ends hold placeholders, for images and the like.
    first = [(vocabulary // 3 + shift * token) % vocabulary for token in range(lengths[0])]
    second = [(vocabulary // 3 + 5 * token) % vocabulary for token in range(lengths[1])]
    batch = FlatCollator()([{"input_ids": ids, "labels": ids} for ids in (first, second)])
    inputs = {name: value.to(device) if isinstance(value, torch.Tensor) else value for name, value in batch.items()}
    del inputs["labels"]
    return read(model, inputs)[0, lengths[0] :]


def _plain(model: Any) -> Any:
    """The model inside an engine, a wrapper or an adapter."""
    inner = getattr(model, "module", model)
    return inner.get_base_model() if hasattr(inner, "get_base_model") else inner
