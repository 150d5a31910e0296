"""How likely a model finds tokens of a text, and which it finds most likely in their places; in OpenAI's forms."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from hftune.models.kernels.answer_head import add_answer_head
from hftune.models.kernels.chunked_heads import chunk_slices
from hftune.models.vocabulary.size import predicted_rows
from hftune.tools.serving.errors import RequestError

MOST_VALUES = 1 << 20
"""Log-probabilities of an answer: some 60 bytes each."""


@dataclass(frozen=True)
class Place:
    """What is said of a token, before temperature and filters.

    Args:
        log_prob: Of the token that is there, nats.
        rank: Its place among all, from 1.
        top: Ids and log-probabilities, the likeliest first.
    """

    token: int
    log_prob: float
    rank: int
    top: list[tuple[int, float]]

    def first(self, k: int) -> Place:
        """With fewer of the likeliest."""
        return replace(self, top=self.top[:k])

    @property
    def all(self) -> dict[int, tuple[float, int]]:
        """Log-probability and rank of the likeliest, and of the token itself where it is not among them."""
        found = {token: (value, rank) for rank, (token, value) in enumerate(self.top, start=1)}
        return found if self.token in found else {self.token: (self.log_prob, self.rank), **found}


class LogProbs:
    """A model's log-probabilities, and its tokens as text."""

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
        self.model, self.tokenizer = model, tokenizer
        self.vocabulary = predicted_rows(model)
        self._texts: dict[int, str] = {}
        self._ready = False

    def check(self, tokens: int, k: int, param: str) -> None:
        """Refuse more of them than an answer may hold.

        Raises:
            RequestError: With the field that asks for them.
        """
        if tokens * (min(k, self.vocabulary) + 1) > MOST_VALUES:
            raise RequestError(f"{tokens} tokens with {k} log-probabilities each are too many", param=param)

    @torch.no_grad()
    def of(self, ids: list[int], begin: int, k: int) -> list[Place]:
        """Of the tokens of a text from place `begin`, which is 1 or more, on."""
        if len(ids) <= begin:
            return []
        if not self._ready:
            add_answer_head(self.model)
            self._ready = True
        tokens = torch.tensor([ids], device=self.model.device)
        at = torch.arange(begin - 1, len(ids) - 1, device=tokens.device)
        states = self.model(input_ids=tokens, answer_at=at, answer_states=True)
        found: list[Place] = []
        with states.opened(self.vocabulary, 1.0) as log_probs_of:
            for rows in chunk_slices(states.hidden, self.vocabulary):
                log_probs = log_probs_of(rows)
                wanted = tokens[0, begin:][rows].to(log_probs.device)
                own = log_probs.gather(1, wanted[:, None])
                ranks = (log_probs > own).sum(dim=1) + 1
                values, numbers = log_probs.topk(min(k, log_probs.shape[1]))
                each = (wanted, own[:, 0], ranks, numbers, values)
                found += [
                    Place(token, value, rank, list(zip(top, probable, strict=True)))
                    for token, value, rank, top, probable in zip(*(one.tolist() for one in each), strict=True)
                ]
        return found

    def text(self, token: int) -> str:
        """A token as it is written alone."""
        if token not in self._texts:
            self._texts[token] = str(self.tokenizer.decode([token], skip_special_tokens=False))
        return self._texts[token]

    # --- forms ---

    def prompted(self, places: list[Place]) -> list[dict[str, Any] | None]:
        """vLLM's `prompt_logprobs`: of all tokens of a prompt, of which nothing is said of the first."""
        said: list[dict[str, Any] | None] = [None]
        for place in places:
            entries = place.all.items()
            said.append(
                {
                    str(token): {"logprob": value, "rank": rank, "decoded_token": self.text(token)}
                    for token, (value, rank) in entries
                }
            )
        return said

    def completed(self, ids: list[int], places: list[Place | None], *, by_id: bool) -> dict[str, Any]:
        """OpenAI's `logprobs` of completions; `by_id`: tokens as `token_id:N`, vLLM's way to name each."""

        def named(token: int) -> str:
            return f"token_id:{token}" if by_id else self.text(token)

        offsets, end = [], 0
        for token in ids:
            offsets.append(end)
            end += len(self.text(token))
        return {
            "text_offset": offsets,
            "token_logprobs": [None if place is None else place.log_prob for place in places],
            "tokens": [named(token) for token in ids],
            "top_logprobs": [
                None if place is None else {named(token): value for token, (value, _) in place.all.items()}
                for place in places
            ],
        }

    def chatted(self, places: list[Place]) -> dict[str, Any]:
        """OpenAI's `logprobs` of chats."""

        def entry(token: int, value: float) -> dict[str, Any]:
            text = self.text(token)
            return {"token": text, "logprob": value, "bytes": list(text.encode())}

        content = [
            entry(place.token, place.log_prob) | {"top_logprobs": [entry(*one) for one in place.top]}
            for place in places
        ]
        return {"content": content, "refusal": None}
