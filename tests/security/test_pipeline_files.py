"""Pipeline files with values of other shapes at every key: one message each, or steps; never a traceback."""

from __future__ import annotations

from pathlib import Path

import pytest

from hftune.errors import UserError
from tests.unit.tools.pipeline.files import steps

VALUES = (
    *("~", "5", "x", "[1]", "[]", "{}", "{a: 1}", "true", "2024-01-01", '"\\0"', '"\\e]0;x"', "{1: 2}", "{[1]: 2}"),
    *("{loss: {min: x}}", "{loss: {min: .nan}}", "{loss: 5}", "{loss: {}}", "{loss: {max: [1]}}"),
    *("{exact_match: {min: 1e999, drop: -5}}", "{eval_tasks: [loss], validation_file_dir: [1]}"),
    *("{eval_tasks: {a: b}}", "{output_dir: ../x}", "{models: [/etc]}", '["${env.NOTHING}"]', '{"${x}": 1}'),
    *("{trust_remote_code: true}", "[[[]]]", "1e400", ".inf", "9" * 400, "!!binary x", "&a [*a]", "'${stages.sft}'"),
)
TOP = ("evaluate", "gate", "matrix", "values", "answers", "shared", "launcher", "env", "stages", "model", "output_dir")
OF_STAGE = ("gate", "env", "launcher", "script", "merge", "from", "train_file_dir", "learning_rate")


def text_of(key: str, value: str) -> str:
    lines = {"model": "m", "output_dir": "o", "stages": "{sft: {train_file_dir: d}}"}
    # A name that stands twice would be refused as such.
    data = "" if key == "sft.train_file_dir" else "train_file_dir: d, "
    stage = {"stages": f"{{sft: {{{data}{key.removeprefix('sft.')}: {value}}}}}"}
    return "".join(f"{name}: {text}\n" for name, text in (lines | (stage if "." in key else {key: value})).items())


@pytest.mark.parametrize("key", [*TOP, *(f"sft.{name}" for name in OF_STAGE)])
def test_values_of_any_shape(key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NOTHING", raising=False)
    for value in VALUES:
        try:
            steps(tmp_path, text_of(key, value))
        except UserError as error:
            assert "\x1b" not in str(error) and "\0" not in str(error), value
