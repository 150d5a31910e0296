"""An answer while a model generates it, and how its tokens are chosen: `hftune chat` and `serve` have one way."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from transformers import GenerationConfig

from hftune.tools.talking.loading import Talker
from hftune.tools.talking.parsing import AnswerReader, Part
from hftune.tools.talking.texts import StopFinder, TokenText

# Without them transformers draws from the 50 likeliest tokens.
_NEUTRAL: dict[str, float | None] = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": None}
# Below it logits overflow, and the likeliest token would be drawn all the same; vLLM's number.
_GREEDY = 1e-5


class Listener:
    """Takes tokens from `generate`, as transformers' streamers do, and makes parts of an answer of them.

    Args:
        emit: Is given each part as soon as it is complete.
        dropped: Ids of tokens that are no part of the text.
        stops: Texts before which the answer ends; whoever generates asks `stops.found`.

    Attributes:
        ids: Those that were said, with the one that ended the answer.
        ended_by: The text of that one; "" before it has come.
        calls: Whether a part was a call.
    """

    def __init__(
        self,
        talker: Talker,
        reader: AnswerReader,
        emit: Callable[[Part], None],
        *,
        dropped: Iterable[int] = (),
        stops: tuple[str, ...] = (),
    ) -> None:
        self.talker, self.reader, self.emit = talker, reader, emit
        self.text, self.stops = TokenText(talker.tokenizer, {*talker.ends, *dropped}), StopFinder(stops)
        self.ids: list[int] = []
        self.ended_by, self.calls, self._prompted = "", False, False

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
            self._pass(self.reader.feed(self.stops(self.text(token))))

    def end(self) -> None:
        """Nothing: an answer that is stopped has no such end."""

    def finish(self) -> str:
        """Emit the last parts; all that was said, without what ended it."""
        self._pass(self.reader.feed(self.stops(self.text.rest()) + self.stops.rest()))
        said = self.reader.raw
        self._pass(self.reader.finish(self.ended_by))
        return said

    def _pass(self, parts: list[Part]) -> None:
        for part in parts:
            self.calls |= part.call is not None
            self.emit(part)


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
