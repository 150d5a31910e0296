"""What a template was given in training is the default of the exported one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from hftune.logging import notices
from hftune.tools.export.arguments import ServingArguments
from hftune.tools.export.run import export
from hftune.tools.export.serving import exported_template
from tests.architectures import make_model

TEMPLATE = "{% if enable_thinking %}T{% endif %}{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
ASKED = [{"role": "user", "content": "a"}]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = make_model("llama", tmp_path / "model")
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    manifest = {"stage": "sft", "status": "complete", "tokenizer": {"chat_template_kwargs": {"enable_thinking": True}}}
    (folder / "hftune.json").write_text(json.dumps(manifest))
    return folder


def test_a_served_folder(model: Path, tmp_path: Path) -> None:
    export(ServingArguments(model_name_or_path=str(model), output_dir=str(tmp_path / "out"), verify=False))
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    assert tokenizer.apply_chat_template(ASKED, tokenize=False) == "T[user]a"
    assert tokenizer.apply_chat_template(ASKED, tokenize=False, enable_thinking=False) == "[user]a"
    assert "enable_thinking true" in " ".join(notices())


def test_templates_by_name_and_none() -> None:
    given = {"x": 1}
    first = "{% set x = x if x is defined else 1 %}"
    assert exported_template({"default": "a", "tools": "b"}, given) == {"default": first + "a", "tools": first + "b"}
    assert exported_template(None, given) is None and exported_template("a", {}) == "a"
