"""The language model of a checkpoint of several parts: found in the index, loaded alone, and what it computes there."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING,
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    AutoModelForSequenceClassification,
)

from hftune.models.heads import body_of
from hftune.models.loading.from_pretrained import from_config, pretrained
from hftune.models.loading.stored_weights import find_mismatch
from hftune.models.parts import language_part
from hftune.models.parts.language_part import key_mapping, language_config, own_name, stored_name, stored_prefixes
from hftune.models.parts.text_class import _scaled, make_reward_models
from hftune.models.parts.whole_model import complete
from hftune.trainers.whole_result import saved_skeleton
from hftune.weight_files import weight_shapes
from tests.table.tiny import tiny_checkpoint, tiny_config
from tests.towers import WHOLE, make_whole


class Bare:
    """A model of which only names and shapes count."""

    base_model_prefix = "model"

    def __init__(self, *names: str) -> None:
        self.names = names

    def state_dict(self) -> dict[str, Any]:
        return {name: SimpleNamespace(shape=(2,)) for name in self.names}


OWN = ("model.embed_tokens.weight", "model.layers.0.norm.weight", "lm_head.weight")


@pytest.mark.parametrize(
    ("stored", "expected"),
    [
        (" ".join(OWN), {}),
        ("embed_tokens.weight layers.0.norm.weight", {}),
        (
            "language_model.model.embed_tokens.weight language_model.model.layers.0.norm.weight "
            "language_model.lm_head.weight vision_tower.layers.0.norm.weight",
            {"language_model.model.": "model.", "language_model.lm_head.": "lm_head."},
        ),
        (
            "model.language_model.embed_tokens.weight model.language_model.layers.0.norm.weight lm_head.weight "
            "model.visual.norm.weight",
            {"model.language_model.": "model."},
        ),
        # Another part has a head and embeddings of its own.
        (
            "thinker.model.embed_tokens.weight thinker.model.layers.0.norm.weight thinker.lm_head.weight "
            "talker.model.embed_tokens.weight talker.lm_head.weight",
            {"thinker.model.": "model.", "thinker.lm_head.": "lm_head."},
        ),
        # One that is as large as the text, with a head of another kind.
        (
            "thinker.model.embed_tokens.weight thinker.model.layers.0.norm.weight thinker.lm_head.weight "
            "talker.model.embed_tokens.weight talker.model.layers.0.norm.weight talker.codec_head.weight",
            {"thinker.model.": "model.", "thinker.lm_head.": "lm_head."},
        ),
        ("a.weight b.weight", {}),
    ],
)
def test_prefixes_are_those_of_the_index(
    stored: str, expected: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(language_part, "get_model_conversion_mapping", lambda model, mapping: [])
    found = stored_prefixes(Bare(*OWN), dict.fromkeys(stored.split()))  # type: ignore[arg-type]
    assert found == expected
    for name in OWN:
        assert own_name(stored_name(name, found), found) == name
    assert all(pattern.startswith("^") for pattern in key_mapping(found))


def test_prefixes_that_the_class_knows_are_left_to_it(tmp_path: Path) -> None:
    """Inkling 2 stores its decoder as `model.llm.` and the head, by a rule of its own, as `model.llm.unembed`."""
    folder = tiny_checkpoint("inkling2_text", tmp_path)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder))
    stored = weight_shapes(folder)
    assert "model.llm.unembed.weight" in stored and stored_prefixes(model, stored) == {}
    assert not find_mismatch(model, stored)


def test_another_shape_is_another_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(language_part, "get_model_conversion_mapping", lambda model, mapping: [])
    stored = {"a.embed_tokens.weight": (3,), "a.layers.0.norm.weight": (3,), "b.embed_tokens.weight": (2,)}
    assert stored_prefixes(Bare(*OWN), stored) == {"b.": "model."}  # type: ignore[arg-type]


@pytest.mark.parametrize("name", WHOLE)
def test_it_is_loaded_alone_and_says_what_the_whole_says(name: str, tmp_path: Path) -> None:
    folder = make_whole(name, tmp_path)
    given: dict[str, Any] = {"trust_remote_code": False, "dtype": torch.float32}
    model, info = pretrained(AutoModelForCausalLM, folder, output_loading_info=True, **given)
    assert not any(info.values())
    whole = AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32)
    assert sum(p.numel() for p in model.parameters()) < sum(p.numel() for p in whole.parameters())
    ids = torch.randint(3, 250, (2, 9), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        assert torch.equal(model.eval()(input_ids=ids).logits, whole.eval()(input_ids=ids).logits)
    # It is a language model on its own from then on.
    model.save_pretrained(tmp_path / "alone")
    alone = pretrained(AutoModelForCausalLM, tmp_path / "alone", **given)
    assert type(alone) is type(model)
    with torch.no_grad():
        assert torch.equal(alone.eval()(input_ids=ids).logits, model(input_ids=ids).logits)


def test_the_class_of_the_whole_decides_what_is_tied(tmp_path: Path) -> None:
    """MistralConfig says no where Mistral3Config says yes."""
    config = AutoConfig.from_pretrained(make_whole("mistral3", tmp_path))
    assert language_config(config).tie_word_embeddings
    config.tie_word_embeddings = False
    assert not language_config(config).tie_word_embeddings


def test_a_language_model_stays_what_it_is(tiny_model: Path) -> None:
    config = AutoConfig.from_pretrained(tiny_model)
    assert language_config(config) is config


def test_a_decoder_without_a_class_generates_and_scores(tmp_path: Path) -> None:
    from transformers import AutoModelForSequenceClassification

    config = AutoConfig.from_pretrained(make_whole("qwen3_vl", tmp_path))
    model = from_config(AutoModelForCausalLM, config, trust_remote_code=False)
    ids = torch.full((1, 4), 5)
    assert model.generate(ids, max_new_tokens=2, do_sample=False, pad_token_id=0).shape == (1, 6)
    assert model(input_ids=ids, labels=ids).loss.ndim == 0
    config.num_labels = 1
    scores = from_config(AutoModelForSequenceClassification, config, trust_remote_code=False)
    scores.config.pad_token_id = 0
    assert scores(input_ids=ids).logits.shape == (1, 1)


def test_logits_are_scaled_before_they_are_capped() -> None:
    config = SimpleNamespace(logits_scaling=2.0, output_multiplier=8.0, final_logit_softcapping=4.0)
    assert _scaled(torch.tensor([1.0]), config).item() == pytest.approx(4 * math.tanh(1.0))
    assert _scaled(torch.tensor([1.0]), SimpleNamespace()).item() == 1.0


def test_a_prefix_without_a_tower_is_a_whole_as_well(tmp_path: Path) -> None:
    """Nothing is kept aside, and the names and the class are the base's all the same."""
    base, folder = make_whole("gemma3", tmp_path / "base"), tmp_path / "out"
    every = load_file(base / "model.safetensors")
    texts = {name: tensor for name, tensor in every.items() if name.startswith("language_model.")}
    save_file(texts, base / "model.safetensors", metadata={"format": "pt"})
    pretrained(AutoModelForCausalLM, base, trust_remote_code=False).save_pretrained(folder)
    assert complete(folder, base, saved_skeleton(folder, False), None).tensors == []
    assert {*load_file(folder / "model.safetensors")} == {*texts}
    assert AutoConfig.from_pretrained(folder).model_type == "gemma3"


@pytest.mark.parametrize("model_type", ["glm4_moe", "falcon_h1", "llama4_text", "recurrent_gemma"])
def test_a_reward_model_is_made_of_a_decoder_without_one(model_type: str, tmp_path: Path) -> None:
    """Its states are the language model's, and it is read back as it was; Mamba's decoder does not fit."""
    folder = tiny_checkpoint(model_type, tmp_path / "base")
    given: dict[str, Any] = {"trust_remote_code": False, "dtype": torch.float32}
    model = pretrained(AutoModelForSequenceClassification, folder, num_labels=1, **given).eval()
    language = pretrained(AutoModelForCausalLM, folder, **given).eval()
    ids = torch.randint(5, 250, (2, 9), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        states = body_of(language)(input_ids=ids).last_hidden_state
        scores = model(input_ids=ids).logits
        torch.testing.assert_close(scores, model.score(states[:, -1]))
        model.save_pretrained(tmp_path / "rm")
        again = pretrained(AutoModelForSequenceClassification, tmp_path / "rm", **given).eval()
        torch.testing.assert_close(again(input_ids=ids).logits, scores)


def test_no_reward_model_is_made_of_what_takes_no_positions(tmp_path: Path) -> None:
    config = tiny_config("mamba2")
    make_reward_models(config)
    assert type(config) not in MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING
