"""An adapter and its base become one model that plain `transformers` loads, tokenizer and template included.

The base is read and the merged model written tensor by tensor (`shards.py`), so that memory does not depend on the
model's size. What hftune does not know how to fold goes through peft (`fallback.py`), saying so.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from hftune.arguments.merging import MergeArguments
from hftune.checkpoints import manifest as manifests
from hftune.checkpoints.reward_scale import FIELD
from hftune.errors import ManifestError
from hftune.logging import get_logger, notice, notices
from hftune.merging import companions, folders, shards
from hftune.merging.plan import Plan, plan_merge
from hftune.merging.progress import Progress
from hftune.merging.recipes import read_float
from hftune.merging.tensors import close_files
from hftune.opening.json_file import read_json
from hftune.publishing.folder import published_folder
from hftune.publishing.uploads import push_folder
from hftune.secrets import without_secrets
from hftune.weight_files import fingerprint, stored_tensors

_VERIFY_PARAMETERS = 1_000_000_000
_MAX_WORKERS = 8


def merge_adapter(args: MergeArguments) -> manifests.Manifest:
    """Merge, verify, save atomically with the manifest last; returns the manifest.

    Raises:
        UserError: A missing or unfitting adapter or base, an output folder that cannot be written, a merge that
            changes nothing or says something else than base + adapter.
    """
    plan = plan_merge(args)
    inputs = [plan.base.folder, *(adapter.folder for level in plan.levels for adapter in level)]
    with published_folder(plan.output, overwrite=args.overwrite_output_dir, inputs=inputs) as aside:
        manifest = _make(args, plan, aside)
    get_logger().info("merged %s into %s: %s", _names(plan), plan.base.name, plan.output)
    if args.hf_hub_model_id:
        _push(args, plan.output)
    return manifest


def _names(plan: Plan) -> str:
    return ", ".join(str(adapter.folder) for adapter in plan.adapters)


def _make(args: MergeArguments, plan: Plan, aside: Path) -> manifests.Manifest:
    """Everything that the finished folder holds."""
    began = time.perf_counter()
    changed = write_model(plan, aside, args.max_shard_size)
    seconds = time.perf_counter() - began
    companions.copy_tokenizer(plan.tokenizer, aside)
    companions.copy_others(plan.base.folder, aside, generates=plan.scores is None)
    if plan.growth is not None:
        companions.suppress_padding(aside, plan.growth)
    manifest = _manifest(args, plan, aside, changed)
    manifest["wall_seconds"] = round(seconds, 2)
    manifest["verified"] = _verify(args, plan, aside)
    manifest["notices"] = notices()
    return manifests.finish_manifest(aside, manifest)


def write_model(plan: Plan, folder: Path, max_shard_size: str | None) -> int:
    """Weights and config into a folder; returns how many tensors the adapters changed.

    Raises:
        ManifestError: None was changed, or a merged weight is not finite.
    """
    if plan.outputs is None:
        from hftune.distributed.launch import prepare_environment

        prepare_environment()
        from hftune.merging.fallback import write_with_peft

        changed = write_with_peft(plan, folder, max_shard_size)
    else:
        changed = _write_tensors(plan, folder, max_shard_size)
    if not changed:
        raise ManifestError(
            f"merging {_names(plan)} changes nothing: every weight would be that of the base",
            place="--peft_model_path",
            fix="was the adapter trained? its B matrices are zero, or it is too small for the dtype of the weights",
        )
    return changed


def _write_tensors(plan: Plan, folder: Path, max_shard_size: str | None) -> int:
    assert plan.outputs is not None
    layout = shards.lay_out(plan.outputs.tensors, max_shard_size)
    total = sum(shard.nbytes for shard in layout)
    folders.check_space(folder, total)
    try:
        with Progress(total) as progress:
            cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
            workers = min(_MAX_WORKERS, cores)
            tally = shards.write_shards(folder, layout, workers, progress)
    finally:
        read_float.cache_clear()
        close_files()
    shards.write_index(folder, layout)
    _check_written(folder, layout)
    scored, trusted = plan.scores is not None, plan.trust_remote_code
    pad = companions.pad_token_id(plan.tokenizer, trust_remote_code=trusted) if scored else None
    config = companions.merged_config(
        plan.config,
        dtype=plan.dtype,
        vocab_size=plan.outputs.vocab_size,
        tied=plan.outputs.tied,
        scores=plan.scores,
        head=plan.head,
        pad_token_id=pad,
        reward_scale=plan.reward_scale,
    )
    (folder / "config.json").write_text(json.dumps(config, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    changed = len(tally.folded) - len(tally.same)
    if tally.same and changed:
        notice(f"{len(tally.same)} of {len(tally.folded)} adapted tensors are the base's own after rounding")
    return changed


def _check_written(folder: Path, layout: list[shards.Shard]) -> None:
    """What is on disk is what was planned: names, shapes and no tensor of size 0."""
    written = {name: stored.shape for name, stored in stored_tensors(folder).items()}
    planned = {output.name: output.shape for shard in layout for output in shard.tensors}
    assert written == planned, f"{folder} holds other tensors than were planned"
    assert all(0 not in shape for shape in written.values()), f"{folder} holds empty tensors"


# --- what the manifest says ------------------------------------------------------------------------------------------


def _manifest(args: MergeArguments, plan: Plan, folder: Path, changed: int) -> manifests.Manifest:
    last = plan.asked.manifest
    own = last.get("tokenizer") if plan.tokenizer == plan.asked.folder else None
    config = read_json(folder / "config.json", finite=False)
    text = config.get("text_config") or config
    return {
        "hftune": manifests.library_versions().get("hftune"),
        "stage": "merge",
        "status": manifests.COMPLETE,
        "arguments": without_secrets(vars(args)),
        "versions": manifests.library_versions(),
        "base": {"name": plan.base.name, "fingerprint": _base_fingerprint(plan)},
        "parents": [
            {"folder": str(a.folder), "fingerprint": fingerprint(a.folder), "weight": a.weight} for a in plan.adapters
        ],
        "merged_stage": last.get("stage"),
        "merged_by": "hftune" if plan.outputs else "peft",
        "merge_base": "as trained" if plan.quantised is None else args.merge_base,
        "changed_tensors": changed,
        "kind": "full",
        "head": plan.head,
        **({FIELD: config[FIELD]} if FIELD in config else {}),
        "tokenizer": own or companions.describe_tokenizer(folder),
        "vocabulary": {
            "rows": text.get("vocab_size"),
            "tied": _tied(plan, text),
            "new_tokens": (last.get("vocabulary") or {}).get("new_tokens") or [],
            "growth": None,
        },
        "dtype": str(plan.dtype or config.get("dtype") or config.get("torch_dtype") or "float32"),
        "verified": None,
    }


def _base_fingerprint(plan: Plan) -> str:
    return fingerprint(plan.base.folder if Path(plan.base.name).exists() else plan.base.name)


def _tied(plan: Plan, config: dict[str, Any]) -> bool:
    if "tie_word_embeddings" in config or plan.outputs is None:
        return bool(config.get("tie_word_embeddings", False))
    return not any(output.name.endswith("lm_head.weight") for output in plan.outputs.tensors)


# --- verification ----------------------------------------------------------------------------------------------------


def _verify(args: MergeArguments, plan: Plan, folder: Path) -> dict[str, Any] | None:
    """Compare with base + adapter where that was asked for, or costs little."""
    speaks = (folder / "tokenizer_config.json").is_file()
    reason = _too_large(plan, folder) if speaks else "there is no tokenizer for the prompts"
    if args.verify == "false" or not speaks or (args.verify == "auto" and reason):
        why = reason or "--verify False"
        notice(f"names, shapes and finite values were checked; logits were not compared ({why})")
        return None
    from hftune.merging.trial import try_out

    return try_out(plan, folder, args.max_shard_size)


def _too_large(plan: Plan, folder: Path) -> str | None:
    parameters = sum(_numel(stored.shape) for stored in stored_tensors(folder).values())
    if parameters >= _VERIFY_PARAMETERS:
        return f"{parameters / 1e9:.1f} billion parameters; --verify True does it all the same"
    available = _available_memory()
    needed = 6 * parameters  # float32, and what generation needs beside it
    if available is not None and needed > available:
        return f"{needed / 1e9:.1f} GB of memory are not there; --verify True tries it all the same"
    return None


def _numel(shape: tuple[int, ...]) -> int:
    count = 1
    for size in shape:
        count *= size
    return count


def _available_memory() -> int | None:
    file = Path("/proc/meminfo")
    if not file.is_file():
        return None
    line = next(line for line in file.read_text().splitlines() if line.startswith("MemAvailable"))
    return int(line.split()[1]) * 1024


def _push(args: MergeArguments, folder: Path) -> None:
    push_folder(
        folder,
        str(args.hf_hub_model_id),
        token=args.hf_hub_token,
        message="Model merged with hftune",
        flag="--hf_hub_model_id",
    )
    get_logger().info("pushed to %s", args.hf_hub_model_id)
