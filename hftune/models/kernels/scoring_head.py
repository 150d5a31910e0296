"""Log-probabilities of drawn answers by TRL's fused head where that gives the model's own, else from its logits.

TRL 1.16 applies the output embeddings to `base_model`'s states. In some models that is the model itself (Llama 4), in
others something comes between states and head (BERT), or the head has a LoRA of its own, whose product is left out.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from peft.tuners.trainable_tokens.layer import TrainableTokensLayer
from peft.tuners.tuners_utils import BaseTunerLayer
from transformers import PreTrainedModel
from transformers.utils import ModelOutput

from hftune.compat.installing import replace_method
from hftune.constants import IGNORE_INDEX
from hftune.distributed import zero
from hftune.models.heads import body_of
from hftune.models.kernels.answer_head import MISFITS, ROUNDED, made_up_states


@dataclass
class Scores(ModelOutput):
    """What TRL reads of its fused head: (batch, tokens - 1), float32, with gradients; 0 where there is no label."""

    log_probs: torch.Tensor | None = None
    entropy: torch.Tensor | None = None


def add_scoring_head(add_fused: Callable[..., None], model: Any, temperature: float = 1.0, **options: Any) -> None:
    """Have `model(..., labels=labels, fused_lm_head=True)` return the `log_probs` that its own logits give, in place.

    Args:
        add_fused: TRL's `add_fused_lm_head`, whose result is tried out on made-up states.
        model: A causal LM, without an adapter around it.
        temperature: What logits are divided by.
        options: TRL's others.
    """
    original, body, head = model.forward, body_of(model), model.get_output_embeddings()
    # Only the rows of new tokens are part of the weight that TRL takes; a LoRA's product is not.
    adapted = isinstance(head, BaseTunerLayer) and not isinstance(head, TrainableTokensLayer)
    if body is not model and head is not None and not adapted:
        if model.base_model is body:
            add_fused(model, temperature=temperature, **options)
        else:
            _add_by_body(add_fused, model, body, temperature=temperature, **options)
        if _agrees(model, original, body, temperature):
            return
    replace_method(model, "forward", _from_logits(model, original, temperature))


def _add_by_body(add_fused: Callable[..., None], model: Any, body: torch.nn.Module, **options: Any) -> None:
    """TRL's head on what stands for a model whose `base_model` is not its body."""

    class Stand(SimpleNamespace):
        """What TRL's head reads of a model."""

        @functools.wraps(type(model).forward)
        def forward(self, *args: Any, **kwargs: Any) -> Any:
            return self.original(*args, **kwargs)

    stand = Stand(original=model.forward, config=model.config, get_output_embeddings=model.get_output_embeddings)
    stand.base_model = body
    add_fused(stand, **options)
    model.forward = stand.forward


def _agrees(model: Any, original: Callable[..., Any], body: torch.nn.Module, temperature: float) -> bool:
    """Whether the log-probabilities of the model's present forward pass are those of its original one's logits."""
    # A tied head is below the body as well.
    below = {*map(id, body.parameters())} - {*map(id, model.get_output_embeddings().parameters())}
    others = [parameter for parameter in model.parameters() if id(parameter) not in below]
    try:
        with torch.no_grad(), zero.gathered(others), made_up_states(model, body) as (ids, _):
            given = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
            logits = original(**given, use_cache=False).logits[:, :-1].float() / temperature
            found = model(**given, labels=ids, fused_lm_head=True).log_probs
    except MISFITS:
        return False
    expected = logits.log_softmax(dim=-1).gather(2, ids[:, 1:, None]).squeeze(2)
    return bool((found - expected).abs().max() <= 2 * ROUNDED * logits.abs().max())


def _from_logits(model: Any, original: Callable[..., Any], temperature: float) -> Callable[..., Any]:
    """A forward pass that takes `fused_lm_head`, from full logits: right whatever comes before them."""

    @functools.wraps(type(model).forward)  # `generate` reads the signature
    def forward(
        self: PreTrainedModel,
        *args: Any,
        fused_lm_head: bool = False,
        labels: torch.Tensor | None = None,
        **kwargs: Any,
    ) -> Any:
        if not fused_lm_head:
            return original(*args, **kwargs, **({} if labels is None else {"labels": labels}))
        assert labels is not None, "TRL gives them with fused_lm_head"
        targets = labels[:, 1:]
        mask = targets != IGNORE_INDEX
        logits = original(*args, **{**kwargs, "use_cache": False}).logits[:, :-1][mask].float() / temperature
        log_probs = logits.log_softmax(dim=-1)
        each = log_probs.gather(1, targets[mask][:, None]).squeeze(1), -(log_probs.exp() * log_probs).sum(dim=-1)
        # Connected to the model even where no label is valid, so that every process has a gradient.
        return Scores(*(column.new_zeros(mask.shape).masked_scatter(mask, column) for column in each))

    return forward
