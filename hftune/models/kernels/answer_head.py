"""Log-probabilities of answers without logits of anything else, and without logits in the backward pass.

`model(..., answer_at=places, answer_ids=tokens)` runs the decoder, picks the hidden states that predict an answer's
tokens, and projects those alone, a chunk at a time (`chunked_heads.py`). With a factor for each
token, the output has the weighted loss, and even a head that is trained computes its logits once.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from transformers import PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput
from transformers.utils import ModelOutput

from hftune.compat.installing import method_replaced, replace_method
from hftune.distributed import zero
from hftune.models.kernels.chunked_heads import LogitShape, answer_log_probs, in_float32, weighted_loss
from hftune.models.kernels.divergences import Lesson, TeacherStates, taught_loss
from hftune.models.structure import body_of


@dataclass
class AnswerOutput(ModelOutput):
    """Of each answer token, (tokens,), in the order of `answer_ids`; only the first has a gradient.

    Args:
        log_probs: log pi(token | what is before it), nats, float32. Where there is a `loss`, that has the gradient.
        entropy: Of the distribution over the vocabulary, nats.
        is_top1: Whether the token was the most likely one, bool.
        mean_logits: Mean logit over the vocabulary.
        log_sum_sq: log of the sum of squared probabilities (WPO).
        loss: Where factors were given: -sum of factor * log_probs, a scalar. With a lesson, the sum of factor * what
            its divergence says; of the columns there are, with detail 0, `divergence` alone.
        divergence: From the teacher, nats, before the share of the label.
        teacher_entropy: Of the teacher at the temperature of training, nats.
    """

    log_probs: torch.Tensor | None = None
    entropy: torch.Tensor | None = None
    is_top1: torch.Tensor | None = None
    mean_logits: torch.Tensor | None = None
    log_sum_sq: torch.Tensor | None = None
    loss: torch.Tensor | None = None
    divergence: torch.Tensor | None = None
    teacher_entropy: torch.Tensor | None = None


def add_answer_head(
    model: PreTrainedModel, temperature: float = 1.0, *, entropy_learns: bool = False, exact: bool = False
) -> None:
    """Give a model (without an adapter around it) the arguments `answer_at` and `answer_ids`, in place.

    `answer_at` (tokens,) are places in the flattened (batch * length) input whose hidden state predicts a token,
    `answer_ids` (tokens,) those tokens. Without them the model does what it did. Where an adapter prepends virtual
    tokens, `answer_width` is the length of a row without them. `answer_factors` (tokens,), float32, ask for the loss;
    `answer_dft` scales it by each token's own probability, held constant (arXiv:2508.05629, eq. 9). `answer_detail`:
    0 log-probabilities alone, 1 entropy and `is_top1` as well, 2 all.

    `answer_teacher`, with factors, has the loss be what a teacher's lesson asks for. `answer_states` asks a teacher for
    its `TeacherStates` at `answer_at`, without a gradient.

    Args:
        temperature: What logits are divided by.
        entropy_learns: Whether entropies have a gradient where no factors are given.
        exact: Whether log-probabilities are computed in float32 then, outside of autocast.
    """
    original = model.forward
    own = LogitShape.of(model.config)
    known: list[bool] = []  # whether the head on the body's states gives the model's logits: tried in the first call

    @functools.wraps(type(model).forward)
    def forward(
        self: PreTrainedModel,
        *args: Any,
        answer_at: torch.Tensor | None = None,
        answer_ids: torch.Tensor | None = None,
        answer_factors: torch.Tensor | None = None,
        answer_dft: bool = False,
        answer_detail: int = 2,
        answer_teacher: Lesson | None = None,
        answer_states: bool = False,
        **kwargs: Any,
    ) -> Any:
        width = kwargs.pop("answer_width", None)
        if answer_at is None or (answer_ids is None and not answer_states):
            return original(*args, **kwargs)
        # A batch of this process may hold no answer. It then projects one token with factor 0, since every process has
        # to use the head: gathering it (ZeRO-3) and reducing its gradient are collective.
        none = answer_factors is not None and not len(answer_at)
        if none and answer_factors is not None and answer_ids is not None:
            answer_at, answer_ids, answer_factors = (
                one.new_zeros(1) for one in (answer_at, answer_ids, answer_factors)
            )
            answer_teacher = None if answer_teacher is None else answer_teacher.made_up()
        if not known:
            known.append(_head_is_all(self, original, own))
        head, form = self.get_output_embeddings(), replace(own, temperature=temperature)
        with torch.no_grad() if answer_states else nullcontext():
            if known[0]:
                hidden = body_of(self)(*args, **{**kwargs, "use_cache": False}).last_hidden_state
            else:
                head, form = _AS_IT_IS, LogitShape(temperature=temperature)
                hidden = original(*args, **{**kwargs, "use_cache": False}).logits
            if width is not None:
                hidden = hidden[:, -width:]
            picked = hidden.reshape(-1, hidden.shape[-1]).index_select(0, answer_at)
        if answer_states or answer_ids is None:
            return TeacherStates(picked, head, form)
        if answer_teacher is not None and answer_factors is not None:
            loss, found = taught_loss(head, picked, answer_ids, form, answer_detail, answer_factors, answer_teacher)
            return AnswerOutput(loss=loss, **{name: one[:0] if none else one for name, one in found.items()})
        if answer_factors is None:
            with in_float32(picked.device) if exact else nullcontext():
                picked = picked.float() if exact else picked
                columns = answer_log_probs(head, picked, answer_ids, form, answer_detail, entropy_learns=entropy_learns)
            return AnswerOutput(*columns)
        loss, columns = weighted_loss(head, picked, answer_ids, form, answer_detail, answer_factors, dft=answer_dft)
        return AnswerOutput(*(column[:0] if none else column for column in columns), loss=loss)

    replace_method(model, "forward", forward)


_AS_IT_IS = torch.nn.Identity()
"""The head where the rows are logits already."""

_PROBED = 8
"""Tokens of the trial."""

_ROUNDED = 0.02
"""How far logits may be off in 16 bits, as a share of the largest; what comes between changes them by more."""

_MISFITS = (RuntimeError, TypeError, AttributeError, LookupError, ValueError)
"""What a trial raises where something before the head takes states of another kind."""


@dataclass
class _States(BaseModelOutput):
    """What a body returns, but for anything else than its states."""

    def __getattr__(self, name: str) -> None:
        if name.startswith("__"):
            raise AttributeError(name)


def _head_is_all(model: Any, original: Any, shape: LogitShape) -> bool:
    """Whether a model's logits are `shape` of its head of the last states of its body, and nothing comes between.

    A model may transform its states before the head, as BERT does, scale them, as MiniCPM3 does, or name no body. It is
    tried out on made-up states. Where that would disturb the order in which ZeRO-3 fetches weights, or a compiler, the
    structure decides: there is the head alone next to the body.
    """
    body, head = body_of(model), model.get_output_embeddings()
    if body is model or head is None:
        return False
    if torch.compiler.is_compiling() or any(map(zero.is_partitioned, model.parameters())):
        others = [child for child in model.children() if child is not body and any(True for _ in child.parameters())]
        # Rows that only fill up the head (Inkling) would count among what is predicted.
        filled = getattr(model.config.get_text_config(), "unpadded_vocab_size", None) is not None
        return len(others) == 1 and others[0] is head and not filled
    return _try_head(model, original, body, lambda states: shape(head(states)))


@torch.compiler.disable
@torch.no_grad()
def _try_head(model: Any, original: Any, body: torch.nn.Module, logits_of: Callable[[torch.Tensor], Any]) -> bool:
    try:
        with made_up_states(model, body) as (ids, states):
            logits = original(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False).logits.float()
        found = logits_of(states).float()
    except _MISFITS:
        return False
    return found.shape == logits.shape and bool((found - logits).abs().max() <= _ROUNDED * logits.abs().max())


@contextmanager
def made_up_states(model: Any, body: torch.nn.Module) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """In the block the body returns made-up states (1, tokens, size) for ids (1, tokens): both are given."""
    head, ids = model.get_output_embeddings(), torch.arange(1, _PROBED + 1, device=model.device)[None]
    width = getattr(head, "in_features", None) or model.config.get_text_config().hidden_size
    # From a generator of its own: a run's random numbers stay what they are.
    drawn = torch.randn((1, _PROBED, width), generator=torch.Generator().manual_seed(0), device="cpu")
    states = drawn.to(model.device, model.dtype)
    # The body itself is not run: its layers may share rows with other processes, or ask for borders of a real row.
    with method_replaced(body, "forward", lambda *args, **kwargs: _States(last_hidden_state=states)):
        yield ids, states
