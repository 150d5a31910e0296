"""Drawing many answers with less work: each prompt is read once, caches grow in place, ended answers leave the batch.

`generate` of transformers takes a loop of the caller's own (`custom_generate`), prepared arguments, processors and
criteria included. The loop here draws what transformers' own would, from the same random numbers.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn.functional import linear
from transformers import GenerationConfig, GenerationMixin, LogitsProcessorList, PreTrainedModel, StoppingCriteriaList
from transformers.cache_utils import DynamicCache, DynamicLayer, DynamicSlidingWindowLayer
from transformers.generation import (
    EosTokenCriteria,
    MaxLengthCriteria,
    MinPLogitsWarper,
    SuppressTokensLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from hftune.compat.installing import method_replaced
from hftune.distributed import phases, zero
from hftune.models.kernels.fused_lora import adapters_held
from hftune.models.recorded_decoding import RecordedPass, can_be_recorded

PIECE = 1024
"""Rows of a wide head that are multiplied at once."""


class Draws:
    """Draws tokens as `torch.multinomial` does for all answers, those that have left the batch included.

    It divides probabilities by exponential random numbers and takes the largest. torch draws these numbers on one core,
    16 answers of 49,152 tokens in 15 ms: on a CPU that is done while the model computes.

    Args:
        rows: Answers at the beginning. So many numbers are drawn, which keeps each answer's as they are.
        pool: Where numbers may be drawn before they are needed; None where others may draw some in between.
    """

    def __init__(self, rows: int, pool: ThreadPoolExecutor | None) -> None:
        self.rows, self._pool = rows, pool
        self._noise: torch.Tensor | None = None
        self._coming: Future[torch.Tensor] | None = None

    def begin(self) -> None:
        """Another token will be drawn: its numbers may be."""
        if self._pool is not None and self._noise is not None:
            self._coming = self._pool.submit(self._noise.exponential_, 1)

    def pick(self, scores: torch.Tensor, here: torch.Tensor) -> torch.Tensor:
        """A token (answers,) for each answer in the batch, of these numbers, by its scores (answers, vocabulary)."""
        probs = scores.softmax(dim=-1)
        if not bool(probs[:, 0].isfinite().all()):
            # One NaN among the logits makes the whole row NaN; torch says what is wrong.
            return torch.multinomial(probs, num_samples=1).squeeze(1)
        noise = self._numbers(probs)
        if len(here) < self.rows:
            noise = noise[here]
        return torch.div(probs, noise, out=noise).argmax(dim=-1)

    def _numbers(self, like: torch.Tensor) -> torch.Tensor:
        if self._coming is not None:
            coming, self._coming = self._coming, None
            return coming.result()
        if self._noise is None:
            self._noise = torch.empty((self.rows, like.shape[1]), dtype=like.dtype, device=like.device)
        return self._noise.exponential_(1)


class LogProbs:
    """Collects the log-probabilities of tokens as they are drawn."""

    def __init__(self, config: GenerationConfig, rows: int) -> None:
        self.temperature, self.rows = float(config.temperature or 1.0), rows
        self.columns: list[torch.Tensor] = []

    def add(self, logits: torch.Tensor, tokens: torch.Tensor, here: torch.Tensor) -> None:
        """Of the next token of the answers that are left, by logits (answers, vocabulary); 0 for all others."""
        logits = logits / self.temperature
        said = logits.gather(1, tokens[:, None]).squeeze(1) - logits.logsumexp(dim=-1)
        self.columns.append(said.new_zeros(self.rows).index_copy(0, here, said))

    def together(self) -> torch.Tensor:
        """(rows, tokens)."""
        return torch.stack(self.columns, dim=1)


def random_state(device: torch.device) -> torch.Tensor:
    """What dropout changes, wherever in a model it is; with it no two passes say the same."""
    return torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()


@contextmanager
def head_in_pieces(head: Any) -> Iterator[None]:
    """In the block a wide head gives the same, to the bit, sooner: over a few rows MKL is slow with so many columns."""
    if type(head) is not nn.Linear or "forward" in vars(head) or head.weight.device.type != "cpu":
        yield
        return
    with method_replaced(head, "forward", _by_pieces):
        yield


def _by_pieces(head: nn.Linear, states: torch.Tensor) -> torch.Tensor:
    weights = head.weight.split(PIECE)
    biases = [None] * len(weights) if head.bias is None else head.bias.split(PIECE)
    return torch.cat([linear(states, *piece) for piece in zip(weights, biases, strict=True)], dim=-1)


ROOM = 64
"""Tokens by which a cache grows: it is copied once in so many."""

ROW_BY_ROW = (
    TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper, MinPLogitsWarper, MaxLengthCriteria, EosTokenCriteria,
    SuppressTokensLogitsProcessor,
)  # fmt: skip
"""What may be called with some of the rows."""

FEWER = 0.75
"""Rows leave the batch, which copies the cache, when no more than this share of it is left."""


class GrowingLayer(DynamicLayer):
    """A layer's cache that is not copied for each token: transformers 5.23 concatenates it."""

    def __init__(self) -> None:
        super().__init__()
        self._rooms: tuple[torch.Tensor, torch.Tensor] | None = None

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Overrides `DynamicLayer.update`: new states are written behind the others."""
        before = self.get_seq_length()
        after = before + key_states.shape[-2]
        if self._rooms is None or self._rooms[0].shape[-2] < after:
            self._make_room(key_states, value_states, after + ROOM)
        assert self._rooms is not None
        for room, states in zip(self._rooms, (key_states, value_states), strict=True):
            room[:, :, before:after] = states
        self.keys, self.values = (room[:, :, :after] for room in self._rooms)
        return self.keys, self.values

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        """Overrides `DynamicLayer.batch_select_indices`: what is picked is a copy, with room at the next token."""
        super().batch_select_indices(indices)
        self._rooms = None

    def _make_room(self, key_states: torch.Tensor, value_states: torch.Tensor, tokens: int) -> None:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        made = []
        for states, old in ((key_states, self.keys), (value_states, self.values)):
            room = states.new_empty((*states.shape[:2], tokens, states.shape[3]))
            if old is not None and old.numel():
                room[:, :, : old.shape[-2]] = old
            made.append(room)
        self._rooms = made[0], made[1]


@dataclass
class Drawn:
    """What was drawn in a block of `decoding_together`, and how likely each token was.

    Attributes:
        batches: One a call of `generate`: prompts with answers (rows, tokens), and log-probabilities (rows, tokens of
            an answer) by the logits over the temperature, float32. None are kept where a pass over whole answers would
            give others: in 16 bits, and with dropout.
    """

    batches: list[tuple[torch.Tensor, torch.Tensor]] = field(default_factory=list)

    def log_probs_of(self, ids: torch.Tensor, mask: torch.Tensor, tokens: int) -> torch.Tensor | None:
        """Those of the last `tokens` of these rows, if they are what was drawn, at once and in this order.

        Args:
            ids: (rows, tokens of prompts and answers), padded as they were drawn.
            mask: 0 where `ids` may be anything.
        """
        if len(self.batches) != 1:
            return None
        whole, log_probs = self.batches[0]
        same = whole.shape == ids.shape and log_probs.shape[1] == tokens and torch.equal(whole * mask, ids * mask)
        return log_probs if same else None


@contextmanager
def decoding_together(model: PreTrainedModel, dtype: torch.dtype) -> Iterator[Drawn]:
    """In the block `model.generate` draws its answers in this way, where the model has a cache of the usual kind.

    Args:
        model: Without an adapter around it.
        dtype: What its forward passes compute in; its weights may be in another.
    """
    drawn = Drawn()
    if not decodes_together(model):
        yield drawn
        return
    generate = model.generate

    def loop(model: Any, input_ids: torch.Tensor, **prepared: Any) -> torch.Tensor:
        # The pool has no thread until it is asked for something.
        with ThreadPoolExecutor(1) as pool, adapters_held():
            return _draw(model, input_ids, dtype=dtype, drawn=drawn, pool=pool, **prepared)

    def draw(_: Any, *args: Any, generation_config: GenerationConfig | None = None, **kwargs: Any) -> Any:
        own = {"custom_generate": loop} if generation_config is None or _is_usual(generation_config) else {}
        return generate(*args, generation_config=generation_config, **own, **kwargs)

    with method_replaced(model, "generate", draw), head_in_pieces(model.get_output_embeddings()):
        yield drawn


def decodes_together(model: Any) -> bool:
    """Whether a model takes tokens, places and a cache of keys and values, and has its weights whole.

    Under ZeRO-3 all processes have to make as many passes: that is left to transformers.
    """
    if not isinstance(model, PreTrainedModel) or zero.is_any_partitioned(model):
        return False
    if model._is_stateful:
        return False
    taken = set(inspect.signature(type(model).forward).parameters)
    if not {"input_ids", "attention_mask", "position_ids", "past_key_values", "logits_to_keep"} <= taken:
        return False
    if type(model).prepare_inputs_for_generation is not GenerationMixin.prepare_inputs_for_generation:
        return False  # the model is called with more than these
    # A layer of another kind has a state that is not picked by rows, or cuts its keys.
    layers = DynamicCache(config=model.config).layers
    return bool(layers) and all(type(layer) in (DynamicLayer, DynamicSlidingWindowLayer) for layer in layers)


def _is_usual(config: GenerationConfig) -> bool:
    """Whether an answer a row is drawn, with the cache that transformers takes by itself."""
    return config.use_cache is not False and config.cache_implementation is None and (config.num_beams or 1) == 1


@torch.no_grad()
def _draw(
    model: Any,
    input_ids: torch.Tensor,
    logits_processor: LogitsProcessorList,
    stopping_criteria: StoppingCriteriaList,
    generation_config: GenerationConfig,
    dtype: torch.dtype,
    drawn: Drawn,
    pool: ThreadPoolExecutor,
    **inputs: Any,
) -> torch.Tensor:
    """Prompts (rows, tokens) with their answers, padded on the right."""
    rows = len(input_ids)
    says = LogProbs(generation_config, rows)
    cache = inputs.pop("past_key_values")
    records = can_be_recorded(model, cache.layers)
    cache.layers = [GrowingLayer() if type(each) is DynamicLayer and not records else each for each in cache.layers]
    mask, positions = inputs.get("attention_mask"), inputs["position_ids"]
    logits, drops = _read_prompts(model, input_ids, mask, positions, cache)
    # 16 bits round by the number of rows: a pass over whole answers would say something else.
    dtypes = {dtype, *(parameter.dtype for parameter in model.parameters())}
    exact = dtypes == {torch.float32} and not drops
    positions = positions[:, -1:]
    run = partial(_pass, model, cache=cache)
    recorded = RecordedPass(run, cache, generation_config.max_length) if records and not drops else None
    padding = generation_config.pad_token_id
    # Others may keep something of each row (a penalty for repetition keeps its prompt's length).
    shrinks = all(type(each) in ROW_BY_ROW for each in (*logits_processor, *stopping_criteria))
    draws = Draws(rows, pool if shrinks and not drops and logits.device.type == "cpu" else None)
    done: list[tuple[torch.Tensor, torch.Tensor]] = []
    # Which answers are in the batch, and which of these have not ended.
    here = torch.arange(rows, device=input_ids.device)
    open_ = torch.ones(rows, dtype=torch.bool, device=input_ids.device)
    while True:
        scores = logits_processor(input_ids, logits)
        tokens = draws.pick(scores, here) if generation_config.do_sample else scores.argmax(dim=-1)
        if exact:
            says.add(logits, tokens, here)
        if padding is not None:
            tokens = tokens.masked_fill(~open_, padding)
        input_ids = torch.cat([input_ids, tokens[:, None]], dim=-1)
        open_ = open_ & ~stopping_criteria(input_ids, None)
        left = int(open_.sum())
        if not left:
            break
        positions = positions + 1
        if mask is not None:
            mask = torch.cat([mask, mask.new_ones((len(mask), 1))], dim=-1)
        if shrinks and left <= FEWER * len(here) and (recorded is None or recorded.begins_anew(input_ids)):
            kept = open_.nonzero().squeeze(1)
            done.append((here[~open_], input_ids[~open_]))
            cache.batch_select_indices(kept)
            here, input_ids, positions, open_ = (each[kept] for each in (here, input_ids, positions, open_))
            mask = None if mask is None else mask[kept]
        draws.begin()
        logits = recorded(input_ids, mask, positions) if recorded else run(input_ids[:, -1:], mask, positions)
    whole = _whole([*done, (here, input_ids)], rows, padding)
    if exact:
        drawn.batches.append((whole, says.together()))
    return whole


def _read_prompts(
    model: Any, input_ids: torch.Tensor, mask: torch.Tensor | None, positions: torch.Tensor, cache: Any
) -> tuple[torch.Tensor, bool]:
    """Logits behind each prompt (rows, vocabulary), each read once, and whether dropout has drawn random numbers."""
    before = phases.now().name
    phases.enter(phases.PROMPTS)
    first, prompt_of = _each_once(input_ids, mask)
    numbers = random_state(input_ids.device)
    logits = _pass(model, input_ids[first], None if mask is None else mask[first], positions[first], cache)
    drops = not torch.equal(numbers, random_state(input_ids.device))
    cache.batch_select_indices(prompt_of)
    phases.enter(before)
    return logits[prompt_of], drops


def _each_once(input_ids: torch.Tensor, mask: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows that have each prompt once, and for each row which of these has its prompt."""
    whole = input_ids if mask is None else torch.cat([input_ids, mask.to(input_ids)], dim=-1)
    _, group = torch.unique(whole, dim=0, return_inverse=True)
    first = torch.full((int(group.max()) + 1,), len(group), device=group.device)
    return first.scatter_reduce(0, group, torch.arange(len(group), device=group.device), "amin"), group


def _pass(
    model: Any, ids: torch.Tensor, mask: torch.Tensor | None, positions: torch.Tensor, cache: Any
) -> torch.Tensor:
    """Logits behind the last token, float32 (rows, vocabulary)."""
    output = model(
        input_ids=ids,
        attention_mask=mask,
        position_ids=positions,
        past_key_values=cache,
        use_cache=True,
        logits_to_keep=1,
        return_dict=True,
    )
    logits: torch.Tensor = output.logits[:, -1].float()
    return logits


def _whole(parts: list[tuple[torch.Tensor, torch.Tensor]], rows: int, padding: int | None) -> torch.Tensor:
    """All answers by their numbers, padded to the longest."""
    longest = max(ids.shape[1] for _, ids in parts)
    whole = parts[0][1].new_full((rows, longest), padding or 0)
    for numbers, ids in parts:
        whole[numbers, : ids.shape[1]] = ids
    return whole
