"""What is merged into what, settled from files before a weight is read; what cannot work is refused here."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from hftune.arguments.merging import MergeArguments
from hftune.checkpoints.adapter_chain import chain_problems
from hftune.checkpoints.reward_scale import FIELD
from hftune.constants import STEP_LABELS
from hftune.errors import ArgumentError, ManifestError, UserError, raise_together
from hftune.logging import notice
from hftune.merging.adapters import Adapter, read_adapter
from hftune.merging.bases import Located, locate
from hftune.merging.companions import tokenizer_folder
from hftune.merging.quantised import Settings
from hftune.merging.resolve import Outputs
from hftune.merging.settle import settle
from hftune.merging.skeleton import read_config
from hftune.merging.tensors import NAMES
from hftune.models.loading.layer_numbers import check_layers
from hftune.preflight.bases import check_recorded_base
from hftune.publishing.ownership import output_problems
from hftune.weight_files import weight_shapes

if TYPE_CHECKING:
    from hftune.models.vocabulary.growth import Growth

FLAG = "--peft_model_path"
LARGEST_WEIGHT = 1_000


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
        from hftune.models.vocabulary.growth import recorded_growth

        return recorded_growth(grew[0])

    @property
    def rope(self) -> dict[str, Any]:
        """How training stretched the base's positions (--rope_scaling): fields of the config, mostly none."""
        found: dict[str, Any] = {}
        for adapter in self.adapters:
            found |= adapter.manifest.get("rope") or {}
        return found

    @property
    def head(self) -> str:
        """causal_lm, score or steps, as `constants.TASK_TYPES` has them."""
        if self.scores is None:
            return "causal_lm"
        return "steps" if _scores_steps(self.asked) else "score"

    @property
    def reward_scale(self) -> dict[str, Any] | None:
        """Of the merged model's scores: the adapter's own, unless it is merged in part or with others."""
        level = self.levels[-1]
        return level[0].manifest.get(FIELD) if len(level) == 1 and level[0].weight == 1.0 else None

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
    problems = output_problems(args.output_dir, overwrite=args.overwrite_output_dir, inputs=inputs)
    below = [str(adapter.folder) for each in levels[:-1] for adapter in each]
    for adapter in level:
        problems += chain_problems([*below, str(adapter.folder)], FLAG)
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
    if base.unknown is None:
        check_layers(plan.config, weight_shapes(base.folder), base.name, "--base_model_name_or_path")
    if plan.rope:
        plan.config = with_rope(plan.config, plan.rope)
        notice("the adapter was trained with --rope_scaling: the merged config has its positions")
    if plan.quantised is not None:
        notice(
            f"the adapter was trained on a base in {plan.quantised.bits} bit; it is merged into "
            + ("what that left of the weights" if plan.dequantise else "the original weights (--merge_base original)")
        )
    return settle(plan)


def with_rope(config: dict[str, Any], rope: dict[str, Any]) -> dict[str, Any]:
    """A config.json with other positions; what older configs say of them beside `rope_parameters` is left out."""
    if "text_config" in config:
        return config | {"text_config": with_rope(config["text_config"], rope)}
    return {name: value for name, value in config.items() if name not in ("rope_scaling", "rope_theta")} | rope


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
        if not all(abs(weight) <= LARGEST_WEIGHT for weight in weights):  # NaN is not
            cause = f"{args.adapter_weights}: a weight lies between -{LARGEST_WEIGHT} and {LARGEST_WEIGHT}"
            raise ArgumentError(cause, place="--adapter_weights", fix="write numbers: 0.5,0.5")
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
    folders_before = chains[0]
    if folders_before:
        notice(f"the adapter was trained on top of {', '.join(map(str, folders_before))}, merged first")
    return [[read_adapter(folder, 1.0, f"{level[0].folder}/hftune.json: base.adapters")] for folder in folders_before]


def _labels(level: list[Adapter]) -> int | None:
    last = level[-1]
    if last.config.get("task_type") not in ("SEQ_CLS", "TOKEN_CLS") and last.manifest.get("head") != "score":
        return None
    heads = [stored for name, stored in last.replaced.items() if name.endswith("score.weight")]
    return heads[0].shape[0] if heads else len(STEP_LABELS) if _scores_steps(last) else 1


def _scores_steps(adapter: Adapter) -> bool:
    return adapter.config.get("task_type") == "TOKEN_CLS"


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
