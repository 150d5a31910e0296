"""`hftune serve`: what is asked for is checked, the port taken, the models loaded, and the server run until it is told
to stop."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from hftune.checkpoints.folder_checks import check_recorded_whole
from hftune.child_processes import program
from hftune.data.tokenizing.context import context_of
from hftune.errors import ArgumentError, UserError, raise_together, shown
from hftune.logging import get_logger, notice
from hftune.secrets import learn
from hftune.tools.listening.server import LOCAL, address_of, bound, missing_packages, run_app
from hftune.tools.serving.arguments import KEY_VARIABLE, ServeArguments
from hftune.tools.talking.loading import Talker, check_talker, load_talker

if TYPE_CHECKING:
    from hftune.tools.serving.app import Server

_NAME = re.compile(r"[\w.:/-]{1,200}")


def serve(args: ServeArguments) -> None:
    """Serve until the process is told to stop.

    Raises:
        ArgumentError: Something is wrong with the arguments, a package is missing, a model cannot be loaded, or the
            port is taken.
    """
    raise_together(check_serve(args))
    assert args.model is not None
    learn(args.api_key)
    if backend_of(args) == "vllm":
        from hftune.tools.serving.vllm import run_vllm

        run_vllm(args, name_of(args), adapters_of(args))
        return
    # Before the models: a port that is taken should not cost the minutes that they take.
    with closing(bound(args.host, args.port)) as listening:
        run_server(server_of(args), listening)


# --- what is asked for ------------------------------------------------------------------------------------------------


def check_serve(args: ServeArguments) -> Iterator[UserError]:
    """Everything that is wrong with the arguments."""
    args.api_key = args.api_key or os.environ.get(KEY_VARIABLE) or None
    if not args.model:
        yield ArgumentError("no model was named", place="--model", fix="hftune serve FOLDER")
        return
    known = [name_of(args), *([Path(args.reward_model).name] if args.reward_model else [])]
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
    fix = "serve a language model, and give this one as --reward_model"
    for name in [args.model, *filter(None, adapters_of(args).values())]:
        yield from check_talker(name, "--model", fix, trust_remote_code=args.trust_remote_code)
    yield from check_recorded_whole(args.reward_model, "--reward_model")
    yield from _check_backend(args)
    if args.api_key is not None and not re.fullmatch(r"[!-~]+", args.api_key):
        fix = "letters, digits and signs of ASCII, without spaces"
        yield ArgumentError("this key cannot be sent in a header of HTTP", place="--api_key", fix=fix)


def _check_backend(args: ServeArguments) -> Iterator[UserError]:
    if backend_of(args) == "vllm":
        if args.reward_model:
            fix = "leave --backend out; or serve the reward model by a command of its own"
            yield ArgumentError("vLLM's server has one model", place="--reward_model", fix=fix)
        if program("vllm") is None:
            fix = "pip install vllm, or leave --backend out"
            yield ArgumentError("vllm is not installed", place="--backend vllm", fix=fix)
        return
    yield from missing_packages("hftune serve")


def backend_of(args: ServeArguments) -> str:
    """What answers: "transformers" or "vllm"."""
    if args.backend != "auto":
        return args.backend
    has_gpu = torch.cuda.is_available() and not args.use_cpu
    return "vllm" if has_gpu and not args.reward_model and program("vllm") is not None else "transformers"


def name_of(args: ServeArguments) -> str:
    """What the model is called: a Hub name as it is, a folder by its last part."""
    assert args.model is not None
    given = args.model if not Path(args.model).is_dir() else Path(args.model).resolve().name
    return args.served_model_name or given


def adapters_of(args: ServeArguments) -> dict[str, str]:
    """The folders of the adapters by name."""
    return {name: folder for name, _, folder in (text.partition("=") for text in args.adapter or [])}


# --- what is served ---------------------------------------------------------------------------------------------------


def server_of(args: ServeArguments) -> Server:
    """The models, loaded, behind the server's addresses."""
    # Here: these need starlette, which is an extra.
    from hftune.tools.serving.answers import Served
    from hftune.tools.serving.app import Server
    from hftune.tools.serving.queue import WorkQueue
    from hftune.tools.serving.scores import Judge

    assert args.model is not None
    base = load_talker(args.model, args, "--model")
    talkers = {name_of(args): base}
    for name, folder in adapters_of(args).items():
        talkers[name] = load_talker(folder, args, f"--adapter {name}")
        share_weights(talkers[name], base)
    for name, talker in talkers.items():
        most = context_of(talker.model, talker.tokenizer)
        if args.max_model_len is not None and most is not None and args.max_model_len > most:
            cause = f"{name} takes {most} tokens"
            raise ArgumentError(cause, place=f"--max_model_len {args.max_model_len}", fix="give no more")
    served = [Served(name, talker, args.borders_in_text, args.max_model_len) for name, talker in talkers.items()]
    judge = Judge(args.reward_model, args) if args.reward_model else None
    local = args.host in LOCAL
    if not local and args.api_key is None:
        notice(f"whoever reaches {args.host} may use this server: {KEY_VARIABLE} asks for a key")
    return Server(served, judge, WorkQueue(args.max_waiting), args.api_key, LOCAL if local else None)


def share_weights(talker: Talker, base: Talker) -> None:
    """Have a model hold the weights that it has in common with another one once only."""
    theirs = dict(base.model.named_parameters(remove_duplicate=False))
    for name, own in list(talker.model.named_parameters(remove_duplicate=False)):
        other = theirs.get(name)
        # What accelerate has moved to the CPU or the disk is not here.
        if (
            other is None
            or own.is_meta
            or other.shape != own.shape
            or other.device != own.device
            or other.dtype != own.dtype
        ):
            continue
        if torch.equal(own, other):
            module, _, attribute = name.rpartition(".")
            setattr(talker.model.get_submodule(module), attribute, other)


def run_server(server: Server, listening: socket.socket) -> None:
    """Answer requests at a socket until this thread is interrupted; then open streams are ended, and the port freed."""
    names = ", ".join([*server.models, *([f"{server.judge.name} at /pooling"] if server.judge else [])])
    said = f"serving {names} at {address_of(listening)}/v1, one request at a time; Ctrl-C ends it"
    run_app(server.app, listening, partial(get_logger().info, "%s", said), server.queue.stop)
