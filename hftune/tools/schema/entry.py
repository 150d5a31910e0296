"""`hftune schema`: prints JSON Schema; what takes seconds is made once and kept."""

from __future__ import annotations

import json

from hftune import __version__
from hftune.arguments.entry import kept
from hftune.arguments.stage_table import STAGES
from hftune.tools.words import Words
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
    words = Words("hftune schema")
    words.add_argument("name", choices=NAMES)
    say(schema_text(words.parse_args(argv).name), end="")


def schema_text(name: str) -> str:
    """The schema of a stage's file, of `merge` or of a pipeline's, as JSON."""
    return kept("schema", [name], lambda: _made(name))


def _made(name: str) -> str:
    # They bring the parsers of all stages, which take seconds.
    from hftune.tools.schema.pipelines import pipeline_schema
    from hftune.tools.schema.stages import DRAFT, stage_schema

    title = "A pipeline of hftune's" if name == PIPELINE else f"Arguments of `hftune {name}`"
    head = {"$schema": DRAFT, "$comment": f"Written by `hftune schema`, hftune {__version__}", "title": title}
    schema = pipeline_schema() if name == PIPELINE else stage_schema(name)
    return json.dumps({**head, **schema}, ensure_ascii=False, indent=1) + "\n"
