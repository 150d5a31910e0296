"""A pipeline's file as JSON Schema: its keys, and below `stages` the arguments that the parsers of the stages take."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from hftune.arguments.asking import AskArguments, EvaluateArguments, SampleArguments
from hftune.arguments.names.translate import MERGE
from hftune.arguments.stage_table import STAGES
from hftune.arguments.stages import ScriptParser
from hftune.distributed.launchers import OPTIONS
from hftune.tools.pipeline.spec import FOLDERS, KEYS, LONGEST, OF_ANSWERS, OF_EVALUATION, SAMPLE
from hftune.tools.schema.stages import NULL, Schema, any_of, parser_schema, stage_schema

REFERENCE: Schema = {"type": "string", "pattern": r"\$\{"}
"""`${data}/sft`: what it stands for is known when the pipeline is read."""

_SCALAR: Schema = {"type": ["string", "number", "boolean", "null"]}
_NAMES: Schema = {"type": ["object", "null"]}
"""Names with values, or nothing at all: a key without anything behind it is empty."""


def pipeline_schema() -> Schema:
    """The schema of a pipeline's file."""
    settings: dict[str, Schema] = {
        "script": {"description": "The stage that it runs, where its name does not say.", "enum": [*_spellings()]},
        "from": {
            "description": "The stage that it builds on, or model; left out: the latest.",
            "type": ["string", "null"],
        },
        **{name: {"$ref": f"#/$defs/{name}"} for name in ("merge", "launcher", "env", "gate")},
    }
    schemas = {stage: _of_stage(stage) for stage in STAGES}
    schemas[SAMPLE] = [parser_schema(ScriptParser([SampleArguments]), SAMPLE)]
    evaluated = [parser_schema(ScriptParser([EvaluateArguments]), "evaluate")]
    asked = [parser_schema(ScriptParser([AskArguments]), "ask")]
    types: dict[str, Schema] = {
        "model": _SCALAR,
        "output_dir": {"type": ["string", "number"]},
        "values": {**_NAMES, "propertyNames": {"not": {"pattern": r"^(model|output_dir)$|\."}}},
        **{name: settings[name] for name in ("env", "launcher", "merge")},
        "shared": _shared([one for found in schemas.values() for one in found]),
        "matrix": {**_NAMES, "additionalProperties": {"type": "array", "minItems": 1}},
        "stages": {
            "type": "object",
            "minProperties": 1,
            "propertyNames": {"maxLength": LONGEST, "pattern": r"^[^/\\\s]+$", "not": {"pattern": r"\.\."}},
            "patternProperties": {
                rf"^(run_)?{name}(\.py)?$": {
                    "if": {"type": "object", "required": ["script"]},
                    "then": {"$ref": "#/$defs/stage.by_script"},
                    "else": {"$ref": f"#/$defs/stage.{name}"},
                }
                for name in schemas
            },
            "additionalProperties": {"$ref": "#/$defs/stage.by_script"},
        },
        "evaluate": _arguments(evaluated, OF_EVALUATION, {"launcher": settings["launcher"]}),
        "answers": _arguments(asked, OF_ANSWERS),
    }
    launchers = {name: {**_NAMES, "properties": {key: {} for key in listed}} for name, listed in OPTIONS.items()}
    return {
        "type": "object",
        "required": ["output_dir", "stages"],
        "properties": {name: {"description": said, **types[name]} for name, said in KEYS.items()},
        "additionalProperties": False,
        "$defs": {
            "launcher": any_of([{"enum": [*OPTIONS, None]}, REFERENCE, {"type": "object", "properties": launchers}]),
            "merge": any_of([_SCALAR, _arguments(_of_stage(MERGE), ("peft_model_path", "output_dir"))]),
            "env": {**_NAMES, "additionalProperties": _SCALAR},
            "gate": {"description": "What the stage may cost: {TASK: {min: 0.3, drop: 0.02}}.", **_NAMES},
            "stage.by_script": _by_script(schemas, settings["script"]),
            **{f"stage.{name}": _arguments(found, FOLDERS, settings) for name, found in schemas.items()},
        },
    }


def _spellings(names: Iterable[str] = (*STAGES, SAMPLE)) -> list[str]:
    return [form.format(name) for name in names for form in ("{}", "run_{}", "{}.py", "run_{}.py")]


def _by_script(names: Iterable[str], script: Schema) -> Schema:
    """A stage that says which script it runs."""
    chosen = [
        {
            "if": {"properties": {"script": {"enum": _spellings([name])}}, "required": ["script"]},
            "then": {"$ref": f"#/$defs/stage.{name}"},
        }
        for name in names
    ]
    return {"type": "object", "required": ["script"], "properties": {"script": script}, "allOf": chosen}


def _of_stage(stage: str) -> list[Schema]:
    """The schemas of a stage: of RL one an algorithm, since `shared:` or a reference may say which it is."""
    schema = stage_schema(stage)
    return [*schema.get("$defs", {"": schema}).values()]


def _arguments(schemas: list[Schema], without: Iterable[str], more: Mapping[str, Schema] | None = None) -> Schema:
    """Arguments as they stand in a pipeline, what any of `schemas` takes: each may be a reference, or null."""
    forms: dict[str, list[Schema]] = {}
    patterns: Schema = {}
    for schema in schemas:
        patterns |= schema["patternProperties"]
        for name, values in schema["properties"].items():
            found = forms.setdefault(name, [])
            found += [values] if values not in found else []
    properties = {name: _or_reference(found) for name, found in forms.items() if name not in {*without}}
    return {
        **_NAMES,
        "properties": {**properties, **(more or {})},
        "patternProperties": patterns,
        "additionalProperties": False,
    }


def _or_reference(forms: list[Schema]) -> Schema:
    # Editors show the words of a property, and not those of its forms.
    said: Schema = {key: forms[0][key] for key in ("description", "deprecated", "default") if key in forms[0]}
    values = [{key: value for key, value in form.items() if key not in said} for form in forms]
    return {**said, **any_of([*values, REFERENCE, NULL])}


def _shared(schemas: list[Schema]) -> Schema:
    """The arguments that stages share, by name: which stages there are is up to the file."""
    names: Schema = {name: {} for schema in schemas for name in schema["properties"] if name not in FOLDERS}
    patterns: Schema = {pattern: {} for schema in schemas for pattern in schema["patternProperties"]}
    return {**_NAMES, "properties": names, "patternProperties": patterns, "additionalProperties": False}
