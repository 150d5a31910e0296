"""The model without weights: what tells an adapter's parameters from the names under which a checkpoint stores them.

transformers keeps other names in memory than on disk for some architectures: Mixtral's experts are one tensor each on
disk (`block_sparse_moe.experts.3.w1.weight`), and rows of one fused parameter (`mlp.experts.gate_up_proj`) in memory.
Its own conversion rules are asked, so a checkpoint that transformers loads is a checkpoint that can be merged.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from hftune.constants import AUTO_CLASSES
from hftune.errors import ArgumentError
from hftune.models.loading.from_pretrained import from_config, pretrained
from hftune.weight_files import StoredTensor

if TYPE_CHECKING:
    from transformers import PreTrainedModel, WeightConverter


class Unsupported(Exception):
    """Something that hftune does not fold tensor by tensor, so that peft has to merge; the message says what."""


@dataclass(frozen=True)
class StoredSlice:
    """A stored tensor, and which slice of a parameter in memory it is.

    Args:
        stored: The name on disk.
        expert: Its index in the parameter's first dimension; None: the stored tensor is the parameter.
        part: Which of `parts` equal slices of that expert's rows.
        parts: How many there are, 2 for gate and up projections.
    """

    stored: str
    expert: int | None = None
    part: int = 0
    parts: int = 1


@dataclass
class BaseTensors:
    """The base's tensors by the names they are stored under, and which parameters they are in memory.

    Args:
        stored: In the order of their bytes.
        skeleton: The model on the meta device; None where names alone tell all that the adapters need.
        converted: Parameter name to the stored tensors that make it up, where they have other names.
        unsupported: Parameter name to how it is made from stored tensors, where hftune does not know that way.
        left_out: Stored tensors that the merged model will not have.
    """

    stored: dict[str, StoredTensor]
    skeleton: PreTrainedModel | None = None
    converted: dict[str, list[StoredSlice]] = field(default_factory=dict)
    unsupported: dict[str, str] = field(default_factory=dict)
    left_out: set[str] = field(default_factory=set)

    @property
    def tied(self) -> dict[str, str]:
        """Parameter to the one it is tied to, as config and class say."""
        return dict(getattr(self.skeleton, "all_tied_weights_keys", None) or {})

    def module(self, name: str) -> torch.nn.Module | None:
        """A module by its name; None where there is none, or no skeleton."""
        return dict(self.skeleton.named_modules()).get(name) if self.skeleton is not None else None

    def slices(self, parameter: str) -> list[StoredSlice]:
        """The stored tensors of a parameter; none for one that is tied, new or unknown.

        Raises:
            Unsupported: It is made from stored tensors in a way that hftune does not know.
        """
        if parameter in self.stored:  # most have one name
            return [StoredSlice(parameter)]
        if parameter in self.unsupported:
            raise Unsupported(f"{parameter} is made from stored tensors by {self.unsupported[parameter]}")
        return self.converted.get(parameter, [])

    def shape(self, parameter: str) -> tuple[int, ...] | None:
        """The shape of a parameter in memory."""
        if parameter in self.stored:
            return self.stored[parameter].shape
        found = None if self.skeleton is None else self.skeleton.state_dict().get(parameter)
        return None if found is None else tuple(found.shape)


def build_skeleton(
    folder: Path, *, head: str = "causal_lm", labels: int | None = None, trust_remote_code: bool
) -> PreTrainedModel:
    """The model of a checkpoint folder on the meta device.

    Args:
        folder: Holds config.json.
        head: causal_lm, score or steps.
        labels: Of a reward model.
        trust_remote_code: Run code that comes with the model.

    Raises:
        ArgumentError: transformers knows no such model.
    """
    import transformers

    auto: Any = getattr(transformers, AUTO_CLASSES[head])
    extra = {} if labels is None else {"num_labels": labels}
    try:
        config = pretrained(transformers.AutoConfig, folder, trust_remote_code=trust_remote_code, **extra)
        with torch.device("meta"):  # parameters without values: seconds and no memory for 70B
            return from_config(auto, config, trust_remote_code=trust_remote_code)
    except ValueError as error:
        raise ArgumentError(
            f"transformers cannot build the model of {folder}: {str(error).splitlines()[0]}",
            place="--base_model_name_or_path",
            fix="copy or download its config.json again; a model with code of its own needs --trust_remote_code",
        ) from error


def match_names(base: BaseTensors, model: PreTrainedModel) -> list[str]:
    """Give the base its skeleton, asking transformers' conversion rules (core_model_loading) for each stored name.

    Args:
        base: Of the merge.
        model: On the meta device.

    Returns:
        Stored names that the model has no parameter for.
    """
    from hftune.models.loading.stored_weights import cut_alike, places, rules_of

    base.skeleton = model
    rules, parameters, unused = rules_of(model), model.state_dict(), []
    for name, target, pattern in places(model, base.stored, rules):
        if target not in parameters:
            unused.append(name)
        elif pattern is None:
            base.converted.setdefault(target, []).append(StoredSlice(name))
        else:
            rule = rules.converter(pattern)
            _match_converted(base, name, target, pattern, rule)
            if target in base.unsupported:  # one tensor may be cut into several parameters
                base.unsupported |= dict.fromkeys(cut_alike(rule, target), base.unsupported[target])
    return unused


def _match_converted(base: BaseTensors, name: str, target: str, pattern: str, rule: WeightConverter) -> None:
    """A stored tensor that is an expert, or a half of one, of a fused parameter; any other conversion is noted."""
    operations = [(type(operation).__name__, getattr(operation, "dim", None)) for operation in rule.operations]
    # Experts stacked along the first dimension, and gate above up within each: how every MoE of transformers 5 does it.
    fused = [("MergeModulelist", 0), ("Concatenate", 1)]
    # Some of transformers' patterns (DeepSeek-V4, Kimi-Linear) escape dots, most do not.
    plain = pattern.replace(r"\.", ".")
    # Only the end of the name is what the pattern describes: renamings may have changed what is before it.
    end = "." + ".".join(name.split(".")[-len(plain.strip(".").split(".")) :])
    index = re.search(plain.replace(".", r"\.").replace("*", r"(\d+)"), end)
    if index is None or operations not in (fused, fused[:1]) or len(rule.target_patterns) != 1:
        base.unsupported[target] = " and ".join(kind for kind, _ in operations)
        return
    part, parts = rule.source_patterns.index(pattern), len(rule.source_patterns)
    base.converted.setdefault(target, []).append(StoredSlice(name, int(index[1]), part, parts))
