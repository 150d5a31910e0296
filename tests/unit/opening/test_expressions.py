"""Regular expressions of an adapter's file: what is none is refused, common ones are not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hftune.errors import ManifestError
from hftune.opening.model_files import read_checked

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


def test_what_is_none(tmp_path: Path) -> None:
    for name in ("target_modules", "exclude_modules", "rank_pattern", "alpha_pattern"):
        with pytest.raises(ManifestError, match="is no regular expression"):
            read_checked(write(tmp_path, **{name: {"(q": 2} if "pattern" in name else "(q"}))


@pytest.mark.parametrize("text", COMMON)
def test_common_ones(tmp_path: Path, text: str) -> None:
    read_checked(write(tmp_path, target_modules=text, rank_pattern={text: 2}, layers_pattern=text))


def test_names_in_a_list_are_no_expressions(tmp_path: Path) -> None:
    read_checked(write(tmp_path, target_modules=["(a+)+", "*"]))
