"""The schema of a pipeline's file takes what pipelines take, and knows the same keys."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

from hftune.arguments.stage_table import STAGES
from hftune.errors import UserError
from hftune.tools.pipeline.checking import check_steps
from hftune.tools.pipeline.spec import OF_STAGE, read_spec
from hftune.tools.pipeline.steps import steps_of
from hftune.tools.schema.pipelines import pipeline_schema
from hftune.tools.schema.stages import DRAFT, stage_schema
from tests.documents import DOCS, ROOT, blocks

EXAMPLES = sorted((ROOT / "examples" / "pipelines").glob("*.yaml"))
START = "model: m\noutput_dir: o\n"


@functools.cache
def checker() -> Draft202012Validator:
    schema = {"$schema": DRAFT, **pipeline_schema()}
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema)


def faults(text: str) -> list[str]:
    return [f"{error.json_path}: {error.message[:200]}" for error in checker().iter_errors(yaml.safe_load(text))]


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.name)
def test_examples(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    assert faults(text) == []
    assert text.startswith("# yaml-language-server: $schema=../../.hftune/pipeline.schema.json\n")


def test_pages() -> None:
    """All YAML of the documentation, but for other programs' own: a pipeline's, or a stage's."""
    shown = [(page.name, block) for page in DOCS for block in blocks(page.read_text(encoding="utf-8"))]
    found = [(page, yaml.safe_load(block.text)) for page, block in shown if block.language in ("yaml", "yml")]
    ours = [(page, content) for page, content in found if isinstance(content, dict) and "apiVersion" not in content]
    stages = [Draft202012Validator(stage_schema(stage)) for stage in STAGES]
    assert {"pipeline.md", "installation.md"} <= {page for page, _ in ours}
    assert [
        page
        for page, content in ours
        if not any(one.is_valid(content) for one in ([checker()] if "stages" in content else stages))
    ] == []


def test_keys_of_a_stage_are_those_of_the_reader() -> None:
    schema: Any = checker().schema
    assert {*OF_STAGE} <= {*schema["properties"]["stages"]["additionalProperties"]["properties"]}


SOUND = [
    "stages: {sft: }",
    "stages: {first: {script: run_sft.py, learning_rate: 1e-3}, run_dpo: {beta: ~, from: first}}",
    "shared: {lora_rank: 8, rl_algorithm: ppo}\nstages: {rl: {vf_coef: 0.3, reward_funcs: ['${env.X:-length}']}}",
    "launcher: {torchrun: {nproc_per_node: 2}}\nmerge: false\nstages: {sft: {merge: {dtype: bfloat16}}}",
    "launcher: python\nmatrix: {lr: [1e-4, 1e-3]}\nenv: {A: 1}\nstages: {sft: {learning_rate: '${lr}'}}",
    "evaluate: {eval_tasks: [loss], launcher: {deepspeed: {num_gpus: 2}}}\nstages: {sft: }",
    "values: {a: 1}\nanswers: {questions: [a, b], max_new_tokens: 8}\nstages: {sft: }",
]
BROKEN = [
    ("stages: {sft: {learning_rat: 1}}", "$.stages.sft"),
    ("stages: {sft: {learning_rate: fast}}", "$.stages.sft.learning_rate"),
    ("stages: {sft: {output_dir: o}}", "$.stages.sft"),
    ("stages: {sft: {}}\nlearning_rate: 1", "$"),
    ("shared: {nonsense: 1}\nstages: {sft: {}}", "$.shared"),
    ("launcher: mpirun\nstages: {sft: {}}", "$.launcher"),
    ("matrix: {a: 1}\nstages: {sft: {}}", "$.matrix"),
    ("answers: {models: [m]}\nstages: {sft: {}}", "$.answers"),
    ("values: {model: m}\nstages: {sft: {}}", "$.values"),
    ("stages: {a/b: {script: sft}}", "$.stages"),
]


@pytest.mark.parametrize("text", SOUND)
def test_what_a_pipeline_may_say(text: str, tmp_path: Path) -> None:
    assert faults(START + text) == []
    (tmp_path / "p.yaml").write_text(START + text)
    assert steps_of(read_spec(tmp_path / "p.yaml"))


@pytest.mark.parametrize(("text", "where"), BROKEN)
def test_what_it_may_not(text: str, where: str, tmp_path: Path) -> None:
    assert any(found.startswith(where) for found in faults(START + text)), faults(START + text)
    (tmp_path / "p.yaml").write_text(START + text)
    with pytest.raises(UserError):
        check_steps(steps_of(read_spec(tmp_path / "p.yaml")))
