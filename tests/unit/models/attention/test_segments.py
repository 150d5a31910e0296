"""Attention by borders against attention by a dense mask."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers.masking_utils import (
    causal_mask_function,
    chunked_causal_mask_function,
    packed_sequence_compatibility_function,
    sdpa_mask,
    sliding_window_causal_mask_function,
)

from hftune.models.attention import segments
from hftune.models.attention.segments import Segments, segments_attention, segments_mask

BATCH, TOKENS, HEADS, KEY_HEADS, SIZE = 2, 12, 4, 2, 8
POSITIONS = torch.tensor(
    [
        [0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 5, 6],  # documents of 5 and 7
        [0, 0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2],  # of 1, 8 and 3
    ]
)
DOCUMENTS = torch.tensor([[0] * 5 + [1] * 7, [0] + [1] * 8 + [2] * 3])
RIGHT = torch.tensor([[1] * 12, [1] * 7 + [0] * 5], dtype=torch.bool)
LEFT = RIGHT.flip(1)


def packed(function: Any) -> Any:
    return packed_sequence_compatibility_function(function, POSITIONS, DOCUMENTS)


CASES: dict[str, tuple[Any, dict[str, Any], tuple[int, ...]]] = {
    # name: (mask function, more arguments, lengths of the runs)
    "plain": (causal_mask_function, {}, (12, 12)),
    "packed": (packed(causal_mask_function), {}, (5, 7, 1, 8, 3)),
    "window": (packed(sliding_window_causal_mask_function(3)), {"local_size": 3}, (5, 7, 1, 8, 3)),
    "window of one": (packed(sliding_window_causal_mask_function(1)), {"local_size": 1}, (1,) * 24),
    "window, not packed": (sliding_window_causal_mask_function(4), {"local_size": 4}, (12, 12)),
    "chunks": (packed(chunked_causal_mask_function(4, torch.zeros(2, dtype=torch.long))), {"local_size": 4},
               (4, 1, 4, 3, 1, 4, 4, 3)),
    "padded right": (causal_mask_function, {"attention_mask": RIGHT}, (12, 7, 5)),
    "padded left": (causal_mask_function, {"attention_mask": LEFT}, (12, 5, 7)),
    "padded left, window": (sliding_window_causal_mask_function(3), {"attention_mask": LEFT, "local_size": 3},
                            (12, 5, 7)),
}  # fmt: skip


def states(heads: int, *, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(BATCH, TOKENS, heads, SIZE, generator=generator).transpose(1, 2).requires_grad_()


def by_formula(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, seen: torch.Tensor, **more: Any) -> Any:
    """softmax(cap(q k / sqrt(d))) v, with a sink in the sum below the line; (batch, tokens, heads, size)."""
    key, value = (part.repeat_interleave(HEADS // KEY_HEADS, dim=1) for part in (key, value))
    scores = query @ key.mT * more.get("scaling", SIZE**-0.5)
    if "softcap" in more:
        scores = more["softcap"] * torch.tanh(scores / more["softcap"])
    weights = scores.exp() * seen
    total = weights.sum(-1, keepdim=True)
    if "s_aux" in more:
        total = total + more["s_aux"].exp().view(1, -1, 1, 1)
    # A token of padding may see nothing at all.
    return (weights / total.clamp(min=1e-30) @ value).transpose(1, 2)


@pytest.mark.parametrize("extra", ["plain", "scaling", "softcap", "sinks", "both"])
@pytest.mark.parametrize("case", CASES)
def test_runs_are_the_dense_mask(case: str, extra: str) -> None:
    function, arguments, lengths = CASES[case]
    mask = segments_mask(BATCH, TOKENS, TOKENS, mask_function=function, **arguments)
    assert isinstance(mask, Segments)
    assert mask.lengths == lengths
    dense = sdpa_mask(BATCH, TOKENS, TOKENS, mask_function=function, allow_is_causal_skip=False, **arguments)
    assert dense is not None
    # What padding would see is nobody's business.
    real = arguments.get("attention_mask", torch.ones(BATCH, TOKENS, dtype=torch.bool))

    more: dict[str, Any] = {"scaling": 0.7} if extra in ("scaling", "both") else {}
    more |= {"softcap": 0.5} if extra in ("softcap", "both") else {}
    more |= {"s_aux": torch.tensor([0.3, -1.0, 2.0, 0.0], requires_grad=True)} if extra in ("sinks", "both") else {}
    inputs = [states(HEADS, seed=1), states(KEY_HEADS, seed=2), states(KEY_HEADS, seed=3)]
    learned = [*inputs, *([more["s_aux"]] if "s_aux" in more else [])]
    weight = torch.randn(BATCH, TOKENS, HEADS, SIZE, generator=torch.Generator().manual_seed(4)) * real[..., None, None]
    results = []
    for out in (
        segments_attention(torch.nn.Identity(), *inputs, mask, **more)[0],
        by_formula(*inputs, dense, **more),
    ):
        results.append([out * real[..., None, None], *torch.autograd.grad((out * weight).sum(), learned)])
    for ours, expected in zip(*results, strict=True):
        torch.testing.assert_close(ours, expected, atol=2e-6, rtol=1e-5)


# What SDPA's own `is_causal` does not say, so that transformers' function must be asked as well.
ASKED = {"allow_is_causal_skip": False}
DENSE: dict[str, tuple[int, int, dict[str, Any]]] = {
    # name: (queries, keys, arguments)
    "one more token with a cache": (1, TOKENS, {"q_offset": TOKENS - 1}),
    "a window behind a cache": (1, 4, {"q_offset": 11, "kv_offset": 8, "local_size": 3,
                                       "mask_function": sliding_window_causal_mask_function(3)}),
    "a cache with room": (4, TOKENS, ASKED),
    "as many tokens as the cache has": (TOKENS, TOKENS, {"q_offset": 3, **ASKED}),
    "holes in the padding": (TOKENS, TOKENS, {"attention_mask": torch.tensor([[1, 0] + [1] * 10, [1] * 12]).bool()}),
    "the next token as well": (TOKENS, TOKENS, {"mask_function": lambda batch, head, query, key: query >= key - 1,
                                                **ASKED}),
    # Of single numbers: it cannot be asked for all places at once.
    "a function for vmap": (TOKENS, TOKENS, {"mask_function": lambda *at: torch.stack([at[2], -at[3]]).sum() >= 0,
                                             "use_vmap": True, **ASKED}),
}  # fmt: skip


@pytest.mark.parametrize("extra", ["plain", "softcap"])
@pytest.mark.parametrize("case", DENSE)
def test_what_runs_cannot_say_gets_a_dense_mask(case: str, extra: str) -> None:
    queries, keys, arguments = DENSE[case]
    arguments = {"mask_function": causal_mask_function, **arguments}
    mask = segments_mask(BATCH, queries, keys, **arguments)
    expected = sdpa_mask(BATCH, queries, keys, **arguments)
    assert (mask is None) == (expected is None)
    if mask is not None:
        torch.testing.assert_close(mask, expected)
    query = states(HEADS, seed=1)[:, :, -queries:]
    key, value = (states(KEY_HEADS, seed=seed)[:, :, -keys:] for seed in (2, 3))
    more: dict[str, Any] = {"scaling": 0.7} | ({"softcap": 0.5} if extra == "softcap" else {})
    module = torch.nn.Identity()
    module.num_key_value_groups = HEADS // KEY_HEADS
    out = segments_attention(module, query, key, value, mask, **more)[0]
    seen = torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries) if expected is None else expected
    torch.testing.assert_close(out, by_formula(query, key, value, seen, **more), atol=2e-6, rtol=1e-5)


def test_borders_of_the_batch_count_where_a_model_hides_its_positions() -> None:
    inputs = [states(HEADS, seed=1), states(KEY_HEADS, seed=2), states(KEY_HEADS, seed=3)]
    runs = segments_mask(BATCH, TOKENS, TOKENS, mask_function=packed(causal_mask_function))
    blind = segments_mask(BATCH, TOKENS, TOKENS, mask_function=causal_mask_function)
    assert isinstance(runs, Segments) and isinstance(blind, Segments)
    expected = segments_attention(torch.nn.Identity(), *inputs, runs)[0]
    out = segments_attention(torch.nn.Identity(), *inputs, blind, cu_seq_lens_q=runs.borders)[0]
    torch.testing.assert_close(out, expected)


def test_attention_dropout_drops() -> None:
    inputs = [states(HEADS, seed=1), states(KEY_HEADS, seed=2), states(KEY_HEADS, seed=3)]
    runs = segments_mask(BATCH, TOKENS, TOKENS, mask_function=packed(causal_mask_function))
    assert isinstance(runs, Segments)
    module = torch.nn.Identity()
    module.num_key_value_groups = HEADS // KEY_HEADS
    dense = sdpa_mask(BATCH, TOKENS, TOKENS, mask_function=packed(causal_mask_function), allow_is_causal_skip=False)
    for mask, more in itertools.product((runs, dense), ({}, {"softcap": 50.0})):
        torch.manual_seed(0)
        out = segments_attention(module, *inputs, mask, dropout=0.5, **more)[0]
        sure = segments_attention(module, *inputs, mask, **more)[0]
        assert not torch.allclose(out, sure)
        # The first token of a document has one weight, which is kept and doubled, or dropped.
        first = out[0, 5] / sure[0, 5]
        assert all(min(abs(ratio), abs(ratio - 2)) < 1e-4 for ratio in first.flatten().tolist())


@pytest.mark.parametrize("more", [{}, {"softcap": 0.5}])
def test_queries_and_keys_follow_the_values_dtype(more: dict[str, Any]) -> None:
    """On a quantised base, norms of queries and keys are in float32 and values in bf16."""
    inputs = [states(HEADS, seed=1), states(KEY_HEADS, seed=2), states(KEY_HEADS, seed=3)]
    runs = segments_mask(BATCH, TOKENS, TOKENS, mask_function=packed(causal_mask_function))
    expected = segments_attention(torch.nn.Identity(), *inputs, runs, **more)[0]
    mixed = [*inputs[:2], inputs[2].bfloat16()]
    module = torch.nn.Identity()
    module.num_key_value_groups = HEADS // KEY_HEADS
    for mask in (runs, None):
        assert segments_attention(module, *mixed, mask, **more)[0].dtype == torch.bfloat16
    out = segments_attention(torch.nn.Identity(), *mixed, runs, **more)[0]
    torch.testing.assert_close(out.float(), expected, atol=0.03, rtol=0.03)


class OnGPU(torch.Tensor):
    """A tensor that says that it is on a GPU."""

    is_cuda = True


@pytest.mark.parametrize(
    ("dtype", "masked", "wanted"),
    [(torch.float32, False, HEADS), (torch.bfloat16, True, HEADS), (torch.bfloat16, False, KEY_HEADS)],
)
def test_keys_are_repeated_for_a_gpus_kernels_that_know_no_groups(
    dtype: torch.dtype, masked: bool, wanted: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[Any] = []
    sdpa = segments.scaled_dot_product_attention
    monkeypatch.setattr(segments, "scaled_dot_product_attention", lambda *a, **k: given.append(a) or sdpa(*a, **k))
    query, key, value = (states(heads, seed=heads).detach().to(dtype) for heads in (HEADS, KEY_HEADS, KEY_HEADS))
    seen = torch.ones(TOKENS, TOKENS, dtype=torch.bool).tril() if masked else None
    softmax = segments._Softmax(0.0, None, None, None)
    found = softmax.of(query.as_subclass(OnGPU), key, value, seen)
    assert [part.shape[1] for part in given[0][1:3]] == [wanted, wanted]
    torch.testing.assert_close(found.as_subclass(torch.Tensor), softmax.of(query, key, value, seen))


def test_a_dense_mask_knows_no_shared_prompts() -> None:
    """They say themselves that a row of no runs is not theirs."""
    query, asked = torch.randn(1, HEADS, 4, SIZE), []
    shared: Any = SimpleNamespace(check=asked.append)
    mask = torch.ones(1, 1, 4, 4, dtype=torch.bool)
    segments_attention(torch.nn.Module(), query, query, query, mask, scaling=1.0, shared_prompts=shared)
    assert asked == [()]
