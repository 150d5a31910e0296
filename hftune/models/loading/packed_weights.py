"""Checkpoints in 4 or 8 bit of other makers, read as whole weights: one tensor at a time, under any ZeRO stage.

transformers is given a state dict whose values are computed when it asks for them, so that its own renamings, fused
experts, bitsandbytes and ZeRO-3's partitioning work as with weights that are stored in 16 bit.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from math import prod
from pathlib import Path
from threading import Lock
from typing import Any

import torch
from huggingface_hub import snapshot_download
from torch import Tensor
from transformers import AutoConfig, GenerationConfig, PreTrainedConfig
from transformers.initialization import no_init_weights
from transformers.integrations.deepspeed import is_deepspeed_zero3_enabled
from transformers.utils.hub import cached_file

from hftune.arguments.model import ModelArguments
from hftune.distributed import ranks, zero
from hftune.errors import ArgumentError
from hftune.models.loading.config import file_options
from hftune.models.loading.from_pretrained import from_config, pretrained
from hftune.models.loading.packed_formats import (
    DTYPES,
    Packed,
    describe,
    find_packed,
    is_read_whole,
    stored_quantisation,
)
from hftune.models.parts.loading import left_over, reading_by, save_under_own_names
from hftune.models.parts.placing import rules_for
from hftune.opening.model_files import read_checked
from hftune.opening.safetensors_file import open_tensors
from hftune.weight_files import StoredTensor, stored_tensors, weight_shapes

OTHERS = ["consolidated*", "original/*", "onnx/*", "gguf/*"]
"""Of a repository: the same weights once more."""
Shape = tuple[int, ...]


@dataclass(frozen=True)
class PackedCheckpoint:
    """A local checkpoint in 4 or 8 bit.

    Args:
        folder: Where it is.
        method: Of its quantisation, with the format.
        stored: Its tensors.
        packed: Weights that are computed, by name.
        aside: Stored tensors that are no weight.
    """

    folder: Path
    method: str
    stored: dict[str, StoredTensor]
    packed: dict[str, Packed]
    aside: set[str]

    @property
    def shapes(self) -> dict[str, Shape]:
        """Name to shape as if all had been stored whole."""
        whole = {name: entry.shape for name, entry in self.stored.items() if name not in self.aside}
        return whole | {name: packed.shape for name, packed in self.packed.items()}

    @property
    def stored_bytes(self) -> int:
        """Bytes on disk."""
        return sum(entry.nbytes for entry in self.stored.values())

    def whole_bytes(self, element: float) -> float:
        """Bytes of all weights with so many an element."""
        return sum(prod(shape) for shape in self.shapes.values()) * element


def packed_checkpoint(folder: str | Path | None) -> PackedCheckpoint | None:
    """The checkpoint in a local folder, where it is packed in a format that is read whole; else None.

    Raises:
        ArgumentError: It is packed in a layout of such a format that is not known.
    """
    file = Path(folder or "") / "config.json"
    how = stored_quantisation(read_checked(file)) if folder and file.is_file() else None
    if how is None or not is_read_whole(how):
        return None
    stored = stored_tensors(Path(str(folder)))
    packed, aside = find_packed(how, stored, partial(_read_now, stored), str(folder))
    return PackedCheckpoint(Path(str(folder)), describe(how), stored, packed, aside)


def check_has_weights(checkpoint: PackedCheckpoint) -> None:
    """Refuse a checkpoint whose weights are not safetensors, which alone are unpacked.

    Raises:
        ArgumentError: It has none.
    """
    if not checkpoint.stored:
        raise ArgumentError(
            f"{checkpoint.folder} is stored in {checkpoint.method}, and there are no weights in safetensors",
            place="--model_name_or_path",
            fix="download all of its files; packed weights in .bin and .pt files are not read",
        )


def whole_shapes(folder: str | Path | None) -> dict[str, Shape]:
    """`weight_shapes`, with the shapes that packed weights have whole."""
    found = packed_checkpoint(folder)
    return weight_shapes(folder) if found is None else found.shapes


def _read_now(stored: Mapping[str, StoredTensor], name: str) -> Tensor:
    with open_tensors(stored[name].file) as file:
        return file.get_tensor(name)


class LazyWeight:
    """A tensor that is read, and computed, when transformers takes it.

    Args:
        shape: Of the tensor.
        dtype: Of the tensor.
        read: Its values.
    """

    is_meta = False

    def __init__(self, shape: Shape, dtype: torch.dtype, read: Callable[[], Tensor]) -> None:
        self.shape, self.dtype, self._read = torch.Size(shape), dtype, read

    def __call__(self) -> Tensor:
        """The tensor: transformers calls what a conversion has to wait for."""
        return self._read()

    def __getitem__(self, index: Any) -> Tensor:
        """As a slice of a safetensors file, of which transformers asks `[...]`."""
        return self()[index]

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Under ZeRO-3 it is copied into a gathered parameter like a tensor."""
        return function(*(arg() if isinstance(arg, cls) else arg for arg in args), **(kwargs or {}))


@contextmanager
def lazy_weights(checkpoint: PackedCheckpoint, dtype: torch.dtype, *, empty: bool = False) -> Iterator[dict[str, Any]]:
    """The state dict of a checkpoint, to be used within the block.

    Args:
        dtype: To which computed weights are rounded; others are as they are stored.
        empty: Names and shapes alone, for processes that ZeRO-3 gives their part of rank 0's weights.
    """
    dtypes = {name: DTYPES[entry.dtype] for name, entry in checkpoint.stored.items()} | dict.fromkeys(
        checkpoint.packed, dtype
    )
    shapes = checkpoint.shapes
    if empty:
        yield {name: torch.empty(shape, dtype=dtypes[name], device="meta") for name, shape in shapes.items()}
        return
    with ExitStack() as stack:
        files = {entry.file: None for entry in checkpoint.stored.values()}
        opened = {file: stack.enter_context(open_tensors(file)) for file in files}
        lock = Lock()  # several threads read

        def read(name: str) -> Tensor:
            with lock:
                return opened[checkpoint.stored[name].file].get_tensor(name)

        def unpack(packed: Packed) -> Tensor:
            return packed.weight(read).to(dtype)

        plain = {name: partial(read, name) for name in checkpoint.stored if name not in checkpoint.aside}
        computed = {name: partial(unpack, packed) for name, packed in checkpoint.packed.items()}
        yield {name: LazyWeight(shapes[name], dtypes[name], reading) for name, reading in (plain | computed).items()}


def weights_folder(model_args: ModelArguments) -> Path | None:
    """Where the files of `--model_name_or_path` are, downloaded where they are packed and on the Hub; else None.

    Of other models on the Hub transformers downloads what it needs itself.
    """
    name = str(model_args.model_name_or_path)
    if model_args.gguf_file or Path(name).is_dir():
        return None if model_args.gguf_file else Path(name)
    options = {key: value for key, value in file_options(model_args).items() if value is not None}
    file = cached_file(name, "config.json", **options)
    if file is None or not is_read_whole(stored_quantisation(read_checked(Path(file)))):
        return None
    return Path(snapshot_download(name, allow_patterns=["*.safetensors", "*.json"], ignore_patterns=OTHERS, **options))


def load_packed(auto: Any, config: PreTrainedConfig, checkpoint: PackedCheckpoint, given: dict[str, Any]) -> Any:
    """What `auto.from_pretrained(..., output_loading_info=True)` gives: the model with whole weights, and the report.

    Args:
        auto: `AutoModelForCausalLM` or its like.
        config: Without a quantisation.
        checkpoint: Its weights.
        given: Further arguments of `from_pretrained`: dtype, trust_remote_code, a bitsandbytes config, ...

    Raises:
        ArgumentError: It has no weights in safetensors.
    """
    check_has_weights(checkpoint)
    given = dict(given)
    options = {"trust_remote_code": given.pop("trust_remote_code", False)}
    # transformers takes a state dict in place of a name, but not of an auto class.
    with zero.no_partitioning(), torch.device("meta"), no_init_weights():
        bare = from_config(auto, copy.deepcopy(config), **options)
    # Under ZeRO-3 rank 0 reads; what is quantised on the way is read by all.
    empty = is_deepspeed_zero3_enabled() and "quantization_config" not in given and not ranks.is_main()
    # Of several parts the language model alone is read.
    whole = pretrained(AutoConfig, checkpoint.folder, **options)
    rules = rules_for(bare, checkpoint.shapes, whole)
    with lazy_weights(checkpoint, given["dtype"], empty=empty) as weights, reading_by(rules) as names:
        given |= {"config": bare.config, "key_mapping": names}
        model, info = type(bare).from_pretrained(None, state_dict=weights, output_loading_info=True, **given)
    if rules.prefixes or rules.within is not None:
        save_under_own_names(model, rules)
        info["unexpected_keys"] = left_over(info["unexpected_keys"], checkpoint.shapes, rules)
    model.name_or_path = model.config.name_or_path = str(config.name_or_path or checkpoint.folder)
    if (checkpoint.folder / "generation_config.json").is_file() and model.can_generate():
        model.generation_config = pretrained(GenerationConfig, checkpoint.folder, **options)
    return model, info
