"""An adapter and its base become one model that plain `transformers` loads, tokenizer and template included.

inputs -> plan -> tensors -> write -> verify: a module for each. The base is read and the merged model written tensor by
tensor, so that memory does not depend on the model's size. What hftune does not know how to fold goes through peft
(`peft_model.py`), saying so.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from hftune.arguments.merging import MergeArguments
from hftune.checkpoints.manifest import COMPLETE, Manifest, finish_manifest, library_versions
from hftune.constants import REWARD_SCALE_FIELD
from hftune.logging import get_logger, notices, quiet_libraries
from hftune.merging.inputs import read_inputs
from hftune.merging.model_config import copy_other_files, copy_tokenizer, describe_tokenizer
from hftune.merging.plan import Plan, plan_merge
from hftune.merging.verify import verify_merge
from hftune.merging.write import write_model
from hftune.on_demand import on_demand
from hftune.opening.json_file import read_json
from hftune.publishing.folder import published_folder
from hftune.secrets import without_secrets
from hftune.template_arguments import FIELD
from hftune.weight_files import fingerprint


def merge_adapter(args: MergeArguments) -> Manifest:
    """Merge, verify, save atomically with the manifest last; returns the manifest.

    Raises:
        UserError: A missing or unfitting adapter or base, an output folder that cannot be written, a merge that
            changes nothing or says something else than base + adapter.
    """
    quiet_libraries()  # before any of them is imported
    inputs = read_inputs(args)
    plan = plan_merge(inputs)
    output = Path(str(args.output_dir))
    read_from = [inputs.base.folder, *(adapter.folder for adapter in inputs.adapters)]
    # The folder gets its name when all is verified: what stops before leaves nothing behind.
    with published_folder(output, overwrite=args.overwrite_output_dir, inputs=read_from) as folder:
        manifest = _write(args, plan, folder)
    get_logger().info("merged %s into %s: %s", inputs.names, inputs.base.name, output)
    if args.hf_hub_model_id:
        push(args, output)
    return manifest


def _write(args: MergeArguments, plan: Plan, folder: Path) -> Manifest:
    """Everything that the finished folder holds, the manifest last."""
    began = time.perf_counter()
    changed = write_model(plan, folder, args.max_shard_size)
    seconds = time.perf_counter() - began
    # After the weights: peft's way of merging saves a tokenizer and configs of its own, which these replace.
    copy_tokenizer(plan.inputs.tokenizer, folder)
    generates = plan.inputs.scores is None
    copy_other_files(plan.inputs.base.folder, folder, generates=generates)
    manifest = _manifest(args, plan, folder, changed)
    # Before verification, which reads the folder as a user would; notices after it, since it says some.
    manifest["wall_seconds"] = round(seconds, 2)
    manifest["verified"] = verify_merge(plan, folder, verify=args.verify)
    manifest["notices"] = notices()
    return finish_manifest(folder, manifest)


def _manifest(args: MergeArguments, plan: Plan, folder: Path, changed: int) -> Manifest:
    inputs, last = plan.inputs, plan.inputs.last.manifest
    # A stage's description of its tokenizer says more than can be read from the files; it is of this tokenizer only.
    own = last.get("tokenizer") if inputs.tokenizer == inputs.last.folder else None
    config = read_json(folder / "config.json")
    text = config.get("text_config") or config
    base = inputs.base
    tokenizer = own or describe_tokenizer(folder)
    if tokenizer is not None:
        # Of another tokenizer's files as well: it is what the weights were trained with.
        tokenizer = tokenizer | {FIELD: (last.get("tokenizer") or {}).get(FIELD) or {}}
    return {
        "hftune": library_versions().get("hftune"),
        "stage": "merge",
        "status": COMPLETE,
        "arguments": without_secrets(vars(args)),
        "versions": library_versions(),
        "base": {"name": base.name, "fingerprint": fingerprint(base.folder if Path(base.name).exists() else base.name)},
        "parents": [
            {"folder": str(a.folder), "fingerprint": fingerprint(a.folder), "weight": a.weight} for a in inputs.adapters
        ],
        "merged_stage": last.get("stage"),
        "merged_by": "peft" if plan.outputs is None else "hftune",
        "merge_base": "as trained" if inputs.quantised is None else args.merge_base,
        "changed_tensors": changed,
        "kind": "full",
        "head": inputs.head,
        **({REWARD_SCALE_FIELD: config[REWARD_SCALE_FIELD]} if REWARD_SCALE_FIELD in config else {}),
        "tokenizer": tokenizer,
        "vocabulary": {
            "rows": text.get("vocab_size"),
            "tied": _is_tied(plan, text),
            "new_tokens": (last.get("vocabulary") or {}).get("new_tokens") or [],
            "growth": None,
        },
        "dtype": str(inputs.dtype or config.get("dtype") or config.get("torch_dtype") or "float32"),
        "verified": None,
    }


def _is_tied(plan: Plan, config: dict[str, Any]) -> bool:
    if "tie_word_embeddings" in config or plan.outputs is None:
        return bool(config.get("tie_word_embeddings"))
    # Older configs leave out their architecture's default; what was written tells.
    return not any(output.name.endswith("lm_head.weight") for output in plan.outputs)


def push(args: MergeArguments, folder: Path) -> None:
    """Upload the merged model under the name that was asked for."""
    on_demand("hftune.stores.pushing:push")(
        folder,
        str(args.hf_hub_model_id),
        hub=args.hub,
        token=args.hf_hub_token,
        message="Model merged with hftune",
        flag="--hf_hub_model_id",
    )
    get_logger().info("pushed to %s", args.hf_hub_model_id)
