"""What is trained, in a line: how many parameters and adapted modules, of which kind, and in what precision."""

from __future__ import annotations

import re
from collections import Counter

import torch
from peft import PeftModel
from peft.tuners.lora import LoraLayer
from peft.tuners.tuners_utils import BaseTunerLayer
from peft.utils import AuxiliaryTrainingWrapper
from transformers import PreTrainedModel

from hftune.arguments.adapter import AdapterArguments
from hftune.arguments.training import StageArguments
from hftune.distributed import zero
from hftune.logging import notice
from hftune.models.adapters.adaptable import unadaptable
from hftune.models.adapters.lora_config import all_linear, ends_with
from hftune.models.structure import routers_of

# The first that is found in a name says what kind of parameter it is.
_KINDS = {
    "adapter": r"\.lora_|trainable_tokens_delta",
    "head": r"(^|\.)(lm_head|score)\.",
    "embeddings": r"embed|(^|\.)wte\.|(^|\.)wpe\.",
    "norms": r"norm|(^|\.)ln_",
    "routers": r"router|(^|\.)gate(\.|$)",
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
    """adapter, head, embeddings, norms, routers, experts, attention, mlp or other: what a parameter of this name is."""
    return next((kind for kind, pattern in _KINDS.items() if re.search(pattern, name)), "other")


def _listed(counts: Counter[str]) -> str:
    return ", ".join(f"{kind} {count:,}" for kind, count in counts.most_common())


def report_targets(adapted: PeftModel, args: AdapterArguments) -> None:
    """Say how many modules of each kind get an adapter, and what `all` leaves out but for the head."""
    model = adapted.base_model.model
    counts = Counter(kind_of(name) for name, module in model.named_modules() if isinstance(module, LoraLayer))
    notice("modules with an adapter: " + _listed(counts))
    if args.lora_target_modules != ["all"] or args.target_regex is not None:
        return
    routers = routers_of(model)
    every = [*all_linear(model), *unadaptable(model), *(name for name, one in model.named_modules() if one in routers)]
    left = [name for name in dict.fromkeys(every) if not _is_part_of_adapter(adapted, name)]
    left = [name for name in left if not any(ends_with(name, out) for out in args.exclude_modules or [])]
    if left:
        names = sorted({re.sub(r"\.\d+\.", ".*.", name) for name in left})
        notice(f"{len(left)} linear modules get no adapter: " + ", ".join(names))


def _is_part_of_adapter(adapted: PeftModel, name: str) -> bool:
    parts = name.split(".")
    owners = (adapted.base_model.model.get_submodule(".".join(parts[:end])) for end in range(1, len(parts) + 1))
    return any(isinstance(owner, (BaseTunerLayer, AuxiliaryTrainingWrapper)) for owner in owners)


def report_low_precision(adapted: PreTrainedModel | PeftModel, training_args: StageArguments) -> None:
    """Warn where small updates of 16-bit weights are rounded away: without DeepSpeed, which keeps float32 copies."""
    low = [name for name, p in adapted.named_parameters() if p.requires_grad and p.element_size() < 4]
    if low and training_args.ds_resolved is None:
        notice(
            f"{len(low)} trained parameters are kept in 16 bit, {low[0]} the first: small updates are lost; "
            "--train_in_float32, --dtype float32 or --deepspeed keeps them"
        )
