"""`hftune serve`: what is asked for is checked, and the server of vLLM or of transformers started."""

from __future__ import annotations

import importlib.util
import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import torch

from hftune.child_processes import program
from hftune.errors import ArgumentError, UserError, raise_together, shown
from hftune.secrets import learn
from hftune.tools.listening import LOCAL, bound
from hftune.tools.serving.arguments import KEY_VARIABLE, ServeArguments
from hftune.tools.serving.engine import run_engine
from hftune.tools.serving.transformers_server import transformers_server
from hftune.tools.serving.vllm import vllm_server
from hftune.tools.talking.loading import check_talker

_NAME = re.compile(r"[\w.:/-]{1,200}")
_NEEDED = ("fastapi", "openai", "pydantic", "uvicorn")
"""What transformers' server imports."""


def serve(args: ServeArguments) -> None:
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
    fix = "serve a language model; `hftune score` asks a reward model"
    for name in [args.model, *filter(None, adapters_of(args).values())]:
        yield from check_talker(name, "--model", fix, trust_remote_code=args.trust_remote_code)
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
