"""A finished folder on the Hub, with a card that says where it came from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from huggingface_hub import HfApi
from huggingface_hub.errors import HfHubHTTPError, LocalTokenNotFoundError

from hftune.arguments.export import HubArguments
from hftune.checkpoints.manifest import read_manifest
from hftune.errors import ArgumentError
from hftune.reporting.model_card import model_card

# Checkpoints hold optimizer states, logs hold host names: neither is part of the model.
LEFT_OUT = ["checkpoint-*/*", "runs/*", "logs/*", "*.partial", "trainer_state.json", "training_args.bin", "hftune.json"]


def write_card(folder: Path, name: str) -> Path:
    """`README.md` in the folder, from its manifest and those of the stages behind it."""
    manifest = read_manifest(folder)
    if manifest is None:
        raise ArgumentError(
            f"{folder} has no hftune.json to make a card from",
            place="--model_name_or_path",
            fix="give a folder of hftune",
        )
    file = folder / "README.md"
    file.write_text(model_card(manifest, name, lineage(manifest)), encoding="utf-8")
    return file


def lineage(manifest: dict[str, Any]) -> list[dict[str, Any]]:
    """Manifests of the folders that a folder came from, the nearest first, as far as they are still there."""
    found: list[dict[str, Any]] = []
    folders = [parent["folder"] for parent in manifest.get("parents", [])]
    folders += [manifest.get("base", {}).get("name")]
    for folder in folders:
        behind = read_manifest(folder) if folder and Path(folder).is_dir() else None
        if behind is not None and all(behind != known for known in found):
            found += [behind, *lineage(behind)]
    return found


def push(folder: Path, args: HubArguments) -> dict[str, Any]:
    """Make the repository where it is missing, and upload weights, tokenizer and card in one commit.

    Raises:
        ArgumentError: The Hub cannot be reached, or refuses.
    """
    assert args.hub_model_id is not None
    api = HfApi(token=args.hub_token)
    try:
        api.create_repo(args.hub_model_id, private=args.hub_private_repo, exist_ok=True)
        done = api.upload_folder(
            repo_id=args.hub_model_id,
            folder_path=folder,
            commit_message=args.commit_message,
            ignore_patterns=LEFT_OUT,
        )
    except (HfHubHTTPError, LocalTokenNotFoundError, OSError) as error:
        raise ArgumentError(
            f"the Hub did not take {args.hub_model_id}: {str(error).splitlines()[0]}",
            place="--hub_model_id",
            fix="check the name, the network and the token (`hf auth login` or --hub_token)",
        ) from error
    return {"hub_model_id": args.hub_model_id, "commit": str(done)}
