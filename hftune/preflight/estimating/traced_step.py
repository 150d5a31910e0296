"""Traces a step of a choice, for `hftune plan` and `--activation_checkpointing auto`; a plain run has no need of it."""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Iterator
from typing import Any

import torch

from hftune.arguments.adapter import AdapterArguments
from hftune.constants import TASK_TYPES
from hftune.distributed import zero
from hftune.errors import ArgumentError
from hftune.models.adapters.folding import read_lora_config
from hftune.models.adapters.freezing import plan_freezing
from hftune.models.adapters.lora_config import inject, lora_config
from hftune.models.kernels.fused_lora import fuse_lora
from hftune.models.kernels.tiling import longest_batch, tile_mlps, tiles_for
from hftune.models.miniature import Miniature, cut_down, materialise
from hftune.models.structure import checkpointed_layers, head_of
from hftune.preflight.estimating.planner import Choice, Planner, Untraceable
from hftune.preflight.estimating.profiles import Batch, Profile, marks
from hftune.preflight.estimating.stand_ins import COUNTED, count_attention, experts_counted
from hftune.preflight.estimating.tracing import goes_token_by_token, switch_on, trace, trace_without_gradients
from hftune.preflight.estimating.work import FULL_LOGITS, Numerics

MOST_TILES = 16
"""Pieces of an MLP that are traced, which takes a while for each; with more, a piece takes less than that."""


def traced_step(planner: Planner, choice: Choice, numerics: Numerics, batch: Batch) -> tuple[Profile, int]:
    """A `Tracer`: one step through one layer of each kind, under attention and recomputation as the run has them."""
    # Slow to import, and no run needs it that traces nothing.
    from torch._subclasses.fake_tensor import FakeTensorMode

    miniature, marked = _miniature(planner, choice)
    count_attention(shared=choice.mesh.sequence > 1)
    # Both traces run inside: tensors of one fake mode cannot meet those of another.
    with quiet(), FakeTensorMode():
        _ready(planner, miniature, marked, choice, numerics)
        with experts_counted(miniature.model):
            model, autocast = miniature, numerics.autocast
            profile = trace(model, batch, autocast, with_loss=choice.work.head == FULL_LOGITS)
            return profile, trace_without_gradients(model, batch, autocast) if choice.work.reference else 0


def _miniature(planner: Planner, choice: Choice) -> tuple[Miniature, list[bool]]:
    found = checkpointed_layers(planner.bare)
    if found is None:
        raise Untraceable("its layers are not of transformers' make")
    if goes_token_by_token(planner.bare):
        raise Untraceable("its layers pass a state from token to token, of which each is as many operations")
    # Marks first: they are part of what makes two layers alike, so that a layer of the miniature stands for
    # recomputed ones or for others, never both.
    marked = marks(choice.recompute, len(getattr(*found)))
    freezes = choice.adapter.freezes and not choice.adapter.use_peft
    chosen = plan_freezing(planner.bare, choice.adapter) if freezes else None
    miniature = cut_down(planner.bare, chosen, marked)
    assert miniature is not None
    if choice.adapter.use_peft:
        miniature.model = _adapted(miniature, choice.adapter)
        if _fuses(planner, choice):
            fuse_lora(miniature.model)
    if planner.training_args.tiled_mlp:
        # After the adapter: tiling wraps the MLPs' forward, LoRA included.
        tokens = longest_batch(planner.training_args, choice.work.tokens)
        plain = miniature.model.get_base_model() if choice.adapter.use_peft else miniature.model
        tile_mlps(plain, min(MOST_TILES, tiles_for(tokens, planner.bare.config.get_text_config().hidden_size)))
    return miniature, marked


def _ready(planner: Planner, miniature: Miniature, marked: list[bool], choice: Choice, numerics: Numerics) -> None:
    """Give the miniature tensors without data, and attention and recomputation as the run will have them."""
    materialise(miniature.model, numerics.of(miniature.model))
    # Only eager and masked SDPA make tensors of tokens by tokens; `COUNTED` stands for all other kinds.
    attention = "eager" if planner.attention == "eager" else "sdpa" if choice.work.masked else COUNTED
    for module in miniature.model.modules():
        if hasattr(module, "config"):
            module.config._attn_implementation = attention
        if hasattr(module, "rope_type"):
            # Others look at positions, which have no values here. Some models have a kind for each kind of layer.
            several = isinstance(module.rope_type, dict)
            module.rope_type = dict.fromkeys(module.rope_type, "default") if several else "default"
    # Before recomputing: checkpoints act, and dropout keeps its masks, in training mode alone.
    miniature.model.train()
    switch_on(miniature, choice.recompute, marked, reentrant=planner.older_checkpoint(choice))


def _fuses(planner: Planner, choice: Choice) -> bool:
    """Whether the run would fuse LoRA: the rule of `models/adapters.fuses_lora`, for a choice."""
    wanted = choice.adapter.fused_lora is not False and not planner.training_args.torch_compile
    return wanted and choice.setup.zero_stage != 3


def _adapted(miniature: Miniature, adapter_args: AdapterArguments) -> Any:
    if adapter_args.continued_adapter:
        config = read_lora_config(adapter_args.continued_adapter)
        config.task_type = TASK_TYPES[head_of(miniature.model)]  # where it is another, the run is refused elsewhere
    else:
        # Layers have other numbers in the miniature; an adapter of some layers is planned as one of all.
        config = lora_config(miniature.model, adapter_args)
    # Initialisers read values (an orthogonal one is made by QR), and the meta device has none.
    config.init_lora_weights = False
    miniature.model.requires_grad_(False)
    with torch.device("meta"), zero.no_partitioning(), quiet():
        try:
            return inject(miniature.model, config, autocast_adapter_dtype=False)
        except ArgumentError as problem:
            # It is refused where the adapter is loaded.
            raise Untraceable(problem.cause[:200]) from problem


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silence, in the block, warnings about a model that is not trained and operators tried without data."""
    # It logs each operator that fails without data as an error, also those whose failure `Untraceable` handles.
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
