"""Whether stored weights and config.json are of one model: by names and shapes alone, before a weight is read.

transformers draws at random what a checkpoint lacks, leaves out what the model has no place for, and says so in a
table among its logs. Its own rules say under which names a parameter may be stored (conversion_mapping) and which
names may be left out or lacking (`_keys_to_ignore_on_load_*`), so that a checkpoint which it loads whole is never
refused here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from transformers import PreTrainedModel, WeightConverter
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import rename_source_key

from hftune.compat.patches import no_deepspeed_config
from hftune.errors import ArgumentError
from hftune.logging import notice
from hftune.models.kernels.finite import finite
from hftune.models.loading.config_file import beyond_last, mismatch_error
from hftune.opening.safetensors_file import load_tensors, read_safetensors_header
from hftune.weight_files import weight_files, weight_shapes

Shape = tuple[int, ...]

NEW_HEADS = ("score.", "classifier.")
"""Heads that a reward model gets; the language model that it begins as has another one."""
OLD_HEADS = ("lm_head.", "embed_out.", "cls.", *NEW_HEADS)


@dataclass
class Mismatch:
    """Where stored weights and a model differ.

    Args:
        lacking: Parameters that are not stored.
        beyond: Stored tensors that belong to a module which the model has otherwise, or to a layer beyond its last.
        shapes: Parameters that are stored in another shape, with both.
        aside: Other stored tensors without a place: of vision towers, of heads.
    """

    lacking: list[str] = field(default_factory=list)
    beyond: list[str] = field(default_factory=list)
    shapes: dict[str, tuple[Shape, Shape]] = field(default_factory=dict)
    aside: list[str] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.lacking or self.beyond or self.shapes)

    def describe(self) -> str:
        """Each kind with its first names."""
        shapes = [f"{name} {[*one]} for {[*of]}" for name, (one, of) in self.shapes.items()]
        kinds = {"not stored": self.lacking, "no part of the model": self.beyond, "stored in other shapes": shapes}
        return "; ".join(f"{kind}: {_some(names)}" for kind, names in kinds.items() if names)


def _some(names: list[str]) -> str:
    return ", ".join(names[:2]) + (f" and {len(names) - 2} more" if len(names) > 2 else "")


def check_stored(model: PreTrainedModel, folder: str | None, *, flag: str, scores: bool = False) -> None:
    """Compare the safetensors of a local folder with the model that its config.json builds.

    Args:
        model: On the meta device.
        folder: A name on the Hub, and weights in another format, are compared when they have loaded (`check_loaded`).
        flag: What named the folder.
        scores: The model has a head for scores, which need not be stored.

    Raises:
        ArgumentError: They are of different models.
    """
    # What is stored in 4 or 8 bit has other names and shapes: it is compared when it has loaded.
    stored = weight_shapes(folder) if folder and getattr(model.config, "quantization_config", None) is None else {}
    if not stored:
        return
    found = find_mismatch(model, stored, scores=scores)
    if found:
        raise mismatch_error(found.describe(), str(folder), flag)
    if found.aside:
        kept = "not loaded" if scores else "not loaded, and kept in what is saved"
        notice(f"of {Path(str(folder)).name} has no place in {type(model).__name__}: {_some(found.aside)}; {kept}")


def check_loaded(info: Mapping[str, Any], model: PreTrainedModel, name: str, *, flag: str, scores: bool) -> None:
    """Check what transformers reports of a load; for weights that `check_stored` could not read before.

    Args:
        info: Of `from_pretrained(..., output_loading_info=True)`.
        model: As it has loaded.
        name: What was loaded.
        flag: What named it.
        scores: The model has a head for scores, which need not be stored.

    Raises:
        ArgumentError: Weights are drawn at random, or layers are left out.
    """
    found = Mismatch(
        lacking=sorted(key for key in info["missing_keys"] if not (scores and key.startswith(NEW_HEADS))),
        beyond=beyond_last(model.config.to_dict(), info["unexpected_keys"]),
    )
    if found:
        raise mismatch_error(found.describe(), name, flag)


def check_finite(model: PreTrainedModel, name: str, flag: str) -> None:
    """Look at every weight of a model that is to answer or to score: of NaN no answer can be drawn.

    Raises:
        ArgumentError: One is NaN or infinite. Rows of the embedding alone may be, which no token need have.
    """
    inputs, outputs = model.get_input_embeddings(), model.get_output_embeddings()
    own_rows = getattr(inputs, "weight", None) is not getattr(outputs, "weight", None)
    for weight, parameter in model.named_parameters():
        if own_rows and parameter is getattr(inputs, "weight", None):
            continue
        # What is on the disk or packed has no values to look at here.
        if not parameter.is_meta and parameter.dtype.itemsize > 1 and not finite(parameter):
            cause = f"{weight} of {name} holds values that are NaN or infinite"
            raise ArgumentError(cause, place=flag, fix="take a checkpoint from before its weights broke")


def find_mismatch(model: PreTrainedModel, stored: Mapping[str, Shape], *, scores: bool = False) -> Mismatch:
    """Where the tensors of a checkpoint differ from the parameters of a model.

    Args:
        model: On the meta device.
        stored: Names and shapes on disk.
        scores: The model has a head for scores: it may lack, and the head of the language model may be left over.
    """
    wanted = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    placed, parts, unplaced = _place(model, stored)
    # Experts are stored one by one: some of them may be missing.
    incomplete = [name for name, (here, needed) in parts.items() if here != needed]
    tied = dict(getattr(model, "all_tied_weights_keys", None) or {})
    there = {*placed, *parts} | {tied.get(name, name) for name in placed}
    there |= {name for name, source in tied.items() if source in there}
    parameters = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    left = SimpleNamespace(missing_keys=parameters - there, unexpected_keys={*unplaced})
    # transformers' own rules for names that may be left out or lacking.
    model._adjust_missing_and_unexpected_keys(left)
    lacking = [name for name in left.missing_keys if not (scores and name.startswith(NEW_HEADS))]
    found = Mismatch(
        lacking=sorted([*lacking, *(f"{name} ({parts[name][0]} of {parts[name][1]} parts)" for name in incomplete)]),
        shapes={name: (shape, wanted[name]) for name, shape in sorted(placed.items()) if shape != wanted[name]},
    )
    modules = {name for name, _ in model.named_modules() if name}
    # Some checkpoints are of the bare decoder, without the prefix under which a causal LM holds it.
    modules |= {name.removeprefix(f"{model.base_model_prefix}.") for name in modules}
    behind = {*beyond_last(model.config.to_dict(), left.unexpected_keys)}
    for name in sorted(left.unexpected_keys):
        module, _, kind = name.rpartition(".")
        of_module = kind in ("weight", "bias") and module in modules and not name.startswith(OLD_HEADS)
        (found.beyond if of_module or name in behind else found.aside).append(name)
    # The language model's head has no place in a reward model, and that is no news.
    if scores:
        found.aside = [name for name in found.aside if not name.startswith(OLD_HEADS)]
    return found


@dataclass(frozen=True)
class Rules:
    """transformers' rules for the names under which a model is stored.

    Args:
        renamings: One stored tensor to one parameter.
        converters: Several to one, or one to several.
    """

    renamings: list[Any]
    converters: list[WeightConverter]

    def converter(self, pattern: str) -> WeightConverter:
        """The rule that has this pattern."""
        return next(rule for rule in self.converters if pattern in rule.source_patterns)


def rules_of(model: PreTrainedModel) -> Rules:
    """The rules by which transformers reads a checkpoint of this model; on any device."""
    rules = get_model_conversion_mapping(model)
    return Rules(
        [rule for rule in rules if not isinstance(rule, WeightConverter)],
        [rule for rule in rules if isinstance(rule, WeightConverter)],
    )


def places(model: PreTrainedModel, stored: Iterable[str], rules: Rules) -> Iterator[tuple[str, str, str | None]]:
    """Of each stored name the parameter, and the converter's pattern where the tensor is one of several.

    A parameter that the model does not have is what the rules make of a name without a place in it.
    """
    parameters = model.state_dict()
    for name in stored:
        target, pattern = rename_source_key(
            name, rules.renamings, rules.converters, model.base_model_prefix, parameters
        )
        if target not in parameters and name in parameters:
            # A rule means other modules of such a name (DeepSeek V4's norms): transformers reads it as it is.
            target, pattern = name, None
        yield name, target, pattern


def without_place(model: PreTrainedModel, stored: Iterable[str]) -> dict[str, str]:
    """Stored names that the model has no parameter for -> what transformers calls them where it reports them."""
    parameters = model.state_dict()
    every = places(model, stored, rules_of(model))
    return {name: target for name, target, _ in every if target not in parameters}


def _place(
    model: PreTrainedModel, stored: Mapping[str, Shape]
) -> tuple[dict[str, Shape], dict[str, tuple[int, int]], list[str]]:
    """By transformers' rules: parameters that are stored as they are; those made from several tensors; the rest.

    Of the second kind the number of tensors, and how many there should be: one an expert and a matrix.
    """
    rules = rules_of(model)
    parameters = model.state_dict()
    whole: dict[str, Shape] = {}
    parts: dict[str, tuple[int, int]] = {}
    unplaced = []
    for name, target, pattern in places(model, stored, rules):
        if target not in parameters:
            unplaced.append(name)
        elif pattern is None:
            whole[target] = stored[name]
        else:
            here = parts.get(target, (0, 0))[0] + 1
            rule = rules.converter(pattern)
            parts[target] = here, _needed(rule, parameters[target].shape) or here
            # One tensor may be cut into several parameters (HRM's queries, keys, values and gates).
            parts |= {other: (1, 1) for other in cut_alike(rule, target) if other in parameters}
    return whole, parts, unplaced


def cut_alike(rule: WeightConverter, target: str) -> list[str]:
    """The other parameters that a rule makes of the tensors of one."""
    first, *others = (pattern.replace("\\", "") for pattern in rule.target_patterns)
    return [target.replace(first, other) for other in others if first in target]


def _needed(rule: WeightConverter, shape: Shape) -> int | None:
    """Stored tensors that a parameter is made of; None where the rule is of another kind than experts'."""
    merges = any(type(operation).__name__ == "MergeModulelist" for operation in rule.operations)
    return shape[0] * len(rule.source_patterns) if merges and len(rule.target_patterns) == 1 else None


def stored_otherwise(model: Any, folder: str | Path) -> bool:
    """Whether a folder's weights have other names than this model's: transformers splits experts that it fuses.

    Args:
        model: The model that the folder was saved from; for adapters, which peft names itself, the answer is no.
    """
    if not isinstance(model, PreTrainedModel):
        return False
    own = {*model.state_dict()}
    return any(name not in own for file in weight_files(folder) for name in read_safetensors_header(file).tensors)


def tensors_by_parameter(model: Any, folder: str | Path) -> dict[str, torch.Tensor]:
    """The whole tensors of a folder that this model was saved into, by the names of its parameters.

    Args:
        model: A PreTrainedModel, partitioned or not, or an adapter around one.

    Raises:
        ManifestError: A file is damaged, or larger than the free memory.
    """
    if not stored_otherwise(model, folder):
        return {name: tensor for file in weight_files(folder) for name, tensor in load_tensors(file).items()}
    # The widest of its numbers, so that nothing is rounded: parameters may have several types.
    wide = any(parameter.dtype == torch.float32 for parameter in model.parameters())
    # transformers itself knows how to put together what it has taken apart. Whole, also where the live model is not.
    with no_deepspeed_config():
        read = type(model).from_pretrained(
            folder, config=model.config, dtype=torch.float32 if wide else model.dtype, local_files_only=True
        )
    return dict(read.state_dict())
