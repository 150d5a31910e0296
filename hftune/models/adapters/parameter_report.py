"""What is trained, in a line: how many parameters, of which kind, and in what precision."""

from __future__ import annotations

import re
from collections import Counter

import torch
from peft import PeftModel
from transformers import PreTrainedModel

from hftune.arguments.training import StageArguments
from hftune.distributed import zero
from hftune.logging import notice

# The first that is found in a name says what kind of parameter it is.
_KINDS = {
    "adapter": r"\.lora_|trainable_tokens_delta",
    "head": r"(^|\.)(lm_head|score)\.",
    "embeddings": r"embed|(^|\.)wte\.|(^|\.)wpe\.",
    "norms": r"norm|(^|\.)ln_",
    "experts": r"expert",
    "attention": r"attn|attention",
    "mlp": r"mlp|feed_forward|ffn",
}


def report_trained_parameters(model: torch.nn.Module) -> None:
    """Say how many parameters are trained and how many are left as they are, by kind."""
    trained, left = Counter[str](), Counter[str]()
    for name, parameter in model.named_parameters():
        (trained if parameter.requires_grad else left)[kind_of(name)] += zero.full_numel(parameter)
    some, every = trained.total(), trained.total() + left.total()
    kept = f"; left as they are: {_listed(left)}" if left else ""
    notice(f"trained: {some:,} of {every:,} parameters ({some / every:.2%}): {_listed(trained)}{kept}")


def kind_of(name: str) -> str:
    """adapter, head, embeddings, norms, experts, attention, mlp or other: what a parameter of this name is."""
    return next((kind for kind, pattern in _KINDS.items() if re.search(pattern, name)), "other")


def _listed(counts: Counter[str]) -> str:
    return ", ".join(f"{kind} {count:,}" for kind, count in counts.most_common())


def report_low_precision(adapted: PreTrainedModel | PeftModel, training_args: StageArguments) -> None:
    """Warn where small updates of 16-bit weights are rounded away: without DeepSpeed, which keeps float32 copies."""
    low = [name for name, p in adapted.named_parameters() if p.requires_grad and p.element_size() < 4]
    if low and training_args.ds_resolved is None:
        notice(
            f"{len(low)} trained parameters are kept in 16 bit, {low[0]} the first: small updates are lost; "
            "--train_in_float32, --dtype float32 or --deepspeed keeps them"
        )
