"""A second model as the reference of preference optimisation."""

from __future__ import annotations

import dataclasses

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from hftune.arguments.adapter import AdapterArguments
from hftune.arguments.model import ModelArguments
from hftune.arguments.preference import DPOArguments
from hftune.logging import notice
from hftune.models.adapters.folding import fold_adapters
from hftune.models.loading.causal_lm import load_causal_lm


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
