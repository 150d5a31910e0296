"""Log-probabilities of drawn answers: of their tokens alone, in rows without pads where the model takes such.

TRL 1.16 computes padded rows, on a CPU through the head at every place, and applies the output embeddings to
`base_model`'s states. In some models that is the model itself (Llama 4), in others something comes between states and
head (BERT), or the head has a LoRA of its own, whose product is left out: there the model's own logits are taken.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from transformers import PreTrainedModel
from transformers.utils import ModelOutput

from hftune.compat.installing import replace_method
from hftune.constants import IGNORE_INDEX
from hftune.distributed import zero
from hftune.models.attention.documents import documents_of, isolate_documents
from hftune.models.attention.isolation import ATTENTION
from hftune.models.heads import body_of
from hftune.models.kernels.answer_head import MISFITS, ROUNDED, made_up_states
from hftune.models.kernels.answer_projection import LogitShape, answer_log_probs
from hftune.models.kernels.answer_rows import AnswerRows, padded_rows, shared_rows
from hftune.models.kernels.chunked_heads import in_float32


@dataclass
class Scores(ModelOutput):
    """What TRL reads of its fused head: (batch, tokens - 1), float32, with gradients; 0 where there is no label."""

    log_probs: torch.Tensor | None = None
    entropy: torch.Tensor | None = None


def add_scoring_head(
    model: Any,
    temperature: float = 1.0,
    *,
    shares_prompts: bool = False,
    trains_entropy: bool = False,
    cast_lm_head_to_fp32: bool = False,
    outputs: tuple[str, ...] = (),
) -> None:
    """Have `model(..., labels=labels, fused_lm_head=True)` return the `log_probs` that its own logits give, in place.

    Args:
        model: A causal LM, without an adapter around it.
        temperature: What logits are divided by.
        shares_prompts: Whether the model's attention knows rows in which answers share a prompt.
        trains_entropy: Whether entropies need a gradient.
        cast_lm_head_to_fp32: Whether the projection is computed in float32, outside of autocast.
        outputs: What is wanted besides, as TRL's `add_fused_lm_head` has it: "entropy".
    """
    original, body, head = model.forward, body_of(model), model.get_output_embeddings()
    if body is not model and head is not None:
        if shares_prompts and documents_of(model) is None:  # a reference that TRL has read
            isolate_documents(model, ATTENTION)
        shape = replace(LogitShape.of(model.config), temperature=temperature)
        detail = int("entropy" in outputs)
        score = _scorer(model, shape, detail, exact=cast_lm_head_to_fp32, entropy_learns=trains_entropy)
        replace_method(model, "forward", _from_states(model, original, score))
        if _agrees(model, original, body, temperature):
            return
    replace_method(model, "forward", _from_logits(model, original, temperature))


def rows_to_score(
    model: Any, input_ids: torch.Tensor, attention_mask: torch.Tensor, labels: torch.Tensor
) -> AnswerRows:
    """A padded batch as a model reads it: as it is where its attention alone does not keep answers apart."""
    documents = documents_of(model)
    if documents is None or documents.way != ATTENTION:
        return padded_rows(input_ids, attention_mask, labels)
    rows = shared_rows(input_ids, attention_mask, labels)
    return rows.with_copies() if documents.copies_prompts and "shared_prompts" in rows.inputs else rows


Scorer = Callable[[torch.Tensor, torch.Tensor], tuple[torch.Tensor, ...]]
"""From states (tokens, size) and the tokens that they predict to log-probabilities and entropies."""


def _scorer(model: Any, shape: LogitShape, detail: int, *, exact: bool, entropy_learns: bool) -> Scorer:
    def score(states: torch.Tensor, ids: torch.Tensor) -> tuple[torch.Tensor, ...]:
        head = model.get_output_embeddings()
        with in_float32(states.device) if exact else nullcontext():
            states = states.float() if exact else states
            return answer_log_probs(head, states, ids, shape, detail, entropy_learns=entropy_learns)[:2]

    return score


def _from_states(model: Any, original: Callable[..., Any], score: Scorer) -> Callable[..., Any]:
    """A forward pass that takes `fused_lm_head`: the head is applied to the states that predict a labelled token."""

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
        ids, mask = kwargs.pop("input_ids"), kwargs.pop("attention_mask")
        rows = rows_to_score(self, ids, mask, labels)
        states = rows.pick(body_of(self)(**rows.inputs, **kwargs).last_hidden_state)
        return Scores(*(rows.spread(column) for column in score(states, rows.ids)))

    return forward


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
    expected = logits.log_softmax(dim=2).gather(2, ids[:, 1:, None]).squeeze(2)
    return bool((found - expected).abs().max() <= 2 * ROUNDED * logits.abs().max())


def _from_logits(model: Any, original: Callable[..., Any], temperature: float) -> Callable[..., Any]:
    """A forward pass that takes `fused_lm_head`, from full logits: right whatever comes before them."""

    @functools.wraps(type(model).forward)
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
        log_probs = logits.log_softmax(dim=1)
        each = log_probs.gather(1, targets[mask][:, None]).squeeze(1), -(log_probs.exp() * log_probs).sum(dim=1)
        # Connected to the model even where no label is valid, so that every process has a gradient.
        return Scores(*(column.new_zeros(mask.shape).masked_scatter(mask, column) for column in each))

    return forward
