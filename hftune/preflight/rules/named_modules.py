"""Rules about modules and parameters that flags name, looked up on the model's skeleton."""

from __future__ import annotations

import copy
import re
import warnings
from collections.abc import Iterator

import torch
from peft import LoraConfig
from transformers import PreTrainedModel

from hftune.arguments.adapter import AdapterArguments
from hftune.distributed import zero
from hftune.errors import ArgumentError, UserError
from hftune.models.adapters.freezing import plan_freezing
from hftune.models.adapters.lora_config import LINEAR, adapted_parameters, ends_with, inject, lora_config
from hftune.models.blocks import checkpointed_layers
from hftune.models.heads import head_of
from hftune.models.miniature import Miniature, cut_down
from hftune.preflight.facts import Facts
from hftune.preflight.sizes import adapter_key, note_adapter, trained_parameters


def check_names(facts: Facts) -> Iterator[UserError]:
    """Problems of modules, parameters, layers and tokens that the model lacks, or that peft cannot adapt together.

    A model whose skeleton cannot be made is asked when it has loaded, by the same functions.
    """
    adapter_args = facts.adapter_args
    fresh = adapter_args.use_peft and adapter_args.continued_adapter is None
    if not fresh and not (adapter_args.freezes and not adapter_args.use_peft):
        return
    model = facts.skeleton
    # A head of another name is refused with the model (`rules/model.py`), and peft takes it for one that generates.
    if model is None or (facts.training_args.scores and head_of(model) == "causal_lm"):
        return
    try:
        with zero.no_partitioning():
            if fresh:
                yield from list(_try_adapter(model, adapter_args))
            else:
                plan_freezing(model, adapter_args)
    except UserError as problem:
        yield problem


def _try_adapter(model: PreTrainedModel, adapter_args: AdapterArguments) -> Iterator[UserError]:
    """Problems of putting the adapter into a copy of the skeleton: peft refuses here what it would refuse later."""
    config = lora_config(model, adapter_args)
    head = model.get_output_embeddings()
    whole = [
        name
        for name, module in model.named_modules()
        if isinstance(module, LINEAR) and module is not head and not ends_with(name, "score")
        if any(ends_with(name, wanted) for wanted in config.modules_to_save or [])
    ]
    # peft would copy the packed matrix, whose bytes have no gradient.
    if whole and adapter_args.quantised:
        yield ArgumentError(
            f"{whole[0]} is quantised and cannot be trained in full",
            place="--lora_modules_to_save / --trainable_parameters",
            fix="name embeddings, norms or the head, or leave the base unquantised",
        )
        return
    config.init_lora_weights = True  # the factors are nothing to look at here
    # Before the adapter is made: its key is of the model without it.
    key, small = adapter_key(model, config), _in_small(model, config)
    try:
        with warnings.catch_warnings(), torch.device("meta"):
            warnings.simplefilter("ignore")
            adapted = inject(small.model if small else copy.deepcopy(model), config)
    except (ValueError, TypeError, NotImplementedError) as error:
        yield ArgumentError(
            f"peft cannot make this adapter: {' '.join(str(error).split())[:300]}",
            place="--lora_target_modules, --target_regex, --lora_target_parameters, --lora_modules_to_save",
            fix="name other modules",
        )
        return
    note_adapter(key, trained_parameters(adapted) + (small.added_by_others(trained_parameters) if small else 0))
    # `all` makes peft adapt parameters as well in a mixture of experts.
    parameters = adapted_parameters(adapted)
    if parameters and adapter_args.init_lora_weights not in ("true", "gaussian"):
        yield ArgumentError(
            f"{parameters[0].removeprefix('base_model.model.')} is no module, and only modules can begin so",
            place=f"--init_lora_weights {adapter_args.init_lora_weights}",
            fix="leave the experts out: --exclude_modules experts; or use --init_lora_weights true or gaussian",
        )


def _in_small(model: PreTrainedModel, config: LoraConfig) -> Miniature | None:
    """The model with one layer of each kind, where the adapter treats all alike: peft takes 1 ms a module."""
    named = (config.target_modules, config.exclude_modules, config.target_parameters, config.modules_to_save)
    words = [name for names in named for name in ([names] if isinstance(names, str) else names or [])]
    regex = isinstance(config.target_modules, str) and config.target_modules != "all-linear"
    layers = checkpointed_layers(model)
    # Patterns and numbers may mean certain layers, and the small model has one of each kind.
    if layers is None or regex or config.rank_pattern or config.alpha_pattern or re.search(r"\d", " ".join(words)):
        return None
    return cut_down(model, None, [None] * len(getattr(*layers)))
