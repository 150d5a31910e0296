"""Names of parameters in files that other tools read."""

from __future__ import annotations


def exported_name(name: str) -> str:
    """The name under which peft and transformers save a live parameter."""
    for part in (".default", ".modules_to_save"):
        name = name.removesuffix(part).replace(f"{part}.", ".")
    return name
