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
from hftune.models.adapters.preparation import fuses_lora
from hftune.models.structure import head_of
from hftune.models.vocabulary import named_tokens, new_tokens
from hftune.preflight.facts import Facts
from hftune.preflight.memory import try_adapter
from hftune.preflight.model_folder import check_adapter_fits
from hftune.preflight.rules import Clashes, clashes, raised

_BEGINNINGS = "true, gaussian, orthogonal or mica"
# peft also knows beginnings that are computed from data or gradients before training.
_NEED_DATA = ("eva", "corda", "lora_ga", "loftq")


def check_adapters(facts: Facts) -> Iterator[UserError]:
    """Problems of adapters and freezing; names are looked up only where the flags are consistent."""
    model_args, adapter_args, training_args = facts.model_args, facts.adapter_args, facts.training_args
    # What the flags say by themselves comes first: names are looked up on a skeleton, which takes a while.
    found = list(check_freezing_flags(adapter_args))
    for name in ("rank_pattern", "alpha_pattern"):
        found += raised(adapter_args.patterns, name)
    if adapter_args.use_peft:
        found += [
            *check_init(adapter_args),
            *check_lora_variants(adapter_args, training_args),
            *check_fused(adapter_args, training_args),
            *check_reference(adapter_args, training_args),
            *check_chain(model_args, adapter_args, training_args),
        ]
    if facts.config is not None:
        found += check_rope(facts.config, adapter_args)
    yield from found
    if not found:
        yield from check_names(facts)


def check_init(adapter_args: AdapterArguments) -> Iterator[UserError]:
    """Problems of `--init_lora_weights`: not known to peft, or not possible with this base and these modules."""
    init, args = adapter_args.init_lora_weights, adapter_args
    flag = f"--init_lora_weights {init}"
    # peft takes them from a pass over data, which none of hftune's loaders makes before the adapter is there.
    if init in _NEED_DATA:
        yield ArgumentError("this beginning needs a pass over data first", place=flag, fix=f"use {_BEGINNINGS}")
    elif init.startswith(("pissa", "olora")):
        cause = "an adapter that begins with a part of the base fits a changed base alone"
        yield ArgumentError(cause, place=flag, fix=f"use {_BEGINNINGS}; or train it with peft")
    elif init not in ("true", "gaussian", "orthogonal", "mica"):
        yield ArgumentError("this beginning is not known", place=flag, fix=f"use {_BEGINNINGS}")
    packed = "--load_in_4bit / --load_in_8bit"
    others: Clashes = {
        "--lora_target_parameters": (
            init not in ("true", "gaussian") and args.lora_target_parameters,
            "only modules can begin so, not parameters; true and gaussian do",
        ),
        "--use_dora": (init == "mica" and args.use_dora, "peft has no such pair"),
    }
    if init in ("orthogonal", "mica"):
        others[packed] = (args.quantised, "peft (0.21) computes it in the dtype of the weights, which are packed")
    yield from clashes(flag, others)
    # peft takes one half of an orthogonal matrix for A and the other for B.
    ranks = {args.lora_r, *_values(args, "rank_pattern")}
    if init == "orthogonal" and any(rank % 2 for rank in ranks):
        yield ArgumentError("its rank must be even", place=f"{flag}, --lora_r", fix="use an even --lora_r")


def check_lora_variants(adapter_args: AdapterArguments, training_args: StageArguments) -> Iterator[UserError]:
    """Problems of DoRA, dropout and adapted parameters that peft cannot combine."""
    args, modules, on_cpu = adapter_args, adapter_args.lora_target_modules, training_args.use_cpu
    neither = "adapters of parameters have neither DoRA nor dropout"
    parameters: Clashes = {"--use_dora": (args.use_dora, neither), "--lora_dropout": (args.lora_dropout, neither)}
    if args.lora_target_parameters:
        yield from clashes("--lora_target_parameters", parameters)
    elif modules == ["none"]:  # for adapters of parameters alone
        fix = "name --lora_target_parameters, or use all"
        yield ArgumentError("nothing is adapted", place="--lora_target_modules none", fix=fix)
    if args.target_regex is not None and modules != ["all"]:
        yield ArgumentError("modules are named twice", place="--target_regex, --lora_target_modules", fix="choose one")
    dora: Clashes = {
        "--load_in_8bit": (
            args.load_in_8bit and on_cpu,
            "it reads the weights of its base, and loses the scales of 8-bit ones on a CPU (peft 0.21)",
        ),
        "--load_in_4bit": (
            args.load_in_4bit and training_args.zero_stage == 3 and on_cpu,
            "peft puts 4-bit weights anew in each pass of DoRA on a CPU, and ZeRO-3 loses track of them (peft 0.21)",
        ),
    }
    if args.use_dora:
        yield from clashes("--use_dora", dora)


def check_fused(adapter_args: AdapterArguments, training_args: StageArguments) -> Iterator[UserError]:
    """A problem where fused LoRA was asked for and is not possible."""
    if adapter_args.fused_lora and not fuses_lora(adapter_args, training_args):
        which = "ZeRO-3 gathers weights" if training_args.zero_stage == 3 else "torch.compile sees operators"
        yield ArgumentError(
            f"{which} module by module, and fused LoRA layers do not call theirs",
            place="--fused_lora True",
            fix="leave it out",
        )


def check_freezing_flags(adapter_args: AdapterArguments) -> Iterator[UserError]:
    """Problems of flags that freeze parts, or train more of them."""
    if adapter_args.use_peft and adapter_args.freezes:
        yield ArgumentError(
            "the base of an adapter is frozen as a whole",
            place="--freeze_*, --use_peft",
            fix="adapt fewer modules with --exclude_modules or --target_regex, or train without an adapter",
        )
    if adapter_args.unfreezes and not adapter_args.use_peft and not adapter_args.freezes:
        yield ArgumentError(
            "everything is trained already",
            place="--trainable_parameters / --trainable_parameters_regex",
            fix="add --freeze_parameters_ratio 1 to train nothing else",
        )


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


def check_reference(adapter_args: AdapterArguments, training_args: StageArguments) -> Iterator[UserError]:
    """A problem where the adapter trains biases of the base: the reference of DPO and RL shares them."""
    # Log-probabilities that were computed before training are those of the untouched base.
    precomputed = getattr(training_args, "precompute_ref_log_probs", None)
    compares = getattr(training_args, "beta", 0) and not precomputed
    if adapter_args.use_peft and adapter_args.lora_bias != "none" and compares:
        can = hasattr(training_args, "precompute_ref_log_probs")
        yield ArgumentError(
            "the reference would be trained as well: it shares the biases of the base",
            place=f"--lora_bias {adapter_args.lora_bias}",
            fix="use --lora_bias none" + (", or --precompute_ref_log_probs" if can else ""),
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


def _values(adapter_args: AdapterArguments, name: str) -> list[int]:
    try:
        return list(adapter_args.patterns(name).values())
    except ArgumentError:
        return []  # said by `check_adapters`


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
    except (ValueError, TypeError, NotImplementedError) as error:
        yield ArgumentError(
            f"peft cannot make this adapter: {' '.join(str(error).split())[:300]}",
            place="--lora_target_modules, --target_regex, --lora_target_parameters, --lora_modules_to_save",
            fix="name other modules",
        )
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
    model_args, adapter_args = facts.model_args, facts.adapter_args
    yield from check_growth(model_args)
    yield from _new_rows_problems(model_args, adapter_args)
    yield from _continued_problems(model_args, adapter_args)
    if model_args.grows and facts.stage == "rl" and not adapter_args.use_peft:
        yield ArgumentError(
            "the reference model, which is loaded from the same folder, would not have the new tokens",
            place="--add_tokens / --resize_vocab / --pad_vocab_to_multiple_of",
            fix="grow the model before: with run_pt.py or run_sft.py",
        )


def check_growth(args: GrowthArguments) -> Iterator[UserError]:
    """Problems of the tokens that are named."""
    for value, flag in ((args.add_tokens, "--add_tokens"), (args.add_special_tokens, "--add_special_tokens")):
        yield from raised(named_tokens, value, flag)


def _new_rows_problems(model_args: ModelArguments, adapter_args: AdapterArguments) -> Iterator[UserError]:
    if not adapter_args.train_new_tokens_only:
        return
    if adapter_args.peft_path:
        yield ArgumentError(
            "an adapter that is continued trains what it has trained before",
            place="--peft_path, --train_new_tokens_only",
            fix="leave one of them out",
        )
    folder = model_args.model_name_or_path
    # Of a model on the Hub nothing is recorded about rows that were added.
    local = Path(folder or "").is_dir()
    if not model_args.grows and not (local and new_tokens(read_manifest(folder))):
        yield ArgumentError(NO_NEW_TOKEN, place="--train_new_tokens_only", fix=ADD_SOME)


def _continued_problems(model_args: ModelArguments, adapter_args: AdapterArguments) -> Iterator[UserError]:
    path = adapter_args.peft_path
    if not path or not model_args.grows:
        return
    yield ArgumentError(
        f"the adapter in {path} was trained without these rows, and would not train them",
        place="--add_tokens / --resize_vocab / --pad_vocab_to_multiple_of",
        fix=f"merge it first (python merge_peft_adapter.py --peft_model_path {path} --output_dir MERGED), then add "
        "them to the merged model",
    )
