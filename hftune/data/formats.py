"""The formats each script reads, and the message for a record that is in none of them."""

from __future__ import annotations

import difflib
from typing import Any

from hftune.data.messages import is_message
from hftune.errors import DataError

FORMATS: dict[str, tuple[tuple[str, ...], ...]] = {
    "run_pt.py": (("text",), ("content",)),
    "run_sft.py": (
        ("conversations",),
        ("messages",),
        ("instruction", "output"),
        ("prompt", "completion"),
        ("prompt", "response"),
        ("query", "response"),
    ),
    "run_dpo.py": (
        ("conversations", "chosen", "rejected"),
        ("prompt", "chosen", "rejected"),
        ("instruction", "chosen", "rejected"),
        ("question", "response_chosen", "response_rejected"),
        ("chosen", "rejected"),
    ),
    "run_rl.py": (("prompt",), ("question",), ("instruction",), ("query",), ("conversations",), ("messages",)),
}
"""Required keys of each format, by script; run_rm.py reads what run_dpo.py reads."""

_TYPED = {
    "conversations": '[{"from": "human", "value": ...}, {"from": "gpt", "value": ...}]',
    "messages": '[{"role": "user", "content": ...}, {"role": "assistant", "content": ...}]',
}

_LABELS = {"run_dpo.py": "run_rm.py and run_dpo.py"}


def filled(value: dict[str, Any], *keys: str) -> bool:
    """Whether all keys are there with something in them: exports write "", [] or null for what is absent."""
    return all(value.get(key) not in (None, "", [], {}) for key in keys)


def is_preference(value: dict[str, Any]) -> bool:
    """Whether a record holds a better and a worse answer."""
    return {"chosen", "rejected"} <= value.keys() or {"response_chosen", "response_rejected"} <= value.keys()


def belongs_to(value: dict[str, Any]) -> str | None:
    """The script(s) that a record is clearly meant for, or None."""
    if is_preference(value):
        return "run_rm.py or run_dpo.py"
    if any(filled(value, *keys) for keys in FORMATS["run_sft.py"]):
        return "run_sft.py"
    if filled(value, "text") or (filled(value, "content") and not is_message(value)):
        return "run_pt.py"
    if any(filled(value, *keys) for keys in FORMATS["run_rl.py"]):
        return "run_rl.py (prompts without an answer to learn)"
    return None


def show(keys: tuple[str, ...]) -> str:
    """A format as a line of JSON with dots."""
    return "{" + ", ".join(f'"{key}": {_TYPED.get(key, "...")}' for key in keys) + "}"


def nearest(value: dict[str, Any], script: str, limit: int = 3) -> list[tuple[str, ...]]:
    """The formats of a script that share most keys with a record (typing slips count half), best first."""

    def likeness(keys: tuple[str, ...]) -> float:
        exact = sum(key in value for key in keys)
        close = sum(key not in value and bool(difflib.get_close_matches(key, value, 1, 0.75)) for key in keys)
        return (exact + close / 2) / len(keys)

    return sorted(FORMATS[script], key=likeness, reverse=True)[:limit]


def unknown_format(value: dict[str, Any], origin: str, script: str) -> DataError:
    """The error for a record that `script` (a key of `FORMATS`) cannot read."""
    keys = ", ".join(sorted(value)) or "none"
    label = _LABELS.get(script, script)
    reads = " | ".join(show(keys) for keys in nearest(value, script))
    home = belongs_to(value)
    misplaced = home is not None and not home.startswith(script) and script not in home
    advice = f"This looks like data for {home}: use it there, or" if misplaced else "Rename the keys, or"
    empty = sorted(key for key in value if not filled(value, key))
    note = f" (empty: {', '.join(empty)})" if empty else ""
    return DataError(
        f"this record is in no format that {label} can read; its keys: {keys}{note}",
        place=origin,
        fix=f"{advice} bring it into one of the nearest formats: {reads}",
    )


def wrong_stage(value: dict[str, Any], origin: str, script: str) -> DataError:
    """The error for a record that is readable, but meant for another script."""
    keys = ", ".join(sorted(value))
    reads = " | ".join(show(keys) for keys in nearest(value, script))
    return DataError(
        f"this record is data for {belongs_to(value)}, not for {_LABELS.get(script, script)}; its keys: {keys}",
        place=origin,
        fix=f"Use it with the other script, or bring it into a format that this one reads: {reads}",
    )
