"""`hftune export FORMAT`: parses the command line, checks, writes to a work folder, reads back, publishes."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from hftune.arguments.stages import parse_command
from hftune.checkpoints import manifest as manifests
from hftune.checkpoints.folder_checks import check_recorded
from hftune.checkpoints.inputs import inputs_of
from hftune.checkpoints.model_card import model_card
from hftune.errors import ArgumentError, UserError, did_you_mean, raise_together, shown
from hftune.inference.results import about_result
from hftune.logging import get_logger
from hftune.models.loading.config_file import check_config, check_layers
from hftune.preflight.model_folder import no_model_in
from hftune.publishing.folder import published_folder, write_page
from hftune.publishing.places import check_place
from hftune.stores.pushing import push
from hftune.tools.export.arguments import (
    ExportArguments,
    GgufArguments,
    HubArguments,
    OllamaArguments,
    ServingArguments,
)
from hftune.weight_files import fingerprint, weight_shapes


def export(args: ExportArguments, argv: Sequence[str] = ()) -> dict[str, Any]:
    """Write the format that the class of `args` stands for, and return the manifest of the result.

    Args:
        argv: The words behind the format, for the manifest.

    Raises:
        UserError: All problems together, before anything is written.
    """
    began = time.time()
    raise_together(check_export(args))
    folder = Path(str(args.model_name_or_path))
    if isinstance(args, HubArguments):
        return _publish(folder, args)
    output = Path(str(args.output_dir))
    with published_folder(output, overwrite=args.overwrite_output_dir, inputs=inputs_of(args)) as aside:
        figures = _write(folder, aside, args)
        source = {"name": str(folder), "fingerprint": fingerprint(folder)}
        kind = next(name for name, kind in FORMATS.items() if kind is type(args))
        about = about_result(f"export {kind}", args, [*argv], [], began)
        about |= {"stage": "export", "format": kind, "kind": "full", "base": source, "figures": figures}
        about["parents"] = [{"folder": str(folder), "fingerprint": source["fingerprint"]}]
        # The manifest comes last, when all files are there; an error in this block leaves nothing published.
        manifest = manifests.finish_manifest(aside, about)
    get_logger().info("%s: %s", output, ", ".join(f"{name} {value}" for name, value in figures.items()))
    return manifest


def _model_problems(folder: Path) -> Iterator[UserError]:
    """Problems of config.json, and of the layers that are stored next to it."""
    try:
        flag = "--model_name_or_path"
        check_layers(check_config(folder, flag), weight_shapes(folder), str(folder), flag)
    except UserError as problem:
        yield problem


def _no_full_model(folder: Path, args: ExportArguments) -> UserError | None:
    """Why a folder holds nothing of which a format can be made."""
    place = "--model_name_or_path"
    if not args.model_name_or_path or not folder.is_dir():
        return ArgumentError(f"there is no folder {args.model_name_or_path}", place=place, fix="give that of a model")
    if isinstance(args, HubArguments):
        return None
    if (folder / "adapter_config.json").is_file():
        fix = f"merge it first: python merge_peft_adapter.py --peft_model_path {folder} --output_dir MERGED"
        return ArgumentError(f"{folder} holds a LoRA adapter, not a model", place=place, fix=fix)
    if not (folder / "config.json").is_file():
        return no_model_in(folder)
    if "score.weight" in weight_shapes(folder) and isinstance(args, GgufArguments):
        return ArgumentError(f"{folder} is a reward model", place=place, fix="give a causal LM")
    return None


def check_export(args: ExportArguments) -> Iterator[UserError]:
    """Problems of an export: no full model is named, or the output has no name or would replace something."""
    folder = Path(args.model_name_or_path or "")
    yield from check_recorded(folder, "--model_name_or_path")
    if cause := _no_full_model(folder, args):
        yield cause
    else:
        problems = list(_model_problems(folder))
        yield from problems
        if isinstance(args, GgufArguments) and not problems:
            # Modules of a format are imported when it is asked for.
            from hftune.tools.export.gguf import check_gguf

            yield from check_gguf(folder, args)
    if isinstance(args, HubArguments):
        if not args.hub_model_id and not args.card_only:
            yield ArgumentError("no name on the Hub was given", place="--hub_model_id", fix="give owner/name")
        return
    yield from check_place(args.output_dir, inputs_of(args), overwrite=args.overwrite_output_dir)


def _write(folder: Path, aside: Path, args: ExportArguments) -> dict[str, Any]:
    if isinstance(args, GgufArguments):
        return _gguf(folder, aside, args)
    assert isinstance(args, ServingArguments)
    from hftune.tools.export.serving import compared, write_serving_folder

    figures = write_serving_folder(folder, aside, args)
    return figures | (compared(folder, aside, args) if args.verify else {})


def _gguf(folder: Path, aside: Path, args: GgufArguments) -> dict[str, Any]:
    from hftune.tools.export.gguf import write_gguf
    from hftune.tools.export.llama_cpp import prove
    from hftune.tools.export.ollama import write_modelfile
    from hftune.tools.export.serving import exported_tokenizer

    figures = write_gguf(folder, aside, args)
    first = figures["files"][0]
    if isinstance(args, OllamaArguments):
        tokenizer = exported_tokenizer(folder, trust_remote_code=args.trust_remote_code)
        write_modelfile(aside, first, tokenizer, folder, args.system)
    return figures | (prove(folder, aside / first, args.outtype, args.trust_remote_code) if args.verify else {})


def _publish(folder: Path, args: HubArguments) -> dict[str, Any]:
    """Upload weights, tokenizer and a card made from the manifests of the whole chain, in one commit.

    Raises:
        ArgumentError: There is no manifest; the Hub cannot be reached, or refuses.
    """
    manifest = manifests.read_manifest(folder)
    if manifest is None:
        cause = f"{folder} has no hftune.json to make a card from"
        raise ArgumentError(cause, place="--model_name_or_path", fix="give a folder of hftune")
    card, name = folder / "README.md", (args.hub_model_id or folder.resolve().name).rsplit("/", 1)[-1]
    write_page(card, model_card(manifest, name, [found for _, found in manifests.ancestors(manifest)]))
    if args.card_only:
        get_logger().info("wrote %s", card)
        return {"card": str(card)}
    done = upload(folder, args)
    get_logger().info("pushed %s to %s", folder, args.hub_model_id)
    return {"hub_model_id": args.hub_model_id, "commit": done}


def upload(folder: Path, args: HubArguments) -> str:
    """Upload what belongs to a model as the arguments say; returns where the commit is.

    Raises:
        ArgumentError: The Hub cannot be reached, or refuses.
    """
    about: dict[str, Any] = {"token": args.hub_token, "message": args.commit_message, "private": args.hub_private_repo}
    return push(folder, str(args.hub_model_id), hub=args.hub, **about)


FORMATS: dict[str, type[ExportArguments]] = {
    "gguf": GgufArguments,
    "ollama": OllamaArguments,
    "vllm": ServingArguments,
    "hub": HubArguments,
}


def main(argv: list[str]) -> None:
    """Write a finished model in the form that another tool needs."""
    if not argv or argv[0] not in FORMATS:
        # A word may be `--hub_token=X`: its value is not repeated.
        named = bool(argv) and not argv[0].startswith("-")
        near = did_you_mean(argv[0], FORMATS, written="`hftune export {}`") if named else ""
        usage = f"hftune export gguf --model_name_or_path MODEL --output_dir OUT; one of: {', '.join(FORMATS)}"
        cause = f"there is no format {shown(argv[0])}" if named else "`hftune export` needs a format"
        raise ArgumentError(cause, fix=f"{near} {usage}".strip())
    export(parse_command(FORMATS[argv[0]], argv[1:]), argv[1:])
