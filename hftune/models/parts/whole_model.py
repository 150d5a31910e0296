"""A trained language model put back among the parts that it was trained without, as its base stores them.

What was not trained is copied from the base's files byte by byte: towers, projectors, heads that predict further, and
frozen layers. Names, files, dtypes and config are the base's.
"""

from __future__ import annotations

import copy
import json
import os
import struct
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel
from transformers.initialization import no_init_weights

from hftune.constants import PROCESSOR_FILES, VOICES_FILE
from hftune.distributed import zero
from hftune.errors import ManifestError
from hftune.logging import notice
from hftune.models.loading.from_pretrained import from_config, pretrained
from hftune.models.loading.stored_quantisation import quantisation_in
from hftune.models.parts.language_part import has_parts, language_config, own_name
from hftune.models.parts.placing import Place
from hftune.models.parts.stored_form import CONVERTED, Placed, in_stored_form, placed
from hftune.opening.folders import copy_file
from hftune.opening.json_file import read_json
from hftune.weight_files import INDEX_NAME, WEIGHTS_NAME, StoredTensor, stored_tensors

_FLOATS = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
_BLOCK = 1 << 26
"""Bytes read at once."""
_PROCESSORS = (PROCESSOR_FILES, "chat_template.json", VOICES_FILE)
"""Files of what makes images and sounds into inputs, and of voices; those of the tokenizer are saved with it."""
_OF_SAVING = {"architectures", "dtype", "torch_dtype", "transformers_version", "use_cache", "_name_or_path"}
"""Fields of a config that say how it was saved, not what model it is of."""


@dataclass(frozen=True)
class Piece:
    """One tensor of the whole.

    Args:
        name: As it is stored.
        source: Whose bytes it has.
        dtype: As safetensors names it.
        file: The name of the file that it goes into.
        kept: Whether it is the base's.
    """

    name: str
    source: StoredTensor
    dtype: str
    file: str
    kept: bool

    @property
    def nbytes(self) -> int:
        """Bytes in the whole."""
        return self.source.nbytes if self.dtype == self.source.dtype else prod(self.source.shape) * _size(self.dtype)


@dataclass(frozen=True)
class Kept:
    """What of a base is not in the language model.

    Args:
        tensors: Their names.
        nbytes: Of all of them.
    """

    tensors: list[str]
    nbytes: int


def language_skeleton(config: PreTrainedConfig, trusted: bool) -> PreTrainedModel:
    """The language model of a config on the meta device, its ties made."""
    with zero.no_partitioning(), torch.device("meta"), no_init_weights():
        model: PreTrainedModel = from_config(AutoModelForCausalLM, copy.deepcopy(config), trust_remote_code=trusted)
    model.tie_weights()
    return model


def _kept(stored: Mapping[str, StoredTensor], own: Mapping[str, Place]) -> Kept:
    """The stored tensors that the language model has no place for."""
    names = [name for name in stored if name not in own]
    return Kept(names, sum(stored[name].nbytes for name in names))


def complete(
    folder: Path,
    base: Path,
    model: PreTrainedModel,
    trained: Collection[str] | None,
    *,
    cast: bool = True,
    trust_remote_code: bool = False,
) -> Kept:
    """Make a whole checkpoint of a language model that was saved in a folder; does nothing where that is all.

    Args:
        folder: With weights and config.json, which nobody else reads yet.
        base: The folder of the model that training began with.
        model: The language model on the meta device, of the saved config.
        trained: Parameters that were trained; None: all of the language model.
        cast: Store what was trained in the base's dtypes, not in those that it was saved in.
        trust_remote_code: Run code that comes with the base.

    Returns:
        What was copied though it is no part of the language model.
    """
    # Parts that stay packed among weights that are whole would be no checkpoint of any format.
    if quantisation_in(base) is not None:
        if has_parts(pretrained(AutoConfig, base, trust_remote_code=trust_remote_code)):
            notice(f"{base} is stored in 4 or 8 bit: the language model alone is saved, in whole weights")
        return Kept([], 0)
    stored = stored_tensors(base)
    whole = pretrained(AutoConfig, base, trust_remote_code=trust_remote_code)
    there = placed(model, stored, whole)
    kept = _kept(stored, there.places)
    # A base without a tensor of another part may have a class and names of several all the same.
    if not kept.tensors and language_config(whole) is whole:
        return kept
    try:
        found = pieces(folder, model, there, trained, cast=cast)
    except ManifestError as problem:
        # What was trained is not lost for the form in which its base stores it.
        notice(f"{problem}; the language model alone is saved, under its own class")
        for file in folder.glob(CONVERTED.format("*")):
            file.unlink()
        return Kept([], 0)
    write_pieces(folder, found)
    write_config(folder, base, whole)
    for pattern in _PROCESSORS:
        for file in sorted(base.glob(pattern)):
            if not (folder / file.name).exists():
                copy_file(file, folder / file.name, within=base)
    return kept


def pieces(
    folder: Path, model: PreTrainedModel, there: Placed, trained: Collection[str] | None, *, cast: bool = True
) -> list[Piece]:
    """Every tensor of the whole, in the order of the base; what it does not have comes last.

    Args:
        folder: Has what was saved after training.
        model: The language model.
        there: The base's tensors.
        trained: Parameters that were trained; None: all of the language model.
        cast: See `complete`.
    """
    here = placed(model, stored_tensors(folder), None)
    converted, used = in_stored_form(folder, model, here, there)
    by_place = {place: name for name, place in here.places.items()}
    tied = dict(getattr(model, "all_tied_weights_keys", None) or {})
    found, last = [], WEIGHTS_NAME
    for name, before in there.tensors.items():
        last = before.file.name
        place = there.places.get(name)
        now = _trained(place, by_place, tied)
        used.add(str(now))
        after = converted.get(name) or (here.tensors.get(now) if now else None)
        made = [] if trained is None or place is None else there.rules.made(place)
        frozen = bool(made) and not any(_is_trained(one, trained or (), tied) for one in made)
        if after is None or (frozen and after.shape == before.shape):
            found.append(Piece(name, before, before.dtype, last, kept=True))
        else:
            floats = cast and {after.dtype, before.dtype} <= _FLOATS.keys()
            found.append(Piece(name, after, before.dtype if floats else after.dtype, last, kept=False))
    usual = next((piece.dtype for piece in found if not piece.kept), None)
    for name, after in here.tensors.items():
        if name not in used:
            floats = cast and {after.dtype, usual} <= _FLOATS.keys()
            dtype = str(usual) if floats else after.dtype
            new = there.rules.stored_name(own_name(name, here.rules.prefixes))
            if new in there.tensors:
                cause = f"{name} would be stored as {new}, which the base stores for another part"
                fix = "merge upon the base that the adapter was trained on; or add --text_only_export"
                raise ManifestError(cause, place=str(folder), fix=fix)
            found.append(Piece(new, after, dtype, last, kept=False))
    return found


def _trained(place: Place | None, by_place: Mapping[Place, str], tied: Mapping[str, str]) -> str | None:
    """The saved tensor of a place, or of the parameter that it is tied to."""
    if place is None:
        return None
    pairs = [order for pair in tied.items() for order in (pair, pair[::-1])]
    others = [Place(other) for mine, other in pairs if mine == place.parameter and place.pattern is None]
    return next((by_place[one] for one in (place, *others) if one in by_place), None)


def _is_trained(parameter: str, trained: Collection[str], tied: Mapping[str, str]) -> bool:
    return parameter in trained or tied.get(parameter) in trained


def _size(dtype: str) -> int:
    return _FLOATS[dtype].itemsize


# --- files -----------------------------------------------------------------------------------------------------------


def write_pieces(folder: Path, found: list[Piece]) -> None:
    """Replace the weights of a folder, which some of the pieces are read from."""
    files: dict[str, list[Piece]] = {}
    for piece in found:
        files.setdefault(piece.file, []).append(piece)
    before = {*folder.glob("*.safetensors")}
    for name, those in files.items():
        _write_file(folder / f"{name}.new", those)
    for file in before:
        file.unlink()
    (folder / INDEX_NAME).unlink(missing_ok=True)
    for name in files:
        os.rename(folder / f"{name}.new", folder / name)
    if [*files] != [WEIGHTS_NAME]:
        size = sum(piece.nbytes for piece in found)
        index = {"metadata": {"total_size": size}, "weight_map": {piece.name: piece.file for piece in found}}
        (folder / INDEX_NAME).write_text(json.dumps(index, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def _write_file(file: Path, those: list[Piece]) -> None:
    """A safetensors file: 8 bytes of length, a JSON header, the tensors end to end."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for piece in those:
        end = offset + piece.nbytes
        header[piece.name] = {"dtype": piece.dtype, "shape": list(piece.source.shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)  # tensors begin at a multiple of 8 bytes
    # O_EXCL: a file or link that somebody else has put there is not written through.
    with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644), "wb") as stream:
        stream.write(struct.pack("<Q", len(text)) + text)
        for piece in those:
            _copy(piece, stream)


def _copy(piece: Piece, stream: Any) -> None:
    """The bytes of a tensor in blocks, rounded once where its dtype is another."""
    source, done = piece.source, 0
    with source.file.open("rb") as reader:
        reader.seek(source.start)
        while done < source.nbytes:
            block = bytearray(min(source.nbytes - done, _BLOCK))
            if reader.readinto(block) != len(block):
                raise ManifestError(f"{source.file} ends too early", place=str(source.file), fix="copy it again")
            done += len(block)
            if piece.dtype != source.dtype:
                values = torch.frombuffer(block, dtype=_FLOATS[source.dtype]).to(_FLOATS[piece.dtype])
                stream.write(values.view(torch.uint8).numpy().data)
            else:
                stream.write(block)


# --- config ----------------------------------------------------------------------------------------------------------


def write_config(folder: Path, base: Path, whole: PreTrainedConfig) -> None:
    """Give a folder the base's config.json, with what training changed of the language model's part.

    Args:
        folder: Has the config.json of the language model alone.
        base: The folder of the base.
        whole: Its config.
    """
    before = language_config(whole)
    # transformers' own reader: it writes infinities as objects (Nemotron-H's `time_step_limit`).
    after = type(before).from_json_file(folder / "config.json")
    config = read_json(base / "config.json", finite=False)
    text = _text_dict(config, whole, whole.get_text_config(decoder=True))
    was, now = _plain(before), _plain(after)
    changed = {
        name: value for name, value in now.items() if name not in _OF_SAVING and (name not in was or was[name] != value)
    }
    text.update(changed)
    # The whole says some of it as well, and its class reads it there.
    config.update({name: value for name, value in changed.items() if name in config})
    if "tie_word_embeddings" in changed:
        config["tie_word_embeddings"] = changed["tie_word_embeddings"]
    content = json.dumps(config, indent=2, ensure_ascii=False) + "\n"
    (folder / "config.json").write_text(content, encoding="utf-8")


def _plain(config: PreTrainedConfig) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(config.to_json_string(use_diff=False))
    return found


def _text_dict(config: dict[str, Any], whole: PreTrainedConfig, text: PreTrainedConfig) -> dict[str, Any]:
    """The part of a config.json that the language model's config was read from."""
    if whole is text:
        return config
    for name in whole.sub_configs:
        part = getattr(whole, name, None)
        if part is not None and (part is text or part.get_text_config(decoder=True) is text):
            return _text_dict(config.setdefault(name, {}), part, text)
    return config
