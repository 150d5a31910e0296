"""An answer while a model generates it, token by token as text, and how its tokens are chosen."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from transformers import GenerationConfig, PreTrainedTokenizerBase

from hftune.tools.talking.loading import Talker
from hftune.tools.talking.parsing import AnswerReader, Part

# Without them transformers draws from the 50 likeliest tokens.
_NEUTRAL: dict[str, float | None] = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": None}
# Below it logits overflow, and the likeliest token would be drawn all the same; vLLM's number.
_GREEDY = 1e-5


class Listener:
    """Takes tokens from `generate`, as transformers' streamers do, and makes parts of an answer of them.

    Args:
        emit: Is given each part as soon as it is complete.

    Attributes:
        ids: Those that were said, with the one that ended the answer.
        ended_by: The text of that one; "" before it has come.
    """

    def __init__(self, talker: Talker, reader: AnswerReader, emit: Callable[[Part], None]) -> None:
        self.talker, self.reader, self.emit = talker, reader, emit
        self.text = TokenText(talker.tokenizer, talker.ends)
        self.ids: list[int] = []
        self.ended_by, self._prompted = "", False

    @torch.no_grad()
    def hear(self, prompt: list[int], **options: Any) -> None:
        """Have the model answer a prompt; the options are those of `generate`."""
        model = self.talker.model
        inputs = torch.tensor([prompt], device=model.device)
        options |= {"max_length": None, "num_beams": 1, "pad_token_id": self.talker.tokenizer.pad_token_id}
        mask = torch.ones_like(inputs)
        # nn.Module's __getattr__ hides the method.
        model.generate(inputs, attention_mask=mask, streamer=self, **options)

    def put(self, value: torch.Tensor) -> None:
        """Take the prompt, which comes first, or a token."""
        if not self._prompted:
            self._prompted = True
            return
        for token in value.flatten().tolist():
            self.ids.append(token)
            if token in self.talker.ends:
                self.ended_by = str(self.talker.tokenizer.decode([token]))
            self._pass(self.reader.feed(self.text(token)))

    def end(self) -> None:
        """Nothing: an answer that is stopped has no such end."""

    def finish(self) -> str:
        """Emit the last parts; all that was said, without what ended it."""
        self._pass(self.reader.feed(self.text.rest()))
        said = self.reader.raw
        self._pass(self.reader.finish(self.ended_by))
        return said

    def _pass(self, parts: list[Part]) -> None:
        for part in parts:
            self.emit(part)


class TokenText:
    """The text of an answer, token by token: what it returns, put together, is the text of all tokens.

    Args:
        dropped: Ids of tokens that are no part of the text.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, dropped: Iterable[int] = ()) -> None:
        self.tokenizer, self.dropped = tokenizer, frozenset(dropped)
        self.ids: list[int] = []
        # Tokens from `start` are decoded together, since some tokenizers write a word by its neighbours; those up to
        # `read` have been returned.
        self.start = self.read = 0

    def __call__(self, token: int) -> str:
        """The text that this token completes; "" while a character lacks bytes."""
        if token in self.dropped:
            return ""
        self.ids.append(token)
        text, known = self._decoded(len(self.ids)), self._decoded(self.read)
        # A byte-level tokenizer decodes the first bytes of a character to U+FFFD.
        if len(text) <= len(known) or text.endswith("\ufffd"):
            return ""
        self.start, self.read = self.read, len(self.ids)
        return text[len(known) :]

    def rest(self) -> str:
        """What is left at the end, without a part of a character."""
        return self._decoded(len(self.ids))[len(self._decoded(self.read)) :].rstrip("\ufffd")

    def _decoded(self, end: int) -> str:
        return str(self.tokenizer.decode(self.ids[self.start : end], skip_special_tokens=False))


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
