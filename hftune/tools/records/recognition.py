"""Which format a record is recognised as, and why, as `hftune preview` shows it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from hftune.data.formats import (
    FORMATS,
    PROMPTS,
    Format,
    filled,
    first_fit,
    is_labelled,
    pair_format,
    script_for,
)
from hftune.data.readers.base import Row
from hftune.data.readers.files import chunks


def describe_formats(files: list[Path], script: str, samples: int) -> Iterator[str]:
    """A line for each of the first readable records: where it is, its format, and why that was recognised.

    Args:
        script: A key of `formats.FORMATS`, such as "run_sft.py"; run_rm.py is read like run_dpo.py.
    """
    rows = (row for chunk in chunks(files) for row in chunk.rows() if isinstance(row, Row))
    for row in islice(rows, samples):
        yield f"{row.origin}: {describe_format(row.value, script)}"


def describe_format(value: dict[str, Any], script: str) -> str:
    """A line on one record: its format in `script`, the columns that decided, and what else of it is used.

    Args:
        script: A key of `formats.FORMATS`, such as "run_sft.py"; run_rm.py is read like run_dpo.py.
    """
    # Both train on pairs, read by the same formats.
    script = "run_dpo.py" if script == "run_rm.py" else script
    found = _recognised(value, script)
    if found is None:
        home = script_for(value)
        return f"no format that {script} reads" + (f"; it looks like data for {home}" if home else "")
    extras = [key for key in ("system", "system_prompt", "history", "tools", "functions") if filled(value, key)]
    # As `read_question` reads it.
    if "instruction" in found.keys and filled(value, "input"):
        extras.append("input")
    used = f", with {', '.join(extras)}" if extras else ""
    columns = " and ".join(f'"{key}"' for key in found.keys)
    left = sorted(set(value) - set(found.keys) - set(extras))
    unused = f"; not used: {', '.join(left[:8])}{', ...' if len(left) > 8 else ''}" if left else ""
    if script == "run_rl.py":
        unused = f"; for the reward functions: {', '.join(left[:8])}" if left else ""
    return f"{found.name}, because it has {columns}{used}{unused}"


def _recognised(value: dict[str, Any], script: str) -> Format | None:
    """The format by which the record is read, tried in the same order as the readers try them."""
    pair = pair_format(value)
    if script == "run_dpo.py":
        asked = first_fit(value, PROMPTS)
        # A prompt in a column of its own; otherwise both answers begin with it.
        if pair and asked and not set(asked.keys) & set(pair.keys):
            return Format(f"{pair.name} after {asked.name}", (*asked.keys, *pair.keys))
        return pair
    if script == "run_rl.py":
        return first_fit(value, PROMPTS)
    # Pairs and labelled answers are other scripts' data: read as a conversation, the rejected answer would be trained,
    # too.
    if pair or (script == "run_sft.py" and is_labelled(value)):
        return None
    return first_fit(value, FORMATS[script])
