"""An adapter's folder as peft saves it: which module each tensor is for, and what hftune does not know how to fold."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from hftune.checkpoints.folder_checks import check_recorded
from hftune.checkpoints.manifest import Manifest, read_manifest
from hftune.errors import ManifestError, raise_together
from hftune.opening.model_files import read_checked
from hftune.path_hints import not_an_adapter
from hftune.weight_files import StoredTensor, file_tensors, stored_tensors

CONFIG_NAME, ADAPTER_WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
PREFIX = "base_model.model."
# A tensor's name is its module's, once `base_layer.` for every adapter wrapped around another, and one of these.
_ADAPTED = re.compile(
    r"^(?P<module>.+?)(?P<depth>(\.base_layer)*)\."
    r"(?P<tensor>lora_[AB]\.weight|lora_embedding_[AB]|lora_magnitude_vector(\.weight)?)$"
)
_REPLACED = re.compile(r"^(?P<module>.+?)(\.token_adapter|\.base_layer|\.modules_to_save)*\.(?P<parameter>[^.]+)$")
# peft saves what was there before training as well, where the embeddings were resized.
_BEFORE = ".original_module."

# Keys of adapter_config.json that do not change what the saved tensors mean, or whose meaning is folded below.
_KNOWN = {
    *("alpha_pattern", "auto_mapping", "base_model_name_or_path", "bias", "corda_config", "ensure_weight_tying"),
    *("eva_config", "exclude_modules", "fan_in_fan_out", "inference_mode", "init_lora_weights", "layers_pattern"),
    *("layers_to_transform", "loftq_config", "lora_alpha", "lora_dropout", "lora_ga_config"),
    *("megatron_core", "modules_to_save", "peft_type", "peft_version", "qalora_group_size", "r", "rank_pattern"),
    *("revision", "runtime_config", "target_modules", "target_parameters", "task_type"),
    *("use_dora", "use_rslora"),
}
# Initialisations that leave the base as it is. The others change it while peft loads the adapter, unless they were
# converted when the adapter was saved (peft's `path_initial_model_for_weight_conversion`).
_PLAIN_INITS = (None, "gaussian", "eva", "orthogonal")


@dataclass
class AdaptedModule:
    """What one adapter brings for one module of the base.

    Args:
        name: The module's, as the base has it.
        depth: How many other adapters of the same folder are wrapped around it (experts: one for each parameter).
        tensors: By peft's name without `.weight`: lora_A, lora_embedding_B, lora_magnitude_vector, ...
    """

    name: str
    depth: int
    tensors: dict[str, StoredTensor] = field(default_factory=dict)

    @property
    def weight(self) -> str:
        """The name of the module's weight."""
        return f"{self.name}.weight"

    @property
    def is_embedding(self) -> bool:
        """Whether it is LoRA on an embedding, whose matrices are the other way round."""
        return "lora_embedding_A" in self.tensors

    @property
    def matrices(self) -> tuple[StoredTensor | None, StoredTensor | None]:
        """A and B."""
        kind = "lora_embedding" if self.is_embedding else "lora"
        return self.tensors.get(f"{kind}_A"), self.tensors.get(f"{kind}_B")


@dataclass(frozen=True)
class Adapter:
    """A folder with an adapter and what its files say.

    Args:
        folder: Where it is.
        weight: What it counts among others that are added to the same base.
    """

    folder: Path
    weight: float = 1.0

    @cached_property
    def config(self) -> dict[str, Any]:
        """adapter_config.json."""
        return read_checked(self.folder / CONFIG_NAME)

    @cached_property
    def manifest(self) -> Manifest:
        """What hftune wrote when it was trained; empty for an adapter from elsewhere."""
        return read_manifest(self.folder) or {}

    @cached_property
    def tensors(self) -> dict[str, StoredTensor]:
        """The saved tensors, without peft's prefix; empty where there is no safetensors file."""
        # adapter_model.bin is a pickle: peft loads it, or refuses to.
        found = stored_tensors(self.folder) if (self.folder / ADAPTER_WEIGHTS).is_file() else {}
        return {name.removeprefix(PREFIX): stored for name, stored in found.items()}

    @cached_property
    def modules(self) -> list[AdaptedModule]:
        """Low-rank matrices and magnitudes, module by module."""
        found: dict[tuple[str, int], AdaptedModule] = {}
        for name, stored in self.tensors.items():
            match = _ADAPTED.match(name)
            if match:
                # Two adapters around one module (an expert's two parameters) have the same tensors at two depths.
                key = match["module"], match["depth"].count("base_layer")
                module = found.setdefault(key, AdaptedModule(*key))
                module.tensors[match["tensor"].removesuffix(".weight")] = stored
        return list(found.values())

    @cached_property
    def replaced(self) -> dict[str, StoredTensor]:
        """Parameter name to the tensor that takes its place."""
        found = {}
        for name, stored in self.tensors.items():
            match = None if _ADAPTED.match(name) else _REPLACED.match(name)
            if match and _BEFORE not in name:
                found[f"{match['module']}.{match['parameter']}"] = stored
        return found

    def scale(self, key: str, rank: int) -> float:
        """What the product of the two matrices is multiplied by.

        Args:
            key: The module's name (with the parameter's, for experts), which `alpha_pattern` may match.
            rank: r of its matrices.
        """
        alpha = float(self.config.get("lora_alpha", 8))
        # The first pattern that matches counts, and matches whole names from a dot on, as in peft's get_pattern_key.
        for pattern, value in (self.config.get("alpha_pattern") or {}).items():
            if re.match(rf"(.*\.)?({pattern})$", key):
                alpha = float(value)
                break
        return alpha / rank**0.5 if self.config.get("use_rslora") else alpha / rank

    def unsupported(self) -> str | None:
        """Why peft has to merge this adapter, or None."""
        kind = self.config.get("peft_type")
        if kind != "LORA":
            return f"it is of type {kind}"
        init = self.config.get("init_lora_weights")
        if init not in _PLAIN_INITS and not isinstance(init, bool):
            return f"it was initialised with {init}, which changes the base, and not converted to plain LoRA"
        if not self.tensors:
            return f"it has no {ADAPTER_WEIGHTS}"
        # A key of a newer peft may change what the tensors mean; peft itself then merges, or refuses.
        odd = sorted(name for name, value in self.config.items() if value and name not in _KNOWN)
        if odd:
            return f"its config sets {', '.join(odd)}"
        # Convolutions: a product of matrices is no update of theirs.
        many = [name for name, stored in self.tensors.items() if "lora_" in name and len(stored.shape) > 2]
        return f"{many[0]} has {len(self.tensors[many[0]].shape)} dimensions" if many else None


def read_adapter(folder: str | Path, weight: float, flag: str) -> Adapter:
    """An adapter folder whose files are there and hold something.

    Raises:
        ArgumentError: No adapter there.
        ManifestError: A tensor of size 0, as a ZeRO-3 run leaves that saved without gathering; or no tensors; or files
            that changed after hftune wrote them.
    """
    path = Path(folder)
    if not (path / CONFIG_NAME).is_file():
        raise not_an_adapter(folder, flag)
    raise_together(check_recorded(path, flag))
    file = path / ADAPTER_WEIGHTS
    if file.is_file():
        found = file_tensors(file)
        empty = [name for name, tensor in found.items() if 0 in tensor.shape]
        if empty or not found:
            raise ManifestError(
                f"the adapter in {folder} is empty: "
                + (f"{empty[0]} has size 0 (and {len(empty) - 1} more)" if empty else "it has no tensors"),
                place=str(file),
                fix="it was saved without gathering ZeRO-3's shards; save it again from a checkpoint of its run",
            )
    return Adapter(path, weight)
