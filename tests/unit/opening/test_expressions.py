"""Regular expressions of an adapter's file: those that would never end are refused, common ones are not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hftune.errors import ManifestError
from hftune.opening.model_files import read_checked

ENDLESS = [
    *(r"(a+)+$", r"(.*)*q", r"(a|aa)+", r"(?:a|b|ab)*c", r"((a+))+", r"(?:x?){30}y", r"(\w*)*", r"([a-z]+\.)*x"),
    *(r"a?a?a?a?a?a?a?aaa", r".*.*.*.*.*x", r"(?P<n>.*)+", r"(.+.+)+", r"(?i:(a*)*)", r"[a-z]*[a-z_]*\w*.*x"),
    *(r"(a{1,30}){1,30}b", r"(?=(a+)+)b", r"([)]a*)*"),
]
COMMON = [
    *("q_proj", r".*\.layers\.\d+\.self_attn\.(q_proj|v_proj)", r"^(?!.*(?:visual|audio)).*\.(?:q_proj|down_proj)$"),
    r"(?:.*?(?:vision|image).*?(?:layers|blocks).*?(?:attn).*?(?:q_proj).*?)|(?:\bmodel\.layers\.[\d]{1,}\.(?:(?:q|k)))",
    *(r"model\.layers\.(1?[0-9]|2[0-3])\.mlp", r".*decoder.*(SelfAttention|EncDecAttention).*(q|v)$"),
    *("model.layers.[0-9]+.mlp.[a-z]*", r"[(]x[)*]+(a)", r"\(a+\)+"),
]


def write(folder: Path, **values: object) -> Path:
    file = folder / "adapter_config.json"
    file.write_text(json.dumps(values))
    return file


@pytest.mark.parametrize("text", ENDLESS)
def test_those_that_would_never_end(tmp_path: Path, text: str) -> None:
    for values in ({"target_modules": text}, {"exclude_modules": text}, {"layers_pattern": [text]}):
        with pytest.raises(ManifestError, match="may take for ever to match"):
            read_checked(write(tmp_path, **values))
    for name in ("rank_pattern", "alpha_pattern"):
        with pytest.raises(ManifestError, match="may take for ever to match"):
            read_checked(write(tmp_path, **{name: {text: 2}}))


@pytest.mark.parametrize("text", COMMON)
def test_common_ones(tmp_path: Path, text: str) -> None:
    read_checked(write(tmp_path, target_modules=text, rank_pattern={text: 2}, layers_pattern=text))


def test_names_in_a_list_are_no_expressions(tmp_path: Path) -> None:
    read_checked(write(tmp_path, target_modules=["(a+)+", "*"]))
