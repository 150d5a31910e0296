"""Whether a model was named, and a folder holds one: checked before other rules and decisions."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from hftune.arguments.model import ModelArguments
from hftune.errors import ArgumentError, UserError
from hftune.opening.model_files import read_checked
from hftune.path_hints import looks_local, missing_folder


def check_model_folder(model_args: ModelArguments) -> Iterator[UserError]:
    """Problems of `--model_name_or_path`: none was named, or its folder holds no model, or an adapter alone."""
    name = model_args.model_name_or_path
    if not name:
        yield ArgumentError(
            "no model was named",
            place="--model_name_or_path",
            fix="add --model_name_or_path with a model folder or a Hub name, such as Qwen/Qwen3-0.6B",
        )
        return
    folder = Path(name)
    # owner/name may be a folder or a Hub name: only what looks like a path must be there.
    if (looks_local(name) or folder.exists()) and not folder.is_dir():
        yield missing_folder(name, "--model_name_or_path", "a model folder or a name on the Hub")
    elif (folder / "adapter_config.json").is_file() and not (folder / "config.json").is_file():
        base = _base_of_adapter(folder)
        yield ArgumentError(
            f"{name} holds a LoRA adapter, not a model",
            place="--model_name_or_path",
            fix=f"merge it first: python merge_peft_adapter.py --base_model_name_or_path {base} "
            f"--peft_model_path {name} --output_dir MERGED; or continue it: --model_name_or_path {base} "
            f"--peft_path {name}",
        )
    # A GGUF file carries its config within itself.
    elif folder.is_dir() and not (folder / "config.json").is_file() and not model_args.gguf_file:
        yield no_model_in(folder)


def no_model_in(folder: Path) -> ArgumentError:
    """The error for a folder without a config, which names models below it."""
    return ArgumentError(
        f"{folder} has no config.json, so it is no model folder",
        place="--model_name_or_path",
        fix=_models_below(folder) or "give a folder with config.json, weights and tokenizer, or a Hub name",
    )


def _models_below(folder: Path) -> str:
    """A phrase that names the newest models within a folder; empty for none."""
    # The likeliest is the newest: an output folder of a run holds its checkpoints.
    found = sorted(folder.glob("*/config.json"), key=lambda file: file.stat().st_mtime, reverse=True)
    return f"give {' or '.join(str(file.parent) for file in found[:3])}" if found else ""


def _base_of_adapter(folder: Path) -> str:
    """The base that an adapter's config names."""
    config = read_checked(folder / "adapter_config.json")
    return str(config.get("base_model_name_or_path") or "BASE")
