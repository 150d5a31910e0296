"""The formats that records come in: how one is recognised, the message for one in none of them, and what is not read.

A format is recognised by the columns that a record has, null counting as absent: Parquet gives every record the columns
of all. The first format of a list that fits is taken, so the same record is always read alike.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any, TypeVar

from hftune.data.files import Row
from hftune.errors import DataError, shown

UNKNOWN = "unknown format"

Found = TypeVar("Found")


@dataclass(frozen=True, slots=True)
class Format:
    """A way to write a record: the columns that it is recognised by, all of them needed."""

    name: str
    keys: tuple[str, ...]

    def fits(self, value: Mapping[str, Any]) -> bool:
        """Whether the record has these columns."""
        # Null counts as absent: Parquet gives every record the columns of all.
        return all(value.get(key) is not None for key in self.keys)

    def show(self) -> str:
        """A line of JSON with dots."""
        return "{" + ", ".join(f'"{key}": {_TYPED.get(key, "...")}' for key in self.keys) + "}"


_TYPED = {
    "conversations": '[{"from": "human", "value": ...}, {"from": "gpt", "value": ...}]',
    "conversation": '[{"human": ..., "assistant": ...}, ...]',
    "messages": '[{"role": "user", "content": ...}, {"role": "assistant", "content": ...}]',
    "src": "[question, ...]",
    "tgt": "[answer, ...]",
    "sort": "[1, 0]",
    "label": "true or false",
    "kto_tag": "true or false",
}

TURNS = (
    Format("ShareGPT", ("conversations",)),
    Format("messages", ("messages",)),
    Format("ShareGPT in pairs", ("conversation",)),
)
"""One column that holds all turns."""

ASKS = ("prompt", "question", "instruction", "query", "problem")
"""Columns that hold a question, or the messages before an answer."""

TEXTS = (
    Format("text", ("text",)),
    Format("content", ("content",)),
    Format("messages of one assistant turn", ("messages",)),
)
CONVERSATIONS = (
    *TURNS,
    Format("ERNIEKit", ("src", "tgt")),
    Format("Alpaca", ("instruction", "output")),
    Format("prompt and completion", ("prompt", "completion")),
    Format("prompt and response", ("prompt", "response")),
    Format("query and response", ("query", "response")),
    Format("instruction and response", ("instruction", "response")),
    Format("question and response", ("question", "response")),
    Format("input and output", ("input", "output")),
    Format("question and answer", ("question", "answer")),
)
PAIRS = (
    Format("chosen and rejected", ("chosen", "rejected")),
    Format("response_chosen and response_rejected", ("response_chosen", "response_rejected")),
    Format("chosen_response and rejected_response", ("chosen_response", "rejected_response")),
    Format("chosen_messages and rejected_messages", ("chosen_messages", "rejected_messages")),
    # Before those in which `messages` is the prompt: here both sides are whole conversations.
    Format("messages and rejected_messages", ("messages", "rejected_messages")),
    Format("messages and rejected_response", ("messages", "rejected_response")),
    Format("query, response and rejected_response", ("query", "response", "rejected_response")),
    Format("ERNIEKit with sorted responses", ("src", "response", "sort")),
)
"""A better and a worse answer; the prompt stands in another column, or both begin with it."""

LABELLED = (
    Format("messages and label", ("messages", "label")),
    Format("messages and kto_tag", ("messages", "kto_tag")),
    Format("ShareGPT and kto_tag", ("conversations", "kto_tag")),
    Format("ShareGPT and label", ("conversations", "label")),
    Format("prompt, completion and label", ("prompt", "completion", "label")),
    Format("prompt, response and label", ("prompt", "response", "label")),
    Format("query, response and label", ("query", "response", "label")),
    Format("Alpaca and kto_tag", ("instruction", "output", "kto_tag")),
    Format("Alpaca and label", ("instruction", "output", "label")),
)
PROMPTS = (*TURNS, *(Format(key, (key,)) for key in ASKS), Format("ERNIEKit", ("src",)), Format("input", ("input",)))

SHOWN_PAIRS = (
    Format("ShareGPT pairs", ("conversations", "chosen", "rejected")),
    Format("prompt and pair", ("prompt", "chosen", "rejected")),
    Format("Alpaca pairs", ("instruction", "chosen", "rejected")),
    Format("MedicalGPT pairs", ("question", "response_chosen", "response_rejected")),
    Format("ms-swift pairs", ("messages", "rejected_response")),
    Format("ERNIEKit pairs", ("src", "tgt", "response", "sort")),
    Format("pair of conversations", ("chosen", "rejected")),
)
"""What a message suggests to write for pairs, with their prompts."""

KTO = "training on labels (KTO)"
"""What run_dpo.py does with answers that have a label; it has formats of its own."""

FORMATS: dict[str, tuple[Format, ...]] = {
    "run_pt.py": TEXTS,
    "run_sft.py": CONVERSATIONS,
    "run_dpo.py": SHOWN_PAIRS,
    KTO: LABELLED,
    "run_rl.py": PROMPTS,
}
"""The formats of each script, and of KTO; run_rm.py reads what run_dpo.py reads."""

_LABELS = {"run_dpo.py": "run_rm.py and run_dpo.py"}
_RM_OR_DPO = "run_rm.py or run_dpo.py"
# A quick look before the list: no pair is without one of these.
_WORSE = frozenset(key for pair in PAIRS for key in pair.keys if "rejected" in key or key == "sort")
_MEDIA = frozenset(("images", "image", "videos", "video", "audios", "audio"))


def filled(value: Mapping[str, Any], *keys: str) -> bool:
    """Whether all keys are there with something in them: exports write "", [] or null for what is absent."""
    return all(value.get(key) not in (None, "", [], {}) for key in keys)


def first_fit(value: Mapping[str, Any], formats: tuple[Format, ...]) -> Format | None:
    """The first of the formats that a record is in."""
    return next((known for known in formats if known.fits(value)), None)


def pair_format(value: Mapping[str, Any]) -> Format | None:
    """How a record holds a better and a worse answer; None if it does not."""
    if _WORSE.isdisjoint(value):
        return None
    return first_fit(value, PAIRS)


def is_labelled(value: Mapping[str, Any]) -> bool:
    """Whether a record says of its answer that it is good or bad, so that it must not simply be learned."""
    # Only a boolean: ERNIEKit's `label` is a list of weights, and classification data have numbers.
    return isinstance(value.get("label"), bool) or value.get("kto_tag") is not None


def refuse_media(value: Mapping[str, Any]) -> None:
    """Refuse a record with pictures, sound or film next to its text: their placeholders would be trained as words.

    Raises:
        DataError: One of the columns is filled.
    """
    if _MEDIA.isdisjoint(value):
        return
    found = sorted(key for key in _MEDIA if filled(value, key))
    if found:
        raise DataError(
            f"the record has {', '.join(found)}; hftune trains on text only",
            fix="Remove the record, or the column if the text does not need it.",
            kind="images, audio or video",
        )


def script_for(value: Mapping[str, Any]) -> str | None:
    """The script(s) that a record is clearly meant for, or None."""
    if pair_format(value):
        return _RM_OR_DPO
    if is_labelled(value):
        return KTO
    if any(filled(value, *known.keys) for known in CONVERSATIONS):
        return "run_sft.py"
    if filled(value, "text") or (filled(value, "content") and "role" not in value):
        return "run_pt.py"
    if any(filled(value, *known.keys) for known in PROMPTS):
        return "run_rl.py (prompts without an answer to learn)"
    return None


def nearest(value: Mapping[str, Any], script: str) -> list[Format]:
    """The formats of a script that share most keys with a record (typing slips count half), best first."""

    def likeness(known: Format) -> float:
        exact = sum(key in value for key in known.keys)
        close = sum(key not in value and bool(difflib.get_close_matches(key, value, 1, 0.75)) for key in known.keys)
        return (exact + close / 2) / len(known.keys)

    # Of equal ones, those with the fewest brackets to write come first.
    return sorted(FORMATS[script], key=lambda known: (-likeness(known), len(known.show())))[:3]


def _reads(value: Mapping[str, Any], script: str) -> str:
    return " | ".join(known.show() for known in nearest(value, script))


def _keys(value: Mapping[str, Any]) -> str:
    """The keys of a record, not all of a thousand."""
    keys = ", ".join(shown(key) for key in sorted(value)[:30])
    return (f"{keys}, ... ({len(value)} keys)" if len(value) > 30 else keys) or "none"


def unknown_format(value: Mapping[str, Any], script: str) -> DataError:
    """The error for a record that `script` (a key of `FORMATS`) cannot read."""
    label = _LABELS.get(script, script)
    home = script_for(value)
    # KTO is read by run_dpo.py, whose name stands in its own.
    misplaced = home is not None and not home.startswith(script) and script not in home
    advice = f"This looks like data for {home}: use it there, or" if misplaced else "Rename the keys, or"
    empty = sorted(key for key in value if not filled(value, key))
    note = f" (empty: {', '.join(map(shown, empty[:10]))})" if empty else ""
    return DataError(
        f"this record is in no format that {label} can read; its keys: {_keys(value)}{note}",
        fix=f"{advice} bring it into one of the nearest formats: {_reads(value, script)}. "
        "--columns OURS=YOURS renames a column.",
        kind=UNKNOWN,
    )


def wrong_stage(value: Mapping[str, Any], script: str) -> DataError:
    """The error for a record that is readable, but meant for another script."""
    return DataError(
        f"this record is data for {script_for(value)}, not for {_LABELS.get(script, script)}; its keys: {_keys(value)}",
        fix=f"Use it with {script_for(value)}, or bring it into a format that this one reads: {_reads(value, script)}",
        kind="data for another script",
    )


Unread = dict[str, Sequence[Any]]
"""By what was not read: [records, the first of them]."""

# Names of fields come from data, which may have another one in each record.
_MOST = 20
_OTHERS = "further fields and columns"
# Of this process, and of the record it was noted for last: a record counts once however often it has a field.
_noted: dict[str, list[Any]] = {}
_last: dict[str, str] = {}
_at = [""]


def placed(read: Callable[[Row], Found]) -> Callable[[Row], Found]:
    """A reader of rows, whose faults and notes are told at the row: what it calls knows keys and turns alone."""

    @wraps(read)
    def reading(row: Row) -> Found:
        _at[0] = row.origin
        try:
            return read(row)
        except DataError as error:
            raise error.at(row.origin) from error

    return reading


def note_unread(what: str) -> None:
    """Note that the record which is read holds something that is not."""
    what, place = _name(what, _noted), _at[0]
    if _last.get(what) != place:
        _last[what] = place
        _noted.setdefault(what, [0, place])[0] += 1


def _name(what: str, known: Mapping[str, Any]) -> str:
    return what if what in known or len(known) < _MOST else _OTHERS


def take_unread() -> Unread:
    """What was noted since the last call."""
    found: Unread = {what: [*about] for what, about in _noted.items()}
    _noted.clear()
    _last.clear()
    return found


def added(mine: Unread, others: Unread) -> Unread:
    """Both together; the first record is of `mine`."""
    both = {**mine}
    for what, (records, first) in others.items():
        name = _name(what, both)
        known = both.get(name, (0, first))
        both[name] = [known[0] + records, known[1]]
    return both


def describe_unread(found: Unread) -> Iterator[str]:
    """A line for each."""
    for what, (records, first) in found.items():
        yield f"not read: {what}, in {records} record(s) (first: {first})"


def has_text(value: Any) -> bool:
    """Whether a value of JSON holds a text that is not blank."""
    if isinstance(value, str):
        return not (not value or value.isspace())
    parts = value.values() if isinstance(value, Mapping) else value
    return isinstance(value, (Mapping, list, tuple)) and any(map(has_text, parts))
