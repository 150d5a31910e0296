"""What the manifest of a run says: where weights and records come from, how they were used, and what came of it."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

from peft import PeftModel

from hftune.arguments.adapter import AdapterArguments
from hftune.checkpoints import manifest as manifests
from hftune.checkpoints.inputs import record_inputs
from hftune.checkpoints.manifest import describe_machine
from hftune.data.splits import Splits
from hftune.distributed import ranks, zero
from hftune.logging import notices
from hftune.models.structure import head_of
from hftune.models.vocabulary import describe_vocabulary
from hftune.preflight.facts import Facts
from hftune.secrets import command_without_secrets, without_secrets
from hftune.stores.located import origins
from hftune.template_arguments import FIELD, arguments_of
from hftune.trainers.stage_trainer import StageTrainer
from hftune.weight_files import fingerprint


def describe_run(facts: Facts[Any], trainer: StageTrainer, data: Splits) -> manifests.Manifest:
    """Everything known before training: where the weights and records come from and how they are used."""
    args, model = facts.training_args, trainer.model
    tokenizer = trainer.processing_class
    base = str(facts.model_args.model_name_or_path)
    adapter = isinstance(model, PeftModel)
    plain = model.get_base_model() if adapter else model
    folded = facts.adapter_args.folded_adapters
    parents = [folder for folder in (base, *facts.adapter_args.adapter_chain) if manifests.read_manifest(folder)]
    teachers, taught = getattr(args, "teachers", []), getattr(args, "recorded_teachers", [])
    parents += [folder for folder in folded if folder not in parents]
    parents += [folder for folder in teachers if folder not in parents and manifests.read_manifest(folder)]
    return {
        "hftune": manifests.library_versions().get("hftune"),
        "stage": facts.stage,
        "status": manifests.RUNNING,
        "command": [Path(sys.argv[0]).name, *command_without_secrets(sys.argv[1:])],
        "arguments": _arguments(facts),
        "versions": manifests.library_versions(),
        "base": {"name": base, "fingerprint": fingerprint(base)} | ({"adapters": folded} if folded else {}),
        "parents": [{"folder": folder, "fingerprint": fingerprint(folder)} for folder in parents],
        **({"teachers": taught} if taught else {}),
        "kind": "adapter" if adapter else "full",
        "head": head_of(plain),
        "tokenizer": {
            "fingerprint": manifests.text_fingerprint(tokenizer.backend_tokenizer.to_str()),
            "template_fingerprint": manifests.text_fingerprint(tokenizer.chat_template or ""),
            "tokens": len(tokenizer),
            FIELD: arguments_of(tokenizer),
        },
        "vocabulary": describe_vocabulary(plain, manifests.read_manifest(base), adapter=adapter),
        "parameters": {
            "all": sum(zero.full_numel(parameter) for parameter in model.parameters()),
            "trained": sum(zero.full_numel(parameter) for parameter in model.parameters() if parameter.requires_grad),
        },
        "quantisation": _quantisation(facts.adapter_args),
        "rope": _rope(facts, plain.config.get_text_config()),
        "data": data.about,
        # Read by one process: the others have the same files.
        "inputs": record_inputs(sys.argv[1:]) if ranks.is_main() else {},
        **({"origins": dict(origins)} if origins else {}),
        "deepspeed": args.ds_resolved,
        "world_size": ranks.world_size(),
        "machine": describe_machine(),
        "metrics": {},
    }


def describe_result(began: float, trainer: StageTrainer, data: Splits) -> dict[str, Any]:
    """What is known after training: steps, trained tokens and wall time; every rank must ask.

    Args:
        began: Seconds since the epoch.
    """
    # RL makes its own tokens, and an endless loader knows how far it came; other records are gone through by epochs.
    trained = trainer.count_trained_tokens()
    if trained is None:
        trained = round(data.about["train"]["trained_tokens"] * (trainer.state.epoch or 0.0))
    more = trainer.figures()
    return more | {
        "steps": trainer.state.global_step,
        "trained_tokens": trained,
        "wall_seconds": round(time.time() - began, 2),
        "train_seconds": round(trainer.totals.seconds(), 2),
        "notices": notices(),
    }


def _quantisation(adapter_args: AdapterArguments) -> dict[str, Any] | None:
    if not adapter_args.quantised:
        return None
    bits = 4 if adapter_args.load_in_4bit else 8
    return {
        "bits": bits,
        "type": adapter_args.bnb_4bit_quant_type if bits == 4 else "int8",
        "nested": bits == 4 and adapter_args.use_bnb_nested_quant,
    }


def _rope(facts: Facts[Any], config: Any) -> dict[str, Any] | None:
    """What --rope_scaling made of the base's positions: an adapter works on, and is merged into, a base with these."""
    if facts.model_args.rope_scaling is None:
        return None
    return {name: getattr(config, name) for name in ("rope_parameters", "max_position_embeddings")}


def _arguments(facts: Facts[Any]) -> dict[str, Any]:
    groups = {"model": facts.model_args, "data": facts.data_args, "adapter": facts.adapter_args}
    resolved = {name: without_secrets(vars(group)) for name, group in groups.items()}
    training = {name: value for name, value in facts.training_args.to_dict().items() if name != "ds_resolved"}
    return {**resolved, "training": without_secrets(training)}
