"""What a saved model keeps of its base: the parts that text does not train, as they are stored.

transformers does not load all of a checkpoint (layers that predict a token further on), and loads the rest in the dtype
of training. Those tensors are copied from the base's files, and what was trained gets the dtypes of the base.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.initialization import no_init_weights

from hftune.constants import PROCESSOR_FILES, VOICES_FILE
from hftune.distributed import zero
from hftune.models.classes import has_parts
from hftune.models.loading.from_pretrained import from_config, pretrained
from hftune.models.loading.quantisation import quantisation_in
from hftune.models.loading.stored_weights import places, rules_of
from hftune.models.structure import is_within, other_parts
from hftune.opening.files import copy_file
from hftune.opening.json_file import read_json
from hftune.opening.safetensors_file import open_tensors
from hftune.weight_files import INDEX_NAME, StoredTensor, stored_tensors, weight_files

_FLOATS = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
_PROCESSORS = (PROCESSOR_FILES, "chat_template.json", VOICES_FILE)
"""Files of what makes images and sounds into inputs, and of voices; those of the tokenizer are saved with it."""


def keep_of_base(folder: Path, base: Path, *, cast: bool = True, trusted: bool = False) -> list[str]:
    """Put what training did not touch of a base's other parts into a saved model; nothing where it has none.

    Args:
        folder: With weights and config.json, which nobody else reads yet.
        base: The folder of the model that training began with.
        cast: Store what was trained in the base's dtypes, not in those that it was saved in.
        trusted: Run code that comes with the base.

    Returns:
        The names of the tensors that are the base's, byte by byte.
    """
    if quantisation_in(base) is not None:
        return []
    config = pretrained(AutoConfig, base, trust_remote_code=trusted)
    with zero.no_partitioning(), torch.device("meta"), no_init_weights():
        model = from_config(AutoModelForCausalLM, config, trust_remote_code=trusted)
    stored, rules, parameters = stored_tensors(base), rules_of(model), model.state_dict()
    parts = other_parts(model)
    kept = {
        name: target
        for name, target, _ in places(model, stored, rules)
        if target not in parameters or is_within(target, parts)
    }
    if not kept and not has_parts(config):
        return []
    files = sorted(weight_files(folder))
    saved = {target for _, target, _ in places(model, stored_tensors(folder), rules)}
    new = [name for name, target in kept.items() if target not in saved]
    for file in files:
        with open_tensors(file) as opened:
            names = list(opened.keys())
            tensors = {name: _kept(name, opened.get_tensor(name), kept, stored, cast=cast) for name in names}
        tensors |= {name: _read(stored[name], name) for name in new if file == files[-1]}
        save_file(tensors, file.with_suffix(".new"), metadata={"format": "pt"})
        file.with_suffix(".new").replace(file)
    _note_in_index(folder, new, files[-1].name)
    if cast:
        said = read_json(folder / "config.json")
        _take_dtypes(said, read_json(base / "config.json"))
        (folder / "config.json").write_text(json.dumps(said, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    for pattern in _PROCESSORS:
        for file in sorted(base.glob(pattern)):
            if not (folder / file.name).exists():
                copy_file(file, folder / file.name, within=base)
    return [*kept]


def _kept(name: str, now: Tensor, kept: Mapping[str, str], stored: Mapping[str, StoredTensor], *, cast: bool) -> Tensor:
    """A saved tensor, or the base's own where that was not trained."""
    if name in kept:
        return _read(stored[name], name)
    # What the base does not have by that name gets the dtype that most of its tensors have.
    own = stored[name].dtype if name in stored else Counter(one.dtype for one in stored.values()).most_common(1)[0][0]
    return now.to(_FLOATS[own]) if cast and now.is_floating_point() and own in _FLOATS else now


def _read(stored: StoredTensor, name: str) -> Tensor:
    with open_tensors(stored.file) as file:
        return file.get_tensor(name)


def _note_in_index(folder: Path, new: list[str], file: str) -> None:
    index = folder / INDEX_NAME
    if index.is_file():
        content = read_json(index)
        content["weight_map"] |= dict.fromkeys(new, file)
        content["metadata"] = {"total_size": sum(one.nbytes for one in stored_tensors(folder).values())}
        index.write_text(json.dumps(content, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def _take_dtypes(config: dict[str, Any], base: Mapping[str, Any]) -> None:
    """Have a config and its parts say the dtypes that the base's says."""
    for name, value in base.items():
        if name in ("dtype", "torch_dtype"):
            config["dtype"] = value
        elif isinstance(value, dict) and isinstance(config.get(name), dict):
            _take_dtypes(config[name], value)
