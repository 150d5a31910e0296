"""A head that is called chunk by chunk: as often on every process, where calls gather its weights."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from hftune.models.kernels import chunked_heads
from hftune.models.kernels.chunked_heads import through_module

WORDS, SIZE = 5, 3


def calls_of(monkeypatch: pytest.MonkeyPatch, tokens: int, elsewhere: int, partitioned: bool) -> tuple[Any, ...]:
    """Rows of each call, all columns, and what is added, for chunks of two tokens."""
    monkeypatch.setattr(chunked_heads, "CHUNK_BYTES", {"cpu": 2 * 4 * WORDS})
    monkeypatch.setattr(chunked_heads.zero, "is_any_partitioned", lambda module: partitioned)
    monkeypatch.setattr(chunked_heads.ranks, "max_over_ranks", lambda count: max(count, elsewhere))
    head, rows = torch.nn.Linear(SIZE, WORDS), []
    hidden = torch.randn(tokens, SIZE, generator=torch.Generator().manual_seed(0)).requires_grad_()

    def score(part: torch.Tensor, at: slice | None) -> tuple[torch.Tensor, ...]:
        rows.append(at and (at.start, at.stop))
        return (head(part).sum(-1),)

    columns, nothing = through_module(head, hidden, score)
    wanted = head(hidden).sum(-1)
    assert torch.equal(torch.cat([column for (column,) in columns]) if columns else wanted[:0], wanted)
    return rows, nothing, head


def test_all_tokens_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, nothing, _ = calls_of(monkeypatch, 4, 9, partitioned=False)
    assert rows == [(0, 2), (2, 4)] and nothing == 0.0
    assert calls_of(monkeypatch, 0, 9, partitioned=False)[0] == []


@pytest.mark.parametrize(("tokens", "elsewhere", "calls"), [(2, 9, 5), (0, 3, 2), (0, 0, 1), (4, 4, 2)])
def test_as_many_calls_as_the_process_with_most_tokens(
    monkeypatch: pytest.MonkeyPatch, tokens: int, elsewhere: int, calls: int
) -> None:
    rows, nothing, head = calls_of(monkeypatch, tokens, elsewhere, partitioned=True)
    assert len(rows) == calls
    own = [at for at in rows if at is not None]
    assert [place for at in own for place in range(*at)] == list(range(tokens)), "in order, each once"
    if len(own) < calls:
        assert float(nothing.detach()) == 0.0
        nothing.backward()
        assert head.weight.grad is not None and not head.weight.grad.any()
