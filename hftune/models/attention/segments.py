"""Attention over documents that lie one after the other in a row, without a mask of tokens by tokens.

transformers lets an attention bring its own kind of mask. Ours is a list of borders, found once a batch by asking
transformers' own mask function whether neighbouring tokens see each other. Packed rows, padding-free rows, padded rows
(left or right) and chunked attention all come out as runs of tokens that see only themselves. What does not (a cache, a
prefix that is seen both ways, holes in the padding) gets the usual dense mask and the usual attention.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.functional import dropout as drop
from torch.nn.functional import pad, scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface

from hftune.errors import ArgumentError
from hftune.models.attention.machine import varlen_parameters
from hftune.models.attention.shared_prompts import SharedPrompts

SEGMENTS = "hftune_segments"
"""SDPA a document, on any device."""

VARLEN = "hftune_varlen"
"""All documents in one call, on CUDA in half precision; what the kernel does not take goes to `segments_attention`."""

MAX_HEAD_SIZE = 256
"""What torch's FlashAttention goes up to."""

MaskFunction = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class Segments:
    """Runs of tokens that attend to themselves only, causally, over all rows of a batch, one row after the other.

    Args:
        borders: IntTensor of shape (runs + 1,): where each begins, and the end of the last; on the model's device.
        lengths: Tokens of each run.
        window: A token sees this many tokens, itself included; None: all before it.
    """

    borders: torch.Tensor
    lengths: tuple[int, ...]
    window: int | None = None

    def band(self, length: int) -> torch.Tensor | None:
        """Which token (row) sees which (column) in a run, bool (length, length); None where causal says it all."""
        if self.window is None or length <= self.window:
            return None
        seen = torch.ones(length, length, dtype=torch.bool, device=self.borders.device)
        return seen.tril().triu(1 - self.window)

    def cut_at(self, borders: torch.Tensor | None) -> Segments:
        """These runs, cut at the borders of documents that the batch came with, too."""
        # Both say the same, unless a model keeps its position ids from its mask function (GPT-OSS, transformers 5.23).
        if borders is None or len(borders) == len(self.borders):
            return self
        both = torch.unique(torch.cat([self.borders, borders.to(self.borders)]))
        return Segments(both, tuple(both.diff().tolist()), self.window)


def segments_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int = 0,
    kv_offset: int = 0,
    *,
    mask_function: MaskFunction,
    attention_mask: torch.Tensor | None = None,
    local_size: int | None = None,
    use_vmap: bool = False,
    device: torch.device | str = "cpu",
    **kwargs: Any,
) -> Segments | torch.Tensor | None:
    """A mask of transformers' `AttentionMaskInterface`: borders where they say all, else what SDPA takes.

    Args:
        mask_function: (batch, head, query, key) indices to whether the query sees the key; without padding.
        attention_mask: Bool (batch, tokens), False where padded.
        local_size: Tokens of a sliding window or a chunk.
    """
    whole = q_length == kv_length and isinstance(q_offset, int) and q_offset == kv_offset == 0
    if whole and not use_vmap and (attention_mask is None or attention_mask.shape == (batch_size, q_length)):
        starts = _starts(mask_function, batch_size, q_length, torch.device(device), attention_mask)
        if starts is not None:
            borders = pad(starts, (0, 1), value=batch_size * q_length).int()
            return Segments(borders.to(device), tuple(borders.diff().tolist()), local_size)
    dense: Callable[..., torch.Tensor | None] = AttentionMaskInterface()["sdpa"]
    return dense(
        batch_size,
        q_length,
        kv_length,
        q_offset,
        kv_offset,
        mask_function=mask_function,
        attention_mask=attention_mask,
        local_size=local_size,
        use_vmap=use_vmap,
        device=device,
        **kwargs,
    )


def _starts(
    mask_function: MaskFunction, rows: int, length: int, device: torch.device, attention_mask: torch.Tensor | None
) -> torch.Tensor | None:
    """Places (runs,) of tokens that do not see the one before them, on the host; None where runs do not tell all."""
    # Where tokens see only what is before them, whether neighbours see each other tells the runs: two calls of the mask
    # function on (rows, length) take the place of one on (rows, length, length).
    row, head, here = _places(rows, length, device)
    linked = mask_function(row, head, here, here - 1).expand(rows, length - 1)
    unfit = sees_ahead(mask_function, rows, length, device)
    if attention_mask is not None:
        changes = attention_mask[:, 1:] != attention_mask[:, :-1]
        begins = (changes & attention_mask[:, 1:]).sum(1) + attention_mask[:, 0]
        # Real tokens on both sides of padding see each other across it.
        unfit, linked = unfit | (begins > 1).any(), linked & ~changes
    # The host waits for the device once, not for each answer.
    unfit, starts = torch.cat([unfit[None], pad(~linked, (1, 0), value=True).flatten()]).cpu().split([1, rows * length])
    return None if unfit else starts.nonzero().flatten()


def sees_ahead(mask_function: MaskFunction, rows: int, length: int, device: torch.device) -> torch.Tensor:
    """Whether some token sees the one after it, bool ()."""
    row, head, here = _places(rows, length, device)
    return mask_function(row, head, here - 1, here).any()


def _places(rows: int, length: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Indices of rows (rows, 1), of a head (), and of all tokens but the first (1, length - 1)."""
    row, head = torch.arange(rows, device=device)[:, None], torch.zeros((), dtype=torch.long, device=device)
    return row, head, torch.arange(1, length, device=device)[None, :]


def segments_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: Segments | torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    shared_prompts: SharedPrompts | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """An attention of transformers' `AttentionInterface`, a run of tokens at a time.

    Args:
        query: (batch, heads, tokens, head size); key and value may have fewer heads, each for a group of queries.
        attention_mask: From `segments_mask`.
        softcap: Scores become softcap * tanh(scores / softcap).
        s_aux: (heads,), a score a head that takes part in the softmax and gives nothing (attention sinks).
        shared_prompts: How the row is made up, where several answers share a prompt.

    Returns:
        (batch, tokens, heads, head size), and no weights.

    Raises:
        ArgumentError: A bias by position; shared prompts in a model whose mask is more than runs of tokens.
    """
    # Norms of queries and keys are kept in float32 on a quantised base (peft), and give float32.
    query, key = query.to(value.dtype), key.to(value.dtype)
    softmax = _Softmax(dropout, scaling, softcap, s_aux)
    if kwargs.get("position_bias") is not None:
        raise ArgumentError(
            f"{SEGMENTS} adds no bias by position", place="--attn_implementation", fix="leave the flag out"
        )
    if isinstance(attention_mask, Segments):
        runs = attention_mask.cut_at(kwargs.get("cu_seq_lens_q"))
        return _by_runs(query, key, value, runs, softmax, shared_prompts), None
    if shared_prompts is not None:
        shared_prompts.check(())  # a dense mask knows no shared prompts: refused
    if softmax.plain:
        plain: Callable[..., tuple[torch.Tensor, None]] = AttentionInterface()["sdpa"]
        return plain(module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **kwargs)
    return softmax.of(query, key, value, attention_mask).transpose(1, 2), None


def _by_runs(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    runs: Segments,
    softmax: _Softmax,
    shared: SharedPrompts | None,
) -> torch.Tensor:
    """(batch, tokens, heads, size), a run of tokens at a time."""
    if shared is None:
        parts = zip(_runs(query, runs), _runs(key, runs), _runs(value, runs), strict=True)
        out = [softmax.of(*part, seen=runs.band(part[0].shape[2])) for part in parts]
    else:
        shared.check(runs.lengths)
        queries = query.split(shared.runs, dim=2)
        both = zip(queries, shared.with_prompts(key, 2), shared.with_prompts(value, 2), strict=True)
        out = [
            softmax.of(*part, seen=shared.seen(part[0].shape[2], part[1].shape[2], runs.window, query.device))
            for part in both
        ]
    return _rows(out, query.shape[0], query.shape[2])


@dataclass(frozen=True)
class _Softmax:
    """What happens between queries times keys and the values; see `segments_attention`."""

    dropout: float
    scaling: float | None
    softcap: float | None
    sinks: torch.Tensor | None

    @property
    def plain(self) -> bool:
        """Whether SDPA has an argument for all of it."""
        return self.softcap is None and self.sinks is None

    def of(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, seen: torch.Tensor | None
    ) -> torch.Tensor:
        """Attention of (batch, heads, tokens, size); `seen` is a bool mask, None: causal."""
        if not self.plain:
            return self._by_formula(query, key, value, seen)
        # `enable_gqa` costs nothing where the numbers of heads agree. Of a GPU's kernels only FlashAttention has it,
        # which takes neither masks nor float32: the rest would write all scores.
        if query.is_cuda and (seen is not None or query.dtype == torch.float32):
            groups = query.shape[1] // key.shape[1]
            key, value = (states.repeat_interleave(groups, dim=1) for states in (key, value))
        return scaled_dot_product_attention(
            query, key, value, seen, self.dropout, is_causal=seen is None, scale=self.scaling, enable_gqa=True
        )

    def _by_formula(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, seen: torch.Tensor | None
    ) -> torch.Tensor:
        queries, keys, groups = query.shape[2], key.shape[2], query.shape[1] // key.shape[1]
        key, value = (states.repeat_interleave(groups, dim=1) for states in (key, value))
        scores = query @ key.transpose(2, 3) * (query.shape[-1] ** -0.5 if self.scaling is None else self.scaling)
        if self.softcap is not None:
            scores = self.softcap * torch.tanh(scores / self.softcap)
        if seen is None:  # the queries are the last ones
            seen = torch.ones(queries, keys, dtype=torch.bool, device=query.device).tril(keys - queries)
        # The least finite number, not -inf: a row without anything to see gives a mean and not NaN.
        scores = scores.masked_fill(~seen, torch.finfo(scores.dtype).min)
        if self.sinks is not None:
            sink = self.sinks.to(scores.dtype).view(-1, 1, 1).expand(*scores.shape[:3], 1)
            scores = torch.cat([scores, sink], dim=-1)
        weights = scores.softmax(dim=-1, dtype=torch.float32).to(value.dtype)
        return drop(weights[..., :keys], self.dropout) @ value


def _runs(states: torch.Tensor, runs: Segments) -> tuple[torch.Tensor, ...]:
    """(batch, heads, tokens, size) as one (1, heads, run, size) a run, or all at once where they are equally long."""
    heads, size = states.shape[1], states.shape[3]
    flat = states.transpose(1, 2)
    if len(set(runs.lengths)) == 1:
        return (flat.reshape(-1, runs.lengths[0], heads, size).transpose(1, 2),)
    # Split, not sliced: the backward of slices would fill a tensor of zeros for each of them.
    return flat.reshape(1, -1, heads, size).transpose(1, 2).split(runs.lengths, dim=2)


def _rows(out: list[torch.Tensor], batch: int, tokens: int) -> torch.Tensor:
    """What `_runs` took apart, as (batch, tokens, heads, size)."""
    flat = [part.transpose(1, 2).reshape(-1, part.shape[1], part.shape[3]) for part in out]
    return torch.cat(flat).view(batch, tokens, *flat[0].shape[1:])


def varlen_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: Segments | torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    shared_prompts: SharedPrompts | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """An attention of transformers' `AttentionInterface`: all documents of a batch in one call of the kernel.

    What the kernel cannot do (float32, dropout, caps, sinks, dense masks) goes to `segments_attention`; arguments and
    result are the same.
    """
    runs = attention_mask.cut_at(kwargs.get("cu_seq_lens_q")) if isinstance(attention_mask, Segments) else None
    value = _half(value)
    query, key = query.to(value.dtype), key.to(value.dtype)
    if runs is None or dropout or not _kernel_takes(query, value, kwargs):
        kwargs |= {"dropout": dropout, "scaling": scaling, "shared_prompts": shared_prompts}
        return segments_attention(module, query, key, value, attention_mask, **kwargs)
    from torch.nn.attention.varlen import varlen_attn

    batch, heads, tokens, size = query.shape
    # The kernel's window is (tokens before, tokens after); -1 is no limit. Ours counts the token itself.
    options: dict[str, Any] = {"scale": scaling, "window_size": (-1 if runs.window is None else runs.window - 1, 0)}
    if "enable_gqa" in varlen_parameters():
        options["enable_gqa"] = heads != key.shape[1]
    else:
        groups = heads // key.shape[1]
        key, value = (states.repeat_interleave(groups, dim=1) for states in (key, value))
    flat = (states.transpose(1, 2).reshape(batch * tokens, -1, size) for states in (query, key, value))
    flat_query, flat_key, flat_value = flat
    longest = max(runs.lengths)
    key_borders, longest_key = runs.borders, longest
    if shared_prompts is not None:
        # With fewer queries than keys, the kernel lets the last query see the last key.
        shared_prompts.check(runs.lengths)
        flat_key, flat_value = (torch.cat(shared_prompts.with_prompts(states, 0)) for states in (flat_key, flat_value))
        lengths = shared_prompts.key_runs
        key_borders, longest_key = shared_prompts.borders(lengths, query.device), max(lengths)
    out = varlen_attn(flat_query, flat_key, flat_value, runs.borders, key_borders, longest, longest_key, **options)
    assert isinstance(out, torch.Tensor), "no log-sum-exp was asked for"
    return out.view(batch, tokens, heads, size), None


def _half(states: torch.Tensor) -> torch.Tensor:
    """In the dtype of autocast, where that is on."""
    device = states.device.type
    if states.dtype == torch.float32 and torch.is_autocast_enabled(device):
        return states.to(torch.get_autocast_dtype(device))
    return states


def _kernel_takes(query: torch.Tensor, value: torch.Tensor, kwargs: dict[str, Any]) -> bool:
    special = any(kwargs.get(name) is not None for name in ("softcap", "s_aux"))
    size = query.shape[-1]
    return (
        not special
        and query.is_cuda
        and query.dtype in (torch.bfloat16, torch.float16)
        and size == value.shape[-1]
        and size <= MAX_HEAD_SIZE
        and size % 8 == 0
    )


AttentionInterface.register(SEGMENTS, segments_attention)
AttentionMaskInterface.register(SEGMENTS, segments_mask)
AttentionInterface.register(VARLEN, varlen_attention)
AttentionMaskInterface.register(VARLEN, segments_mask)
