"""From what was asked to peft's config: which modules get an adapter, which are trained whole, and how it begins."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from peft.tuners.lora import ParamWrapper
from peft.utils import TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING
from peft.utils.transformers_weight_conversion import convert_peft_config_for_transformers
from transformers import Conv1D, PreTrainedModel

from hftune.arguments.adapter import AdapterArguments
from hftune.constants import TASK_TYPES
from hftune.errors import ArgumentError
from hftune.models.adapters.adaptable import unadaptable, without_effect
from hftune.models.adapters.folding import usable_quantisers
from hftune.models.adapters.freezing import compiled, modules_to_unfreeze
from hftune.models.adapters.new_token_rows import new_rows_with_lora
from hftune.models.structure import expert_count, head_of, is_within, other_parts, routers_of

LINEAR = (torch.nn.Linear, Conv1D)
ADAPTABLE = (*LINEAR, torch.nn.Embedding)


def lora_config(model: PreTrainedModel, adapter_args: AdapterArguments) -> LoraConfig:
    """The peft config for what was asked; a reward model's head is trained whole.

    `all` is every linear but the head and the routers of a mixture of experts, whose stacked experts count as linears.

    Only names and shapes of the model are read, so that a model on the meta device will do.

    Raises:
        ArgumentError: A module, parameter, layer or token that this model does not have.
    """
    to_save, targets = modules_to_save(model, adapter_args), target_modules(model, adapter_args)
    if isinstance(targets, list) and _share_a_matrix(model, targets):
        raise ArgumentError(
            "embeddings and head are one matrix, and low-rank changes of both could not be folded into it",
            place="--lora_target_modules / --target_regex",
            fix="train it whole with --lora_modules_to_save embed_tokens, or some rows with --trainable_token_indices",
        )
    with warnings.catch_warnings():
        # The warning is about beginnings that hftune does not offer.
        warnings.filterwarnings("ignore", message="Using Rank-Stabilized LoRA with rank_pattern")
        config = _config(model, adapter_args, targets, to_save)
    _check_patterns(model, config)
    return config


def _config(
    model: PreTrainedModel, adapter_args: AdapterArguments, targets: str | list[str], to_save: list[str]
) -> LoraConfig:
    return LoraConfig(
        r=adapter_args.lora_r,
        lora_alpha=adapter_args.lora_alpha,
        lora_dropout=adapter_args.lora_dropout,
        target_modules=targets,
        exclude_modules=_excluded(model, adapter_args.exclude_modules, every=targets == "all-linear"),
        target_parameters=target_parameters(model, adapter_args),
        modules_to_save=to_save or None,
        trainable_token_indices=new_rows_with_lora(
            model, to_save, _token_indices(model, adapter_args.trainable_token_indices)
        ),
        bias=_bias(model, adapter_args.lora_bias),
        use_rslora=adapter_args.use_rslora,
        use_dora=adapter_args.use_dora,
        init_lora_weights=True if adapter_args.init_lora_weights == "true" else adapter_args.init_lora_weights,
        rank_pattern=adapter_args.patterns("rank_pattern"),
        alpha_pattern=adapter_args.patterns("alpha_pattern"),
        # One matrix in training stays one matrix: without it the head would keep the old embeddings.
        ensure_weight_tying=_share_a_matrix(model, to_save),
        task_type=TASK_TYPES[head_of(model)],
    )


def inject(model: PreTrainedModel, config: LoraConfig, *, autocast_adapter_dtype: bool = True) -> PeftModel:
    """`get_peft_model`, without warnings about what hftune has checked or reports itself.

    Raises:
        ArgumentError: peft cannot adapt this model so.
    """
    with warnings.catch_warnings(), usable_quantisers():
        # `_check_patterns` has looked at them; for fused experts peft adds some that it then does not find (peft 0.21).
        warnings.filterwarnings("ignore", message="The following (rank|alpha)_pattern keys did not match")
        try:
            return get_peft_model(model, config, autocast_adapter_dtype=autocast_adapter_dtype)
        except (ValueError, TypeError, NotImplementedError) as error:
            raise ArgumentError(
                f"peft cannot make this adapter: {' '.join(str(error).split())[:300]}",
                place="--lora_target_modules, --target_regex, --lora_target_parameters, --lora_modules_to_save",
                fix="name other modules, as q_proj v_proj",
            ) from error


def adapted_parameters(model: torch.nn.Module) -> list[str]:
    """Names of the parameters that an adapter changes and that are no linear module: experts and routers."""
    return [
        name.replace(".base_layer", "") + "." + module.parameter_name
        for name, module in model.named_modules()
        if isinstance(module, ParamWrapper)
    ]


def target_modules(model: PreTrainedModel, args: AdapterArguments) -> str | list[str]:
    """What peft should adapt: "all-linear" or names.

    Raises:
        ArgumentError: A name or regex that this model does not have.
    """
    asked = args.lora_target_modules
    if args.target_regex is not None:
        chosen = _by_regex(model, args.target_regex)
        _refuse_without_effect(model, chosen, args.exclude_modules, "--target_regex")
        return chosen
    if asked == ["none"]:
        return []
    if asked == ["default"]:
        return _of_architecture(model)
    if asked in (["all"], ["all-linear"]):
        if not _takes_for_experts(model, every="all-linear"):
            return "all-linear"
        chosen = all_linear(model)
        of_experts = _takes_for_experts(model, every=[name.rsplit(".", 1)[-1] for name in chosen])
        return _shortened(model, [name for name in chosen if name.rsplit(".", 1)[-1] not in of_experts])
    chosen = _known(model, asked, "--lora_target_modules", ADAPTABLE)
    _refuse_without_effect(model, chosen, args.exclude_modules, "--lora_target_modules")
    return asked


def _takes_for_experts(model: PreTrainedModel, *, every: str | list[str]) -> set[str]:
    """Those of target names for which peft would adapt stacked experts or routers, and no module of that name.

    They were modules once (transformers 4), and peft 0.21 goes by their names of then.
    """
    config = LoraConfig(target_modules=every)
    convert_peft_config_for_transformers(config, model, None)
    left = config.target_modules or ()
    return set() if left == every else {*([every] if isinstance(every, str) else every)} - {*left}


def _refuse_without_effect(model: PreTrainedModel, chosen: list[str], excluded: list[str] | None, flag: str) -> None:
    """Refuse modules that were named, and that no adapter can change.

    Raises:
        ArgumentError: With the first one's name.
    """
    causes = without_effect(model)
    meant = [name for name in chosen if name in causes and not any(ends_with(name, out) for out in excluded or [])]
    if meant:
        raise ArgumentError(
            f"{meant[0]} cannot be adapted: {causes[meant[0]]}",
            place=flag,
            fix=f"leave it out: --exclude_modules {' '.join(_shortened(model, meant))}",
        )


def _of_architecture(model: PreTrainedModel) -> list[str]:
    """The modules that peft adapts in models of this type where none are named.

    Raises:
        ArgumentError: peft knows none for it.
    """
    types = [config.model_type for config in (model.config, model.config.get_text_config(decoder=True))]
    known = next(filter(None, map(TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING.get, types)), None)
    if not known:
        raise ArgumentError(
            f"peft has no modules of its own choice for models of type {model.config.model_type}",
            place="--lora_target_modules default",
            fix="use all, or name some",
        )
    return _known(model, known, "--lora_target_modules", ADAPTABLE)


def excluded_modules(model: PreTrainedModel, asked: list[str] | None, *, every: bool) -> list[str] | None:
    """Names of `--exclude_modules`, each of which must be there; of `all` also those that no adapter can change."""
    if asked:
        _known(model, asked, "--exclude_modules", torch.nn.Module)
    left_out = [*unadaptable(model), *_linear_routers(model)] if every else []
    return [*(asked or []), *_shortened(model, left_out)] or None


def _excluded(model: PreTrainedModel, asked: list[str] | None, *, every: bool) -> list[str] | str | None:
    """`excluded_modules`; of a model of several parts as peft's regex, which other parts with all below them are in."""
    names, parts = excluded_modules(model, asked, every=every), other_parts(model)
    if not parts:
        return names
    ends = [rf"(.*\.)?{re.escape(name)}" for name in names or []]
    return "|".join([*ends, *(rf"{re.escape(part)}(\..*)?" for part in parts)])


def _shortened(model: PreTrainedModel, names: list[str]) -> list[str]:
    """Names below a layer for all layers at once, where these mean the same modules."""
    meant: list[str] = []
    for short in dict.fromkeys(map(_below_layer, names)):
        whole = [name for name in names if _below_layer(name) == short]
        found = [name for name, _ in model.named_modules() if ends_with(name, short)]
        meant += [short] if set(found) <= set(names) else whole
    return meant


def target_parameters(model: PreTrainedModel, args: AdapterArguments) -> list[str] | None:
    """Names of `--lora_target_parameters`, and of `all` the experts: (experts, in, out) or (experts, out, in)."""
    asked = args.lora_target_parameters or []
    for wanted in asked:
        found = {name: parameter for name, parameter in model.named_parameters() if ends_with(name, wanted)}
        if not found or any(len(_shape(parameter)) not in (2, 3) for parameter in found.values()):
            stacked = sorted({_below_layer(name) for name in experts(model)})
            raise ArgumentError(
                f"the model has no parameter {wanted} of 2 or 3 dimensions",
                place="--lora_target_parameters",
                fix="name experts: " + ", ".join(stacked) if stacked else "use --lora_target_modules",
            )
    return list(dict.fromkeys([*asked, *_experts_of_all(model, args)])) or None


def _experts_of_all(model: PreTrainedModel, args: AdapterArguments) -> list[str]:
    """The stacked experts that `all` adapts, by names below a layer.

    Raises:
        ArgumentError: An option that peft has for modules alone.
    """
    if args.target_regex is not None or args.lora_target_modules not in (["all"], ["all-linear"]):
        return []
    owners = {name: name.rpartition(".")[0] for name in experts(model)}
    meant = [name for name, owner in owners.items() if not any(ends_with(owner, o) for o in args.exclude_modules or [])]
    plain = {"lora_dropout": 0.0, "use_dora": False}
    odd = [f"--{name}" for name, value in plain.items() if getattr(args, name) != value]
    if meant and odd:
        raise ArgumentError(
            "adapters of stacked experts have neither DoRA nor dropout",
            place=", ".join(odd),
            fix="leave it out, or leave the experts out: --exclude_modules "
            + " ".join(sorted({owners[name].rsplit(".", 1)[-1] for name in meant})),
        )
    return list(dict.fromkeys(map(_below_layer, meant)))


def modules_to_save(model: PreTrainedModel, args: AdapterArguments) -> list[str]:
    """Modules trained in full and saved with the adapter: those asked for, a reward head, and unfrozen ones."""
    asked = list(args.lora_modules_to_save or [])
    if hasattr(model, "score") and "score" not in asked:
        asked.append("score")
    every = [name for name, _ in model.named_modules(remove_duplicate=False)]
    names: list[str] = []
    for wanted in asked:
        meant = _known(model, [wanted], "--lora_modules_to_save", torch.nn.Module)
        # peft compares the ends of names: `norm` would also be every `input_layernorm`. A short name that would catch
        # others becomes the whole names of the modules that it means.
        catches = [name for name in every if name.endswith(wanted)]
        names += [wanted] if catches == meant else meant
    return list(dict.fromkeys([*names, *modules_to_unfreeze(model, args)]))


def _share_a_matrix(model: PreTrainedModel, names: list[str]) -> bool:
    """Whether an embedding or a head that is one matrix with the other is among the modules."""
    # Looked at in the config: on the meta device tied weights may be two tensors.
    tied = bool(getattr(model.config.get_text_config(), "tie_word_embeddings", False))
    ends = {id(model.get_input_embeddings()), id(model.get_output_embeddings())}
    meant = [id(module) for name, module in model.named_modules() if any(ends_with(name, wanted) for wanted in names)]
    return tied and not ends.isdisjoint(meant)


def experts(model: PreTrainedModel) -> list[str]:
    """Names of parameters that stack the experts of a mixture: three dimensions, the first one the expert."""
    count = expert_count(model.config)
    every = ((name, _shape(parameter)) for name, parameter in model.named_parameters())
    return [name for name, shape in every if len(shape) == 3 and count > 1 and shape[0] == count]


def ends_with(name: str, wanted: str) -> bool:
    """Whether `wanted` is the name, or its last parts."""
    return name == wanted or name.endswith(f".{wanted}")


def _shape(parameter: torch.Tensor) -> tuple[int, ...]:
    return tuple(getattr(parameter, "ds_shape", parameter.shape))


def _known(model: PreTrainedModel, asked: Iterable[str], flag: str, kind: Any) -> list[str]:
    """Whole names of the modules that are meant; each name must mean one at least."""
    modules = [(name, module) for name, module in model.named_modules(remove_duplicate=False) if name]
    meant, missing = [], []
    for wanted in asked:
        found = [name for name, module in modules if ends_with(name, wanted) and isinstance(module, kind)]
        meant += found
        missing += [] if found else [wanted]
    if missing:
        leaves = {name.rsplit(".", 1)[-1] for name, module in modules if isinstance(module, ADAPTABLE)}
        raise ArgumentError(
            f"the model has no module {', '.join(missing)}",
            place=flag,
            fix="use "
            + ("all, or " if flag == "--lora_target_modules" else "")
            + "some of: "
            + ", ".join(sorted(leaves)),
        )
    return meant


def _by_regex(model: PreTrainedModel, regex: str) -> list[str]:
    """Modules that can be adapted and whose whole name matches, as peft and Megatron-SWIFT match a regex."""
    pattern = compiled(regex, "--target_regex")
    chosen = [
        name for name, module in model.named_modules() if isinstance(module, ADAPTABLE) and pattern.fullmatch(name)
    ]
    if not chosen:
        linear = [name for name, module in model.named_modules() if isinstance(module, LINEAR)]
        raise ArgumentError(
            f"no linear module or embedding has a name that {regex!r} matches as a whole",
            place="--target_regex",
            fix=f"names look like {linear[0]}, {linear[-1]}" if linear else "use --lora_target_modules all",
        )
    return chosen


def all_linear(model: PreTrainedModel) -> list[str]:
    """Names of the linear modules that `all` adapts: not the head, no router, none that no adapter can change."""
    head = {id(model.get_output_embeddings()), id(getattr(model, "score", None))}
    left_out = {*unadaptable(model), *_linear_routers(model)}
    others = other_parts(model)
    linear = [(name, module) for name, module in model.named_modules() if isinstance(module, LINEAR)]
    return [
        name
        for name, module in linear
        if id(module) not in head and name not in left_out and not is_within(name, others)
    ]


def _linear_routers(model: PreTrainedModel) -> list[str]:
    """Names of routers that are linear modules: which experts see a token is changed only where it is asked for."""
    routers = {id(part) for router in routers_of(model) for part in router.modules()}
    return [name for name, module in model.named_modules() if isinstance(module, LINEAR) and id(module) in routers]


def _below_layer(name: str) -> str:
    return re.sub(r"^.*?\.\d+\.", "", name)


def _token_indices(model: PreTrainedModel, asked: list[int] | None) -> list[int] | None:
    rows = _shape(model.get_input_embeddings().weight)[0]
    wrong = [index for index in asked or [] if not 0 <= index < rows]
    if wrong:
        raise ArgumentError(
            f"{wrong[0]} is no token id of a model with {rows} embeddings",
            place="--trainable_token_indices",
            fix=f"give ids from 0 to {rows - 1}",
        )
    return sorted(set(asked)) if asked else None


def _bias(model: PreTrainedModel, asked: str) -> str:
    if asked != "none" and not any(name.endswith(".bias") for name, _ in model.named_parameters()):
        raise ArgumentError("the model has no biases to train", place=f"--lora_bias {asked}", fix="leave it out")
    return asked


def _check_patterns(model: PreTrainedModel, config: LoraConfig) -> None:
    """Refuse a pattern that means no module, which peft passes over in silence."""
    names = [name for name, _ in (*model.named_modules(), *model.named_parameters())]
    for flag, patterns in (("--rank_pattern", config.rank_pattern), ("--alpha_pattern", config.alpha_pattern)):
        for key in patterns:
            # As peft looks patterns up (`get_pattern_key`).
            pattern = compiled(rf"(.*\.)?({key})$", flag)
            if not any(pattern.match(name) for name in names):
                raise ArgumentError(f"{key!r} matches no module", place=flag, fix="name modules as in the target flags")
