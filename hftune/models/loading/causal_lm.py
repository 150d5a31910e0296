"""From a name or folder to a causal LM or a reward model."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch
import transformers
from torch import nn
from transformers import (
    AutoModelForCausalLM,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    set_seed,
)
from transformers.initialization import no_init_weights
from transformers.integrations.deepspeed import is_deepspeed_zero3_enabled
from transformers.utils import logging as hf_logging

from hftune.arguments.adapter import AdapterArguments
from hftune.arguments.model import ModelArguments
from hftune.arguments.reward import RMArguments
from hftune.arguments.training import StageArguments
from hftune.compat.bitsandbytes_patches import keep_differentiable
from hftune.constants import AUTO_CLASSES, STEP_LABELS
from hftune.distributed import zero
from hftune.distributed.ds_config import live_config
from hftune.distributed.tensor_parallel import split_as_planned
from hftune.errors import ArgumentError
from hftune.logging import notice
from hftune.models.attention.choice import attention_for, report_attention
from hftune.models.attention.reward_padding import decide_reward_padding
from hftune.models.experts import is_mixture
from hftune.models.kernels.float8 import report_float8, to_float8
from hftune.models.loading.config import file_options, model_config
from hftune.models.loading.from_pretrained import from_config, pretrained
from hftune.models.loading.gguf import forget_gguf
from hftune.models.loading.quantization import quantization_config
from hftune.models.loading.stored_weights import check_loaded
from hftune.models.vocabulary.tokenizer_fit import fit_to_tokenizer
from hftune.nearby import not_had
from hftune.weight_files import weight_shapes


def load_causal_lm(
    model_args: ModelArguments,
    adapter_args: AdapterArguments,
    training_args: StageArguments,
    tokenizer: PreTrainedTokenizerBase,
) -> PreTrainedModel:
    """The model to pre-train, fine-tune or align, on the CPU or partitioned by ZeRO-3 as the arguments say."""
    model = _build(AutoModelForCausalLM, model_args, adapter_args, training_args)
    split_as_planned(live_config(training_args), training_args.tensor_parallel_size, model.config)
    fit_to_tokenizer(model, tokenizer, model_args, adapter_args, training_args)
    return model


def load_reward_model(
    model_args: ModelArguments,
    adapter_args: AdapterArguments,
    training_args: RMArguments,
    tokenizer: PreTrainedTokenizerBase,
) -> PreTrainedModel:
    """A model with one score a sequence, read at its last token that is not padding; or with two classes a token.

    A head that the checkpoint does not have is drawn with the run's seed, the same whatever the ZeRO stage.
    """
    decide_reward_padding(model_args, training_args)
    labels = len(STEP_LABELS) if training_args.head == "steps" else 1
    _check_stored_score(model_args, labels)
    auto = getattr(transformers, AUTO_CLASSES[training_args.head])
    model = _build(auto, model_args, adapter_args, training_args, labels=labels)
    fit_to_tokenizer(model, tokenizer, model_args, adapter_args, training_args)
    model.config.get_text_config().pad_token_id = tokenizer.pad_token_id
    if model_args.from_config or not _has_trained_score(model_args):
        init_score_head(model, seed=training_args.seed)
    return model


def init_score_head(model: PreTrainedModel, seed: int) -> None:
    """Draw the score head from N(0, 1 / (hidden size + 1)) (arXiv:2009.01325, appendix B.1).

    Args:
        model: A classification model with a `score` of shape (labels, hidden size); a bias begins at 0.
        seed: The same seed gives the same head on every rank and under every ZeRO stage.
    """
    score: nn.Linear = model.score
    shape = tuple(getattr(score.weight, "ds_shape", score.weight.shape))
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randn(shape, generator=generator) / (shape[-1] + 1) ** 0.5
    with zero.gathered(list(score.parameters()), write=True), torch.no_grad():
        score.weight.copy_(drawn.to(score.weight.dtype))
        if score.bias is not None:
            score.bias.zero_()


def weight_dtype(model_args: ModelArguments, training_args: StageArguments, *, trains_all: bool) -> torch.dtype | str:
    """Dtype of the loaded weights.

    Weights that an optimizer updates are kept in float32 (autocast or DeepSpeed computes in bf16), since small updates
    vanish in bf16. A frozen base is loaded in the compute dtype where that is bf16 or fp16.
    """
    if model_args.dtype != "auto":
        return getattr(torch, model_args.dtype)
    if trains_all:
        return torch.float32
    if training_args.bf16:
        return torch.bfloat16
    return torch.float16 if training_args.fp16 else torch.float32


def _build(
    auto: Any,
    model_args: ModelArguments,
    adapter_args: AdapterArguments,
    training_args: StageArguments,
    labels: int | None = None,
) -> PreTrainedModel:
    """The model of class `auto`, read from its files or drawn from its config, as it will be trained."""
    config = model_config(model_args, training_args)
    if labels is not None:
        config.num_labels = labels
        if labels == len(STEP_LABELS):
            config.id2label = dict(enumerate(STEP_LABELS))
            config.label2id = {name: label for label, name in enumerate(STEP_LABELS)}
    dtype = weight_dtype(model_args, training_args, trains_all=not adapter_args.use_peft)
    options: dict[str, Any] = {
        "dtype": dtype,
        "trust_remote_code": training_args.trust_remote_code,
        "attn_implementation": attention_for(model_args, training_args),
        "experts_implementation": model_args.experts_implementation,
    }
    given = {name: value for name, value in options.items() if value is not None}
    if model_args.from_config:
        model = draw_weights(auto, config, given, seed=training_args.seed)
    else:
        given |= _quantisation(adapter_args, training_args, dtype)
        model = _from_pretrained(auto, config, model_args, given)
        keep_differentiable(model)
    if training_args.fp8:
        report_float8(to_float8(model, training_args.fp8), training_args.fp8, compiled=training_args.torch_compile)
    report_attention(model, model_args, training_args)
    report_experts(model)
    return model


def _quantisation(
    adapter_args: AdapterArguments, training_args: StageArguments, dtype: torch.dtype | str
) -> dict[str, Any]:
    compute = dtype if isinstance(dtype, torch.dtype) else torch.float32
    if not adapter_args.quantised:
        return {}
    partitioned = training_args.zero_stage == 3
    config = quantization_config(adapter_args, compute, partitioned=partitioned)
    if partitioned:  # transformers takes no place under ZeRO-3, and each rank its own device
        notice("every process reads the whole quantised model before ZeRO-3 partitions it")
        return {"quantization_config": config}
    # bitsandbytes quantises while loading and wants to know where to.
    where = "cpu" if training_args.use_cpu else training_args.local_process_index
    return {"quantization_config": config, "device_map": {"": where}}


def _from_pretrained(
    auto: Any, config: PreTrainedConfig, model_args: ModelArguments, given: dict[str, Any]
) -> PreTrainedModel:
    level = hf_logging.get_verbosity()
    hf_logging.set_verbosity_error()  # the head that comes or goes is expected here, and said by hftune
    try:
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
        raise not_had(name, error, "--model_name_or_path", "model", offline=model_args.offline) from error
    finally:
        hf_logging.set_verbosity(level)
    if model_args.gguf_file:
        forget_gguf(model)
    elif not is_deepspeed_zero3_enabled():  # which transformers takes to fit
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
    # Constructors of torch's layers draw as well, and are kept from it only under ZeRO-3, where transformers draws
    # after partitioning. Without this the two would be at other places of the same random numbers.
    set_seed(seed)
    partitions = is_deepspeed_zero3_enabled()
    with nullcontext() if partitions else no_init_weights():
        model = from_config(auto, config, **options)
    if not partitions:
        set_seed(seed)
        model.init_weights()
    set_seed(seed)  # under ZeRO-3 rank 0 alone has drawn
    count = sum(zero.full_numel(parameter) for parameter in model.parameters())
    notice(f"{type(model).__name__} from scratch: {count:,} weights drawn with seed {seed}")
    return model


def report_experts(model: PreTrainedModel) -> None:
    """Say how a mixture of experts computes its experts."""
    if type(model)._can_set_experts_implementation() and is_mixture(model.config):
        notice(f"experts: {model.config._experts_implementation}")


def _check_stored_score(model_args: ModelArguments, labels: int) -> None:
    """A head in the checkpoint is of the kind that is trained; transformers would stop with a list of shapes."""
    stored = {} if model_args.from_config else weight_shapes(model_args.model_name_or_path)
    shape = stored.get("score.weight")
    if shape is not None and shape[0] != labels:
        kinds = {1: "scores conversations (--reward_kind outcome)", 2: "scores steps (--reward_kind process)"}
        raise ArgumentError(
            f"{model_args.model_name_or_path} has a score head of {shape[0]} outputs, and one of {labels} is trained",
            place="--model_name_or_path",
            fix=f"it {kinds[shape[0]]}" if shape[0] in kinds else "give a language model",
        )


def _has_trained_score(model_args: ModelArguments) -> bool:
    return "score.weight" in weight_shapes(model_args.model_name_or_path)
