"""The file behind `--config` of a stage, as JSON Schema: its arguments, and the names of other tools that it takes."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from hftune.arguments.defaults.choosing import hftune_defaults, of_field
from hftune.arguments.merging import MergeParser
from hftune.arguments.names.row import ALIAS, NO_EFFECT, REFUSED, Row
from hftune.arguments.names.table import table, tools_of
from hftune.arguments.names.translate import MERGE
from hftune.arguments.parser import HftuneParser
from hftune.arguments.stage_table import STAGES
from hftune.arguments.stages import ALGORITHMS, stage_parser
from hftune.tools.schema.values import ANYTHING, Schema, any_of, harmless_schema, only_no, value_schema

DRAFT = "https://json-schema.org/draft/2020-12/schema"


@functools.cache  # of all stages, for a pipeline, twice; nobody changes it
def stage_schema(stage: str) -> Schema:
    """The schema of a stage's YAML file, or of the one that merges; RL's depends on the algorithm."""
    if stage == MERGE:
        return parser_schema(MergeParser(), MERGE)
    if stage != "rl":
        return parser_schema(stage_parser(stage), stage)
    return {
        **algorithm_choice({name: {"$ref": f"#/$defs/{name}"} for name in ALGORITHMS}),
        "$defs": {name: parser_schema(stage_parser(stage, name), stage, name) for name in ALGORITHMS},
    }


def algorithm_choice(schemas: Mapping[str, Schema], otherwise: Schema | None = None) -> Schema:
    """The schema of the algorithm that a file names, as the parser finds it; of none, `otherwise` or GRPO's."""
    chosen: Schema = otherwise or schemas["grpo"]
    # MedicalGPT's PPO script, which trains with RLOO, is known by this name.
    chosen = {"if": {"required": ["sft_model_path"]}, "then": schemas["rloo"], "else": chosen}
    for flag in ("advantage_estimator", "rl_algorithm"):
        for name, schema in schemas.items():
            asked = {"properties": {flag: {"const": name}}, "required": [flag]}
            chosen = {"if": asked, "then": schema, "else": chosen}
    return {"type": "object", **chosen}


def parser_schema(parser: HftuneParser, stage: str, algorithm: str = "") -> Schema:
    """The schema of the arguments of one parser."""
    given = {"rl_algorithm": algorithm} if algorithm else {}
    defaults = hftune_defaults(stage, given, parser.known) if stage in STAGES else {}
    own = {name: _argument(parser, name, defaults) for name in argument_names(parser)}
    others, patterns = _names_of_others(parser, own)
    return {
        "type": "object",
        # Own names first: an editor proposes them in this order.
        "properties": {**own, **others},
        "patternProperties": patterns,
        "additionalProperties": False,
    }


def argument_names(parser: HftuneParser) -> list[str]:
    """The arguments that a file may name, as hftune spells them: no second spellings, no switches of command lines."""
    return [name for name, action in parser.known.items() if name == action.dest and action.nargs != 0]


def _argument(parser: HftuneParser, name: str, defaults: Mapping[str, Any]) -> Schema:
    action = parser.known[name]
    row = table().get(name) if parser.stage in STAGES else None
    target = row.target(parser.stage) if row is not None and row.verdict == ALIAS else None
    values = value_schema(parser, target if target in parser.known else name)
    refused = row is not None and row.verdict == REFUSED
    if name in parser.done_by_hftune or refused:
        more = [harmless_schema(row)] if row is not None and refused else [values]
        values = {"allOf": [*more, *([only_no()] if name in parser.done_by_hftune else [])]}
    elif row is not None and row.verdict == NO_EFFECT:
        values = ANYTHING
    elif row is not None and row.translation is not None:
        values = any_of([values, {"type": ["string", "number", "boolean", "array"]}])  # values of other tools as well
    default = defaults.get(name, of_field(action))
    said = {"description": " ".join(str(action.help or "").replace("%%", "%").split()), **values}
    return said if default is None or not _is_json(default) else {**said, "default": default}


def _is_json(value: object) -> bool:
    try:
        return bool(json.dumps(value, allow_nan=False))
    except (TypeError, ValueError):
        return False


def _names_of_others(parser: HftuneParser, own: Mapping[str, Schema]) -> tuple[dict[str, Schema], dict[str, Schema]]:
    """Names of other tools: those that become one argument; and as patterns, which no editor proposes, the rest."""
    renamed = {name: _renamed(own[to], f"{to} of hftune") for name, to in parser.aliases.items() if to in own}
    free: list[str] = []
    refused: dict[str, tuple[Schema, list[str]]] = {}
    for row in table().values():
        if row.name in own or row.name in renamed:
            continue
        target = row.target(parser.stage)
        if row.verdict == REFUSED:
            values = harmless_schema(row)
            refused.setdefault(repr(values), (values, []))[1].append(row.name)
        elif row.verdict == NO_EFFECT or (row.translation is not None and parser.takes_name(row)):
            free.append(row.name)
        elif row.verdict == ALIAS and target in own:
            renamed[row.name] = _renamed(own[str(target)], f"{_where(row)}: {row.does}. Here: {target}")
    patterns = {_one_of(names): values for values, names in refused.values()}
    return renamed, patterns | ({_one_of(free): ANYTHING} if free else {})


def _where(row: Row) -> str:
    return ", ".join(tools_of(row.name)) or "another tool"


def _renamed(argument: Schema, description: str) -> Schema:
    """An argument under another name: an editor strikes it through, and takes it."""
    values = {key: value for key, value in argument.items() if key not in ("description", "default")}
    return {"description": description, "deprecated": True, **values}


def _one_of(names: Iterable[str]) -> str:
    return f"^({'|'.join(map(re.escape, names))})$"
