"""Log-probabilities of drawn answers: of their tokens alone, in rows without pads where the model takes such.

TRL 1.16 computes padded rows, on a CPU through the head at every place, and applies the output embeddings to
`base_model`'s states. In some models that is the model itself (Llama 4), in others something comes between states and
head (BERT), or the head has a LoRA of its own, whose product is left out: `answer_head.py` knows of these.

Its trainers that generate pad prompts on the left and answers on the right, and repeat a prompt before each of its
answers. A model reads one row without pads, each prompt once, and what comes of the answers' tokens is put back into
that shape, (rows, tokens - 1).
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from transformers import PreTrainedModel
from transformers.utils import ModelOutput

from hftune.compat.installing import replace_method
from hftune.constants import IGNORE_INDEX
from hftune.models.attention.documents import documents_of, isolate_documents
from hftune.models.attention.isolation import ATTENTION
from hftune.models.attention.shared_prompts import shared_row
from hftune.models.kernels.answer_head import add_answer_head

Ids = tuple[int, ...]


@dataclass(frozen=True, eq=False)
class AnswerRows:
    """A batch for a transformer without a head, and where in it the tokens to score are.

    Args:
        inputs: What the transformer is called with.
        at: (tokens,) places in the flattened input whose states predict a token, row by row of the padded batch.
        ids: (tokens,) those tokens.
        mask: Bool (rows, tokens of a padded row - 1): where they belong.
    """

    inputs: dict[str, Any]
    at: torch.Tensor
    ids: torch.Tensor
    mask: torch.Tensor

    def pick(self, states: torch.Tensor) -> torch.Tensor:
        """Those of (batch, length, size) that predict a token: (tokens, size)."""
        return states.reshape(-1, states.shape[-1]).index_select(0, self.at)

    def spread(self, column: torch.Tensor) -> torch.Tensor:
        """(tokens,) as (rows, tokens of a padded row - 1), 0 where there is nothing to score.

        Connected to the model even where no token is scored, so that every process has a gradient.
        """
        return column.new_zeros(self.mask.shape).masked_scatter(self.mask, column)


def padded_rows(input_ids: torch.Tensor, attention_mask: torch.Tensor, labels: torch.Tensor) -> AnswerRows:
    """The batch as it is: (rows, tokens) each; labels are -100 where nothing is scored."""
    mask = labels[:, 1:] != IGNORE_INDEX
    # The state before a label predicts it; the last one of a row predicts none.
    at = torch.nn.functional.pad(mask, (0, 1)).flatten().nonzero().squeeze(1)
    inputs = {"input_ids": input_ids, "attention_mask": attention_mask, "use_cache": False}
    return AnswerRows(inputs, at, labels[:, 1:][mask], mask)


def shared_rows(input_ids: torch.Tensor, attention_mask: torch.Tensor, labels: torch.Tensor) -> AnswerRows:
    """One row: a prompt, its answers, the next prompt, ...; as it is where no prompt stands before an answer.

    Each token of an answer has a label. Rows of the batch without one are left out: nothing is scored there.
    """
    padded = padded_rows(input_ids, attention_mask, labels)
    rows = _rows(input_ids, attention_mask, padded.mask)
    if not all(prompt for prompt, _ in rows.values()):
        return padded
    groups: dict[Ids, dict[int, Ids]] = {}
    for number, (prompt, answer) in rows.items():
        groups.setdefault(prompt, {})[number] = answer
    device = input_ids.device
    inputs, places = shared_row([*groups], [[*answers.values()] for answers in groups.values()], device)
    numbers = chain.from_iterable(groups.values())
    places_of = dict(zip(numbers, chain.from_iterable(places), strict=True))
    at = [place for number in rows for place in places_of[number]][: len(padded.ids)]
    return AnswerRows(inputs, torch.tensor(at, dtype=torch.long, device=device), padded.ids, padded.mask)


def _rows(input_ids: torch.Tensor, real: torch.Tensor, scored: torch.Tensor) -> dict[int, tuple[Ids, Ids]]:
    """Prompt and answer of each row that has an answer, by its number; of the first row where none has."""
    found: dict[int, tuple[Ids, Ids]] = {}
    # One copy to the host for all rows: a row is laid out in plain numbers.
    for number, (ids, seen, labelled) in enumerate(
        zip(input_ids.tolist(), real.tolist(), scored.tolist(), strict=True)
    ):
        start = labelled.index(True) + 1 if any(labelled) else len(ids)
        prompt = tuple(token for token, here in zip(ids[:start], seen, strict=False) if here)
        answer = tuple(token for token, here in zip(ids[start:], seen[start:], strict=True) if here)
        if answer:
            found[number] = prompt, answer
    # A process without an answer takes part all the same: what reduces its gradients is a collective.
    first = input_ids[0].tolist()
    return found or {0: (tuple(first[:1]), tuple(first[-1:]))}


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
    if shares_prompts and documents_of(model) is None:  # a reference that TRL has read
        isolate_documents(model, ATTENTION)
    original = model.forward
    add_answer_head(model, temperature, entropy_learns=trains_entropy, exact=cast_lm_head_to_fp32)
    answered, detail = model.forward, int("entropy" in outputs)

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
        rows = rows_to_score(self, kwargs.pop("input_ids"), kwargs.pop("attention_mask"), labels)
        found = answered(**rows.inputs, **kwargs, answer_at=rows.at, answer_ids=rows.ids, answer_detail=detail)
        columns = (found.log_probs, found.entropy) if detail else (found.log_probs,)
        return Scores(*(rows.spread(column) for column in columns))

    replace_method(model, "forward", forward)


def rows_to_score(
    model: Any, input_ids: torch.Tensor, attention_mask: torch.Tensor, labels: torch.Tensor
) -> AnswerRows:
    """A padded batch as a model reads it: as it is where its attention alone does not keep answers apart."""
    documents = documents_of(model)
    if documents is None or documents.way != ATTENTION:
        return padded_rows(input_ids, attention_mask, labels)
    return shared_rows(input_ids, attention_mask, labels)
