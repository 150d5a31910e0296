"""What a run on text saves of a base that is more than a language model: all of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from huggingface_hub import try_to_load_from_cache
from transformers import AutoConfig, PreTrainedModel

from hftune.arguments.model import ModelArguments
from hftune.checkpoints.manifest import CHECKPOINT, read_manifest
from hftune.logging import notice
from hftune.models.heads import head_of
from hftune.models.loading.from_pretrained import pretrained
from hftune.models.parts.whole_model import complete, language_skeleton
from hftune.weight_files import fingerprint, weight_files


def keep_other_parts(trainer: Any, folder: Path, model_args: ModelArguments) -> dict[str, Any]:
    """Put what a language model was saved without next to it, from the base of the run; on the process that writes.

    Args:
        trainer: Of a run in full that has ended, whose weights are in `folder`.
        folder: Not published yet.
        model_args: What was loaded.

    Returns:
        For the manifest: what was kept, or nothing.
    """
    model = trainer.model
    if head_of(model) != "causal_lm" or model_args.text_only_export:
        return {}
    base = whole_base(
        str(model_args.model_name_or_path), cache_dir=model_args.cache_dir, revision=model_args.model_revision
    )
    if model_args.from_config or model_args.gguf_file or base is None or not weight_files(base):
        return {}
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    trusted = bool(trainer.args.trust_remote_code)
    kept = complete(folder, base, saved_skeleton(folder, trusted), trained, trust_remote_code=trusted)
    if not kept.tensors:
        return {}
    first = ", ".join(kept.tensors[:2])
    notice(
        f"{len(kept.tensors)} tensors of {base} that were not loaded ({first}, ...; {kept.nbytes / 1e6:,.1f} MB) are "
        "copied as they are, and the model is saved under its own class"
    )
    return {"kept_parts": {"base": str(base), "tensors": len(kept.tensors), "bytes": kept.nbytes}}


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


def saved_skeleton(folder: Path, trusted: bool) -> PreTrainedModel:
    """The language model of a folder on the meta device, its ties made."""
    return language_skeleton(pretrained(AutoConfig, folder, trust_remote_code=trusted), trusted)
