"""vLLM's own server, told of the folder, its adapters, its chat template and what its training recorded."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from transformers import AutoTokenizer

from hftune.checkpoints import manifest as manifests
from hftune.checkpoints.folder_checks import whole_chain
from hftune.checkpoints.template_arguments import give_recorded
from hftune.child_processes import program
from hftune.errors import ArgumentError, UserError, raise_together
from hftune.models.adapters.folding import read_lora_config
from hftune.models.loading.from_pretrained import pretrained
from hftune.models.vocabulary import manifest_of, recorded_growth
from hftune.template_arguments import arguments_of, template_text
from hftune.tools.serving.arguments import ServeArguments
from hftune.tools.serving.engine import Engine

# A mark in a chat template, and vLLM's parser of calls in that form; the first that is there.
_CALLS = {"<function=": "qwen3_coder", "<arg_key>": "glm45", "<tool_call>": "hermes", "[TOOL_CALLS]": "mistral"}
_THOUGHTS = {"<arg_key>": "glm45", "<think>": "qwen3", "[THINK]": "mistral"}


def vllm_server(args: ServeArguments, name: str, adapters: dict[str, str], port: int, aside: Path) -> Engine:
    """The command that serves the same with vLLM.

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
        recorded = (manifests.read_manifest(args.model) or {}).get("base", {}).get("name")
        base = str(recorded or read_lora_config(args.model, "--model").base_model_name_or_path)
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
        fix = f"hftune merge --peft_model_path {folder}, and serve the merged folder"
        place = f"--backend vllm, {name}"
        if len(whole_chain([folder])) > 1:
            yield ArgumentError(f"{folder} lies upon other adapters, and vLLM lays one only", place=place, fix=fix)
        if recorded_growth(manifest_of(folder)) is not None:
            yield ArgumentError(f"{folder} has added tokens, which vLLM's adapters cannot have", place=place, fix=fix)
        if read_lora_config(folder, "--adapter").use_dora:
            yield ArgumentError(f"{folder} is DoRA, which vLLM's adapters cannot be", place=place, fix=fix)


def _rank(folder: str) -> int:
    """The next of the ranks that vLLM knows."""
    config = read_lora_config(folder, "--adapter")
    rank = max([config.r, *(config.rank_pattern or {}).values()])
    return next((size for size in (8, 16, 32, 64, 128, 256, 320, 512) if size >= rank), rank)
