"""The JSON files of model, adapter and checkpoint folders, by name: their sizes, and the kinds of their main values.

Only what hftune itself reads is looked at; what a library reads of a file is said around its loading.
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

_FIX = "copy or download it again, or fix it"
_PLAIN = (
    *("generation_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.json"),
    *("preprocessor_config.json", "processor_config.json", "chat_template.json"),
)
_OF_A_MANIFEST = (
    *("versions", "metrics", "files", "origins", "rope", "inputs", "data", "arguments", "base", "tokenizer"),
    *("vocabulary", "reward_scale", "quantisation"),
)

KINDS: dict[str, dict[str, Any]] = {
    "config.json": {
        **dict.fromkeys(("text_config", "quantization_config", "rope_parameters", "reward_scale"), dict),
        "model_type": str,
        "num_hidden_layers": int,
    },
    "adapter_config.json": {
        **dict.fromkeys(("rank_pattern", "alpha_pattern"), dict),
        **dict.fromkeys(("target_modules", "exclude_modules", "layers_pattern"), (list, str)),
        **dict.fromkeys(("modules_to_save", "target_parameters"), list),
        **dict.fromkeys(("peft_type", "base_model_name_or_path"), str),
        "r": int,
        "lora_alpha": (int, float),
    },
    MANIFEST_NAME: {
        **dict.fromkeys(_OF_A_MANIFEST, dict),
        **dict.fromkeys(("parents", "notices"), list),
        **dict.fromkeys(("stage", "status", "head"), str),
    },
    **{name: {} for name in _PLAIN},
    "tokenizer_config.json": {"chat_template": (str, list, dict)},
    "tokenizer.json": {"model": dict, "added_tokens": list},
    "trainer_state.json": {"global_step": int, "epoch": (int, float), "log_history": list},
    "loader_state.json": {
        **dict.fromkeys(("sources", "settings", "segment", "done", "totals"), dict),
        **dict.fromkeys(("blocks", "block_size", "version"), int),
        "kind": str,
    },
}
"""Names to the kinds of some of their keys, each of which may also be absent or null."""

_INNERMOST = re.compile(r"\(([^()]*)\)([*+{]?)")
_IN_A_ROW = re.compile(r"(?:.(?:[*+?]|\{[\d,]+\})[?+]?){4}")

REQUIRED = {
    "trainer_state.json": ("global_step",),
    "loader_state.json": ("kind",),
}
"""What is read without asking whether it is there."""

_LARGE = {"tokenizer.json", "vocab.json", "trainer_state.json"}
_INDEX = "model.safetensors.index.json"


def read_checked(file: Path, *, error: type[UserError] = ManifestError, fix: str = _FIX) -> dict[str, Any]:
    """The contents of one of the files of `KINDS`, with its size and the types of its values checked.

    Raises:
        UserError: It is something else.
    """
    # NaN passes: Python has written it into logs and metrics of runs that diverged.
    found: dict[str, Any] = read_json(file, limit=LARGE if file.name in _LARGE else LIMIT, error=error, fix=fix)
    for fault in _faults(found, file.name):
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


def _faults(found: dict[str, Any], name: str) -> Iterator[str]:
    yield from (f"it has no {key}" for key in REQUIRED.get(name, ()) if found.get(key) is None)
    for key, kind in KINDS.get(name, {}).items():
        value = found.get(key)
        # Python takes true and false for numbers.
        if value is not None and (not isinstance(value, kind) or isinstance(value, bool)):
            yield f"{key} is {shown(ascii(value), 40)}, where {_named(kind)} is wanted"
        # Larger is no model's, and would be a failed allocation somewhere else.
        elif kind is int and value is not None and not 0 <= value < 1 << 40:
            yield f"{key} is {shown(value, 40)}"
    if name == "adapter_config.json":
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


def _named(kind: Any) -> str:
    names = {dict: "an object", list: "a list", str: "a text", int: "a whole number", float: "a number"}
    kinds = kind if isinstance(kind, tuple) else (kind,)
    return " or ".join(names[one] for one in kinds)
