"""A pipeline's file as JSON Schema: its keys, and for every stage the arguments that the parser of any stage takes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from hftune.arguments.asking import AskArguments, EvaluateArguments, SampleArguments
from hftune.arguments.names.translate import MERGE
from hftune.arguments.stage_table import STAGES
from hftune.arguments.stages import ScriptParser
from hftune.tools.pipeline.launcher import KINDS
from hftune.tools.pipeline.spec import ANSWERS, EVALUATE, FOLDERS, GIVEN, KEYS, SAMPLE
from hftune.tools.schema.stages import NULL, Schema, any_of, parser_schema, stage_schema

REFERENCE: Schema = {"type": "string", "pattern": r"\$\{"}
"""`${data}/sft`: what it stands for is known when the pipeline is read."""

_SCALAR: Schema = {"type": ["string", "number", "boolean", "null"]}
_NAMES: Schema = {"type": ["object", "null"]}
"""Names with values, or nothing at all: a key without anything behind it is empty."""


def pipeline_schema() -> Schema:
    """The schema of a pipeline's file. Which stage takes which argument `hftune pipeline check` says."""
    every = [schema for stage in STAGES for schema in _of_stage(stage)]
    every.append(parser_schema(ScriptParser([SampleArguments]), SAMPLE))
    launcher = any_of([{"enum": [*KINDS, None]}, REFERENCE, {**_NAMES, "propertyNames": {"enum": [*KINDS]}}])
    shared: dict[str, Schema] = {
        "merge": any_of([_SCALAR, _arguments(_of_stage(MERGE), ("peft_model_path", "output_dir"))]),
        "launcher": launcher,
        "env": {**_NAMES, "additionalProperties": _SCALAR},
    }
    of_stage: dict[str, Schema] = {
        **shared,
        "script": {"description": "The stage that it runs, where its name does not say.", "type": "string"},
        "from": {"description": "The stage that it builds on, or model; left out: the latest.", **_SCALAR},
        "gate": {"description": "What the stage may cost: {TASK: {min: 0.3, drop: 0.02}}.", **_NAMES},
    }
    evaluated, asked = (ScriptParser([each]) for each in (EvaluateArguments, AskArguments))
    types: dict[str, Schema] = {
        **shared,
        "model": _SCALAR,
        "output_dir": {"type": ["string", "number"]},
        "values": {**_NAMES, "propertyNames": {"not": {"pattern": r"^(model|output_dir)$|\."}}},
        "shared": _arguments(every, FOLDERS),
        "matrix": {**_NAMES, "additionalProperties": {"type": "array", "minItems": 1}},
        "stages": {
            "type": "object",
            "minProperties": 1,
            "propertyNames": {"pattern": r"^[^/\\\s]+$"},
            "additionalProperties": _arguments(every, FOLDERS, of_stage),
        },
        EVALUATE: _arguments([parser_schema(evaluated, EVALUATE)], GIVEN[EVALUATE], {"launcher": launcher}),
        ANSWERS: _arguments([parser_schema(asked, "ask")], GIVEN[ANSWERS]),
    }
    return {
        "type": "object",
        "required": ["output_dir", "stages"],
        "properties": {name: {"description": said, **types[name]} for name, said in KEYS.items()},
        "additionalProperties": False,
    }


def _of_stage(stage: str) -> list[Schema]:
    """The schemas of a stage: of RL one an algorithm."""
    schema = stage_schema(stage)
    return [*schema.get("$defs", {"": schema}).values()]


def _arguments(schemas: list[Schema], without: Iterable[str], more: Mapping[str, Schema] | None = None) -> Schema:
    """Arguments as they stand in a pipeline, what any of `schemas` takes: each may be a reference, or null."""
    forms: dict[str, list[Schema]] = {}
    patterns: Schema = {}
    for schema in schemas:
        patterns |= schema["patternProperties"]
        for name, values in schema["properties"].items():
            forms.setdefault(name, []).append(values)
    properties = {name: _or_reference(found) for name, found in forms.items() if name not in {*without}}
    return {
        **_NAMES,
        "properties": {**properties, **(more or {})},
        "patternProperties": patterns,
        "additionalProperties": False,
    }


def _or_reference(forms: list[Schema]) -> Schema:
    # Editors show the words of a property, and not those of its forms. Defaults are those of a stage.
    said: Schema = {key: forms[0][key] for key in ("description", "deprecated") if key in forms[0]}
    bare = [{key: value for key, value in form.items() if key not in ("default", *said)} for form in forms]
    return {**said, **any_of([*(form for n, form in enumerate(bare) if form not in bare[:n]), REFERENCE, NULL])}
