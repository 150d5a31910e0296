"""transformers' own server (`transformers serve`) for one model, under a name, with what its training recorded."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import snapshot_download
from transformers import AutoTokenizer
from trl import add_response_schema

from hftune.checkpoints.template_arguments import give_recorded
from hftune.child_processes import python
from hftune.logging import notice
from hftune.models.loading.from_pretrained import pretrained
from hftune.template_arguments import arguments_of
from hftune.tools.serving.arguments import ServeArguments
from hftune.tools.serving.engine import Engine
from hftune.tools.talking.ends import write_generation_config
from hftune.tools.talking.loading import load_talker

_UNUSED = ["*.gguf", "*.pth", "onnx/*", "original/*"]
"""Files of a Hub repository that are no weights for transformers."""


def transformers_server(args: ServeArguments, name: str, port: int, aside: Path) -> Engine:
    """The command that serves with transformers.

    Args:
        name: Under which requests ask for the model.
        aside: Folder for what the server reads, which takes a whole model where an adapter is served.

    Raises:
        ArgumentError: An adapter cannot be loaded, or there are template arguments that the template does not read.
    """
    folder, hub = _folder(args, name, aside)
    on_gpu = torch.cuda.is_available() and not args.use_cpu
    dtype = args.dtype if args.dtype != "auto" or on_gpu else "float32"
    command = python("-m", "transformers.cli.transformers", "serve", name, "--host", args.host, "--port", str(port))
    command += ["--device", "auto" if on_gpu else "cpu", "--dtype", dtype]
    command += ["--trust-remote-code"] if args.trust_remote_code else []
    tokenizer = pretrained(AutoTokenizer, folder, trust_remote_code=args.trust_remote_code)
    if tokenizer.chat_template:
        given = arguments_of(give_recorded(tokenizer, str(args.model), args.template_arguments))
        command += ["--chat-template-kwargs", json.dumps(given)] if given else []
    # /v1/models lists the cache: this one holds the model that is served, and no other.
    env = {"HF_HUB_CACHE": str(hub), "HF_HUB_DISABLE_UPDATE_CHECK": "1"}
    return Engine("transformers' server", command, env, aside)


def _folder(args: ServeArguments, name: str, aside: Path) -> tuple[Path, Path]:
    """The model as the server finds it by its name from `aside`, and the cache of the Hub that it lies in."""
    hub = aside / "hub"
    repository = hub / f"models--{name.replace('/', '--')}"
    folder = repository / "snapshots" / "served"
    folder.mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("served", encoding="utf-8")
    (aside / name).parent.mkdir(parents=True, exist_ok=True)
    (aside / name).symlink_to(folder)
    model = Path(str(args.model))
    if (model / "adapter_config.json").is_file():
        _write_whole(args, folder)
        return folder, hub
    source = model if model.is_dir() else Path(snapshot_download(str(model), ignore_patterns=_UNUSED))
    tokenizer: Any = pretrained(AutoTokenizer, source, trust_remote_code=args.trust_remote_code)
    _save_tokenizer(tokenizer, folder)
    # A server that knows only the end of a text runs on after a chat model's turn.
    write_generation_config(source, folder, tokenizer)
    for entry in source.iterdir():
        if not (folder / entry.name).exists():
            (folder / entry.name).symlink_to(entry.resolve())
    return folder, hub


def _save_tokenizer(tokenizer: Any, folder: Path) -> None:
    """Write a tokenizer that tells the server how thoughts and calls are told from text, where TRL knows it."""
    if getattr(tokenizer, "response_template", None) is None:
        with suppress(ValueError):
            add_response_schema(tokenizer)
    tokenizer.save_pretrained(folder)


def _write_whole(args: ServeArguments, folder: Path) -> None:
    """Write an adapter, folded into its base."""
    talker = load_talker(str(args.model), args, "--model")
    notice(f"{args.model} is an adapter: the model that it makes of its base is written for the time of the server")
    talker.model.generation_config = talker.sampling
    talker.model.generation_config.eos_token_id = talker.ends or None
    talker.model.save_pretrained(folder)
    _save_tokenizer(talker.tokenizer, folder)
