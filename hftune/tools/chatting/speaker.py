"""One model in a chat: its conversation, and the answers that it gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from hftune import interrupts
from hftune.arguments.asking import ChatArguments
from hftune.data.counts import Counts, describe_turn_tokens
from hftune.data.messages import Message
from hftune.errors import ArgumentError, DataError
from hftune.inference.generate import Answerer, Listener, sampling
from hftune.inference.loading import Talker
from hftune.logging import notice

Tools = list[dict[str, Any]]

STOPPED, TOO_LONG, FULL = "stopped", "cut at --max_new_tokens", "cut: the context is full"


class Speaker:
    """A model with its conversation.

    Args:
        talker: The model.
        system: The system message; None for none.
        tools: What it is offered.

    Raises:
        ArgumentError: Its chat template does not show the system message or the tools.
    """

    def __init__(self, talker: Talker, args: ChatArguments, system: str | None = None, tools: Tools | None = None):
        self.talker, self.name, self.args, self.tools = talker, talker.name, args, tools
        self.model = Answerer(talker, args.borders_in_text, batch_tokens=0)
        self.render = self.model.write.render
        self._check_tools()
        self.begin(system)

    def begin(self, system: str | None) -> None:
        """Forget the conversation, and begin one with this system message.

        Raises:
            ArgumentError: The chat template does not show it; the conversation stays.
        """
        messages: list[Message] = [{"role": "system", "content": system}] if system else []
        if system:
            self._check_system(messages)
        self.system, self.messages = system, messages

    def _check_system(self, system: list[Message]) -> None:
        fix = "leave it out, or write it into the question"
        if self.render is None:
            raise ArgumentError(f"{self.name} has no chat template for a system message", fix=fix)
        try:
            text = self.render([*system, {"role": "user", "content": "a"}], self.tools, add_generation_prompt=True)
        except DataError as error:
            raise ArgumentError(f"{self.name} takes no system message: {error.cause}", fix=fix) from error
        if str(system[0]["content"]).strip() not in text:
            raise ArgumentError(f"the chat template of {self.name} leaves the system message out", fix=fix)

    def _check_tools(self) -> None:
        asked: list[Message] = [{"role": "user", "content": "a"}]
        if self.tools and (self.render is None or self.render(asked, self.tools) == self.render(asked)):
            cause = f"the chat template of {self.name} shows no tools"
            raise ArgumentError(cause, place="--tools", fix="leave them out, or take a model that was made for tools")

    # --- the conversation ---------------------------------------------------------------------------------------------

    def pending(self) -> list[dict[str, Any]]:
        """The calls of the last answer that have no result yet."""
        results = 0
        for message in reversed(self.messages):
            if message["role"] == "assistant":
                return list(message.get("tool_calls", []))[results:]
            results += message["role"] == "tool"
        return []

    def result_of(self, call: dict[str, Any], text: str) -> Message:
        """A tool's result as a message."""
        named = {"tool_call_id": call["id"]} if "id" in call else {}
        return {"role": "tool", "name": call["function"]["name"], "content": text, **named}

    def taken_back(self) -> bool:
        """Whether there was an answer to take back, with all behind the question or result before it."""
        answers = [at for at, message in enumerate(self.messages) if message["role"] == "assistant"]
        if answers:
            del self.messages[answers[-1] :]
        return bool(answers)

    # --- answers ------------------------------------------------------------------------------------------------------

    def prompt(self) -> tuple[str, list[int]]:
        """What the model is given, as text and as token ids.

        Raises:
            DataError: The chat template refuses the conversation, or `--borders_in_text` a text in it.
        """
        text = self.model.write.text(self.messages, self.tools)
        counts = Counts(rows=1)
        counts.note_texts([text])
        if counts.bordered:
            notice(describe_turn_tokens(counts, self.args.borders_in_text))
        return text, self.model.write.ids([text])[0]

    def answer(self, show: Callable[[str], None], seed: int | None = None) -> tuple[Message | None, str]:
        """The answer to the conversation, which it joins, and why it was cut.

        Args:
            show: Called with the text of the answer, piece by piece, while it is generated.

        Returns:
            The message, with `weight` 0, so that it is not trained, where it was cut; None: it was cut, or ended,
            before there was a text or a call. Why it was cut; "" for a whole one.

        Raises:
            ArgumentError: The conversation is longer than the context, or takes more memory than there is.
            DataError: As `prompt`.
        """
        text, ids = self.prompt()
        limit = self.model.context.tokens
        if limit is not None and len(ids) >= limit:
            cause = (
                f"the conversation has {len(ids)} tokens, and the context of {self.name} is {limit}: it was not asked"
            )
            raise ArgumentError(cause, fix="/new begins another one; nothing of this one is left out by itself")
        room = self.args.max_new_tokens if limit is None else min(limit - len(ids), self.args.max_new_tokens)
        listener = Listener(self.model, show)
        stopped = self._generate(ids, room, listener, seed)
        listener.end()
        cut = STOPPED if stopped else "" if listener.ended else TOO_LONG if room == self.args.max_new_tokens else FULL
        message = self._message(text, listener.ids)
        if not message["content"].strip() and not message.get("tool_calls"):
            return None, cut
        # To train it would teach to stop there.
        message |= {"weight": 0.0} if cut else {}
        self.messages.append(message)
        return message, cut

    def _generate(self, prompt: list[int], tokens: int, listener: Listener, seed: int | None) -> bool:
        """Whether it was stopped by Ctrl-C."""
        given = {name: getattr(self.args, name) for name in ("temperature", "top_p", "top_k")}
        if seed is not None:
            torch.manual_seed(seed)
        # For the time of an answer Ctrl-C is Python's own: it ends the answer, and not the chat.
        try:
            with interrupts.paused():
                listener.hear(prompt, max_new_tokens=tokens, **sampling(self.talker.sampling, given))
        except interrupts.Interrupted:
            raise  # a moment after the answer: the chat's own
        except KeyboardInterrupt:
            return True
        except torch.OutOfMemoryError as error:
            cause = f"the memory of the device has no room for an answer to {len(prompt)} tokens"
            raise ArgumentError(cause, fix="/new begins another conversation") from error
        return False

    def _message(self, prompt: str, ids: list[int]) -> Message:
        """The answer as the message that the template writes as it was said, where there is one."""
        read, said = self.model.read(prompt, self.tools, ids), self.model.text(ids)
        if self.render is None:
            return read
        calls = [{"id": f"call{number:05}", **call} for number, call in enumerate(read.get("tool_calls", []))]
        # Some templates want calls to have an id of nine characters, some read thoughts under the other name; some
        # write no thoughts, and then they are part of the text.
        ways: list[Message] = [read, *([{**read, "tool_calls": calls}] if calls else [])]
        ways += [{**way, "thinking": read["reasoning_content"]} for way in ways if "reasoning_content" in read]
        ways += [{"role": "assistant", "content": text} for text in (said, said.strip())]
        written = {at: text for at, way in enumerate(ways) if (text := self._written(way)) is not None}
        exact = [at for at, text in written.items() if text.startswith((prompt + said).rstrip())]
        return ways[next(iter([*exact, *written]), 0)]

    def _written(self, message: Message) -> str | None:
        """The conversation with this answer; None where the template refuses it."""
        assert self.render is not None
        try:
            return self.render([*self.messages, message], self.tools)
        except DataError:
            return None
