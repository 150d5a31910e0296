"""From a name or folder to a causal LM, with or without its weights on this process (ZeRO-3)."""

from __future__ import annotations

import copy
import dataclasses
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch
from transformers import (
    AutoModelForCausalLM,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    set_seed,
)
from transformers.initialization import no_init_weights
from transformers.integrations import is_deepspeed_zero3_enabled

from hftune.arguments.adapter import AdapterArguments
from hftune.arguments.model import ModelArguments
from hftune.arguments.training import StageArguments
from hftune.compat.patches import keep_differentiable
from hftune.constants import STEP_LABELS
from hftune.distributed import ranks, zero
from hftune.distributed.ds_config import live_config
from hftune.errors import ArgumentError
from hftune.logging import notice
from hftune.models.adapters.folding import fold_adapters
from hftune.models.attention.documents import isolate_documents
from hftune.models.attention.isolation import isolation_method
from hftune.models.attention.layout import report_attention
from hftune.models.classes import causal_class
from hftune.models.loading.build import Build, decide_build
from hftune.models.loading.config import file_options
from hftune.models.loading.from_pretrained import from_config, pretrained, quiet_transformers
from hftune.models.loading.quantisation import drop_quantisation
from hftune.models.loading.stored_weights import check_loaded
from hftune.models.loading.tokenizer import load_plain_tokenizer
from hftune.models.structure import freeze_other_parts, gather_experts_at_once, is_mixture
from hftune.models.vocabulary import (
    Growth,
    forbid_rows_without_token,
    grow,
    grow_as_recorded,
    manifest_of,
    new_tokens,
    plan_growth,
    token_rows,
    vocabulary_rows,
)
from hftune.on_demand import on_demand
from hftune.path_hints import cannot_load

if TYPE_CHECKING:
    from hftune.arguments.preference import DPOArguments


def load_causal_lm(
    model_args: ModelArguments,
    adapter_args: AdapterArguments,
    training_args: StageArguments,
    tokenizer: PreTrainedTokenizerBase,
    build: Build | None = None,
) -> PreTrainedModel:
    """The model to pre-train, fine-tune or align, on the CPU or partitioned by ZeRO-3 as the arguments say.

    Args:
        model_args, adapter_args, training_args: Of the run.
        tokenizer: To whose vocabulary the model is fitted.
        build: As decided for the run; left out: decided here.
    """
    model = build_model(AutoModelForCausalLM, model_args, adapter_args, training_args, build)
    size = training_args.tensor_parallel_size
    if size > 1:
        # The plan is written into the config that DeepSpeed will read; it needs the model's final config.
        on_demand("hftune.distributed.tensor_parallel:write_plan")(live_config(training_args), size, model.config)
    fit_to_tokenizer(model, tokenizer, model_args, adapter_args, training_args)
    return model


def fit_to_tokenizer(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    model_args: ModelArguments,
    adapter_args: AdapterArguments,
    training_args: StageArguments,
) -> None:
    """Grow the model where that was asked for, and refuse token ids that it has no rows for.

    An adapter that is trained further needs the rows that it was trained with: those of its `hftune.json`.

    Raises:
        ArgumentError: The tokenizer has ids without a row, or does not extend the model's own.
    """
    # First: what this run adds comes after the rows that the adapter was trained with.
    grow_as_recorded(model, adapter_args.adapter_chain)
    if model_args.grows:
        own = load_plain_tokenizer(model_args, training_args)
        growth = plan_growth(own, tokenizer, vocabulary_rows(model), model_args.pad_vocab_to_multiple_of)
        if growth is None:
            notice(f"vocabulary: the model has rows for its {len(tokenizer)} tokens already, it does not grow")
        else:
            grow(model, growth)
    rows, highest = vocabulary_rows(model), token_rows(tokenizer) - 1
    if highest >= rows:
        raise ArgumentError(
            f"the tokenizer has ids up to {highest} ({len(tokenizer)} tokens), the model has {rows} embeddings",
            place="--tokenizer_name_or_path",
            fix="use the tokenizer that belongs to the model, or add --resize_vocab if this one extends it",
        )
    forbid_rows_without_token(model, tokenizer)
    # What `--train_new_tokens_only` trains: new tokens of this run, else those of the runs before it.
    known: Growth | None = getattr(model, "vocabulary_growth", None)
    model.trained_token_ids = (
        known.ids if known and known.ids else new_tokens(manifest_of(model_args.model_name_or_path))
    )


def build_model(
    auto: Any,
    model_args: ModelArguments,
    adapter_args: AdapterArguments,
    training_args: StageArguments,
    build: Build | None,
    labels: int | None = None,
) -> PreTrainedModel:
    """The model of class `auto`, read from its files or drawn from its config, as it will be trained."""
    # ZeRO-3 partitions weights as they are read, over a process group: joined here where no run was started.
    _ = training_args.device
    build = build or decide_build(model_args, adapter_args, training_args)
    config, dtype = copy.deepcopy(build.config), build.dtype
    if labels is not None:
        config.num_labels = labels
        if labels == len(STEP_LABELS):
            config.id2label = dict(enumerate(STEP_LABELS))
            config.label2id = {name: label for label, name in enumerate(STEP_LABELS)}
    options: dict[str, Any] = {
        "dtype": dtype,
        "trust_remote_code": training_args.trust_remote_code,
        "attn_implementation": build.attention,
        "experts_implementation": model_args.experts_implementation,
    }
    given = {name: value for name, value in options.items() if value is not None}
    if model_args.from_config:
        drop_quantisation(config)
        model = draw_weights(auto, config, given, seed=training_args.seed)
    else:
        if adapter_args.quantised:
            given |= quantisation_options(adapter_args, training_args, dtype)
        model = _from_pretrained(auto, config, model_args, given)
        keep_differentiable(model)
    freeze_other_parts(model)
    if training_args.fp8:
        on_demand("hftune.models.kernels.float8:train_in_float8")(model, training_args)
    if is_deepspeed_zero3_enabled():
        gather_experts_at_once(model)
    if training_args.flat_batches:
        isolate_documents(model, isolation_method(config, causal_class(config))[0])
    report_attention(model, model_args, training_args)
    _report_experts(model)
    return model


def _from_pretrained(
    auto: Any, config: PreTrainedConfig, model_args: ModelArguments, given: dict[str, Any]
) -> PreTrainedModel:
    try:
        # Of a head that comes or goes, which is expected here and reported by hftune.
        with quiet_transformers():
            model, info = pretrained(
                auto,
                model_args.model_name_or_path,
                config=config,
                output_loading_info=True,
                **file_options(model_args),
                **given,
            )
    except OSError as error:
        name = str(model_args.model_name_or_path)
        raise cannot_load(name, error, "--model_name_or_path", "model", offline=model_args.offline) from error
    except (RuntimeError, LookupError, ValueError) as error:
        if not is_deepspeed_zero3_enabled() or isinstance(error, torch.OutOfMemoryError):
            raise
        # Some architectures draw or convert whole weights while they are loaded, of which each process has a part.
        raise ArgumentError(
            f"transformers cannot load {config.model_type} partitioned: {type(error).__name__}: "
            f"{str(error).splitlines()[0] if str(error) else 'no words'}",
            place="--deepspeed",
            fix="use --deepspeed zero2, which loads it whole",
        ) from error
    if not is_deepspeed_zero3_enabled():
        # Under ZeRO-3 transformers reports nothing missing; preflight has compared names and shapes by then.
        scores = auto is not AutoModelForCausalLM
        check_loaded(info, model, str(model_args.model_name_or_path), flag="--model_name_or_path", scores=scores)
    return model


def draw_weights(auto: Any, config: PreTrainedConfig, options: dict[str, Any], seed: int) -> PreTrainedModel:
    """A model with weights drawn as its architecture draws them: the same for a seed, whatever the ZeRO stage.

    Args:
        auto: `AutoModelForCausalLM` or its like.
        config: What to build.
        options: Further arguments of `from_config`.
        seed: Every rank must give the same.
    """
    options = {**options, "dtype": options["dtype"] if options["dtype"] != "auto" else torch.float32}
    # Constructors of torch's layers draw numbers as well, but not under ZeRO-3, where transformers draws after it has
    # partitioned. `no_init_weights` keeps them from it here too: else the same seed would give other weights.
    set_seed(seed)
    partitions = is_deepspeed_zero3_enabled()
    with nullcontext() if partitions else no_init_weights():
        model = from_config(auto, config, **options)
    if not partitions:
        set_seed(seed)
        model.init_weights()
    set_seed(seed)  # under ZeRO-3 rank 0 alone has drawn, and the generators of the ranks differ
    count = sum(zero.full_numel(parameter) for parameter in model.parameters())
    notice(f"{type(model).__name__} from scratch: {count:,} weights drawn with seed {seed}")
    return model


def _report_experts(model: PreTrainedModel) -> None:
    """Say how a mixture of experts computes its experts."""
    if type(model)._can_set_experts_implementation() and is_mixture(model.config):
        notice(f"experts: {model.config._experts_implementation}")


def load_reference(
    model_args: ModelArguments,
    adapter_args: AdapterArguments,
    training_args: DPOArguments,
    tokenizer: PreTrainedTokenizerBase,
) -> PreTrainedModel | None:
    """Another model that was named, or the policy's weights once more; None where neither is needed."""
    # With an adapter, the reference is the base with the adapter switched off. Without one a copy is needed where the
    # reference is renewed or computed in each step; else its log-probabilities are computed once, before training.
    again = not adapter_args.use_peft and (
        training_args.sync_ref_model or training_args.precompute_ref_log_probs is False
    )
    if not training_args.needs_reference or not (training_args.other_reference or again):
        return None
    if training_args.ref_model:
        model_args = dataclasses.replace(model_args, model_name_or_path=training_args.ref_model)
    model = load_causal_lm(model_args, adapter_args, training_args, tokenizer)
    if training_args.other_reference:
        adapters = training_args.ref_adapters or []
        notice(f"the reference is {' + '.join([str(model_args.model_name_or_path), *adapters])}")
        model = fold_adapters(model, adapters)
    model.requires_grad_(False)
    return model.eval()


def quantisation_options(
    adapter_args: AdapterArguments, training_args: StageArguments, dtype: torch.dtype
) -> dict[str, Any]:
    """What `from_pretrained` needs to quantise the base by bitsandbytes, for a run that asked for it.

    Args:
        dtype: Of the weights that stay whole; products are computed in it.
    """
    from transformers import BitsAndBytesConfig

    partitioned = training_args.zero_stage == 3
    if adapter_args.load_in_4bit:
        # ZeRO-3 gathers weights of one dtype only: packed ones are kept as that of all others.
        asked = adapter_args.bnb_4bit_quant_storage
        config = BitsAndBytesConfig(
            load_in_4bit=True,
            bnb_4bit_quant_type=adapter_args.bnb_4bit_quant_type,
            bnb_4bit_use_double_quant=adapter_args.use_bnb_nested_quant,
            bnb_4bit_compute_dtype=dtype,
            bnb_4bit_quant_storage=getattr(torch, asked) if asked else dtype if partitioned else torch.uint8,
        )
    else:
        # The head stays whole: it is tied to the embeddings, or a fresh score head that must be trained.
        config = BitsAndBytesConfig(load_in_8bit=True, llm_int8_skip_modules=["lm_head", "score"])
    if partitioned:
        # transformers takes no `device_map` under ZeRO-3; each rank quantises on its own device.
        notice("every process reads the whole quantised model before ZeRO-3 partitions it")
        return {"quantization_config": config}
    # bitsandbytes quantises while loading and wants to know where to.
    where = "cpu" if training_args.use_cpu else ranks.local_rank()
    return {"quantization_config": config, "device_map": {"": where}}
