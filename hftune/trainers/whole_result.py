"""What a run on text saves of a base that is more than a language model: all of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from huggingface_hub import try_to_load_from_cache

from hftune.arguments.model import ModelArguments
from hftune.checkpoints.manifest import CHECKPOINT, read_manifest
from hftune.logging import notice
from hftune.models.heads import head_of
from hftune.models.loading.base_parts import keep_of_base
from hftune.weight_files import fingerprint, weight_files


def keep_other_parts(trainer: Any, folder: Path, model_args: ModelArguments) -> dict[str, Any]:
    """Have a saved model hold the other parts of the base of the run as they are; on the process that writes.

    Args:
        trainer: Of a run in full that has ended, whose weights are in `folder`.
        folder: Not published yet.
        model_args: What was loaded.

    Returns:
        For the manifest: what was kept, or nothing.
    """
    model = trainer.model
    if head_of(model) != "causal_lm":
        return {}
    base = whole_base(
        str(model_args.model_name_or_path), cache_dir=model_args.cache_dir, revision=model_args.model_revision
    )
    if model_args.from_config or model_args.gguf_file or base is None or not weight_files(base):
        return {}
    kept = keep_of_base(folder, base, trusted=bool(trainer.args.trust_remote_code))
    if not kept:
        return {}
    notice(f"{len(kept)} tensors of {base} ({', '.join(kept[:2])}, ...) are kept as they are stored there")
    return {"kept_parts": {"base": str(base), "tensors": len(kept)}}


def whole_base(name: str, *, cache_dir: str | None = None, revision: str | None = None) -> Path | None:
    """The folder of the model that a run began with, its other parts included; None where it is not on this machine.

    A checkpoint holds the trained part alone: the rest is where its run began.
    """
    if not Path(name).is_dir():
        cached = try_to_load_from_cache(name, "config.json", cache_dir=cache_dir, revision=revision)
        return Path(cached).parent if isinstance(cached, str) else None
    manifest = read_manifest(name) or {}
    before = (manifest.get("base") or {}).get("name")
    if manifest.get("status") != CHECKPOINT or not before:
        return Path(name)
    found = whole_base(before, cache_dir=cache_dir, revision=revision)
    if found is None or fingerprint(before) != manifest["base"]["fingerprint"]:
        notice(f"{name} is a checkpoint of {before}, which has changed or gone: parts that it does not hold are lost")
        return Path(name)
    return found
