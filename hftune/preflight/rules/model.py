"""Rules about the model and how it is built, looked up on its config and on a copy without weights."""

from __future__ import annotations

from collections.abc import Iterator

from transformers import PreTrainedConfig, PreTrainedModel
from transformers.modeling_layers import GenericForTokenClassification

from hftune.arguments.adapter import AdapterArguments
from hftune.arguments.model import ModelArguments
from hftune.arguments.stage_table import base_stage
from hftune.arguments.training import StageArguments
from hftune.errors import ArgumentError, UserError
from hftune.logging import notice
from hftune.models.classes import NOT_TRAINED, causal_class, reward_class
from hftune.models.kernels.activation_checkpointing import not_recomputable
from hftune.models.kernels.dropout import find_dropouts, outside_config
from hftune.models.kernels.tiling import tileable
from hftune.models.loading.config import row_length
from hftune.models.loading.stored_weights import check_stored
from hftune.models.structure import head_of, is_mixture, router_shares
from hftune.preflight.facts import Facts
from hftune.preflight.memory import packed_linears
from hftune.preflight.rules import raised, refused


def check_model(facts: Facts) -> Iterator[UserError]:
    """Problems of the model: of its config, and of the parts, weights and memory of its skeleton."""
    model_args, adapter_args, training_args = facts.model_args, facts.adapter_args, facts.training_args
    yield from refused("model", facts)
    config = facts.config
    if config is None:
        return
    if config.model_type in NOT_TRAINED:
        yield ArgumentError(
            f"{config.model_type} is an encoder, a part of an encoder-decoder or a model with old ways of its own",
            place="--model_name_or_path",
            fix="take a decoder: Llama, Qwen, Mistral, ... (docs/models.md)",
        )
        return
    say_context(config, training_args)
    yield from check_experts(config, model_args)
    yield from check_router_losses(config, adapter_args, training_args)
    # Code that comes with a model is not run to look at it.
    if facts.model_class is None:
        notice("the model's code comes with it: its memory and its parts are not checked before it is loaded")
        return
    # Without a class there is no skeleton: parts, weights and memory cannot be looked at.
    if training_args.scores and not _has_score_head(config, facts.skeleton, steps=training_args.head == "steps"):
        yield ArgumentError(
            f"transformers has no {config.model_type} model with a score head"
            + (" for steps" if training_args.head == "steps" else ""),
            place="--model_name_or_path",
            fix="train the reward model on another base (Llama, Qwen, Mistral, Gemma, GLM, DeepSeek, ...): it reads "
            "the policy's text, so the two need not be alike",
        )
    elif facts.skeleton is not None:
        yield from _of_skeleton(facts, facts.skeleton)


def _of_skeleton(facts: Facts, bare: PreTrainedModel) -> Iterator[UserError]:
    """Problems of weights, places of dropout, layers to recompute and memory."""
    model_args, training_args = facts.model_args, facts.training_args
    # Weights that are drawn are not read from the folder, which may hold none.
    if not model_args.from_config:
        name, scores = model_args.model_name_or_path, training_args.scores
        yield from raised(check_stored, bare, name, flag="--model_name_or_path", scores=scores)
    if dropouts := outside_config(bare.config, training_args):
        yield from raised(find_dropouts, bare, dropouts)
    plan = training_args.recomputation
    if plan and (problem := not_recomputable(bare, plan)):
        yield problem
    if facts.adapter_args.quantised:
        _say_packed(bare)
    # The estimator, which nothing else of a run asks.
    from hftune.preflight.run_memory import check_memory

    yield from check_memory(facts)


def _has_score_head(config: PreTrainedConfig, bare: PreTrainedModel | None, *, steps: bool) -> bool:
    """Whether transformers has a model of this architecture with the score head; one of another name is none."""
    found = reward_class(config, steps=steps)
    if found is None or (steps and not issubclass(found, GenericForTokenClassification)):
        return False
    return bare is None or head_of(bare) != "causal_lm"


def say_context(config: PreTrainedConfig, training_args: StageArguments) -> None:
    """Say that rows may be longer than what the model was made for; where none is, the limit does no harm."""
    # As `--rope_scaling` has stretched it.
    context = getattr(config.get_text_config(), "max_position_embeddings", None)
    rows = row_length(training_args)
    if isinstance(context, int) and rows is not None and rows > context > 0:
        notice(
            f"rows of up to {rows} tokens are let through, and the model was made for {context} "
            "(max_position_embeddings): what a longer row holds behind them is at positions that it does not know; "
            "lower the limit, or see --rope_scaling"
        )


def check_experts(config: PreTrainedConfig, model_args: ModelArguments) -> Iterator[UserError]:
    """A problem where `--experts_implementation` is not for this model."""
    model_class, place = causal_class(config), "--experts_implementation"
    if model_args.experts_implementation is None:
        return
    if not is_mixture(config):
        yield ArgumentError(f"{config.model_type} is no mixture of experts", place=place, fix="leave it out")
    elif model_class is None or not model_class._can_set_experts_implementation():
        cause = f"{config.model_type} computes its experts in its own way"
        yield ArgumentError(cause, place=place, fix="leave it out")


def check_router_losses(
    config: PreTrainedConfig, adapter_args: AdapterArguments, training_args: StageArguments
) -> Iterator[UserError]:
    """Problems of losses of routers: no router, unknown scores, or no gradient through them."""
    place = "--router_aux_loss_coef / --moe_z_loss_coef"
    if not (training_args.router_aux_loss_coef or training_args.moe_z_loss_coef):
        return
    if not is_mixture(config):
        yield ArgumentError(f"{config.model_type} is no mixture of experts", place=place, fix="leave both out")
    elif router_shares(config) is None:
        yield ArgumentError(
            f"how the routers of {config.model_type} score experts is not known to hftune",
            place=place,
            fix="leave both out: the experts are trained by the loss of the tokens alone",
        )
    elif recomputes_reentrantly(adapter_args, training_args):
        yield ArgumentError(
            "reentrant checkpointing, which adapters need under ZeRO-3, gives routers no gradient of their own losses",
            place=place,
            fix="add --gradient_checkpointing False, use ZeRO-2, or set both to 0",
        )


def recomputes_reentrantly(adapter_args: AdapterArguments, training_args: StageArguments) -> bool:
    """Whether the first forward pass runs without gradients, so that hooks in it see none."""
    plan = training_args.recomputation
    if plan is None:
        return False
    # As the trainers choose it: reentrant where an adapter is trained under ZeRO-3.
    asked = plan.options.get("use_reentrant", adapter_args.use_peft and training_args.zero_stage == 3)
    return bool(asked) and plan.takes_routers


def _say_packed(bare: PreTrainedModel) -> None:
    """Notice experts, which stay as they are."""
    weights = sum(parameter.numel() for parameter in bare.parameters())
    packed = sum(linear.weight.numel() for linear in packed_linears(bare))
    # transformers 5 keeps a matrix of all experts in one tensor of three dimensions.
    if experts := sum(parameter.numel() for parameter in bare.parameters() if parameter.dim() == 3):
        notice(
            f"{packed / weights:.0%} of the weights are quantised: bitsandbytes leaves the {experts:,} weights of "
            "experts as they are"
        )


def check_tiling(facts: Facts) -> Iterator[UserError]:
    """Problems of `--tiled_mlp`: rows of unknown length, MLPs that are recomputed already, or none to tile."""
    training_args = facts.training_args
    yield from refused("tiling", facts)
    if not training_args.tiled_mlp or base_stage(facts.stage) not in ("pt", "sft"):
        return
    place = "--tiled_mlp"
    # How many tiles a row is cut into is decided once, by the longest.
    if row_length(training_args) is None:
        yield ArgumentError("tiles are cut from rows of a known length", place=place, fix="give --max_length")
    bare = facts.skeleton
    if bare is not None and not tileable(bare):
        yield ArgumentError(
            f"{type(bare).__name__} has no MLPs whose input could be cut: experts see a part of the tokens anyway",
            place=place,
            fix="leave it out; --activation_checkpointing full saves memory",
        )
