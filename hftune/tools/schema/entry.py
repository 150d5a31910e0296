"""`hftune schema`: prints JSON Schema; what takes seconds is made once and kept."""

from __future__ import annotations

import json
from typing import Any

from hftune import __version__
from hftune.arguments.entry import kept
from hftune.arguments.stage_table import STAGES, stage_of
from hftune.errors import ArgumentError, did_you_mean
from hftune.visible import say

HELP = """JSON Schema (draft 2020-12) of the YAML files that hftune reads, for editors, forms and agents.

hftune schema {names} > .hftune/NAME.schema.json      the file behind --config of a stage, or of a pipeline

The first line of a YAML file says where an editor finds its schema, seen from the file:
# yaml-language-server: $schema=.hftune/sft.schema.json"""

PIPELINE = "pipeline"
NAMES = (*STAGES, "merge", PIPELINE)


def schema(argv: list[str]) -> None:
    """Print a schema.

    Raises:
        ArgumentError: No file of this kind, or a word too many.
    """
    if {"-h", "--help"} & {*argv}:
        say(HELP.format(names="|".join(NAMES)))
        return
    if len(argv) != 1:
        fix = "hftune schema sft > .hftune/sft.schema.json (there is no --output any more)"
        raise ArgumentError("`hftune schema` takes one name", fix=fix)
    name = stage_of(argv[0]) or argv[0]
    if name not in NAMES:
        fix = f"{did_you_mean(name, NAMES)} one of: {', '.join(NAMES)}".strip()
        raise ArgumentError(f"there is no schema of {name.partition('=')[0]}", fix=fix)
    say(schema_text(name), end="")


def schema_text(name: str) -> str:
    """The schema of a stage's file, of `merge` or of a pipeline's, as JSON."""
    return kept("schema", [name], lambda: _as_json(_made(name)))


def _made(name: str) -> dict[str, Any]:
    # They bring the parsers of all stages, which take seconds.
    from hftune.tools.schema.pipelines import pipeline_schema
    from hftune.tools.schema.stages import stage_schema

    title = "A pipeline of hftune's" if name == PIPELINE else f"Arguments of `hftune {name}`"
    return {"title": title, **(pipeline_schema() if name == PIPELINE else stage_schema(name))}


def _as_json(schema: dict[str, Any]) -> str:
    from hftune.tools.schema.stages import DRAFT

    comment = f"Written by `hftune schema`, hftune {__version__}"
    return json.dumps({"$schema": DRAFT, "$comment": comment, **schema}, ensure_ascii=False, indent=1) + "\n"
