"""`/v1/completions`: texts or token ids continued as they are, without a template, and how likely their tokens are."""

from __future__ import annotations

import threading
import time
import uuid
from dataclasses import dataclass
from typing import Any

import orjson
import torch
from transformers import StoppingCriteriaList

from hftune.data.templates.respelled_tokenizer import token_ids
from hftune.errors import shown
from hftune.logging import get_logger
from hftune.tools.serving.answers import ENCODING, Served, Stop
from hftune.tools.serving.errors import RequestError, too_long
from hftune.tools.serving.log_probs import Place
from hftune.tools.serving.requests import SAMPLING, Sampled, check_names, number_of, sampled, value_of
from hftune.tools.talking.listening import Listener, sampling
from hftune.tools.talking.parsing import AnswerReader

MOST_PROMPTS = 256
_USUAL_TOKENS = 16
"""OpenAI's, and vLLM's."""
_KNOWN = frozenset(
    (
        *("model", "prompt", "echo", "logprobs", "prompt_logprobs", "max_tokens", "n", "stop", "seed"),
        *("add_special_tokens", "return_token_ids", "return_tokens_as_token_ids"),
        *SAMPLING,
    )
)


@dataclass(kw_only=True)
class CompletionRequest(Sampled):
    """A request to continue prompts.

    Attributes:
        prompts: Texts, or token ids.
        echo: The prompt is a part of the answer.
        logprobs: Likeliest tokens that are told of the answer; None: no log-probabilities.
        prompt_logprobs: Likewise of the prompt.
        max_tokens: Of the answer; 0: the prompt alone is read.
        special: Texts get the tokens that the tokenizer puts in front.
        ids: Token ids are told as well.
        by_id: Tokens are named by their ids.
    """

    prompts: list[str | list[int]]
    echo: bool
    logprobs: int | None
    prompt_logprobs: int | None
    max_tokens: int
    special: bool
    ids: bool
    by_id: bool


def read_completion(body: dict[str, Any]) -> CompletionRequest:
    """The request that a body makes.

    Raises:
        RequestError: A field that is unknown, of another type, out of its range, or asks for what is not done.
    """
    check_names(body, _KNOWN)

    def count(name: str) -> int | None:
        found = number_of(body, name, 0, 1 << 20)
        return None if found is None else int(found)

    longest = number_of(body, "max_tokens", 0, 1 << 31)
    return CompletionRequest(
        **vars(sampled(body)),
        prompts=_prompts(body.get("prompt")),
        echo=value_of(body, "echo", bool, False),
        logprobs=count("logprobs"),
        prompt_logprobs=count("prompt_logprobs"),
        max_tokens=_USUAL_TOKENS if longest is None else int(longest),
        special=value_of(body, "add_special_tokens", bool, True),
        ids=value_of(body, "return_token_ids", bool, False),
        by_id=value_of(body, "return_tokens_as_token_ids", bool, False),
    )


def _prompts(given: Any) -> list[str | list[int]]:
    several = given if isinstance(given, list) and given and not isinstance(given[0], int) else [given]
    if len(several) > MOST_PROMPTS:
        raise RequestError(f"{len(several)} prompts are more than {MOST_PROMPTS}", param="prompt")
    for one in several:
        right = isinstance(one, str) or (isinstance(one, list) and one and all(type(x) is int for x in one))
        if not right:
            raise RequestError(f"prompt must be a text or token ids, or several, found {shown(one)}", param="prompt")
    return several


class Completion:
    """The answer to one request, made when it is its turn.

    Args:
        stopped: Set where the server ends.

    Attributes:
        gone: Set where nobody waits any more.

    Raises:
        RequestError: A prompt has no room, or ids that the model does not know; more is asked for than may be said.
    """

    def __init__(self, served: Served, asked: CompletionRequest, stopped: threading.Event) -> None:
        self.served, self.asked, self.stopped, self.gone = served, asked, stopped, threading.Event()
        self.began = time.monotonic()
        self.prompts = [self._ids(one) for one in asked.prompts]
        tokens = sum(map(len, self.prompts))
        told = tokens * asked.n + asked.n * len(self.prompts) * asked.max_tokens
        for name, k in (("logprobs", asked.logprobs), ("prompt_logprobs", asked.prompt_logprobs)):
            if k is not None:
                served.log_probs.check(told if name == "logprobs" else tokens, k, name)

    def make(self) -> bytes:
        """The body of the response; in the queue's thread."""
        choices, said = [], 0
        for number, ids in enumerate(self.prompts):
            for index in range(self.asked.n):
                if self._cancelled():
                    break
                choice, tokens = self._choice(ids, index)
                choices.append({"index": number * self.asked.n + index, **choice})
                said += tokens
        read = sum(map(len, self.prompts))
        reasons = "left" if self.gone.is_set() else " ".join(sorted({one["finish_reason"] for one in choices}))
        given = (self.served.name, read, said, reasons, time.monotonic() - self.began)
        get_logger().info("%s: %d + %d tokens, %s, %.1f s", *given)
        usage = {"prompt_tokens": read, "completion_tokens": said, "total_tokens": read + said}
        head = {"id": f"cmpl-{uuid.uuid4().hex}", "object": "text_completion", "created": int(time.time())}
        return orjson.dumps(head | {"model": self.served.name, "choices": choices, "usage": usage})

    def _choice(self, ids: list[int], index: int) -> tuple[dict[str, Any], int]:
        """One of the answers to a prompt, and its tokens."""
        asked, log_probs = self.asked, self.served.log_probs
        text, answer, reason = self._answer(ids, index) if asked.max_tokens else ("", [], "length")
        wanted = [k for k in (asked.logprobs, asked.prompt_logprobs) if k is not None]
        # Of one pass over all that is told of, and of no more.
        begin = 1 if asked.prompt_logprobs is not None or asked.echo else max(1, len(ids))
        places = log_probs.of([*ids, *answer], begin, max(wanted)) if wanted else []
        whole: list[Place | None] = [None, *places]
        choice: dict[str, Any] = {"text": text, "finish_reason": reason, "stop_reason": None}
        if asked.echo:
            choice["text"] = self.served.talker.tokenizer.decode(ids, skip_special_tokens=False) + text
        told = [*ids, *answer] if asked.echo else answer
        choice["logprobs"] = None
        if asked.logprobs is not None:
            some = [place and place.first(asked.logprobs) for place in whole[len(whole) - len(told) :]]
            choice["logprobs"] = log_probs.completed(told, some, by_id=asked.by_id)
        choice["prompt_logprobs"] = None
        if asked.prompt_logprobs is not None:
            some_places = [place.first(asked.prompt_logprobs) for place in places[: len(ids) - 1]]
            choice["prompt_logprobs"] = log_probs.prompted(some_places)
        choice |= {"prompt_token_ids": ids, "token_ids": answer} if asked.ids else {}
        return choice, len(answer)

    def _answer(self, ids: list[int], index: int) -> tuple[str, list[int], str]:
        """Text, tokens and why it ended."""
        talker, asked = self.served.talker, self.asked
        torch.manual_seed(asked.seed + index) if asked.seed is not None else torch.seed()
        dropped = talker.tokenizer.all_special_ids
        listener = Listener(talker, AnswerReader(lambda: None), lambda part: None, dropped=dropped, stops=asked.stop)
        criteria = StoppingCriteriaList([Stop(listener, self._cancelled)])
        chosen: dict[str, Any] = sampling(talker.sampling, asked.sampling)
        listener.hear(ids, max_new_tokens=asked.max_tokens, **chosen, stopping_criteria=criteria)
        text = listener.finish()
        return text, listener.ids, "stop" if listener.ended_by or listener.stops.found else "length"

    def _ids(self, prompt: str | list[int]) -> list[int]:
        served, ids = self.served, prompt
        if isinstance(ids, str):
            with ENCODING:
                (ids,) = token_ids(served.talker.tokenizer, [ids], add_special_tokens=self.asked.special)
        elif min(ids) < 0 or max(ids) >= served.log_probs.vocabulary:
            cause = f"token id {next(x for x in ids if not 0 <= x < served.log_probs.vocabulary)} is out of vocabulary"
            raise RequestError(f"{cause} (0 to {served.log_probs.vocabulary - 1})", param="prompt")
        if not ids:
            raise RequestError("the prompt is empty", param="prompt")
        if len(ids) + self.asked.max_tokens > served.longest:
            raise too_long(served.longest, len(ids), self.asked.max_tokens, param="prompt")
        return ids

    def _cancelled(self) -> bool:
        return self.gone.is_set() or self.stopped.is_set()
