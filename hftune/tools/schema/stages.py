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
from hftune.arguments.stages import ALGORITHMS, stage_parser

Schema = dict[str, Any]

DRAFT = "https://json-schema.org/draft/2020-12/schema"
NULL: Schema = {"type": "null"}
ANYTHING: Schema = {"type": ["string", "number", "boolean", "null", "array", "object"]}
# What `int` and `float` of Python read, in the regular expressions of JSON Schema.
_WHOLE = r"^\s*[-+]?\d+(_\d+)*\s*$"
_NUMBER = r"^\s*[-+]?(\d+(_\d+)*\.?(\d+)?|\.\d+)([eE][-+]?\d+)?\s*$"
_YES, _NO = ("yes", "true", "t", "y", "1"), ("no", "false", "f", "n", "0")


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
    one = _one(action, RANGES.get(name) if name in parser.numbers else None)
    kinds = parser.kinds(name)
    forms = list(one)
    if action.nargs == "+":
        forms.append({"type": "array", "items": any_of(one)})
    elif list in kinds or name in JOINED:
        forms.append({"type": "array", "minItems": int(name in JOINED)})
    if parser.takes_object(name):
        forms.append({"type": "object"})
    # The parser leaves null to the field, and refuses it for numbers that are needed.
    if name not in parser.numbers or type(None) in kinds:
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
        if action.type == str.lower:  # of a merge, which takes them in any case
            return [_text_of(action.choices, blanks=False), *([{"type": "boolean"}] * ("true" in action.choices))]
        return [{"enum": [*_choices(action.choices)]}]
    if kind == "string_to_bool":
        return [{"type": "boolean"}, {"enum": [0, 1]}, _text_of((*_YES, *_NO), blanks=False)]
    if kind == "JSON object":
        return [{"type": "object"}, {"type": "string", "pattern": r"^\s*\{"}]
    if kind in ("int", "float"):
        # TRL wraps the type of what may be none, and reads that word.
        none = [] if action.type in (int, float) else [_none()]
        pattern = _WHOLE if kind == "int" else _NUMBER
        numbers = _numbers("integer" if kind == "int" else "number", limits)
        return [*numbers, {"type": "string", "pattern": pattern}, *none]
    if isinstance(action.type, type) and issubclass(action.type, Enum):
        return [{"enum": [one.value for one in action.type]}]
    # A class of transformers' is made of nothing that a file holds.
    return [{"type": ["string", "number", "boolean"]} if kind in ("str", "") else _none()]


def _none() -> Schema:
    return _text_of(("none", "null"), blanks=False)


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
    also: list[Schema] = [{"enum": [int(value) if value == int(value) else value for value in limits.also]}]
    low = {"exclusiveMinimum" if limits.above else "minimum": _plain(limits.low)}
    high = {"exclusiveMaximum" if limits.below else "maximum": _plain(limits.high)}
    if limits.steps and kind == "number":
        share, whole = {"type": kind, **low, "maximum": 1}, {"type": "integer", "minimum": 1, **high}
        return [share, whole, *(also if limits.also else [])]
    return [{"type": kind, **low, **high}, *(also if limits.also else [])]


def _plain(value: float) -> float | int:
    return int(value) if value == int(value) and abs(value) < 1e15 else value


def _text_of(texts: Iterable[str], *, blanks: bool = True) -> Schema:
    """One of these texts, in whichever case: JSON Schema's regular expressions have no switch for that."""
    words = "|".join("".join(map(_either, text)) for text in texts)
    space = r"\s*" if blanks else ""
    return {"type": "string", "pattern": f"^{space}({words}){space}$"}


def _either(letter: str) -> str:
    return f"[{letter.lower()}{letter.upper()}]" if letter.isalpha() and letter.isascii() else re.escape(letter)
