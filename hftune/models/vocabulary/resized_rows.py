"""The rows that a grown vocabulary gives a weight: arithmetic on one tensor, for training and merging alike."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from hftune.models.vocabulary.growth import Growth

# Rows that are summed in float64 at a time: 64 MiB at a hidden size of 1024.
_BLOCK = 8192


def resized_rows(old: torch.Tensor, growth: Growth) -> torch.Tensor:
    """A weight of the grown model from that of its base; the same bits wherever it is computed.

    Rows of old tokens stay as they are. A new token's row is, by `growth.init`, the mean of the rows of its pieces in
    the base's tokenizer; the mean of all rows that are tokens (https://nlp.stanford.edu/~johnhew/vocab-expansion.html:
    no old token's probability falls by more than the share of the new ones); or drawn from N(0, std^2). Rows of
    padding are that mean: by Jensen's inequality such a row is never the most likely one.

    Args:
        old: Embeddings or head of shape (base_rows, hidden size), or a head's bias of shape (base_rows,); floating.

    Returns:
        Shape (rows, hidden size) or (rows,), in the dtype and on the device of `old`; computed in float64 on the CPU.
    """
    assert old.shape[0] == growth.base_rows, f"{tuple(old.shape)} is not a weight of {growth.base_rows} rows"
    source = old.detach().cpu()
    kept = min(growth.base_rows, growth.rows)
    # Padding rows are left out: they are whatever was drawn when the base was made.
    mean = _mean(source[: growth.base_tokens])
    new = mean.to(source.dtype).expand(growth.rows, *source.shape[1:]).clone()
    new[:kept] = source[:kept]
    for number, row in zip(growth.ids, _new_rows(source, growth, mean), strict=True):
        new[number] = row.to(source.dtype)
    return new.to(old.device)


def _new_rows(source: torch.Tensor, growth: Growth, mean: torch.Tensor) -> Iterable[torch.Tensor]:
    """A row for each new token, made one at a time where it is in float64: all of them might not fit into memory."""
    if growth.init == "mean":
        return [mean] * len(growth.ids)
    if growth.init == "normal":
        generator = torch.Generator().manual_seed(growth.seed)
        shape = (len(growth.ids), *source.shape[1:])
        return torch.zeros(shape) if source.dim() == 1 else torch.randn(shape, generator=generator) * growth.std
    return (source[torch.tensor(pieces)].double().mean(0) if pieces else mean for pieces in growth.pieces)


def _mean(rows: torch.Tensor) -> torch.Tensor:
    """The mean row in float64, a block at a time: no copy of a large vocabulary."""
    total = torch.zeros(rows.shape[1:], dtype=torch.float64)
    for start in range(0, rows.shape[0], _BLOCK):
        total += rows[start : start + _BLOCK].double().sum(0)
    return total / rows.shape[0]
