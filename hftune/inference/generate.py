"""Answers of a model: to many prompts batch by batch, or to one while somebody reads along."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import GenerationConfig, TextStreamer

from hftune.data.counts import Context
from hftune.data.messages import Message
from hftune.errors import DataError
from hftune.inference.loading import Talker
from hftune.inference.parsing import AnswerForm
from hftune.inference.prompts import PromptWriter
from hftune.inference.questions import Question
from hftune.visible import whole

# Without them transformers draws from the 50 likeliest tokens.
_NEUTRAL: dict[str, float | None] = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": None}
# Below it logits overflow, and the likeliest token would be drawn all the same; vLLM's number.
_GREEDY = 1e-5


@dataclass(frozen=True)
class Answer:
    """What was said: an assistant's message, and whether it ended by itself.

    Attributes:
        prompt, ids: The text that the model was given, and the tokens that it said, with the one that ended it; of a
            server neither is known.
    """

    message: Message
    ended: bool
    prompt: str = ""
    ids: Sequence[int] = ()


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
        self.dropped = {*self.form.unmarked(talker.tokenizer), *talker.ends}

    def __call__(self, questions: Sequence[Question], *, max_new_tokens: int, **options: Any) -> list[Answer]:
        """An answer to each question: its thoughts and calls apart from its text.

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
        answers = []
        for at, (question, text) in enumerate(zip(questions, texts, strict=True)):
            message = self.read(text, question.tools, found[at])
            ended = bool(found[at]) and found[at][-1] in self.talker.ends
            answers.append(Answer({**message, "content": message["content"].strip()}, ended, text, found[at]))
        return answers

    def _text(self, question: Question) -> str:
        try:
            text = self.write.text(question.messages, question.tools, question.arguments)
        except DataError as error:
            raise error.at(question.origin) from error
        self.context.check_text(text, question.origin)
        return text

    def read(self, prompt: str, tools: list[dict[str, Any]] | None, tokens: Sequence[int]) -> Message:
        """The message of an answer's tokens: its thoughts and calls apart from its text."""
        ended_by = tokens[-1:] if tokens and tokens[-1] in self.talker.ends else ()
        end = str(self.talker.tokenizer.decode([*ended_by]))
        return self.form.message(prompt, self.text(tokens), tools, end)

    def text(self, tokens: Sequence[int]) -> str:
        """The text of an answer's tokens, with those special ones alone that mark its parts."""
        said = [token for token in tokens if token not in self.dropped]
        # At the limit of its tokens an answer ends anywhere, also within a character.
        return whole(str(self.talker.tokenizer.decode(said, skip_special_tokens=False)))


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


class Listener(TextStreamer):
    """Hands out the text of an answer while it is generated; `end` gives the last of one that was stopped.

    Attributes:
        ids: Those that were said, with the one that ended the answer.
    """

    def __init__(self, answerer: Answerer, emit: Callable[[str], None]) -> None:
        super().__init__(answerer.talker.tokenizer, skip_prompt=True, skip_special_tokens=False)
        self.talker, self.dropped, self.emit = answerer.talker, answerer.dropped, emit
        self.ids: list[int] = []

    @property
    def ended(self) -> bool:
        """Whether the answer has come to its end by itself."""
        return bool(self.ids) and self.ids[-1] in self.talker.ends

    @torch.no_grad()
    def hear(self, prompt: list[int], **options: Any) -> None:
        """Have the model answer a prompt; the options are those of `generate`."""
        model = self.talker.model
        inputs = torch.tensor([prompt], device=model.device)
        # A streamer hears no beams, which a model may have been saved with.
        options |= {"max_length": None, "num_beams": 1, "pad_token_id": self.talker.tokenizer.pad_token_id}
        mask = torch.ones_like(inputs)
        # nn.Module's __getattr__ hides the method.
        model.generate(inputs, attention_mask=mask, streamer=self, **options)

    def put(self, value: torch.Tensor) -> None:
        """Overrides `TextStreamer.put`: tokens are kept, and the one that ends the answer is no text."""
        if not self.next_tokens_are_prompt:
            self.ids.append(int(value))
            if self.ids[-1] in self.dropped:
                return
        super().put(value)

    def on_finalized_text(self, text: str, stream_end: bool = False) -> None:
        """Overrides `TextStreamer.on_finalized_text`, which prints."""
        # At its end an answer that was cut may have half a character.
        self.emit(text.rstrip("\ufffd") if stream_end else text)


def sampling(own: GenerationConfig, given: Mapping[str, float | None]) -> dict[str, Any]:
    """The options of `generate` by which tokens are chosen: those given, else the model's own, else greedy.

    Args:
        given: By transformers' names; `temperature` 0 is greedy, `top_k` 0 or -1 (vLLM's word) all tokens.
    """
    said = {name: value for name, value in given.items() if value is not None}
    temperature = next(one for one in (said.get("temperature"), own.temperature, 1.0) if one is not None)
    draws = bool(said.keys() & _NEUTRAL.keys() or own.do_sample) and temperature >= _GREEDY
    chosen: dict[str, Any] = {name: value for name, value in said.items() if name not in _NEUTRAL}
    if not draws:
        return {"do_sample": False, **chosen}
    for name, neutral in _NEUTRAL.items():
        value = next((one for one in (said.get(name), getattr(own, name, None), neutral) if one is not None), None)
        chosen |= {} if value is None else {name: value}
    return {"do_sample": True, **chosen, "top_k": max(0, chosen["top_k"])}
