"""Weights and tokenizers that transformers, peft and tokenizers read themselves: nothing runs, no traceback."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from hftune.errors import UserError
from hftune.merging.model_config import describe_tokenizer
from hftune.merging.peft_model import load_adapter as load_to_merge
from hftune.models.adapters.folding import load_adapter
from hftune.models.loading.from_pretrained import pretrained
from tests.security.pickles import FORMS
from tests.unit.merging.models import make_adapter


@pytest.fixture
def base(tiny_model: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_model, tmp_path / "base"))


@pytest.mark.parametrize("form", FORMS)
def test_a_base_that_is_a_program(base: Path, tmp_path: Path, form: str) -> None:
    (base / "model.safetensors").unlink()
    FORMS[form](base / "pytorch_model.bin", tmp_path / "flag")
    with pytest.raises((UserError, OSError)):  # whoever loads makes OSError the message
        pretrained(AutoModelForCausalLM, base, trust_remote_code=False)
    assert not (tmp_path / "flag").exists()


@pytest.mark.parametrize("form", FORMS)
def test_an_adapter_that_is_a_program(base: Path, tmp_path: Path, form: str) -> None:
    adapter = make_adapter(base, tmp_path / "adapter", target_modules=["q_proj"])
    (adapter / "adapter_model.safetensors").unlink()
    FORMS[form](adapter / "adapter_model.bin", tmp_path / "flag")
    model = AutoModelForCausalLM.from_pretrained(base)
    with pytest.raises(UserError):
        load_to_merge(model, adapter)
    model = AutoModelForCausalLM.from_pretrained(base)
    with pytest.raises(UserError):
        load_adapter(model, str(adapter), is_trainable=False)
    assert not (tmp_path / "flag").exists()


def test_a_base_as_torch_saves_it(base: Path) -> None:
    state = AutoModelForCausalLM.from_pretrained(base).state_dict()
    (base / "model.safetensors").unlink()
    torch.save(state, base / "pytorch_model.bin")
    assert pretrained(AutoModelForCausalLM, base, trust_remote_code=False).num_parameters()


TOKENIZERS: list[Any] = [
    {"model": {}},
    {"model": {"type": "BPE", "vocab": {}, "merges": [["a", "b"]]}},
    {"version": "9.0", "model": {"type": "BPE", "vocab": {"a": -1}, "merges": []}},
]


@pytest.mark.parametrize("number", range(len(TOKENIZERS)))
def test_tokenizers_that_are_none(base: Path, number: int) -> None:
    file = base / "tokenizer.json"
    file.write_text(json.dumps(TOKENIZERS[number]))
    for act in (
        lambda: pretrained(AutoTokenizer, base, trust_remote_code=False),
        lambda: describe_tokenizer(base),
    ):
        try:
            act()
        except (UserError, ValueError, OSError) as error:  # who loads a tokenizer makes the latter two the message
            assert str(error)


CONFIGS: list[dict[str, Any]] = [
    {"model_type": "llama", "hidden_size": "big"},
    {"model_type": "llama", "rope_parameters": {"rope_type": 3}},
    {"model_type": "no such"},
    {"model_type": "qwen3", "layer_types": ["nothing"]},
    {"model_type": "llama", "dtype": "no such"},
]


@pytest.mark.parametrize("number", range(len(CONFIGS)))
def test_configs_that_are_none(tmp_path: Path, number: int) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIGS[number]))
    try:
        pretrained(AutoConfig, tmp_path, trust_remote_code=False)
    except (UserError, ValueError, OSError) as error:
        assert str(error)
