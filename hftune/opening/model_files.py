"""The JSON files of model, adapter and checkpoint folders, by name: their sizes, and the kinds of the values in them.

What reads them later takes a dict for a dict. A value of another kind is said here, with its key, before that.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hftune.constants import MANIFEST_NAME
from hftune.errors import ManifestError, UserError, shown
from hftune.opening.json_file import LARGE, LIMIT, read_json
from hftune.opening.safetensors_file import read_index

Kinds = dict[str, Any]
_NUMBER = (int, float)
_SIZE = (int, list)  # some models have one for each layer
_COUNT = (int,)  # of any size
_FIX = "copy or download it again, or fix it"

EACH = "*"
"""Stands for every key of an object."""

_SCALE: Kinds = {"mean": _NUMBER, "std": _NUMBER, "scores": int, "measured_on": str}
_CONFIG: Kinds = {
    **dict.fromkeys(("model_type", "hidden_act"), str),
    **dict.fromkeys(("torch_dtype", "dtype"), (str, dict)),  # models of several parts have one for each
    **dict.fromkeys(("text_config", "quantization_config", "rope_scaling", "rope_parameters", "id2label"), dict),
    "architectures": [str],
    "num_hidden_layers": int,
    **dict.fromkeys(("hidden_size", "intermediate_size", "vocab_size", "head_dim"), _SIZE),
    **dict.fromkeys(("num_attention_heads", "num_key_value_heads", "max_position_embeddings", "num_experts"), _SIZE),
    "reward_scale": _SCALE,
}
_ADAPTER: Kinds = {
    **dict.fromkeys(("peft_type", "task_type", "base_model_name_or_path", "bias", "revision"), str),
    "r": int,
    "lora_alpha": _NUMBER,
    "lora_dropout": _NUMBER,
    "rank_pattern": {EACH: int},
    "alpha_pattern": {EACH: _NUMBER},
    **dict.fromkeys(("target_modules", "exclude_modules", "layers_pattern"), (list, str)),
    "modules_to_save": [str],
    "target_parameters": [str],
    "trainable_token_indices": (list, dict),
}
_SPLIT: Kinds = {
    "files": [str],
    "dropped": {EACH: _COUNT},
    **dict.fromkeys(("rows", "used", "truncated", "tokens", "trained_tokens"), _COUNT),
}
_MANIFEST: Kinds = {
    **dict.fromkeys(("stage", "status", "kind", "head", "dtype", "merged_stage"), str),
    **dict.fromkeys(("versions", "metrics", "files", "origins", "rope"), dict),
    "inputs": {EACH: dict},
    "data": {EACH: _SPLIT},
    "arguments": dict.fromkeys(("model", "training", "adapter", "data"), dict),
    "base": {"name": str, "fingerprint": str, "adapters": [str]},
    "tokenizer": {"fingerprint": str, "template_fingerprint": str, "tokens": int, "chat_template_kwargs": dict},
    "vocabulary": {"rows": int, "growth": dict, "new_tokens": [list]},
    "reward_scale": _SCALE,
    "quantisation": {"bits": int, "type": str},
    "parents": [{"folder": str, "fingerprint": str}],
    "notices": [str],
}
_TOKENIZER_CONFIG: Kinds = {
    **dict.fromkeys(("pad_token", "eos_token", "bos_token", "unk_token"), (str, dict)),
    "chat_template": (str, list, dict),
    "added_tokens_decoder": dict,
    "tokenizer_class": str,
}

KINDS: dict[str, Kinds] = {
    "config.json": _CONFIG,
    "generation_config.json": {},
    "adapter_config.json": _ADAPTER,
    MANIFEST_NAME: _MANIFEST,
    "tokenizer_config.json": _TOKENIZER_CONFIG,
    "special_tokens_map.json": {},
    "added_tokens.json": {},
    "tokenizer.json": {"model": dict, "added_tokens": [dict]},
    "vocab.json": {},
    "preprocessor_config.json": {},
    "processor_config.json": {},
    "chat_template.json": {},
    "trainer_state.json": {"global_step": int, "epoch": _NUMBER, "log_history": [dict]},
    "loader_state.json": {
        **dict.fromkeys(("sources", "settings", "segment", "done", "totals"), dict),
        **dict.fromkeys(("blocks", "block_size", "version"), int),
        "kind": str,
    },
}
"""Names to the kinds of some of their keys, each of which may also be absent or null; `[kind]` is a list of it,
a dict an object of such keys, or of any with `EACH`."""

_INNERMOST = re.compile(r"\(([^()]*)\)([*+{]?)")
_IN_A_ROW = re.compile(r"(?:.(?:[*+?]|\{[\d,]+\})[?+]?){4}")

REQUIRED = {
    "trainer_state.json": ("global_step",),
    "loader_state.json": ("kind",),
}
"""What is read without asking whether it is there."""

_VOCABULARIES = {"tokenizer.json", "vocab.json"}
_LARGE = {*_VOCABULARIES, "trainer_state.json"}
_INDEX = "model.safetensors.index.json"


def read_checked(file: Path, *, error: type[UserError] = ManifestError, fix: str = _FIX) -> dict[str, Any]:
    """The contents of one of the files of `KINDS`, with its size and the types of its values checked.

    Raises:
        UserError: It is something else.
    """
    # Vocabularies are the largest files by far, and written by libraries: no key of theirs stands twice.
    limit = LARGE if file.name in _LARGE else LIMIT
    fast = file.name in _VOCABULARIES
    # NaN passes: Python has written it into logs and metrics of runs that diverged.
    found: dict[str, Any] = read_json(file, limit=limit, finite=False, fast=fast, error=error, fix=fix)
    for fault in _faults(found, KINDS.get(file.name, {}), REQUIRED.get(file.name, ())):
        raise error(f"{file}: {fault}", place=str(file), fix=fix)
    return found


def json_problems(folder: Path) -> Iterator[UserError]:
    """Problems of the JSON files of a folder from which a model or tokenizer is loaded."""
    for name in (*KINDS, _INDEX):
        file = folder / name
        # Those are states of a run, read when it resumes; no model is loaded from them.
        if file.is_file() and name not in REQUIRED:
            try:
                read_index(file) if name == _INDEX else read_checked(file)
            except UserError as problem:
                yield problem


def _faults(found: dict[str, Any], kinds: Kinds, required: tuple[str, ...] = ()) -> Iterator[str]:
    yield from (f"it has no {name}" for name in required if found.get(name) is None)
    for name, kind in kinds.items():
        value = found.get(name)
        if value is not None:
            yield from (f"{name}{fault}" for fault in _faults_of(value, kind))
    # Models of several parts keep the language model's config there, with the same keys.
    if kinds is _CONFIG and isinstance(found.get("text_config"), dict):
        yield from (f"text_config: {fault}" for fault in _faults(found["text_config"], kinds))
    if kinds is _ADAPTER:
        yield from _pattern_faults(found)


def _pattern_faults(config: dict[str, Any]) -> Iterator[str]:
    """Regular expressions of an adapter, which peft compiles and matches as they are."""
    for name in ("target_modules", "exclude_modules", "layers_pattern", "rank_pattern", "alpha_pattern"):
        said = config.get(name)
        # Names in a list are compared as they are, but for those of layers; patterns are keys.
        is_many = isinstance(said, dict) or (name == "layers_pattern" and isinstance(said, list))
        texts = [said] if isinstance(said, str) else said if is_many and said else ()
        yield from (f"{name}{fault}" for text in texts for fault in _expression_faults(str(text)))


def _expression_faults(text: str) -> Iterator[str]:
    try:
        re.compile(text)
    except (re.error, RecursionError, OverflowError) as error:
        yield f" {shown(ascii(text), 40)} is no regular expression: {shown(error, 80)}"
        return
    if _is_endless(text):
        yield f" {shown(ascii(text), 40)} may take for ever to match: repetitions of repetitions, or many in a row"


def _is_endless(expression: str) -> bool:
    """Whether matching a name may take exponentially many steps, by the two forms that such expressions have."""
    # Escapes and classes are one character each, and what follows `(?` repeats nothing.
    text = re.sub(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]", "x", expression)
    text = re.sub(r"\(\?(?:P?<\w+>|<?[=!]|[a-zA-Z-]*:?)", "(", text)
    while group := _INNERMOST.search(text):
        if group[2] and re.search(r"[*+?{|]", group[1]):
            return True
        text = text[: group.start()] + group[1] + text[group.end(1) + 1 :]
    return _IN_A_ROW.search(text) is not None


def _faults_of(value: Any, kind: Any) -> Iterator[str]:
    """What is wrong with a value, as text that follows its name."""
    plain: Any = type(kind) if isinstance(kind, dict | list) else kind
    # Python takes true and false for numbers.
    if not isinstance(value, plain) or isinstance(value, bool):
        yield f" is {shown(ascii(value), 40)}, where {_named(plain)} is wanted"
    elif isinstance(kind, dict):
        within: Any = value
        kinds = dict.fromkeys(within, kind[EACH]) if EACH in kind else kind
        yield from (f": {fault}" for fault in _faults(within, kinds))
    elif isinstance(kind, list):
        yield from (f", at {at}:{fault}" for at, each in enumerate(value) for fault in _faults_of(each, kind[0]))
    # Larger is no model's, and would be a failed allocation somewhere else.
    elif kind in (int, _SIZE) and isinstance(value, int) and not 0 <= value < 1 << 40:
        yield f" is {shown(value, 40)}"


def _named(kind: Any) -> str:
    names = {dict: "an object", list: "a list", str: "a text", int: "a whole number", float: "a number"}
    kinds = kind if isinstance(kind, tuple) else (kind,)
    return names[float] if kind == _NUMBER else " or ".join(names[one] for one in kinds)
