"""Answers of a model to many prompts, batch by batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from hftune.data.counts import Context
from hftune.data.messages import Message
from hftune.errors import DataError
from hftune.template_arguments import TemplateArguments
from hftune.tools.talking.loading import Talker
from hftune.tools.talking.parsing import AnswerForm, unmarked
from hftune.tools.talking.prompts import PromptWriter
from hftune.visible import whole


@dataclass(frozen=True)
class Question:
    """A conversation that ends with a user's or a tool's turn.

    Args:
        tools: What is offered.
        arguments: What the template is given besides the model's own.
        origin: Where it comes from, for messages.
    """

    messages: list[Message]
    tools: list[dict[str, Any]] | None = None
    arguments: TemplateArguments = field(default_factory=dict)
    origin: str = ""


@dataclass(frozen=True)
class Answer:
    """What was said: an assistant's message, and whether it ended by itself."""

    message: Message
    ended: bool


class Answerer:
    """Has one model answer.

    Args:
        batch_tokens: Of a batch, prompts and answers together.
    """

    def __init__(self, talker: Talker, borders_in_text: str, batch_tokens: int) -> None:
        self.talker, self.batch_tokens = talker, batch_tokens
        self.write = PromptWriter(talker.name, talker.tokenizer, borders_in_text)
        self.context = Context.of(talker.model, talker.tokenizer)
        self.form = AnswerForm(self.write.render)
        self.dropped = {*unmarked(talker.tokenizer, self.form), *talker.ends}

    def __call__(self, questions: Sequence[Question], *, max_new_tokens: int, **options: Any) -> list[Answer]:
        """An answer to each question: its thoughts and calls apart from its text.

        Args:
            options: Of `generate`.

        Raises:
            DataError: As `said`.
        """
        said = self.said(questions, max_new_tokens=max_new_tokens, **options)
        return [self._read(text, one.tools, tokens) for one, (text, tokens) in zip(questions, said, strict=True)]

    def said(
        self, questions: Sequence[Question], *, max_new_tokens: int, **options: Any
    ) -> list[tuple[str, list[int]]]:
        """The prompt of each question, and the tokens of its answer with the one that ended it.

        Args:
            options: Of `generate`.

        Raises:
            DataError: The template refuses a conversation, or it does not fit into the model's context.
        """
        texts = [self._text(question) for question in questions]
        ids = self.write.ids(texts)
        for question, one in zip(questions, ids, strict=True):
            self.context.check(len(one), question.origin)
        found: dict[int, list[int]] = {}
        for batch in batches_by_length([len(one) for one in ids], max_new_tokens, self.batch_tokens):
            said = answer_ids(self.talker, [ids[at] for at in batch], max_new_tokens=max_new_tokens, **options)
            found |= dict(zip(batch, said, strict=True))
        return [(text, found[at]) for at, text in enumerate(texts)]

    def _text(self, question: Question) -> str:
        try:
            text = self.write.text(question.messages, question.tools, question.arguments)
        except DataError as error:
            raise error.at(question.origin) from error
        self.context.check_text(text, question.origin)
        return text

    def _read(self, prompt: str, tools: list[dict[str, Any]] | None, tokens: list[int]) -> Answer:
        """An answer without the token that ended it, its thoughts and calls apart from its text."""
        ended = bool(tokens) and tokens[-1] in self.talker.ends
        tokenizer = self.talker.tokenizer
        reader = self.form.reader(prompt, tools)
        said = [token for token in tokens if token not in self.dropped]
        # At the limit of its tokens an answer ends anywhere, also within a character.
        reader.feed(whole(str(tokenizer.decode(said, skip_special_tokens=False))))
        reader.finish(str(tokenizer.decode(tokens[-1:])) if ended else "")
        message = reader.message()
        return Answer({**message, "content": str(message["content"]).strip()}, ended)


@torch.no_grad()
def answer_ids(talker: Talker, prompts: Sequence[list[int]], **options: Any) -> list[list[int]]:
    """The tokens of the answers to a batch of prompts, with the one that ended each, without padding.

    Args:
        options: Of `generate`.
    """
    tokenizer, model = talker.tokenizer, talker.model
    # On the left, so that every prompt ends where generation begins.
    inputs = tokenizer.pad({"input_ids": [*prompts]}, padding_side="left", return_tensors="pt").to(model.device)
    options = {"pad_token_id": tokenizer.pad_token_id, **options}
    found = model.generate(**inputs, **options)  # nn.Module's __getattr__ hides the method
    return [_ended(ids, talker.ends) for ids in found[:, inputs["input_ids"].shape[1] :].tolist()]


def _ended(ids: list[int], ends: Sequence[int]) -> list[int]:
    """The tokens up to the first that ends an answer: what follows it is padding."""
    place = next((place for place, token in enumerate(ids) if token in ends), len(ids) - 1)
    return ids[: place + 1]


def batches_by_length(lengths: Sequence[int], more: int, batch_tokens: int) -> list[list[int]]:
    """Places of records in batches, the longest first: one that does not fit into memory fails at once.

    Args:
        lengths: Tokens of each.
        more: Tokens that each gets in addition.
        batch_tokens: Of a batch, padding included; a longer record goes alone.
    """
    order = sorted(range(len(lengths)), key=lambda place: -lengths[place])
    found: list[list[int]] = []
    while order:
        rows = max(1, batch_tokens // max(1, lengths[order[0]] + more))
        found.append(order[:rows])
        order = order[rows:]
    return found
