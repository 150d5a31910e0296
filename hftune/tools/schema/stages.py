"""The file behind `--config` of a stage, as JSON Schema: its arguments, and which values each takes."""

from __future__ import annotations

import argparse
import functools
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from typing import Any

from hftune.arguments.defaults.choosing import hftune_defaults, of_field
from hftune.arguments.merging import MergeParser
from hftune.arguments.names.row import ALIAS, NO_EFFECT, REFUSED
from hftune.arguments.names.table import table
from hftune.arguments.names.translate import MERGE
from hftune.arguments.parser import HftuneParser
from hftune.arguments.ranges import JOINED, RANGES, Range
from hftune.arguments.stage_table import STAGES
from hftune.arguments.stages import algorithms, stage_parser

Schema = dict[str, Any]

DRAFT = "https://json-schema.org/draft/2020-12/schema"
NULL: Schema = {"type": "null"}
ANYTHING: Schema = {"type": ["string", "number", "boolean", "null", "array", "object"]}
# YAML reads 1e-4 as a text; whether it is whole, and in its range, the command says.
_NUMBER = r"^\s*[-+]?[\d._]*\d[\d._]*([eE][-+]?\d+)?\s*$"
_WORDS = ("yes", "true", "t", "y", "1", "no", "false", "f", "n", "0")
_NONE: Schema = {"enum": ["none", "None", "null"]}


@functools.cache  # of all stages, for a pipeline, twice; nobody changes it
def stage_schema(stage: str) -> Schema:
    """The schema of a stage's YAML file, or of the one that merges; RL's depends on the algorithm."""
    if stage == MERGE:
        return parser_schema(MergeParser(), MERGE)
    if stage != "rl":
        return parser_schema(stage_parser(stage), stage)
    kinds = {name: {"$ref": f"#/$defs/{name}"} for name in algorithms()}
    # As the parser finds the algorithm. MedicalGPT's PPO script, which trains with RLOO, is known by this name.
    chosen: Schema = {"if": {"required": ["sft_model_path"]}, "then": kinds["rloo"], "else": kinds["grpo"]}
    for flag in ("advantage_estimator", "rl_algorithm"):
        for name, schema in kinds.items():
            asked = {"properties": {flag: {"const": name}}, "required": [flag]}
            chosen = {"if": asked, "then": schema, "else": chosen}
    defs = {name: parser_schema(stage_parser(stage, name), stage, name) for name in algorithms()}
    return {"type": "object", **chosen, "$defs": defs}


def parser_schema(parser: HftuneParser, stage: str, algorithm: str = "") -> Schema:
    """The schema of the arguments of one parser."""
    given = {"rl_algorithm": algorithm} if algorithm else {}
    defaults = hftune_defaults(stage, given, parser.known) if stage in STAGES else {}
    own = {name: _argument(parser, name, defaults) for name in argument_names(parser)}
    others = _names_of_others(parser, own)
    return {"type": "object", "properties": own, "patternProperties": {others: ANYTHING}, "additionalProperties": False}


def argument_names(parser: HftuneParser) -> list[str]:
    """The arguments that a file may name, as hftune spells them: no second spellings, no switches of command lines."""
    return [name for name, action in parser.known.items() if name == action.dest and action.nargs != 0]


def _argument(parser: HftuneParser, name: str, defaults: Mapping[str, Any]) -> Schema:
    action = parser.known[name]
    row = table().get(name) if parser.stage in STAGES else None
    target = row.target(parser.stage) if row is not None and row.verdict == ALIAS else None
    values = value_schema(parser, target if target in parser.known else name)
    if name in parser.done_by_hftune or (row is not None and row.verdict in (NO_EFFECT, REFUSED)):
        values = ANYTHING  # what asks for nothing passes; the command says the rest
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


def _names_of_others(parser: HftuneParser, own: Mapping[str, Schema]) -> str:
    """The names of other tools that the parser knows, as a pattern: editors propose none, and the command judges."""
    names = [name for name, target in parser.aliases.items() if target in own]
    for row in table().values():
        translated = row.translation is not None and parser.takes_name(row)
        known = row.verdict == ALIAS and row.target(parser.stage) in own
        if known or translated or row.verdict in (REFUSED, NO_EFFECT):
            names.append(row.name)
    return f"^({'|'.join(re.escape(name) for name in dict.fromkeys(names) if name not in own)})$"


# --- values ---


def value_schema(parser: HftuneParser, name: str) -> Schema:
    """What may stand behind an argument of a parser."""
    action = parser.known[name]
    one = _one(action, RANGES.get(name))
    kinds = parser.kinds(name)
    forms = list(one)
    if action.nargs == "+":
        forms.append({"type": "array", "items": any_of(one)})
    elif list in kinds or name in JOINED:
        forms.append({"type": "array", "minItems": int(name in JOINED)})
    if parser.takes_object(name):
        forms.append({"type": "object"})
    # The parser leaves null to the field, and refuses it for numbers that are needed.
    if name not in RANGES or type(None) in kinds:
        forms.append(NULL)
    return any_of(forms)


def any_of(forms: Iterable[Schema]) -> Schema:
    """A schema of several; of one itself."""
    listed = list(forms)
    return listed[0] if len(listed) == 1 else {"anyOf": listed}


def _one(action: argparse.Action, limits: Range | None) -> list[Schema]:
    """The forms of one value."""
    kind = getattr(action.type, "__name__", "")
    if action.choices is not None:
        # A merge takes its choices in any case, and has words for true and false among them.
        words: list[Schema] = [{"type": "boolean"}, {"enum": ["True", "False"]}] if "true" in action.choices else []
        return [{"enum": [*_choices(action.choices)]}, *words]
    if kind == "string_to_bool":
        return [{"type": "boolean"}, {"enum": [0, 1, *_WORDS, *map(str.capitalize, _WORDS)]}]
    if kind == "JSON object":
        return [{"type": "object"}, {"type": "string", "pattern": r"^\s*\{"}]
    if kind in ("int", "float"):
        # TRL wraps the type of what may be none, and reads that word.
        none = [] if action.type in (int, float) else [_NONE]
        numbers = _numbers("integer" if kind == "int" else "number", limits)
        return [*numbers, {"type": "string", "pattern": _NUMBER}, *none]
    if isinstance(action.type, type) and issubclass(action.type, Enum):
        return [{"enum": [one.value for one in action.type]}]
    # A class of transformers' is made of nothing that a file holds.
    return [{"type": ["string", "number", "boolean"]} if kind in ("str", "") else _NONE]


def _choices(choices: Iterable[Any]) -> Iterator[Any]:
    """Each choice as YAML may say it: `4` is a number there, and a text on a command line."""
    for choice in choices:
        yield str(choice)
        if isinstance(choice, int | float):
            yield choice
        elif re.fullmatch(r"\d+", str(choice)):
            yield int(choice)


def _numbers(kind: str, limits: Range | None) -> list[Schema]:
    if limits is None:
        return [{"type": kind}]
    also: list[Schema] = [{"enum": [*limits.also]}]
    low = {"exclusiveMinimum" if limits.above else "minimum": limits.low}
    high = {"exclusiveMaximum" if limits.below else "maximum": limits.high}
    if limits.steps and kind == "number":
        share, whole = {"type": kind, **low, "maximum": 1}, {"type": "integer", "minimum": 1, **high}
        return [share, whole, *(also if limits.also else [])]
    return [{"type": kind, **low, **high}, *(also if limits.also else [])]
