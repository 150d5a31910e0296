"""Weights and tokenizers that transformers, peft and tokenizers read themselves: nothing runs, no traceback."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM

from hftune.errors import UserError
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
