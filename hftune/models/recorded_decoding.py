"""A decoding step recorded as a CUDA graph: its kernels are launched at once, token after token.

A pass over one token of each answer is some thousand kernels, each of which takes a GPU less time than Python takes to
launch it. Recorded, they are launched by one call (https://pytorch.org/blog/accelerating-pytorch-with-cuda-graphs/).
A recording always reads and writes the same memory, so the cache has a fixed size: transformers' `StaticLayer`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn.functional import pad
from transformers.cache_utils import DynamicLayer, StaticLayer

from hftune.distributed import phases
from hftune.logging import notice
from hftune.models.attention.segments import SEGMENTS, VARLEN

ROOM = 256
"""Tokens that are drawn with one recording: more would have each token read more of the cache that is empty."""

_MASKED = {"eager", "sdpa", SEGMENTS, VARLEN}
"""Attentions to which a mask says how much of a cache is there."""

Pass = Callable[[torch.Tensor, torch.Tensor | None, torch.Tensor], torch.Tensor]
"""From ids (rows, 1), mask (rows, tokens of the whole cache) and positions (rows, 1) to logits (rows, vocabulary)."""


class FixedLayer(StaticLayer):
    """A layer's keys and values with room for so many tokens, made of those there are."""

    def __init__(self, keys: torch.Tensor, values: torch.Tensor, tokens: int) -> None:
        super().__init__(max_cache_len=tokens)
        self.lazy_initialization(keys, values)
        self.update(keys, values)

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Overrides `StaticLayer.update`: values are kept in the dtype of keys, as a cache that grows keeps them.

        Under autocast, float32 weights give values in 16 bits, and keys that are rotated in float32.
        """
        return super().update(key_states, value_states.to(key_states.dtype), *args, **kwargs)

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        """Keep these rows, in a copy: a recording does not know of it."""
        self.keys: torch.Tensor = self.keys[indices]
        self.values: torch.Tensor = self.values[indices]


def can_be_recorded(model: Any, layers: list[Any]) -> bool:
    """Whether each pass over a token launches the same kernels, by what transformers says of the model's class.

    Args:
        model: Without an adapter around it.
        layers: Of its cache, before the prompts are read.
    """
    # Of bitsandbytes, 8 bits look at the activations to find what to multiply apart.
    quantised = getattr(model, "quantization_method", None) is not None
    if not model._can_compile_fullgraph or (quantised and not getattr(model, "is_loaded_in_4bit", False)):
        return False
    # FlashAttention takes no mask, and would read what is behind the last token.
    if not {model.config._attn_implementation, model.config.get_text_config()._attn_implementation} <= _MASKED:
        return False
    if torch.is_autocast_enabled("cuda"):
        # Around all passes: weights in 16 bits would be kept, and lost between two tokens. Within each they are not.
        return False
    devices = {parameter.device for parameter in model.parameters()}
    return len(devices) == 1 and devices.pop().type == "cuda" and all(type(layer) is DynamicLayer for layer in layers)


class RecordedPass:
    """A model's pass over one token of each row, recorded anew whenever the cache has no room left.

    The first pass with a cache is a usual one: libraries make what they make once, and see a cache of this size.

    Args:
        run: The pass, with this cache.
        cache: After the prompts; its layers are replaced by a `FixedLayer` each.
        longest: Tokens of a prompt and its answer at most.
    """

    def __init__(self, run: Pass, cache: Any, longest: int) -> None:
        self._run, self._cache, self._longest = run, cache, longest
        self._room = 0
        self._inputs: tuple[torch.Tensor, torch.Tensor | None, torch.Tensor] | None = None
        self._replay: Callable[[], torch.Tensor] | None = None

    def begins_anew(self, input_ids: torch.Tensor) -> bool:
        """Whether the next pass makes another cache: rows may have left the one there is."""
        return input_ids.shape[1] > self._room

    def __call__(self, input_ids: torch.Tensor, mask: torch.Tensor | None, positions: torch.Tensor) -> torch.Tensor:
        """Logits behind the last of `input_ids` (rows, tokens), float32 (rows, vocabulary), until the next call.

        Args:
            input_ids: Prompts and what has been drawn; all but the last are in the cache.
            mask: (rows, tokens), or None.
            positions: Of the last token, (rows, 1).
        """
        phases.keep_alive()  # a recording runs no hooks
        if self._inputs is None or self.begins_anew(input_ids):
            self._make_room(input_ids, mask, positions)
            return self._pass()
        ids, _, places = self._inputs
        ids.copy_(input_ids[:, -1:])
        places.copy_(positions)
        if self._replay is None:
            self._replay = recorded_or_not(self._pass)
        return self._replay()

    def _make_room(self, input_ids: torch.Tensor, mask: torch.Tensor | None, positions: torch.Tensor) -> None:
        tokens = input_ids.shape[1]
        self._replay = None
        self._room = max(tokens, min(tokens + ROOM, self._longest))
        layers = self._cache.layers
        # One by one: two caches as a whole would not fit where one does.
        for number, layer in enumerate(layers):
            layers[number] = FixedLayer(layer.keys[:, :, : tokens - 1], layer.values[:, :, : tokens - 1], self._room)
        # What is beyond the last token is behind it: a causal mask covers it.
        whole = None if mask is None else pad(mask, (0, self._room - mask.shape[1]), value=1)
        self._inputs = input_ids[:, -1:].clone(), whole, positions.clone()

    def _pass(self) -> torch.Tensor:
        assert self._inputs is not None
        return self._run(*self._inputs)


def recorded_or_not(run: Callable[[], torch.Tensor]) -> Callable[[], torch.Tensor]:
    """`record`; where that does not work, which a notice says, what was to be recorded."""
    try:
        return record(run)
    except RuntimeError as error:
        reason = str(error).partition("\n")[0]
        notice(f"answers are drawn without a CUDA graph, more slowly: a step could not be recorded ({reason})")
        return run


def record(run: Callable[[], torch.Tensor]) -> Callable[[], torch.Tensor]:
    """What runs the kernels of `run` again and gives the same tensor, written anew. Nothing is run yet.

    Raises:
        RuntimeError: The pass waits for the GPU, say.
    """
    graph = torch.cuda.CUDAGraph()
    numbers = torch.cuda.default_generators[torch.cuda.current_device()]
    before = numbers.clone_state()
    try:
        # Other threads (of a process group, of a data loader) may ask the GPU something meanwhile.
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            result = run()
    except RuntimeError:
        # After a recording that failed these numbers would be refused as being recorded still (torch 2.11).
        numbers.graphsafe_set_state(before)
        raise

    def replay() -> torch.Tensor:
        graph.replay()
        return result

    return replay
