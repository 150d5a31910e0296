"""What is merged into what, settled from files before a weight is read; what cannot work is refused here."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from hftune.arguments.merging import MergeArguments
from hftune.errors import ArgumentError, ManifestError, UserError, raise_together
from hftune.logging import notice
from hftune.merging import folders
from hftune.merging.adapters import Adapter, read_adapter
from hftune.merging.bases import Located, locate
from hftune.merging.changes import Changes, misfits
from hftune.merging.companions import tokenizer_folder
from hftune.merging.quantised import Settings, dequantise_stored, requantise
from hftune.merging.recipes import Base, Spec, Unknown, grown, specs_of
from hftune.merging.resolve import Outputs, resolve
from hftune.merging.skeleton import Skeleton, build_skeleton, quantised_linears, read_config
from hftune.merging.tensors import NAMES
from hftune.preflight.bases import check_recorded_base
from hftune.weight_files import StoredTensor, stored_tensors

if TYPE_CHECKING:
    from hftune.models.vocabulary import Growth

FLAG = "--peft_model_path"


@dataclass
class Plan:
    """Everything that is known before anything is written.

    Args:
        base: Where the base is.
        config: Its config.json.
        levels: Adapters one after another, the last level being what was asked for; those of a level side by side.
        output: The folder to write.
        tokenizer: The folder whose tokenizer goes along.
        scores: Labels of a reward model; None: a causal LM.
        dtype: Asked for, as torch names it; None: each tensor keeps the base's.
        quantised: How training saw the base; None: as it is on disk.
        dequantise: Fold into what quantisation left of the base.
        outputs: The merged tensors; None where peft has to merge.
        unknown: Why peft has to merge; None where it need not.
    """

    base: Located
    config: dict[str, Any]
    levels: list[list[Adapter]]
    output: Path
    tokenizer: Path
    scores: int | None
    dtype: str | None
    quantised: Settings | None
    dequantise: bool
    trust_remote_code: bool = False
    outputs: Outputs | None = None
    unknown: str | None = None

    @property
    def adapters(self) -> list[Adapter]:
        """All of them, in the order in which they were trained."""
        return [adapter for level in self.levels for adapter in level]

    @property
    def growth(self) -> Growth | None:
        """How the vocabulary grew before training; the first adapter of a chain that says so."""
        grew = [a.manifest for a in self.adapters if (a.manifest.get("vocabulary") or {}).get("growth")]
        if not grew:
            return None
        from hftune.models.vocabulary import recorded_growth  # brings transformers along

        return recorded_growth(grew[0])

    @property
    def asked(self) -> Adapter:
        """The last adapter, whose tokenizer and history count."""
        return self.levels[-1][-1]

    def with_base(self, *, dequantise: bool) -> Plan:
        """The same merge into the other form of a quantised base."""
        return settle(dataclasses.replace(self, dequantise=dequantise, outputs=None))


def plan_merge(args: MergeArguments) -> Plan:
    """Fill in what the adapter's manifest knows, and refuse what cannot be merged.

    Raises:
        UserError: A missing or unfitting adapter or base, or an output folder that cannot be written.
    """
    level = _asked(args)
    manifest, config = level[-1].manifest, level[-1].config
    name = args.base_model_name_or_path or (manifest.get("base") or {}).get("name")
    name = name or config.get("base_model_name_or_path")
    if not name:
        raise ArgumentError("the adapter does not name its base", place="--base_model_name_or_path", fix="name it")
    levels = [*_earlier(level), level]
    used = manifest.get("arguments", {}).get("model", {})
    base = locate(name, config.get("revision"), used.get("gguf_file"))
    adapters = [adapter for each in levels for adapter in each]
    inputs = [base.folder, *(adapter.folder for adapter in adapters)]
    problems = folders.check_output(args.output_dir, args.overwrite_output_dir, inputs)
    for adapter in level:
        problems += check_recorded_base(str(base.folder if Path(name).is_dir() else name), str(adapter.folder), FLAG)
    problems += _quantisation_problems(args, level)
    raise_together(problems)
    plan = Plan(
        base=base,
        config={} if base.gguf_file else read_config(base.folder),  # a GGUF file brings its own
        levels=levels,
        output=Path(str(args.output_dir)),
        tokenizer=tokenizer_folder(args.tokenizer_path, [adapter.folder for adapter in adapters], base.folder),
        scores=_labels(level),
        dtype=None if args.dtype == "auto" else args.dtype,
        quantised=_settings(level[-1]),
        dequantise=args.merge_base == "dequantized",
        trust_remote_code=args.trust_remote_code,
    )
    if plan.quantised is not None:
        notice(
            f"the adapter was trained on a base in {plan.quantised.bits} bit; it is merged into "
            + ("what that left of the weights" if plan.dequantise else "the original weights (--merge_base original)")
        )
    return settle(plan)


def _asked(args: MergeArguments) -> list[Adapter]:
    """The adapters of the command line with their weights."""
    if not args.adapters:
        raise ArgumentError("there is no adapter in None", place=FLAG, fix="give a folder with adapter_config.json")
    weights = [1.0] * len(args.adapters)
    if args.adapter_weights:
        try:
            weights = [float(weight) for weight in args.adapter_weights.split(",")]
        except ValueError as error:
            raise ArgumentError(str(error), place="--adapter_weights", fix="write numbers: 0.5,0.5") from error
    if len(weights) != len(args.adapters):
        raise ArgumentError(
            f"{len(args.adapters)} adapters and {len(weights)} weights", place="--adapter_weights", fix="one for each"
        )
    if len(weights) > 1 and not args.adapter_weights:
        notice(f"{len(weights)} adapters are added with weight 1 each; --adapter_weights gives others")
    found: list[Adapter] = []
    problems: list[UserError] = []
    for folder, weight in zip(args.adapters, weights, strict=True):
        try:
            found.append(read_adapter(folder, weight, FLAG))
        except UserError as error:
            problems.append(error)
    raise_together(problems)
    return found


def _earlier(level: list[Adapter]) -> list[list[Adapter]]:
    """The adapters that lay on the base while these were trained, from their manifests."""
    chains = [(adapter.manifest.get("base") or {}).get("adapters") or [] for adapter in level]
    if any(chain != chains[0] for chain in chains):
        raise ManifestError(
            "the adapters were trained on different adapters: " + " / ".join(map(str, chains)),
            place=FLAG,
            fix="merge them one after another",
        )
    folders_before = [entry["folder"] if isinstance(entry, dict) else entry for entry in chains[0]]
    if folders_before:
        notice(f"the adapter was trained on top of {', '.join(map(str, folders_before))}, merged first")
    return [[read_adapter(folder, 1.0, f"{level[0].folder}/hftune.json: base.adapters")] for folder in folders_before]


def _labels(level: list[Adapter]) -> int | None:
    last = level[-1]
    if last.config.get("task_type") != "SEQ_CLS" and last.manifest.get("head") != "score":
        return None
    heads = [stored for name, stored in last.replaced.items() if name.endswith("score.weight")]
    return heads[0].shape[0] if heads else 1


def _settings(adapter: Adapter) -> Settings | None:
    """How an hftune run quantised the base, from its manifest."""
    how = adapter.manifest.get("quantisation")
    if not how:
        return None
    arguments = adapter.manifest.get("arguments", {})
    training, model = arguments.get("training", {}), arguments.get("model", {})
    compute = "bfloat16" if training.get("bf16") else "float16" if training.get("fp16") else "float32"
    if model.get("dtype", "auto") != "auto":
        compute = model["dtype"]
    return Settings(int(how["bits"]), str(how.get("type")), bool(how.get("nested")), NAMES[getattr(torch, compute)])


def _quantisation_problems(args: MergeArguments, level: list[Adapter]) -> Iterator[UserError]:
    if args.merge_base == "dequantized" and not level[-1].manifest.get("quantisation"):
        yield ArgumentError(
            "the adapter's manifest names no quantisation, so there is nothing to dequantise",
            place="--merge_base",
            fix="leave it out; QLoRA adapters trained by hftune know theirs",
        )


# --- tensors ---------------------------------------------------------------------------------------------------------


def settle(plan: Plan) -> Plan:
    """Find every tensor's change, or why peft has to do it.

    Raises:
        UserError: The adapter does not fit the base.
    """
    plan.unknown = plan.base.unknown or next(
        (reason for adapter in plan.adapters if (reason := adapter.unknown()) is not None), None
    )
    if plan.unknown is None:
        try:
            plan.outputs = _outputs(plan)
        except Unknown as error:
            plan.unknown = str(error)
    problems = plan.outputs.problems if plan.outputs else list(_only_ours(plan))
    raise_together(problems)
    return plan


def _only_ours(plan: Plan) -> Iterator[UserError]:
    """What peft's way of merging does not have."""
    if plan.dequantise:
        yield ArgumentError(f"--merge_base dequantized cannot be used: {plan.unknown}", fix="use --merge_base original")
    if any(adapter.weight != 1.0 for adapter in plan.adapters):
        yield ArgumentError(f"--adapter_weights cannot be used: {plan.unknown}", fix="merge one adapter")


def _outputs(plan: Plan) -> Outputs:
    stored = stored_tensors(plan.base.folder)
    empty = [name for name, tensor in stored.items() if 0 in tensor.shape]
    if empty:
        raise ManifestError(
            f"the base in {plan.base.name} is empty: {empty[0]} has size 0 (and {len(empty) - 1} more)",
            place="--base_model_name_or_path",
            fix="it was saved without gathering ZeRO-3's shards; save it again from a checkpoint of its run",
        )
    base = Base(dequantise_stored(stored, plan.config, plan.base.name))
    if _needs_skeleton(plan, base.tensors):
        base.skeleton = _skeleton(plan, base.tensors)
    if plan.dequantise:
        _dequantise(plan, base)
    if plan.scores is not None and base.skeleton is not None and base.skeleton.unused:
        base.dropped = set(base.skeleton.unused)
        notice(f"a reward model has no {', '.join(base.skeleton.unused)}; not written")
    changes = Changes([[(adapter.weight, specs_of(adapter, base)) for adapter in level] for level in plan.levels])
    fits = list(zip(plan.adapters, (specs for level in changes.levels for _, specs in level), strict=True))
    grew = _grown_parameters(plan.growth, base)
    raise_together(problem for adapter, specs in fits for problem in misfits(adapter, specs, base, grew))
    _check_weights(plan, base, changes)
    if grew:
        changes.levels.insert(0, [(1.0, grew)])
    tying = any(adapter.config.get("ensure_weight_tying") for adapter in plan.adapters)
    dtype = NAMES[getattr(torch, plan.dtype)] if plan.dtype else None
    return resolve(base, changes, dtype=dtype, weight_tying=tying)


def _needs_skeleton(plan: Plan, tensors: dict[str, Any]) -> bool:
    """Whether names alone do not tell: heads and embeddings (which may be tied), experts, weights stored as (in, out).

    A layer's own linear modules, which is what most adapters have, are stored under the names they have in memory.
    """
    if plan.scores is not None or plan.dequantise or plan.growth is not None:
        return True
    if any(a.config.get("fan_in_fan_out") for a in plan.adapters):
        return True
    touched = [part.module for adapter in plan.adapters for part in adapter.parts]
    touched += [name for adapter in plan.adapters for name in adapter.replaced]
    in_layers = all(any(piece.isdigit() for piece in name.split(".")) for name in touched)
    stored = {name.rpartition(".")[0] for name in tensors} | tensors.keys()
    return not in_layers or any(name not in stored for name in touched) or _any_targets_parameters(plan)


def _grown_parameters(growth: Growth | None, base: Base) -> dict[str, list[Spec]]:
    """Embeddings and head (and its bias) with the rows that training gave them."""
    if growth is None:
        return {}
    assert base.skeleton is not None
    named = [name for name in (base.skeleton.embedding, *base.skeleton.heads) if name and base.shape(name)]
    return {name: [grown(growth, base.shape(name) or ())] for name in named}


def _any_targets_parameters(plan: Plan) -> bool:
    return any(adapter.config.get("target_parameters") for adapter in plan.adapters)


def _skeleton(plan: Plan, tensors: dict[str, Any]) -> Skeleton:
    return build_skeleton(plan.base.folder, tensors, scores=plan.scores, trust_remote_code=plan.trust_remote_code)


def _dequantise(plan: Plan, base: Base) -> None:
    assert base.skeleton is not None and plan.quantised is not None
    linears = quantised_linears(base.skeleton.model, eight_bit=plan.quantised.bits == 8)
    names = [piece.stored for name in linears for piece in base.pieces(f"{name}.weight")]
    whole = {name: tensor for name, tensor in base.tensors.items() if isinstance(tensor, StoredTensor)}
    base.tensors |= requantise({name: whole[name] for name in names if name in whole}, plan.quantised)


def _check_weights(plan: Plan, base: Base, changes: Changes) -> None:
    """Tensors that are not in the base cannot be blended."""
    for level in changes.levels:
        if len(level) == 1 and level[0][0] == 1.0:
            continue
        grown = [
            name
            for _, specs in level
            for name, found in specs.items()
            if (not base.pieces(name) and not (base.skeleton and name in base.skeleton.tied))
            or any(spec.shape and spec.shape != base.shape(name) for spec in found)
        ]
        if grown:
            raise ManifestError(
                f"{grown[0]} is not in the base (or of another size), so it cannot be blended with weights",
                place="--adapter_weights",
                fix="merge the adapter that brings it alone",
            )
