"""The servers that `hftune serve` starts, vLLM's and transformers', told of what the model's training recorded."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import snapshot_download
from transformers import AutoTokenizer
from trl import add_response_schema

from hftune.arguments.asking import ServeArguments
from hftune.checkpoints.folder_checks import whole_chain
from hftune.checkpoints.template_arguments import give_recorded
from hftune.child_processes import program, python
from hftune.errors import ArgumentError, UserError, raise_together
from hftune.inference.loading import load_talker
from hftune.inference.prompts import write_generation_config
from hftune.logging import notice
from hftune.models.adapters.folding import read_lora_config
from hftune.models.loading.from_pretrained import pretrained
from hftune.models.vocabulary import manifest_of, recorded_growth
from hftune.preflight.model_folder import base_and_adapters
from hftune.template_arguments import arguments_of, template_text

_UNUSED = ["*.gguf", "*.pth", "onnx/*", "original/*"]
"""Files of a Hub repository that are no weights for transformers."""
# A mark in a chat template, and vLLM's parser of calls in that form; the first that is there.
_CALLS = {"<function=": "qwen3_coder", "<arg_key>": "glm45", "<tool_call>": "hermes", "[TOOL_CALLS]": "mistral"}
_THOUGHTS = {"<arg_key>": "glm45", "<think>": "qwen3", "[THINK]": "mistral"}


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


def vllm_server(args: ServeArguments, name: str, adapters: dict[str, str], port: int, aside: Path) -> Engine:
    """The command that serves with vLLM.

    Args:
        adapters: Folders of adapters, by the names under which they answer.
        aside: Folder for the chat template.

    Raises:
        ArgumentError: Adapters that vLLM cannot lay over their base.
    """
    assert args.model is not None
    raise_together(_adapter_problems(adapters if not _is_adapter(args.model) else {name: args.model, **adapters}))
    base = args.model
    tokenizer = pretrained(AutoTokenizer, args.model, trust_remote_code=args.trust_remote_code)
    if _is_adapter(args.model):
        adapters = {name: args.model, **adapters}
        base, _ = base_and_adapters(args.model, "--model")
    command = [program("vllm") or "vllm", "serve", base, "--host", args.host, "--port", str(port)]
    # Under an adapter's name the adapter answers, so that the base has another one.
    command += ["--served-model-name", f"{name}-base" if name in adapters else name]
    command += ["--tokenizer", args.model, "--dtype", args.dtype]
    command += ["--trust-remote-code"] if args.trust_remote_code else []
    command += ["--max-model-len", str(args.max_model_len)] if args.max_model_len else []
    if isinstance(tokenizer.chat_template, str):
        command += _of_template(give_recorded(tokenizer, args.model, args.template_arguments), aside)
    if adapters:
        ranks = [_rank(folder) for folder in adapters.values()]
        modules = [f"{adapter}={folder}" for adapter, folder in adapters.items()]
        command += ["--enable-lora", "--max-lora-rank", str(max(ranks)), "--lora-modules", *modules]
    # By the environment: a command line can be read by all users of a machine.
    return Engine("vLLM", command, {"VLLM_API_KEY": args.api_key} if args.api_key else {})


def _of_template(tokenizer: object, aside: Path) -> list[str]:
    """The template as a file, its arguments, and how calls and thoughts are told in what it writes."""
    text = template_text(tokenizer)
    file = aside / "chat_template.jinja"
    file.write_text(text, encoding="utf-8")
    words = ["--chat-template", str(file)]
    given = arguments_of(tokenizer)
    words += ["--default-chat-template-kwargs", json.dumps(given)] if given else []
    calls = next((parser for mark, parser in _CALLS.items() if mark in text), None)
    words += ["--enable-auto-tool-choice", "--tool-call-parser", calls] if calls else []
    thoughts = next((parser for mark, parser in _THOUGHTS.items() if mark in text), None)
    return words + (["--reasoning-parser", thoughts] if thoughts else [])


def _is_adapter(folder: str) -> bool:
    return (Path(folder) / "adapter_config.json").is_file()


def _adapter_problems(adapters: dict[str, str]) -> Iterator[UserError]:
    for name, folder in adapters.items():
        config = read_lora_config(folder, "--adapter")
        found = {
            "lies upon other adapters, and vLLM lays one only": len(whole_chain([folder])) > 1,
            "has added tokens, which vLLM's adapters cannot have": recorded_growth(manifest_of(folder)) is not None,
            "is DoRA, which vLLM's adapters cannot be": config.use_dora,
            # vLLM passes over the patterns without a word.
            "has several ranks or scales, and vLLM reads one": config.rank_pattern or config.alpha_pattern,
        }
        fix = f"hftune merge --peft_model_path {folder}, and serve the merged folder"
        for cause in (cause for cause, holds in found.items() if holds):
            yield ArgumentError(f"{folder} {cause}", place=f"--backend vllm, {name}", fix=fix)


def _rank(folder: str) -> int:
    """The next of the ranks that vLLM knows."""
    rank = read_lora_config(folder, "--adapter").r
    return next((size for size in (8, 16, 32, 64, 128, 256, 320, 512) if size >= rank), rank)


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
