"""A model under a name: prompts that fit it, and answers token by token, in the thread that calls."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from transformers import StoppingCriteria, StoppingCriteriaList

from hftune.data.tokenizing.context import context_of
from hftune.errors import DataError
from hftune.logging import notice
from hftune.tools.serving.errors import RequestError, too_long
from hftune.tools.serving.log_probs import LogProbs
from hftune.tools.serving.requests import Asked, ChatRequest, refused
from hftune.tools.talking.listening import Listener, sampling
from hftune.tools.talking.loading import Talker
from hftune.tools.talking.parsing import AnswerForm, Part, unmarked
from hftune.tools.talking.prompts import PromptWriter

# Where neither config nor tokenizer says how long a text may be.
_LONGEST = 32768
# A tokenizer is no place for two threads: it keeps settings between calls.
ENCODING = threading.Lock()


@dataclass
class Prompt:
    """What a model is given: as text, and as token ids."""

    text: str
    ids: list[int]


@dataclass
class Finish:
    """How an answer ended: `stop`, `length` or `tool_calls`; tokens generated; all parts as a message; the response's
    `logprobs`."""

    reason: str
    tokens: int
    message: dict[str, Any]
    log_probs: dict[str, Any] | None = None


class Served:
    """A model that answers under a name.

    Args:
        longest: Tokens of prompt and answer together; None: as many as the model takes.
    """

    def __init__(self, name: str, talker: Talker, borders_in_text: str, longest: int | None = None) -> None:
        self.name, self.talker, tokenizer = name, talker, talker.tokenizer
        self.longest = longest or context_of(talker.model, tokenizer) or _unknown_context(name)
        self.prompts = PromptWriter(name, tokenizer, borders_in_text)
        self.forms: dict[str, AnswerForm] = {}
        self.log_probs = LogProbs(talker.model, tokenizer)

    def form(self, arguments: dict[str, Any]) -> AnswerForm:
        """How the template writes answers with these arguments of a request."""
        key = json.dumps(arguments, sort_keys=True)
        if key not in self.forms:
            # Found by rendering a dozen conversations; whoever sends other arguments each time must not fill the
            # memory.
            if len(self.forms) >= 16:
                self.forms.clear()
            render = self.prompts.render
            self.forms[key] = AnswerForm(None if render is None else render.given(arguments))
        return self.forms[key]

    def prompt(self, asked: Asked) -> Prompt:
        """The prompt of a conversation.

        Raises:
            RequestError: The template refuses it, or it has no room for an answer.
        """
        with ENCODING:
            try:
                text = self.prompts.text(asked.messages, asked.tools, asked.arguments)
            except DataError as error:
                raise refused(error) from error
            (ids,) = self.prompts.ids([text])
        if not ids:
            raise RequestError("the prompt is empty", param="messages")
        if len(ids) >= self.longest:
            raise too_long(self.longest, len(ids))
        return Prompt(text, ids)

    def settings(self, request: ChatRequest, prompt: Prompt) -> dict[str, Any]:
        """The options of `generate`: the model's own, and over them the request's.

        Raises:
            RequestError: The answer may be longer than there is room for.
        """
        room = self.longest - len(prompt.ids)
        if request.max_tokens is not None and request.max_tokens > room:
            raise too_long(self.longest, len(prompt.ids), request.max_tokens)
        chosen = sampling(self.talker.sampling, request.sampling)
        return {"max_new_tokens": request.max_tokens or room, **chosen}

    def answer(
        self,
        request: ChatRequest,
        prompt: Prompt,
        settings: dict[str, Any],
        emit: Callable[[Part], None],
        cancelled: Callable[[], bool],
    ) -> Finish:
        """Generate one answer; its parts are emitted as they are complete."""
        form = self.form(request.arguments)
        reader = form.reader(prompt.text, request.tools)
        dropped = unmarked(self.talker.tokenizer, form)
        listener = Listener(self.talker, reader, emit, dropped=dropped, stops=request.stop)
        listener.hear(prompt.ids, **settings, stopping_criteria=StoppingCriteriaList([Stop(listener, cancelled)]))
        listener.finish()
        reason = "tool_calls" if listener.calls else "stop" if listener.ended_by or listener.stops.found else "length"
        told = None
        if request.logprobs is not None:
            # Read once more as a whole: what was drawn says nothing of what was likely.
            places = self.log_probs.of([*prompt.ids, *listener.ids], len(prompt.ids), request.logprobs)
            told = self.log_probs.chatted(places)
        return Finish(reason, len(listener.ids), reader.message(), told)


class Stop(StoppingCriteria):
    """Ends an answer at a text that the request names, and when nobody waits for it any more."""

    def __init__(self, listener: Listener, cancelled: Callable[[], bool]) -> None:
        self.listener, self.cancelled = listener, cancelled

    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> Any:
        """For each row (B,), whether it ends here."""
        done = self.listener.stops.found or self.cancelled()
        return torch.full((input_ids.shape[0],), done, device=input_ids.device, dtype=torch.bool)


def _unknown_context(name: str) -> int:
    notice(f"{name} does not say how long a text may be: up to {_LONGEST} tokens are taken (--max_model_len)")
    return _LONGEST
