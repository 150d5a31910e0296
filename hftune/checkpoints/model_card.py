"""The README.md of a model on the Hub, from its manifest: what it was trained on, how, and how well it does."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from hftune.arguments.stage_table import STAGES
from hftune.checkpoints.manifest import settings
from hftune.visible import code, markdown

# A local path of this form (outputs/sft) is told from a name by being there: see `_hub_name`.
_HUB_NAME = re.compile(r"[A-Za-z0-9_][\w.-]*/[\w.-]+", re.ASCII)


def model_card(manifest: dict[str, Any], name: str, chain: list[dict[str, Any]] | None = None) -> str:
    """Markdown with the Hub's YAML header.

    Args:
        manifest: Of the folder that is published (`hftune.json`).
        name: Title.
        chain: Manifests of the stages behind it, the latest first.
    """
    stages = [entry for entry in [manifest, *(chain or [])] if entry.get("stage") in STAGES]
    parts = [_header(manifest), f"# {markdown(name)}", _summary(manifest, stages)]
    parts += [part for stage in stages for part in _stage(stage)]
    parts.append(_versions(manifest))
    return "\n\n".join(part for part in parts if part) + "\n"


def _header(manifest: dict[str, Any]) -> str:
    base = _hub_name(manifest.get("base", {}).get("name"))
    scores = manifest.get("head") in ("score", "steps")
    fields: dict[str, Any] = {
        "library_name": "peft" if manifest.get("kind") == "adapter" else "transformers",
        "pipeline_tag": "text-classification" if scores else "text-generation",
        "tags": ["hftune", *([str(manifest["stage"])] if manifest.get("stage") in STAGES else [])],
    }
    if base:
        fields["base_model"] = base
    return f"---\n{yaml.safe_dump(fields, sort_keys=False).rstrip()}\n---"


def _summary(manifest: dict[str, Any], stages: list[dict[str, Any]]) -> str:
    base = manifest.get("base", {}).get("name", "a base model")
    what = "LoRA adapter for" if manifest.get("kind") == "adapter" else "Model trained from"
    path = " → ".join(STAGES[stage["stage"]].task for stage in reversed(stages))
    return f"{what} {code(_hub_name(base) or Path(str(base)).name)}, made with hftune" + (
        f" ({path})." if path else "."
    )


def _stage(manifest: dict[str, Any]) -> list[str]:
    """What one stage was trained on, with what settings, and what it reached."""
    metrics = {key: value for key, value in manifest.get("metrics", {}).items() if isinstance(value, int | float)}
    parts = [f"## {STAGES[manifest['stage']].task.capitalize()}", _teachers(manifest), _data(manifest)]
    shown = {key: f"{value:.4g}" for key, value in metrics.items() if key.startswith(("eval_", "train_loss"))}
    rows = [f"| {markdown(key)} | {markdown(value)} |" for key, value in {**settings(manifest), **shown}.items()]
    parts.append("\n".join(["| setting or metric | value |", "| --- | --- |", *rows]) if rows else "")
    return [part for part in parts if part]


def _teachers(manifest: dict[str, Any]) -> str:
    named = [_hub_name(teacher["name"]) or Path(teacher["name"]).name for teacher in manifest.get("teachers", [])]
    return f"Taught by {', '.join(map(code, named))}." if named else ""


def _data(manifest: dict[str, Any]) -> str:
    train = manifest.get("data", {}).get("train", {})
    if not train.get("used"):
        return ""
    tokens = f", {train['trained_tokens']:,} trained tokens an epoch" if train.get("trained_tokens") else ""
    # Names of files without their folders, which say more of a machine than of a model.
    files = ", ".join(sorted({markdown(Path(file).name) for file in train.get("files", [])})[:8])
    return f"{train['used']:,} records{tokens}" + (f" ({files})." if files else ".")


def _versions(manifest: dict[str, Any]) -> str:
    versions = manifest.get("versions", {})
    told = ", ".join(f"{markdown(name)} {markdown(number)}" for name, number in versions.items())
    return f"## Versions\n\n{told}" if versions else ""


def _hub_name(name: Any) -> str | None:
    """The name if it is one on the Hub: owner/name, and no folder of this machine."""
    text = str(name or "")
    return text if _HUB_NAME.fullmatch(text) and not Path(text).exists() else None
