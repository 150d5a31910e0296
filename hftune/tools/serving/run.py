"""`hftune serve`: what is asked for is checked, and the server of vLLM or of transformers is started, asked and ended.

It is asked once whether its prompts are those of training.
"""

from __future__ import annotations

import http.client
import importlib.util
import os
import re
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from pathlib import Path

import torch
from transformers import AutoTokenizer

from hftune.arguments.asking import KEY_VARIABLE, ServeArguments
from hftune.checkpoints.template_arguments import give_recorded
from hftune.child_processes import DEVNULL, Popen, TimeoutExpired, environment, program, start
from hftune.data.messages import Message
from hftune.errors import ArgumentError, DataError, UserError, raise_together, shown
from hftune.inference.loading import check_talkers
from hftune.inference.prompts import PromptWriter
from hftune.logging import get_logger, notice
from hftune.models.loading.from_pretrained import pretrained
from hftune.opening.files import MIB
from hftune.opening.json_server import JsonServer
from hftune.secrets import learn
from hftune.template_arguments import TemplateArguments
from hftune.tools.listening import LOCAL, bound
from hftune.tools.serving.servers import Engine, transformers_server, vllm_server

_NAME = re.compile(r"[\w.:/-]{1,200}")
_NEEDED = ("fastapi", "openai", "pydantic", "uvicorn")
"""What transformers' server imports."""
# Seconds from the first request to stop to the second, which cannot be ignored.
_PATIENCE = 1.5
_LOOK = 0.5
_USER: Message = {"role": "user", "content": "What is 12 plus 30?"}
_TALK: list[Message] = [_USER, {"role": "assistant", "content": "42."}, {"role": "user", "content": "And 5 more?"}]
CONVERSATIONS: list[list[Message]] = [[_USER], _TALK, [{"role": "system", "content": "Be brief."}, *_TALK]]
"""Whose prompts are compared: a template may treat the first turn, later ones and a system message each in its way."""


def serve(args: ServeArguments, argv: Sequence[str] = ()) -> None:
    """Serve until the process is told to stop.

    Raises:
        ArgumentError: Something is wrong with the arguments, a package is missing, a model cannot be loaded, the port
            is taken, the server ended by itself, or its prompts are not those of training.
    """
    raise_together(check_serve(args))
    learn(args.api_key)
    name, adapters = name_of(args), adapters_of(args)
    # Before the model is loaded: a port that is taken should not cost the minutes that it takes.
    with closing(bound(args.host, args.port)) as listening:
        port = listening.getsockname()[1]
    with tempfile.TemporaryDirectory(prefix="hftune-serve-") as aside:
        if backend_of(args) == "vllm":
            engine = vllm_server(args, name, adapters, port, Path(aside))
        else:
            engine = transformers_server(args, name, port, Path(aside))
        run_engine(engine, args, port, {name: str(args.model), **adapters})


def check_serve(args: ServeArguments) -> Iterator[UserError]:
    """Everything that is wrong with the arguments."""
    args.api_key = args.api_key or os.environ.get(KEY_VARIABLE) or None
    if not args.model:
        yield ArgumentError("no model was named", place="--model", fix="hftune serve FOLDER")
        return
    if not _NAME.fullmatch(name_of(args)):
        cause = f"{shown(name_of(args))} is no name for requests"
        yield ArgumentError(cause, place="--served_model_name", fix="give one of letters, digits and . _ - : /")
    yield from _check_adapters(args)
    served = [args.model, *filter(None, adapters_of(args).values())]
    yield from check_talkers(served, "--model", trust_remote_code=args.trust_remote_code)
    if args.api_key is not None and not re.fullmatch(r"[!-~]+", args.api_key):
        fix = "letters, digits and signs of ASCII, without spaces"
        yield ArgumentError("this key cannot be sent in a header of HTTP", place="--api_key", fix=fix)
    yield from _check_backend(args)


def _check_adapters(args: ServeArguments) -> Iterator[UserError]:
    known = [name_of(args)]
    for text in args.adapter or []:
        name, found, folder = text.partition("=")
        if not found or not folder or not _NAME.fullmatch(name):
            fix = "--adapter NAME=FOLDER, the name of letters, digits and . _ - : /"
            yield ArgumentError(f"{shown(text)} does not name an adapter and its folder", place="--adapter", fix=fix)
            continue
        if not (Path(folder) / "adapter_config.json").is_file():
            yield ArgumentError(f"there is no adapter in {folder}", place=f"--adapter {name}", fix="give its folder")
        known.append(name)
    for name in sorted({name for name in known if known.count(name) > 1}):
        fix = "rename the adapter, or give --served_model_name"
        yield ArgumentError(f"two models would be called {name}", place="--adapter", fix=fix)


def _check_backend(args: ServeArguments) -> Iterator[UserError]:
    if backend_of(args) == "vllm":
        if program("vllm") is None:
            yield ArgumentError(
                "vllm is not installed", place="--backend vllm", fix="pip install vllm, or leave --backend out"
            )
        if args.host not in LOCAL and args.api_key is None:
            cause = f"whoever reaches {args.host} could use this server"
            yield ArgumentError(cause, place="--host", fix=f"put a key into the variable {KEY_VARIABLE}")
        return
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        cause = f"transformers' server needs {', '.join(missing)}"
        yield ArgumentError(cause, place="hftune serve", fix="pip install 'hftune[serve]'; or vllm on a GPU")
    refused = {
        "--host": ("asks for no key", args.host not in LOCAL),
        "--api_key": ("asks for no key", args.api_key is not None),
        "--adapter": ("has one model; an adapter's own folder is served as one", bool(args.adapter)),
        "--max_model_len": ("has no such limit", args.max_model_len is not None),
    }
    for flag, (why, given) in refused.items():
        if given:
            fix = "leave it out, or serve with vLLM (--backend vllm)"
            yield ArgumentError(f"transformers' server {why}", place=flag, fix=fix)


def backend_of(args: ServeArguments) -> str:
    """What answers: "transformers" or "vllm"."""
    if args.backend != "auto":
        return args.backend
    has_gpu = torch.cuda.is_available() and not args.use_cpu
    return "vllm" if has_gpu and program("vllm") is not None else "transformers"


def name_of(args: ServeArguments) -> str:
    """What the model is called: a Hub name as it is, a folder by its last part."""
    given = str(args.model)
    return args.served_model_name or (Path(given).resolve().name if Path(given).is_dir() else given)


def adapters_of(args: ServeArguments) -> dict[str, str]:
    """The folders of the adapters by name."""
    return {name: folder for name, _, folder in (text.partition("=") for text in args.adapter or [])}


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
