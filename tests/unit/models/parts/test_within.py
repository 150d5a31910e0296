"""Names by the rules of the whole: types whose language model's own rules do not tell where its tensors are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    Mistral4ForCausalLM,
)

from hftune.errors import ArgumentError
from hftune.models.loading.config import _refuse_shapeless
from hftune.models.loading.from_pretrained import pretrained
from hftune.models.loading.stored_weights import find_mismatch
from hftune.models.parts.language_part import has_parts, language_config, whole_config
from hftune.models.parts.placing import rules_for
from hftune.models.parts.text_only import leave_language_model
from hftune.models.parts.whole_model import complete, language_skeleton
from hftune.trainers.whole_result import saved_skeleton
from hftune.weight_files import weight_shapes
from tests.table.tiny import model_class, tiny_checkpoint, tiny_config
from tests.unit.models.parts.test_whole_model import tensors_of, train_alone

RENAMED = ("kimi_k25", "molmo2", "mistral_large4", "minimax_m3_vl", "qianfan_ocr", "inkling_mm_model", "inkling2")
OF_OTHERS = ("deepseek_ocr2", "ernie4_5_vl_moe")
"""Their rules rename what has the language model's own names already."""


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> Any:
    made: dict[str, Path] = {}

    def base(name: str) -> Path:
        if name not in made:
            made[name] = tiny_checkpoint(name, tmp_path_factory.mktemp(name) / "base")
        return made[name]

    return base


def logits_of(model: Any) -> torch.Tensor:
    ids = torch.randint(3, 250, (2, 9), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        logits: torch.Tensor = model.eval()(input_ids=ids).logits
    return logits


@pytest.mark.parametrize("name", [*RENAMED, *OF_OTHERS])
def test_it_says_what_the_whole_says_and_is_written_as_the_whole(name: str, bases: Any, tmp_path: Path) -> None:
    base, folder = bases(name), tmp_path / "out"
    config = whole_config(base)
    assert config is not None
    bare = language_skeleton(language_config(config), False)
    assert not find_mismatch(bare, weight_shapes(base), whole=config)
    model = train_alone(base, folder)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.sub_(0.25)
    whole = model_class(name).from_pretrained(base, dtype=torch.float32)
    assert torch.allclose(logits_of(model), logits_of(whole), atol=1e-5)
    trained = {key for key, _ in model.named_parameters()}
    kept = complete(folder, base, saved_skeleton(folder, False), trained)
    before, after = tensors_of(base), tensors_of(folder)
    assert {key: (one.dtype, one.shape) for key, one in before.items()} == {
        key: (one.dtype, one.shape) for key, one in after.items()
    }
    buffers = {key for key, _ in model.named_buffers()}
    for key in before:
        if key in kept.tensors:
            assert torch.equal(before[key], after[key]), key
        elif not any(key.endswith(one.rpartition(".")[2]) for one in buffers) and "gate.bias" not in key:
            assert torch.allclose(after[key], before[key] + 0.25, atol=1e-6), key
    assert kept.tensors and len(kept.tensors) < len(before)


def test_pieces_of_the_embeddings_keep_their_lengths(bases: Any, tmp_path: Path) -> None:
    """Molmo 2 has 151,936 rows and 128 new ones; transformers itself would write two halves."""
    base, folder = tmp_path / "base", tmp_path / "out"
    tensors = load_file(bases("molmo2") / "model.safetensors")
    parts = [f"model.transformer.wte.{part}" for part in ("embedding", "new_embedding")]
    rows = torch.cat([tensors[part] for part in parts])
    base.mkdir()
    for file in bases("molmo2").iterdir():
        (base / file.name).write_bytes(file.read_bytes())
    pieces = dict(zip(parts, (one.clone() for one in rows.split([400, 48])), strict=True))
    save_file(tensors | pieces, base / "model.safetensors", metadata={"format": "pt"})
    train_alone(base, folder)
    complete(folder, base, saved_skeleton(folder, False), None)
    after = tensors_of(folder)
    assert [len(after[part]) for part in parts] == [400, 48]
    assert torch.allclose(torch.cat([after[part] for part in parts]), rows + 0.25, atol=1e-6)


def test_what_cannot_be_written_as_the_whole_is_not_lost(
    bases: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base, folder = bases("minimax_m3_vl"), tmp_path / "out"
    train_alone(base, folder)
    before = tensors_of(folder)
    monkeypatch.setattr("hftune.models.parts.stored_form._reversed", lambda *_: {})
    assert complete(folder, base, saved_skeleton(folder, False), None).tensors == []
    assert {*tensors_of(folder)} == {*before}
    assert not [*folder.glob("converted*")]


@pytest.mark.parametrize("name", ["gemma3", "mistral_large4"])
def test_the_language_model_alone(name: str, bases: Any, tmp_path: Path) -> None:
    """By other names, or loaded and saved again: its own class reads it, and nothing else is there."""
    folder = tmp_path / "alone"
    folder.mkdir()
    for file in bases(name).iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    (folder / "preprocessor_config.json").write_text("{}")
    before = logits_of(pretrained(AutoModelForCausalLM, folder, trust_remote_code=False))
    leave_language_model(folder, trust_remote_code=False)
    config = AutoConfig.from_pretrained(folder)
    assert not has_parts(config) and not (folder / "preprocessor_config.json").exists()
    model, info = pretrained(AutoModelForCausalLM, folder, trust_remote_code=False, output_loading_info=True)
    assert not any(info.values()) and config.architectures == [type(model).__name__]
    assert torch.equal(logits_of(model), before)
    assert not any("vision" in key for key in tensors_of(folder))


def test_a_causal_model_that_transformers_lists_among_those_that_see(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mistral 4: alone, and as the language model of a Mistral 3, of which it is taken."""
    text, folder = tiny_config("mistral4"), tmp_path / "alone"
    monkeypatch.delitem(MODEL_FOR_CAUSAL_LM_MAPPING._extra_content, type(text), raising=False)
    assert language_config(text) is text
    assert type(AutoModelForCausalLM.from_config(text)) is Mistral4ForCausalLM
    whole = tiny_config("mistral3")
    whole.text_config = text
    AutoModelForImageTextToText.from_config(whole).save_pretrained(folder)
    before = logits_of(pretrained(AutoModelForCausalLM, folder, trust_remote_code=False))
    leave_language_model(folder, trust_remote_code=False)
    monkeypatch.delitem(MODEL_FOR_CAUSAL_LM_MAPPING._extra_content, type(text))
    model, info = pretrained(AutoModelForCausalLM, folder, trust_remote_code=False, output_loading_info=True)
    assert not any(info.values()) and type(model) is Mistral4ForCausalLM and torch.equal(logits_of(model), before)


def test_rules_of_the_class_come_first(bases: Any) -> None:
    base = bases("gemma3")
    config = whole_config(base)
    assert config is not None
    rules = rules_for(language_skeleton(language_config(config), False), dict(weight_shapes(base)), config)
    assert rules.within is None and rules.prefixes


@pytest.mark.parametrize(
    ("name", "cause"),
    [
        ("diffusion_gemma", "reads one row of tokens and answers in another"),
        ("idefics", "no class for a language model of idefics alone"),
        ("evolla", "no class for a language model of evolla alone"),
    ],
)
def test_what_has_no_language_model_is_refused(name: str, cause: str) -> None:
    config = tiny_config(name)
    assert language_config(config) is config
    with pytest.raises(ArgumentError, match=cause):
        _refuse_shapeless(config)


def test_a_scale_that_the_whole_leaves_out_is_said(bases: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr("hftune.models.parts.loading.notice", said.append)
    model = pretrained(AutoModelForCausalLM, bases("aya_vision"), trust_remote_code=False)
    whole = model_class("aya_vision").from_pretrained(bases("aya_vision"))
    assert torch.allclose(logits_of(model), logits_of(whole) * model.config.logit_scale, atol=1e-6)
    assert len(said) == 1 and "AyaVisionForConditionalGeneration leaves that out" in said[0]
    said.clear()
    pretrained(AutoModelForCausalLM, bases("gemma3"), trust_remote_code=False)
    assert not said
