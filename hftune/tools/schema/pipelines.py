"""A pipeline's file as JSON Schema: as `hftune/tools/pipeline/spec.py` and the parsers of its stages take it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from hftune.arguments.asking import AskArguments, EvaluateArguments, SampleArguments
from hftune.arguments.names.translate import MERGE
from hftune.arguments.stage_table import STAGES
from hftune.arguments.stages import ALGORITHMS, ScriptParser
from hftune.distributed.launchers import OPTIONS
from hftune.tools.pipeline.spec import FOLDERS, KEYS, LONGEST, OF_ANSWERS, OF_EVALUATION, SAMPLE
from hftune.tools.schema.stages import NULL, Schema, algorithm_choice, any_of, parser_schema, stage_schema

REFERENCE: Schema = {"type": "string", "pattern": r"\$\{"}
"""`${data}/sft`: what it stands for is known when the pipeline is read."""

_SCALAR: Schema = {"type": ["string", "number", "boolean", "null"]}


class Shared:
    """Schemas that many stages have, each written once below `$defs`."""

    def __init__(self) -> None:
        self.defs: dict[str, Schema] = {"reference": REFERENCE}
        self._names: dict[str, str] = {}
        self._counts: Counter[str] = Counter()

    def ref(self, name: str, schema: Schema) -> Schema:
        """A reference to a schema; equal ones of one name are one."""
        key = json.dumps([name, schema])
        if key not in self._names:
            self._counts[name] += 1
            self._names[key] = f"{name}-{self._counts[name]}" if self._counts[name] > 1 else name
            self.defs[self._names[key]] = schema
        return {"$ref": f"#/$defs/{self._names[key]}"}


def pipeline_schema() -> Schema:
    """The schema of a pipeline's file."""
    shared = Shared()
    launcher = shared.ref("pipeline.launcher", _launcher())
    merge = shared.ref("pipeline.merge", _merge(shared))
    env = shared.ref("pipeline.env", _names_and(_SCALAR))
    settings = {
        "script": _described("The stage that it runs, where its name does not say.", {"enum": [*_spellings()]}),
        "from": _described(
            "The stage that it builds on, or model; left out: the latest.", {"type": ["string", "null"]}
        ),
        "merge": merge,
        "launcher": launcher,
        "env": env,
        "gate": _described("What the stage may cost: {TASK: {min: 0.3, drop: 0.02}}.", shared.ref("gate", _gate())),
    }
    every = {name: _stage_of(name, shared, settings) for name in STAGES}
    sampled = parser_schema(ScriptParser([SampleArguments]), SAMPLE)
    every[SAMPLE] = shared.ref(f"stage.{SAMPLE}", _one_stage(sampled, shared, settings))
    by_script = [
        {"if": {"properties": {"script": {"enum": _spellings([name])}}, "required": ["script"]}, "then": schema}
        for name, schema in every.items()
    ]
    named: Schema = {"required": ["script"], "properties": {"script": settings["script"]}}
    shared.defs["stage.by_script"] = {"type": "object", **named, "allOf": by_script}
    told = {"$ref": "#/$defs/stage.by_script"}
    says: Schema = {"type": "object", "required": ["script"]}
    stages = {name: {"if": says, "then": told, "else": schema} for name, schema in every.items()}
    asked = parser_schema(ScriptParser([AskArguments]), "ask")
    evaluated = parser_schema(ScriptParser([EvaluateArguments]), "evaluate")
    types: dict[str, Schema] = {
        "model": _SCALAR,
        "output_dir": {"type": ["string", "number"]},
        "values": {**_names_and({}), "propertyNames": {"not": {"pattern": r"^(model|output_dir)$|\."}}},
        "env": env,
        "launcher": launcher,
        "shared": _of_all_stages(shared),
        "merge": merge,
        "matrix": _matrix(),
        "stages": {
            "type": "object",
            "minProperties": 1,
            "propertyNames": {"maxLength": LONGEST, "pattern": r"^[^/\\\s]+$", "not": {"pattern": r"\.\."}},
            "patternProperties": {rf"^(run_)?{name}(\.py)?$": schema for name, schema in stages.items()},
            "additionalProperties": told,
        },
        "evaluate": _with_patterns(
            evaluated, {**_arguments(evaluated, shared, OF_EVALUATION, "evaluated."), "launcher": launcher}
        ),
        "answers": _with_patterns(asked, _arguments(asked, shared, OF_ANSWERS, "asked.")),
    }
    return {
        "type": "object",
        "required": ["output_dir", "stages"],
        "properties": {name: _described(said, types[name]) for name, said in KEYS.items()},
        "additionalProperties": False,
        "$defs": shared.defs,
    }


def _described(said: str, schema: Schema) -> Schema:
    return {"description": said, **schema}


def _spellings(names: Iterable[str] = (*STAGES, SAMPLE)) -> list[str]:
    return [form.format(name) for name in names for form in ("{}", "run_{}", "{}.py", "run_{}.py")]


def _names_and(values: Schema | None, properties: Schema | None = None) -> Schema:
    """Names with values, or nothing at all: a key without anything behind it is empty."""
    more = {"additionalProperties": False if values is None else values}
    return {"type": ["object", "null"], **({"properties": properties} if properties else {}), **more}


def _stage_of(stage: str, shared: Shared, settings: Mapping[str, Schema]) -> Schema:
    """A stage of a pipeline, by reference."""
    if stage != "rl":
        return shared.ref(f"stage.{stage}", _one_stage(stage_schema(stage), shared, settings))
    kinds = stage_schema(stage)["$defs"]
    each = {name: shared.ref(f"stage.{name}", _one_stage(kinds[name], shared, settings)) for name in ALGORITHMS}
    # What `shared:` or a reference says of the algorithm is not known here: then any of them.
    chosen = algorithm_choice(each, {"anyOf": list(each.values())})
    return shared.ref("stage.rl", {**chosen, "type": ["object", "null"]})


def _one_stage(schema: Schema, shared: Shared, settings: Mapping[str, Schema]) -> Schema:
    return _with_patterns(schema, {**settings, **_arguments(schema, shared, FOLDERS)})


def _with_patterns(schema: Schema, properties: Schema) -> Schema:
    """Properties, and the names of other tools that a schema takes."""
    patterns = {pattern: _or_reference(values) for pattern, values in schema["patternProperties"].items()}
    return {**_names_and(None, properties=properties), "patternProperties": patterns}


def _arguments(schema: Schema, shared: Shared, without: Iterable[str], kind: str = "") -> dict[str, Schema]:
    """Arguments of a script as they stand in a pipeline: each may be a reference, and null is left out."""
    left_out = {*without}
    properties = {name: one for name, one in schema["properties"].items() if name not in left_out}
    return {name: shared.ref(f"{kind}{name}", _or_reference(one)) for name, one in properties.items()}


def _or_reference(schema: Schema) -> Schema:
    told: Schema = {key: schema[key] for key in ("description", "deprecated", "default") if key in schema}
    values = {key: value for key, value in schema.items() if key not in told}
    forms = [_with_items(form) for form in values.get("anyOf", [values])]
    more = [form for form in ({"$ref": "#/$defs/reference"}, NULL) if form not in forms]
    return {**told, **any_of([*forms, *more])}


def _with_items(form: Schema) -> Schema:
    """A list whose items may be references."""
    items: Any = form.get("items")
    return {**form, "items": any_of([items, {"$ref": "#/$defs/reference"}])} if items else form


def _of_all_stages(shared: Shared) -> Schema:
    """The arguments that stages share: what any of them takes, since which stages there are is up to the file."""
    whole = [stage_schema(stage) for stage in STAGES]
    each = [one for schema in whole for one in schema.get("$defs", {"": schema}).values()]
    found: dict[str, list[Schema]] = {}
    patterns: Schema = {}
    for schema in each:
        patterns |= schema["patternProperties"]
        for name, one in _arguments(schema, shared, FOLDERS).items():
            if one not in found.setdefault(name, []):
                found[name].append(one)
    return _with_patterns({"patternProperties": patterns}, {name: any_of(forms) for name, forms in found.items()})


def _merge(shared: Shared) -> Schema:
    arguments = _arguments(stage_schema(MERGE), shared, ("peft_model_path", "output_dir"), "merged.")
    return any_of([_SCALAR, _names_and(None, properties=arguments)])


def _matrix() -> Schema:
    lists = {"type": "array", "minItems": 1}
    return {"type": ["object", "null"], **any_of([_names_and(lists), _names_and({"type": "object"})])}


def _gate() -> Schema:
    limits: dict[str, Schema] = {
        "min": {"type": "number"},
        "max": {"type": "number"},
        "drop": {"type": "number", "minimum": 0},
    }
    each = {name: any_of([one, REFERENCE]) for name, one in limits.items()}
    return _names_and({"type": "object", "properties": each, "additionalProperties": False, "minProperties": 1})


def _launcher() -> Schema:
    """`python`, or `deepspeed: {num_gpus: 2}`."""
    options = {name: _names_and(None, {one: {} for one in listed}) for name, listed in OPTIONS.items()}
    mapping = {"type": "object", "properties": options, "minProperties": 1, "maxProperties": 1}
    return any_of([{"enum": [*options, None]}, REFERENCE, {**mapping, "additionalProperties": False}])
