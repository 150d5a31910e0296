"""An adapter and its base become one model that plain `transformers` loads, tokenizer and template included."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from hftune.arguments.merging import MergeArguments
from hftune.checkpoints import manifest as manifests
from hftune.checkpoints.chain import chain_problems, whole_chain
from hftune.errors import ArgumentError, UserError, raise_together
from hftune.logging import get_logger, notice
from hftune.merging.verify import answer, compare
from hftune.models.adapter_configs import read_lora_config
from hftune.models.folding import fold_adapters, load_adapter
from hftune.preflight.bases import check_adapter_fits
from hftune.weight_files import fingerprint


@dataclass
class Plan:
    """What is merged into what: settled before anything loads."""

    base: str
    adapter: Path
    output: Path
    scores: bool
    dtype: torch.dtype


def merge_adapter(args: MergeArguments) -> manifests.Manifest:
    """Merge, verify, save atomically with the manifest last; returns the manifest.

    Raises:
        UserError: A missing or unfitting adapter or base, or an output folder that holds a finished result.
    """
    plan = plan_merge(args)
    tokenizer = _load_tokenizer(args, plan)
    adapted = load_adapted(plan, trust_remote_code=args.trust_remote_code)
    before = answer(adapted, tokenizer) if args.verify else None
    merged: PreTrainedModel = adapted.merge_and_unload(safe_merge=True)
    manifest = _manifest(args, plan, merged, tokenizer)
    # Written beside the output folder and renamed, so that a killed merge leaves nothing that looks finished.
    aside = plan.output.with_name(f".{plan.output.name}.partial")
    shutil.rmtree(aside, ignore_errors=True)
    _write(args, plan, merged, tokenizer, aside)
    if before is not None:
        comparison = compare(before, answer(reload_strictly(plan, aside, args.trust_remote_code), tokenizer))
        get_logger().info("verified: %s", comparison)
        manifest["verified"] = comparison.to_dict()
    manifests.write_manifest(aside, manifest)
    shutil.rmtree(plan.output, ignore_errors=True)
    os.replace(aside, plan.output)
    get_logger().info("merged %s into %s: %s", plan.adapter, plan.base, plan.output)
    if args.hf_hub_model_id:
        merged.push_to_hub(args.hf_hub_model_id, token=args.hf_hub_token)
        tokenizer.push_to_hub(args.hf_hub_model_id, token=args.hf_hub_token)
    return manifest


def reload_strictly(plan: Plan, folder: Path, trust_remote_code: bool) -> PreTrainedModel:
    """The merged model as plain transformers loads it; missing or left-over weights are a bug of ours."""
    auto: Any = AutoModelForSequenceClassification if plan.scores else AutoModelForCausalLM
    model, info = auto.from_pretrained(folder, output_loading_info=True, trust_remote_code=trust_remote_code)
    assert not info["missing_keys"] and not info["unexpected_keys"], f"{folder} does not load strictly: {info}"
    return model.eval()


def plan_merge(args: MergeArguments) -> Plan:
    """Fill in what the adapter's manifest knows, and refuse what cannot be merged."""
    problems: list[UserError] = []
    if not args.peft_model_path or not (Path(args.peft_model_path) / "adapter_config.json").is_file():
        problems.append(
            ArgumentError(
                f"there is no adapter in {args.peft_model_path}",
                place="--peft_model_path",
                fix="give a folder with adapter_config.json, the output of a stage that ran with --use_peft",
            )
        )
    if not args.output_dir:
        problems.append(ArgumentError("no output folder was named", place="--output_dir", fix="give one"))
    elif manifests.is_complete(args.output_dir) and not args.overwrite_output_dir:
        problems.append(
            ArgumentError(
                f"{args.output_dir} already holds a finished result",
                place="--output_dir",
                fix="choose another folder, or add --overwrite_output_dir",
            )
        )
    raise_together(problems)
    adapter = Path(str(args.peft_model_path))
    manifest = manifests.read_manifest(adapter) or {}
    config = json.loads((adapter / "adapter_config.json").read_text(encoding="utf-8"))
    base = args.base_model_name_or_path or manifest.get("base", {}).get("name") or config.get("base_model_name_or_path")
    if not base:
        raise ArgumentError("the adapter does not name its base", place="--base_model_name_or_path", fix="name it")
    read_lora_config(adapter, "--peft_model_path")  # an unreadable config speaks for itself, before weights are read
    chain = whole_chain([str(adapter)])
    fits = [problem for folder in chain for problem in check_adapter_fits(base, folder, flag="--peft_model_path")]
    raise_together([*fits, *chain_problems(chain, "--peft_model_path")])
    for folder in chain[:-1]:
        notice(f"{adapter} was trained upon {folder}, which is folded into {base} first")
    if manifest.get("quantisation"):
        notice("the adapter was trained on a quantised base; it is merged into the original weights")
    return Plan(
        base=base,
        adapter=adapter,
        output=Path(str(args.output_dir)),
        scores=config.get("task_type") == "SEQ_CLS" or manifest.get("head") == "score",
        dtype=_output_dtype(args, base),
    )


def _output_dtype(args: MergeArguments, base: str) -> torch.dtype:
    if args.dtype != "auto":
        return getattr(torch, args.dtype)
    try:
        config = AutoConfig.from_pretrained(base, trust_remote_code=args.trust_remote_code)
    except OSError as error:
        raise ArgumentError(
            f"no model could be loaded from {base}: {str(error).splitlines()[0]}",
            place="--base_model_name_or_path",
            fix="give the folder or Hub name of the base",
        ) from error
    stored = getattr(config, "dtype", None) or torch.float32
    return getattr(torch, stored) if isinstance(stored, str) else stored


def load_adapted(plan: Plan, *, trust_remote_code: bool = False) -> PeftModel:
    """Base and adapter in float32 on the CPU, so that folding rounds once, when the result is written."""
    auto: Any = AutoModelForSequenceClassification if plan.scores else AutoModelForCausalLM
    extra = {"num_labels": 1} if plan.scores else {}
    model = auto.from_pretrained(plan.base, dtype=torch.float32, trust_remote_code=trust_remote_code, **extra)
    *below, adapter = whole_chain([str(plan.adapter)])
    return load_adapter(fold_adapters(model, below), adapter, is_trainable=False).eval()


def _load_tokenizer(args: MergeArguments, plan: Plan) -> PreTrainedTokenizerBase:
    own = (plan.adapter / "tokenizer_config.json").is_file()
    name = args.tokenizer_path or (str(plan.adapter) if own else plan.base)
    return AutoTokenizer.from_pretrained(name, trust_remote_code=args.trust_remote_code)


def _manifest(
    args: MergeArguments,
    plan: Plan,
    merged: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
) -> manifests.Manifest:
    adapter = manifests.read_manifest(plan.adapter) or {}
    return {
        "hftune": manifests.library_versions().get("hftune"),
        "stage": "merge",
        "status": manifests.COMPLETE,
        "arguments": manifests.without_secrets(vars(args)),
        "versions": manifests.library_versions(),
        "base": {"name": plan.base, "fingerprint": fingerprint(plan.base)},
        "parents": [{"folder": str(plan.adapter), "fingerprint": fingerprint(plan.adapter)}],
        "merged_stage": adapter.get("stage"),
        "merge_base": "original" if adapter.get("quantisation") else "as trained",
        "kind": "full",
        "head": "score" if plan.scores else "causal_lm",
        "tokenizer": {
            "fingerprint": manifests.text_fingerprint(tokenizer.backend_tokenizer.to_str()),
            "template_fingerprint": manifests.text_fingerprint(tokenizer.chat_template or ""),
            "tokens": len(tokenizer),
        },
        "vocabulary": {
            "rows": merged.get_input_embeddings().weight.shape[0],
            "tied": bool(getattr(merged.config.get_text_config(), "tie_word_embeddings", False)),
        },
        "dtype": str(plan.dtype),
        "verified": None,
    }


def _write(
    args: MergeArguments, plan: Plan, merged: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, folder: Path
) -> None:
    if plan.scores:
        # A score is read at the last token that is not this one.
        merged.config.get_text_config().pad_token_id = tokenizer.pad_token_id
    merged.config.use_cache = True
    merged.to(plan.dtype).save_pretrained(folder, max_shard_size=args.max_shard_size)
    tokenizer.save_pretrained(folder)
