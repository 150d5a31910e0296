"""The model without weights: what tells an adapter's parameters from the names under which a checkpoint stores them.

transformers keeps other names in memory than on disk for some architectures: Mixtral's experts are one tensor each on
disk (`block_sparse_moe.experts.3.w1.weight`), and rows of one fused parameter (`mlp.experts.gate_up_proj`) in memory.
Its own conversion rules are asked, so a checkpoint that transformers loads is a checkpoint that can be merged.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from hftune.constants import AUTO_CLASSES
from hftune.errors import ArgumentError
from hftune.models.loading.config_sizes import check_config
from hftune.models.loading.from_pretrained import from_config, pretrained


@dataclass(frozen=True)
class Piece:
    """A stored tensor, and what it is of a parameter in memory.

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
class Skeleton:
    """Names, shapes and kinds of a model's parameters, from its config alone.

    Args:
        model: On the meta device.
        pieces: Parameter name to the stored tensors that make it up.
        unused: Stored tensors that this model does not have.
        strange: Parameter name to how it is made from stored tensors, where hftune does not know that way.
    """

    model: Any
    pieces: dict[str, list[Piece]] = field(default_factory=dict)
    unused: list[str] = field(default_factory=list)
    strange: dict[str, str] = field(default_factory=dict)

    @property
    def tied(self) -> dict[str, str]:
        """Parameter to the one it is tied to, as config and class say."""
        return dict(getattr(self.model, "all_tied_weights_keys", None) or {})

    @property
    def embedding(self) -> str | None:
        """Name of the input embeddings' weight."""
        wanted = self.model.get_input_embeddings()
        return next((f"{name}.weight" for name, module in self.model.named_modules() if module is wanted), None)

    @property
    def heads(self) -> list[str]:
        """Names of the head's weight and bias."""
        wanted = self.model.get_output_embeddings()
        names = [name for name, module in self.model.named_modules() if wanted is not None and module is wanted]
        return [f"{name}.{part}" for name in names for part in ("weight", "bias")]

    def module(self, name: str) -> Any:
        """A module by its name; None where there is none."""
        return dict(self.model.named_modules()).get(name)

    def is_transposed(self, module: str) -> bool:
        """Whether a linear module stores its weight as (in, out): transformers' Conv1D."""
        return type(self.module(module)).__name__ == "Conv1D"


def build_skeleton(
    folder: Path,
    stored: Iterable[str],
    *,
    scores: int | None = None,
    head: str = "score",
    trust_remote_code: bool = False,
) -> Skeleton:
    """The model of a checkpoint folder, and where its parameters are stored.

    Args:
        folder: Holds config.json.
        stored: Names of the tensors on disk.
        scores: Labels of a reward model; None: a causal LM.
        head: What scores they are, score or steps.
        trust_remote_code: Run code that comes with the model.

    Raises:
        ArgumentError: transformers knows no such model.
    """
    import transformers
    from transformers import AutoConfig

    auto: Any = getattr(transformers, AUTO_CLASSES["causal_lm" if scores is None else head])
    extra = {} if scores is None else {"num_labels": scores}
    try:
        config = pretrained(AutoConfig, folder, trust_remote_code=trust_remote_code, **extra)
        with torch.device("meta"):
            model = from_config(auto, config, trust_remote_code=trust_remote_code)
    except ValueError as error:
        raise ArgumentError(
            f"transformers cannot build the model of {folder}: {str(error).splitlines()[0]}",
            place="--base_model_name_or_path",
            fix="copy or download its config.json again; a model with code of its own needs --trust_remote_code",
        ) from error
    skeleton = Skeleton(model)
    _place(skeleton, stored)
    return skeleton


def _place(skeleton: Skeleton, stored: Iterable[str]) -> None:
    """Ask transformers' conversion rules (transformers.core_model_loading) for each stored name."""
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import WeightConverter, WeightRenaming, rename_source_key

    transforms = get_model_conversion_mapping(skeleton.model)
    renamings = [rule for rule in transforms if isinstance(rule, WeightRenaming)]
    converters = [rule for rule in transforms if isinstance(rule, WeightConverter)]
    parameters = skeleton.model.state_dict()
    for name in stored:
        target, pattern = rename_source_key(name, renamings, converters, skeleton.model.base_model_prefix, parameters)
        if target not in parameters:
            skeleton.unused.append(name)
        elif pattern is None:
            skeleton.pieces.setdefault(target, []).append(Piece(name))
        else:
            rule = next(rule for rule in converters if pattern in rule.source_patterns)
            _place_converted(skeleton, name, target, pattern, rule)


def _place_converted(skeleton: Skeleton, name: str, target: str, pattern: str, rule: Any) -> None:
    made = [(type(operation).__name__, getattr(operation, "dim", None)) for operation in rule.operations]
    fused = [("MergeModulelist", 0), ("Concatenate", 1)]
    index = re.search(pattern.replace(".", r"\.").replace("*", r"(\d+)"), _tail(name, pattern))
    if index is None or made not in (fused, fused[:1]) or len(rule.target_patterns) != 1:
        skeleton.strange[target] = " and ".join(kind for kind, _ in made)
        return
    piece = Piece(name, int(index[1]), rule.source_patterns.index(pattern), len(rule.source_patterns))
    skeleton.pieces.setdefault(target, []).append(piece)


def _tail(name: str, pattern: str) -> str:
    """The end of a stored name that a pattern describes: renamings may have changed what is before it."""
    return "." + ".".join(name.split(".")[-len(pattern.strip(".").split(".")) :])


def quantised_linears(model: Any, *, eight_bit: bool) -> list[str]:
    """Names of the modules that bitsandbytes quantises when hftune loads a model (`models/loading/quantization`).

    transformers keeps heads whole (quantizers.base.get_keys_to_not_convert); in 8 bit hftune names them itself.
    """
    from transformers.quantizers.base import get_keys_to_not_convert
    from transformers.quantizers.quantizers_utils import should_convert_module

    whole = ["lm_head", "score"] if eight_bit else get_keys_to_not_convert(model)
    return [
        name
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.Linear) and should_convert_module(name, whole)
    ]


def read_config(folder: Path) -> dict[str, Any]:
    """config.json as it lies there.

    Raises:
        ArgumentError: There is none, or it is none of a model.
    """
    file = folder / "config.json"
    if not file.is_file():
        raise ArgumentError(
            f"no model could be loaded from {folder}: it has no config.json",
            place="--base_model_name_or_path",
            fix="give the folder or Hub name of the base",
        )
    return check_config(folder, "--base_model_name_or_path")
