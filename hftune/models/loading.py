"""From a name or folder to a causal LM or a reward model."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils import logging as hf_logging

from hftune.arguments import AdapterArguments, ModelArguments, StageArguments
from hftune.distributed import zero
from hftune.errors import ArgumentError
from hftune.models.agreement import agree_with_tokenizer
from hftune.models.attention import attention_for
from hftune.models.gguf import forget_gguf
from hftune.models.quantization import quantization_config
from hftune.weight_files import weight_shapes


def load_causal_lm(
    model_args: ModelArguments,
    adapter_args: AdapterArguments,
    training_args: StageArguments,
    tokenizer: PreTrainedTokenizerBase,
) -> PreTrainedModel:
    """The model to pre-train, fine-tune or align, on the CPU or partitioned by ZeRO-3 as the arguments say."""
    model = _from_pretrained(AutoModelForCausalLM, model_args, adapter_args, training_args)
    agree_with_tokenizer(model, tokenizer, model_args, adapter_args, training_args)
    return model


def load_reward_model(
    model_args: ModelArguments,
    adapter_args: AdapterArguments,
    training_args: StageArguments,
    tokenizer: PreTrainedTokenizerBase,
) -> PreTrainedModel:
    """A model with one score a sequence, read at its last token that is not padding.

    A head that the checkpoint does not have is drawn with the run's seed, the same whatever the ZeRO stage.
    """
    model = _from_pretrained(AutoModelForSequenceClassification, model_args, adapter_args, training_args, num_labels=1)
    agree_with_tokenizer(model, tokenizer, model_args, adapter_args, training_args)
    model.config.get_text_config().pad_token_id = tokenizer.pad_token_id
    if not _has_trained_score(model_args):
        init_score_head(model, seed=training_args.seed)
    return model


def init_score_head(model: PreTrainedModel, seed: int) -> None:
    """Draw the score head from N(0, 1 / (hidden size + 1)) (arXiv:2009.01325, appendix B.1).

    Args:
        model: A sequence classification model with a bias-free `score` of shape (labels, hidden size).
        seed: The same seed gives the same head on every rank and under every ZeRO stage.
    """
    score: nn.Linear = model.score
    shape = tuple(getattr(score.weight, "ds_shape", score.weight.shape))
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randn(shape, generator=generator) / (shape[-1] + 1) ** 0.5
    with zero.gathered([score.weight], write=True), torch.no_grad():
        score.weight.copy_(drawn.to(score.weight.dtype))


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


def _from_pretrained(
    auto: Any, model_args: ModelArguments, adapter_args: AdapterArguments, training_args: StageArguments, **extra: Any
) -> PreTrainedModel:
    dtype = weight_dtype(model_args, training_args, trains_all=not adapter_args.use_peft)
    compute = dtype if isinstance(dtype, torch.dtype) else torch.float32
    options: dict[str, Any] = {
        "revision": model_args.model_revision,
        "cache_dir": model_args.cache_dir,
        "dtype": dtype,
        "trust_remote_code": training_args.trust_remote_code,
        "attn_implementation": attention_for(model_args, training_args),
        "quantization_config": quantization_config(adapter_args, compute),
        "gguf_file": model_args.gguf_file,
    }
    if adapter_args.quantised:
        # bitsandbytes quantises while loading and wants to know where to.
        options["device_map"] = {"": "cpu" if training_args.use_cpu else training_args.local_process_index}
    given = {name: value for name, value in options.items() if value is not None}
    level = hf_logging.get_verbosity()
    hf_logging.set_verbosity_error()  # the head that comes or goes is expected here, and said by hftune
    try:
        model = auto.from_pretrained(model_args.model_name_or_path, **given, **extra)
    except OSError as error:
        raise ArgumentError(
            f"no model could be loaded from {model_args.model_name_or_path}: {str(error).splitlines()[0]}",
            place="--model_name_or_path",
            fix="give a folder with config.json and weights, or a Hub name that can be reached",
        ) from error
    finally:
        hf_logging.set_verbosity(level)
    if model_args.gguf_file:
        forget_gguf(model)
    return model


def _has_trained_score(model_args: ModelArguments) -> bool:
    return "score.weight" in weight_shapes(model_args.model_name_or_path)
