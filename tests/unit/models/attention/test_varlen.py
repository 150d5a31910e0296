"""How torch's varlen kernel is called, with a slow one in its place that takes exactly its arguments."""

from __future__ import annotations

import inspect
from itertools import accumulate, pairwise
from typing import Any

import pytest
import torch
from torch.nn.attention import varlen as torch_varlen
from torch.nn.functional import scaled_dot_product_attention

from hftune.models.attention import segments
from hftune.models.attention.segments import Segments, segments_attention, varlen_attention
from hftune.models.attention.shared_prompts import SharedPrompts

SIGNATURE = inspect.signature(torch_varlen.varlen_attn)
BATCH, TOKENS, HEADS, KEY_HEADS, SIZE = 2, 8, 4, 2, 16


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> list[inspect.BoundArguments]:
    """The calls that reach the kernel's stand-in, which runs on a CPU and in float32."""
    calls: list[inspect.BoundArguments] = []

    def slow(*args: Any, **kwargs: Any) -> torch.Tensor:
        call = SIGNATURE.bind(*args, **kwargs)
        call.apply_defaults()
        calls.append(call)
        return by_the_book(**call.arguments)

    monkeypatch.setattr(torch_varlen, "varlen_attn", slow)
    monkeypatch.setattr(segments, "_kernel_takes", lambda query, value, kwargs: True)
    monkeypatch.setattr(segments, "varlen_parameters", lambda: frozenset(SIGNATURE.parameters))
    return calls


def by_the_book(query: Any, key: Any, value: Any, cu_seq_q: Any, cu_seq_k: Any, max_q: int, **more: Any) -> Any:
    """What the documentation of `varlen_attn` says: (tokens, heads, size), windows as (left, right)."""
    assert cu_seq_q.dtype == cu_seq_k.dtype == torch.int32
    assert max_q == int(cu_seq_q.diff().max()) and more["max_k"] == int(cu_seq_k.diff().max())
    assert query.shape[1] == key.shape[1] or more["enable_gqa"]
    left, right = more["window_size"]
    assert right == 0
    out = []
    borders = zip(*(pairwise(where.tolist()) for where in (cu_seq_q, cu_seq_k)), strict=True)
    for (start, end), (first, last) in borders:
        queries, keys = slice(start, end), slice(first, last)
        parts = [s[at].transpose(0, 1)[None] for s, at in ((query, queries), (key, keys), (value, keys))]
        # The last query sees the last key.
        seen = torch.ones(end - start, last - first, dtype=torch.bool).tril((last - first) - (end - start))
        seen = seen if left < 0 else seen.triu(-left)
        out.append(scaled_dot_product_attention(*parts, attn_mask=seen, scale=more["scale"], enable_gqa=True)[0])
    return torch.cat([part.transpose(0, 1) for part in out])


def states(heads: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(BATCH, TOKENS, heads, SIZE, generator=generator).transpose(1, 2).requires_grad_()


def inputs() -> list[torch.Tensor]:
    return [states(HEADS, 1), states(KEY_HEADS, 2), states(KEY_HEADS, 3)]


def runs(window: int | None) -> Segments:
    lengths = (3, 5, 1, 7)
    return Segments(torch.tensor([0, 3, 8, 9, 16], dtype=torch.int32), lengths, window)


@pytest.mark.parametrize("scaling", [None, 0.3])
@pytest.mark.parametrize("window", [None, 1, 2, 7, 9])
def test_the_kernel_gets_what_it_should(
    window: int | None, scaling: float | None, kernel: list[inspect.BoundArguments]
) -> None:
    given = inputs()
    found = varlen_attention(torch.nn.Identity(), *given, runs(window), scaling=scaling)[0]
    expected = segments_attention(torch.nn.Identity(), *given, runs(window), scaling=scaling)[0]
    assert len(kernel) == 1
    # Windows count the token itself with transformers, and not with torch.
    assert kernel[0].arguments["window_size"] == (-1 if window is None else window - 1, 0)
    assert found.shape == (BATCH, TOKENS, HEADS, SIZE)
    assert kernel[0].arguments["enable_gqa"] is True
    as_many = [states(HEADS, seed) for seed in (1, 2, 3)]
    varlen_attention(torch.nn.Identity(), *as_many, runs(window), scaling=scaling)
    assert kernel[1].arguments["enable_gqa"] is False
    torch.testing.assert_close(found, expected)
    weight = torch.randn(found.shape, generator=torch.Generator().manual_seed(4))
    for one, other in zip(
        torch.autograd.grad((found * weight).sum(), given),
        torch.autograd.grad((expected * weight).sum(), given),
        strict=True,
    ):
        torch.testing.assert_close(one, other)


def test_a_torch_without_grouped_queries_gets_repeated_keys(
    kernel: list[inspect.BoundArguments], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segments, "varlen_parameters", lambda: frozenset(SIGNATURE.parameters) - {"enable_gqa"})
    given = inputs()
    found = varlen_attention(torch.nn.Identity(), *given, runs(None))[0]
    assert kernel[0].arguments["key"].shape == (BATCH * TOKENS, HEADS, SIZE)
    torch.testing.assert_close(found, segments_attention(torch.nn.Identity(), *given, runs(None))[0])


def test_answers_find_the_keys_of_their_prompt(kernel: list[inspect.BoundArguments]) -> None:
    """A prompt of 2 with answers of 3 and 1, one of 4 with answers of 1 and 5: keys of runs are both together."""
    shared = SharedPrompts((2, 4), ((3, 1), (1, 5)))
    given = [part.transpose(1, 2).reshape(1, BATCH * TOKENS, -1, SIZE).transpose(1, 2) for part in inputs()]
    lengths = tuple(shared.runs)
    row = Segments(torch.tensor([0, *accumulate(lengths)], dtype=torch.int32), lengths)
    found = varlen_attention(torch.nn.Identity(), *given, row, shared_prompts=shared)[0]
    assert kernel[0].arguments["cu_seq_q"].tolist() == [0, 5, 6, 11, 16]
    assert kernel[0].arguments["cu_seq_k"].tolist() == [0, 5, 8, 13, 22]
    torch.testing.assert_close(found, segments_attention(torch.nn.Identity(), *given, row, shared_prompts=shared)[0])


def test_autocast_decides_the_dtype(kernel: list[inspect.BoundArguments]) -> None:
    with torch.autocast("cpu", torch.bfloat16):
        varlen_attention(torch.nn.Identity(), *inputs(), runs(None))
    assert {kernel[0].arguments[name].dtype for name in ("query", "key", "value")} == {torch.bfloat16}


@pytest.mark.parametrize(
    "more",
    [{"softcap": 2.0}, {"s_aux": torch.zeros(HEADS)}, {"dropout": 0.5}, {}],
    ids=["cap", "sinks", "dropout", "cpu"],
)
def test_what_the_kernel_does_not_take_goes_round_it(more: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_varlen, "varlen_attn", lambda *args, **kwargs: pytest.fail("called"))
    given = inputs()
    torch.manual_seed(0)
    found = varlen_attention(torch.nn.Identity(), *given, runs(3), **more)[0]
    torch.manual_seed(0)
    torch.testing.assert_close(found, segments_attention(torch.nn.Identity(), *given, runs(3), **more)[0])


def test_borders_of_the_batch_count(kernel: list[inspect.BoundArguments]) -> None:
    """As with segments: a model that hides its positions from its mask."""
    blind = Segments(torch.tensor([0, 8, 16], dtype=torch.int32), (8, 8))
    varlen_attention(torch.nn.Identity(), *inputs(), blind, cu_seq_lens_q=runs(None).borders)
    assert kernel[0].arguments["cu_seq_q"].tolist() == [0, 3, 8, 9, 16]
