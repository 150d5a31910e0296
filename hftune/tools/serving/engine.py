"""The server of another program: started, asked once whether its prompts are those of training, and ended."""

from __future__ import annotations

import http.client
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from transformers import AutoTokenizer

from hftune.checkpoints.template_arguments import give_recorded
from hftune.child_processes import DEVNULL, Popen, TimeoutExpired, environment, start
from hftune.data.messages import Message
from hftune.errors import ArgumentError, DataError
from hftune.logging import get_logger, notice
from hftune.models.loading.from_pretrained import pretrained
from hftune.opening.files import MIB
from hftune.opening.json_server import JsonServer
from hftune.template_arguments import TemplateArguments
from hftune.tools.serving.arguments import KEY_VARIABLE, ServeArguments
from hftune.tools.talking.prompts import PromptWriter

# Seconds from the first request to stop to the second, which cannot be ignored.
_PATIENCE = 1.5
_LOOK = 0.5
_USER: Message = {"role": "user", "content": "What is 12 plus 30?"}
_TALK: list[Message] = [_USER, {"role": "assistant", "content": "42."}, {"role": "user", "content": "And 5 more?"}]
CONVERSATIONS: list[list[Message]] = [[_USER], _TALK, [{"role": "system", "content": "Be brief."}, *_TALK]]
"""Whose prompts are compared: a template may treat the first turn, later ones and a system message each in its way."""


@dataclass(frozen=True)
class Engine:
    """A program that serves.

    Attributes:
        title: Its name, for messages.
        command: That starts it.
        env: Its variables besides those of this process.
        cwd: Where it is started; None: here.
    """

    title: str
    command: list[str]
    env: dict[str, str] = field(default_factory=dict)
    cwd: Path | None = None


def run_engine(engine: Engine, args: ServeArguments, port: int, served: dict[str, str]) -> None:
    """Run a server until it ends or this process is told to stop.

    Args:
        port: That it was told to listen at.
        served: Folder or Hub name of each model, by the name under which it is served.

    Raises:
        ArgumentError: It ended by itself, or makes other prompts than training did.
    """
    get_logger().info("starting %s: %s", engine.title, " ".join(engine.command))
    given = environment() | engine.env
    server = start(engine.command, env=given, cwd=engine.cwd, stdin=DEVNULL)
    try:
        _wait(server, args.host, port, engine.title)
        for name, folder in served.items():
            check_prompts(f"http://{_local(args.host)}:{port}/v1", name, folder, args)
        get_logger().info("serving %s at http://%s:%d/v1; Ctrl-C ends it", ", ".join(served), args.host, port)
        code = server.wait()
        raise _ended(engine.title, code)
    finally:
        server.terminate()
        try:
            server.wait(_PATIENCE)
        except TimeoutExpired:
            server.kill()
            server.wait()


def _wait(server: Popen[bytes], host: str, port: int, title: str) -> None:
    """Wait until requests are taken, which a large model delays by minutes."""
    while (code := server.poll()) is None:
        with suppress(OSError, http.client.HTTPException):
            connection = http.client.HTTPConnection(_local(host), port, timeout=_LOOK)
            connection.request("GET", "/health")
            if connection.getresponse().status == http.HTTPStatus.OK:
                return
        time.sleep(_LOOK)
    raise _ended(title, code)


def _ended(title: str, code: int) -> ArgumentError:
    return ArgumentError(f"{title} ended with code {code}", place="hftune serve", fix="see what it says above")


def _local(host: str) -> str:
    """An address by which this machine reaches a server that listens at `host`."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104  (asked, not listened at)


# --- prompts ----------------------------------------------------------------------------------------------------------


def check_prompts(url: str, name: str, folder: str, args: ServeArguments) -> None:
    """Prove that a server gives the model what training gave it, by the number of tokens of some conversations.

    Args:
        url: Of the server, with `/v1`.
        name: Of the model there.
        folder: Of the model, whose template and recorded arguments say what is right.

    Raises:
        ArgumentError: A prompt has another number of tokens.
    """
    server = JsonServer(url, "hftune serve", key=args.api_key, variable=KEY_VARIABLE)
    asked = 0
    for messages, tokens in expected_prompts(folder, args.template_arguments, args.trust_remote_code):
        body = {"model": name, "messages": messages, "max_tokens": 1, "temperature": 0}
        usage = server.ask("/chat/completions", body, limit=MIB, patience=0).get("usage") or {}
        if usage.get("prompt_tokens") != tokens:
            cause = f"the server makes a prompt of {usage.get('prompt_tokens')} tokens where training has {tokens}"
            fix = "report it with the model's chat template; `hftune chat` asks the model with the right prompts"
            raise ArgumentError(cause, place=f"{name}: {messages}", fix=fix)
        asked += 1
    if asked:
        get_logger().info("%s: the server's prompts have as many tokens as training's (%d conversations)", name, asked)
    else:
        notice(f"{name} has no chat template: the server takes texts at /v1/completions, and no conversations")


def expected_prompts(
    folder: str, given: TemplateArguments | None, trust_remote_code: bool
) -> Iterator[tuple[list[Message], int]]:
    """The conversations that a model's template writes, each with the tokens of its prompt."""
    tokenizer = pretrained(AutoTokenizer, folder, trust_remote_code=trust_remote_code)
    if not tokenizer.chat_template:
        return
    writer = PromptWriter(folder, give_recorded(tokenizer, folder, given), "allow")
    for messages in CONVERSATIONS:
        with suppress(DataError):  # a template may refuse system messages
            yield messages, len(writer.ids([writer.text(messages)])[0])
