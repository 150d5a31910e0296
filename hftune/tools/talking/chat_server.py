"""A model behind an OpenAI-compatible server that answers conversations."""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from multiprocessing.pool import ThreadPool
from typing import Any

from hftune.errors import shown
from hftune.opening.files import MIB
from hftune.opening.json_server import JsonServer
from hftune.tools.talking.answering import Answer, Question

_SIDE_BY_SIDE = 16
_PATIENCE = 60.0
"""Seconds in which a server that is away is asked again."""
# Of one token in an answer, escaped.
_TOKEN_BYTES = 64


class ChatServer:
    """Answers of a model.

    Args:
        url: Its address, with `/v1` or without.
        flag: What named it, for messages.
        name: Of the model there; None: the only one.
        variable: That holds its key.
    """

    def __init__(self, url: str, flag: str, name: str | None, variable: str) -> None:
        address = url.rstrip("/") + ("" if url.rstrip("/").endswith("/v1") else "/v1")
        self.server = JsonServer(address, flag, key=os.environ.get(variable) or None, variable=variable)
        self.given_name = name

    @functools.cached_property
    def name(self) -> str:
        """Of the model.

        Raises:
            ArgumentError: Several are served and none was named.
        """
        if self.given_name:
            return self.given_name
        found = self.server.ask("/models", limit=MIB, patience=_PATIENCE).get("data")
        names = [str(one.get("id")) for one in found if isinstance(one, dict)] if isinstance(found, list) else []
        if len(names) != 1:
            raise self.server.error(f"it serves {len(names)} models: {shown(', '.join(names), 200)}", "name one")
        return names[0]

    def __call__(
        self, questions: Sequence[Question], *, max_new_tokens: int, seed: int | None = None, **options: Any
    ) -> list[Answer]:
        """An answer to each question; they are asked side by side.

        Args:
            seed: Of the first, those after it count on: the same question asked twice gets two answers.
            options: Of the request, such as `temperature`.

        Raises:
            ArgumentError: It is away, refuses one, or its answer cannot be used.
        """
        if not questions:
            return []
        body = {"model": self.name, "max_tokens": max_new_tokens, **options}
        bodies = [body if seed is None else {**body, "seed": seed + at} for at in range(len(questions))]
        with ThreadPool(min(len(questions), _SIDE_BY_SIDE)) as pool:
            return pool.starmap(self._answer, zip(questions, bodies, strict=True))

    def _answer(self, question: Question, body: dict[str, Any]) -> Answer:
        body = {**body, "messages": question.messages, **({"tools": question.tools} if question.tools else {})}
        if question.arguments:
            body["chat_template_kwargs"] = question.arguments
        limit = MIB + _TOKEN_BYTES * int(body["max_tokens"])
        found = self.server.ask("/chat/completions", body, limit=limit, patience=_PATIENCE)
        choices = found.get("choices")
        choice = choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else {}
        message = choice.get("message")
        if not isinstance(message, dict) or not _is_message(message):
            raise self.server.error("its answer holds no message", "give a server with OpenAI's API")
        said = {"role": "assistant", "content": (message.get("content") or "").strip()}
        said |= {name: message[name] for name in ("reasoning_content", "tool_calls") if message.get(name)}
        return Answer(said, choice.get("finish_reason") != "length")


def _is_message(found: dict[str, Any]) -> bool:
    """Whether the parts of a message are of the kinds that templates, rewards and files of data expect."""
    texts = all(isinstance(found.get(name), str | None) for name in ("content", "reasoning_content"))
    calls = found.get("tool_calls") or []
    return texts and isinstance(calls, list) and all(map(_is_call, calls))


def _is_call(found: Any) -> bool:
    function = found.get("function") if isinstance(found, dict) else None
    if not isinstance(function, dict):
        return False
    return isinstance(function.get("name"), str) and isinstance(function.get("arguments"), str | dict)
