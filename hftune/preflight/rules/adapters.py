"""Rules about adapters, freezing and added tokens, and about what they name of the model, looked up on its skeleton."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from peft import LoraConfig
from transformers import PreTrainedConfig, PreTrainedModel

from hftune.arguments.adapter import AdapterArguments
from hftune.arguments.model import GrowthArguments, ModelArguments
from hftune.arguments.training import StageArguments
from hftune.checkpoints.folder_checks import chain_problems
from hftune.checkpoints.manifest import read_manifest
from hftune.constants import TASK_TYPES
from hftune.distributed import zero
from hftune.errors import ArgumentError, ManifestError, UserError
from hftune.models.adapters.folding import read_lora_config
from hftune.models.adapters.freezing import plan_freezing
from hftune.models.adapters.lora_config import LINEAR, adapted_parameters, ends_with, lora_config
from hftune.models.adapters.new_token_rows import ADD_SOME, NO_NEW_TOKEN
from hftune.models.structure import head_of
from hftune.models.vocabulary import named_tokens, new_tokens
from hftune.preflight.facts import Facts
from hftune.preflight.memory import try_adapter
from hftune.preflight.model_folder import check_adapter_fits
from hftune.preflight.rules import raised, refused


def check_adapters(facts: Facts) -> Iterator[UserError]:
    """Problems of adapters and freezing; names are looked up only where the flags are consistent."""
    model_args, adapter_args, training_args = facts.model_args, facts.adapter_args, facts.training_args
    # What the flags say by themselves comes first: names are looked up on a skeleton, which takes a while.
    found: list[UserError] = list(refused("adapters", facts))
    for name in ("rank_pattern", "alpha_pattern"):
        found += raised(adapter_args.patterns, name)
    if adapter_args.use_peft:
        found += check_chain(model_args, adapter_args, training_args)
    if facts.config is not None:
        found += check_rope(facts.config, adapter_args)
    yield from found
    if not found:
        yield from check_names(facts)


def check_chain(
    model_args: ModelArguments, adapter_args: AdapterArguments, training_args: StageArguments
) -> Iterator[UserError]:
    """Problems of the adapters to continue or to fold: missing, of another base or order, or not fit for this stage."""
    folders = adapter_args.adapter_chain
    if not folders or not model_args.model_name_or_path:
        return
    for folder in folders:
        yield from check_adapter_fits(model_args.model_name_or_path, folder, flag="--peft_path")
    if not all((Path(folder) / "adapter_config.json").is_file() for folder in folders):
        return
    yield from chain_problems(folders, "--peft_path")
    # What is folded must be multiplied into whole weights; what is continued is laid upon packed ones as well.
    folded = folders if adapter_args.create_new_adapter else folders[:-1]
    if folded and adapter_args.quantised:
        yield ArgumentError(
            "a quantised base would be rounded again for every adapter that is folded into it",
            place="--peft_path, --load_in_4bit / --load_in_8bit",
            fix=f"merge {', '.join(folded)} first with merge_peft_adapter.py, and start from the result",
        )
    for folder in folders:
        yield from _check_config(folder, adapter_args, training_args, goes_on=folder not in folded)


def _check_config(
    folder: str, adapter_args: AdapterArguments, training_args: StageArguments, *, goes_on: bool
) -> Iterator[UserError]:
    try:
        config = read_lora_config(folder)
    except ArgumentError as problem:
        yield problem
        return
    if goes_on:
        yield from _check_continued(folder, config, adapter_args, training_args)
    # A folded head would replace the language model's own.
    elif config.task_type in ("SEQ_CLS", "TOKEN_CLS") and training_args.head == "causal_lm":
        yield ArgumentError(
            f"the adapter in {folder} has a score head, and this stage trains a model without one",
            place="--peft_path",
            fix="fold adapters of causal LMs only",
        )


def _check_continued(
    folder: str, config: LoraConfig, adapter_args: AdapterArguments, training_args: StageArguments
) -> Iterator[UserError]:
    """Problems of a continued adapter that lacks what this stage trains; peft would leave a new head as drawn."""
    wanted = training_args.head
    # Adapters of other tools name no task, and are of language models.
    has = next((head for head, task in TASK_TYPES.items() if task == config.task_type), "causal_lm")
    if wanted != has:
        heads = {"causal_lm": "no score head", "score": "a score head", "steps": "a head that scores steps"}
        yield ArgumentError(
            f"the adapter in {folder} has {heads[has]}"
            + (f", and {heads[wanted]} is trained here" if "causal_lm" not in (has, wanted) else ""),
            place="--peft_path",
            fix="add --create_new_adapter: it is folded into the base and a fresh one is trained",
        )
    saved = set(config.modules_to_save or [])
    more = [name for name in adapter_args.lora_modules_to_save or [] if name not in saved]
    if more or adapter_args.unfreezes:
        yield ArgumentError(
            f"the adapter that is continued trains {', '.join(sorted(saved)) or 'no modules'} in full, and no others",
            place="--peft_path, " + ("--lora_modules_to_save" if more else "--trainable_parameters"),
            fix="leave it out, or add --create_new_adapter",
        )


def check_rope(config: PreTrainedConfig, adapter_args: AdapterArguments) -> Iterator[UserError]:
    """Problems of adapters that were trained on other rotary positions than the model now has."""
    for folder in adapter_args.adapter_chain:
        recorded = (read_manifest(folder) or {}).get("rope")
        if recorded and recorded["rope_parameters"] != config.get_text_config().rope_parameters:
            yield ManifestError(
                f"the adapter in {folder} was trained with other rotary positions than the model now has",
                place="--rope_scaling",
                fix=f"give the same: --rope_scaling '{json.dumps(recorded['rope_parameters'])}'",
            )


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
    try:
        adapted, _ = try_adapter(model, config)
    except ArgumentError as problem:
        yield problem
        return
    # `all` makes peft adapt parameters as well in a mixture of experts.
    parameters = adapted_parameters(adapted)
    if parameters and adapter_args.init_lora_weights not in ("true", "gaussian"):
        yield ArgumentError(
            f"{parameters[0].removeprefix('base_model.model.')} is no module, and only modules can begin so",
            place=f"--init_lora_weights {adapter_args.init_lora_weights}",
            fix="leave the experts out: --exclude_modules experts; or use --init_lora_weights true or gaussian",
        )


def check_vocabulary(facts: Facts) -> Iterator[UserError]:
    """Problems of added tokens: unreadable, not trained, or unknown to the continued adapter."""
    model_args = facts.model_args
    yield from check_growth(model_args)
    yield from refused("vocabulary", facts)
    # Of a model on the Hub nothing is recorded about rows that were added.
    folder = model_args.model_name_or_path
    recorded = new_tokens(read_manifest(folder)) if Path(folder or "").is_dir() else None
    if facts.adapter_args.train_new_tokens_only and not (model_args.grows or recorded):
        yield ArgumentError(NO_NEW_TOKEN, place="--train_new_tokens_only", fix=ADD_SOME)


def check_growth(args: GrowthArguments) -> Iterator[UserError]:
    """Problems of the tokens that are named."""
    for value, flag in ((args.add_tokens, "--add_tokens"), (args.add_special_tokens, "--add_special_tokens")):
        yield from raised(named_tokens, value, flag)
