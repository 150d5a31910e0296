"""Uploads a finished folder to the Hub, with a card that says where it came from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hftune.checkpoints.manifest import ancestors, read_manifest
from hftune.checkpoints.model_card import model_card
from hftune.errors import ArgumentError
from hftune.publishing.files import write_page
from hftune.stores.pushing import push as push_to
from hftune.tools.export.arguments import HubArguments


def write_card(folder: Path, name: str) -> Path:
    """Write `README.md` into the folder, from its manifest and those of earlier stages, and return it."""
    manifest = read_manifest(folder)
    if manifest is None:
        raise ArgumentError(
            f"{folder} has no hftune.json to make a card from",
            place="--model_name_or_path",
            fix="give a folder of hftune",
        )
    file = folder / "README.md"
    write_page(file, model_card(manifest, name, [found for _, found in ancestors(manifest)]))
    return file


def push(folder: Path, args: HubArguments) -> dict[str, Any]:
    """Upload weights, tokenizer and card in one commit; a repository that is missing is made.

    Raises:
        ArgumentError: The Hub cannot be reached, or refuses.
    """
    assert args.hub_model_id is not None
    done = push_to(
        *(folder, args.hub_model_id),
        hub=args.hub,
        token=args.hub_token,
        message=args.commit_message,
        private=args.hub_private_repo,
    )
    return {"hub_model_id": args.hub_model_id, "commit": done}
