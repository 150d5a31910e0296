"""What is saved after training on text: every tensor of the base by its name, and only what was trained changed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

from hftune.models.loading.from_pretrained import pretrained
from hftune.models.parts.whole_model import complete
from hftune.trainers.whole_result import saved_skeleton
from hftune.weight_files import INDEX_NAME
from tests.architectures import make_model
from tests.table.tiny import tiny_checkpoint
from tests.towers import WHOLE, image_logits, make_whole, make_with_further_head


def tensors_of(folder: Path) -> dict[str, torch.Tensor]:
    return {name: tensor for file in folder.glob("*.safetensors") for name, tensor in load_file(file).items()}


def train_alone(base: Path, folder: Path) -> Any:
    """The language model of a base with every parameter moved, saved on its own in float32."""
    model = pretrained(AutoModelForCausalLM, base, trust_remote_code=False, dtype=torch.float32)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.25)
    model.save_pretrained(folder)
    return model


def make_base(name: str, folder: Path) -> Path:
    return make_with_further_head(folder) if name == "further head" else make_whole(name, folder)


@pytest.mark.parametrize("name", [*WHOLE, "further head"])
def test_all_of_the_base_is_there(name: str, tmp_path: Path) -> None:
    base, folder = make_base(name, tmp_path / "base"), tmp_path / "out"
    (base / "spk_dict.pt").write_bytes(b"voices, which nobody reads")
    model = train_alone(base, folder)
    frozen = "model.norm.weight"
    trained = {key for key, _ in model.named_parameters() if key != frozen}
    kept = complete(folder, base, saved_skeleton(folder, False), trained)
    before, after = tensors_of(base), tensors_of(folder)
    shapes = [{key: (tensor.dtype, tensor.shape) for key, tensor in all_.items()} for all_ in (before, after)]
    assert shapes[0] == shapes[1]
    same = {key for key in before if torch.equal(before[key], after[key])}
    assert {*kept.tensors} <= same
    # Buffers, and the one norm that was not trained.
    others = [key for key in same - {*kept.tensors} if not key.endswith(("layer_scalar", "e_score_correction_bias"))]
    assert len(others) == 1 and others[0].endswith("norm.weight")
    moved = next(key for key in before if key.endswith("embed_tokens.weight") and "layers" not in key)
    assert torch.equal(after[moved], (before[moved].float() + 0.25).to(before[moved].dtype))
    assert json.loads((folder / "config.json").read_text()) == json.loads((base / "config.json").read_text())
    processors = {file.name for file in base.glob("*processor_config.json")}
    assert processors == {file.name for file in folder.glob("*processor_config.json")}
    assert (folder / "spk_dict.pt").read_bytes() == (base / "spk_dict.pt").read_bytes()
    assert kept.nbytes == sum(before[key].nbytes for key in kept.tensors)


def test_files_are_divided_as_the_base_is(tmp_path: Path) -> None:
    base, folder = make_whole("gemma3", tmp_path / "base"), tmp_path / "out"
    every = load_file(base / "model.safetensors")
    (base / "model.safetensors").unlink()
    files = {"model-00001-of-00002.safetensors": [*every][:20], "model-00002-of-00002.safetensors": [*every][20:]}
    for file, names in files.items():
        save_file({name: every[name] for name in names}, base / file, metadata={"format": "pt"})
    weight_map = {name: file for file, names in files.items() for name in names}
    (base / INDEX_NAME).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    train_alone(base, folder)
    complete(folder, base, saved_skeleton(folder, False), None)
    assert json.loads((folder / INDEX_NAME).read_text())["weight_map"] == weight_map
    assert {file.name: {*load_file(file)} for file in folder.glob("*.safetensors")} == {
        file: {*names} for file, names in files.items()
    }


def test_a_vocabulary_that_grew_and_a_head_of_its_own(tmp_path: Path) -> None:
    """What training changed of the config is in the whole's, for each of its readers."""
    base, folder = make_whole("mistral3", tmp_path / "base"), tmp_path / "out"
    model = pretrained(AutoModelForCausalLM, base, trust_remote_code=False, dtype=torch.float32)
    model.resize_token_embeddings(328, mean_resizing=False)
    model.config.tie_word_embeddings = False
    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight + 1)
    model.all_tied_weights_keys = {}
    model.save_pretrained(folder)
    complete(folder, base, saved_skeleton(folder, False), {"lm_head.weight"})
    after, config = tensors_of(folder), json.loads((folder / "config.json").read_text())
    assert after["language_model.model.embed_tokens.weight"].shape == (328, 32)
    whole = AutoModelForImageTextToText.from_pretrained(folder)
    assert torch.equal(whole.lm_head.weight, after["lm_head.weight"]) and whole.lm_head.weight.dtype == torch.bfloat16
    assert config["text_config"]["vocab_size"] == 328 and config["tie_word_embeddings"] is False
    assert config["architectures"] == ["Mistral3ForConditionalGeneration"]


def test_a_tied_head_that_is_stored_twice_is_trained_in_both_places(tmp_path: Path) -> None:
    base, folder = make_whole("gemma3", tmp_path / "base"), tmp_path / "out"
    every = load_file(base / "model.safetensors")
    embeddings = every["language_model.model.embed_tokens.weight"]
    save_file(every | {"language_model.lm_head.weight": embeddings.clone()}, base / "model.safetensors")
    model = train_alone(base, folder)
    complete(folder, base, saved_skeleton(folder, False), {key for key, _ in model.named_parameters()})
    after = tensors_of(folder)
    head = after["language_model.lm_head.weight"]
    assert torch.equal(head, after["language_model.model.embed_tokens.weight"]) and not torch.equal(head, embeddings)


def test_a_language_model_that_is_all_there_is_stays_as_it_was_saved(tmp_path: Path) -> None:
    base, folder = make_model("qwen3", tmp_path / "base"), tmp_path / "out"
    train_alone(base, folder)
    before = {file.name: file.read_bytes() for file in folder.iterdir()}
    assert complete(folder, base, saved_skeleton(folder, False), None).tensors == []
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == before


def test_weights_under_the_names_that_they_have_in_memory(tmp_path: Path) -> None:
    """As shards of ZeRO are put together: experts are one tensor there, and one each in the base."""
    base, folder = make_with_further_head(tmp_path / "base"), tmp_path / "out"
    model = train_alone(base, folder)
    save_file({key: one.contiguous() for key, one in model.state_dict().items()}, folder / "model.safetensors")
    complete(folder, base, saved_skeleton(folder, False), None, cast=False)
    before, after = tensors_of(base), tensors_of(folder)
    assert {key: one.shape for key, one in before.items()} == {key: one.shape for key, one in after.items()}
    expert = "model.layers.1.mlp.experts.2.down_proj.weight"
    assert torch.allclose(after[expert], before[expert] + 0.25, atol=1e-6)


@pytest.mark.parametrize("name", WHOLE)
def test_an_image_is_seen_as_before_where_only_text_was_trained(name: str, tmp_path: Path) -> None:
    """The same logits where nothing that was trained has a part in them, others where it has."""
    base, same, other = make_whole(name, tmp_path / "base"), tmp_path / "same", tmp_path / "other"
    pretrained(AutoModelForCausalLM, base, trust_remote_code=False, dtype=torch.float32).save_pretrained(same)
    complete(same, base, saved_skeleton(same, False), None)
    assert torch.equal(image_logits(same), image_logits(base))
    assert not torch.equal(image_logits(same, seed=1), image_logits(base)), "the image has no part in the logits"
    train_alone(base, other)
    complete(other, base, saved_skeleton(other, False), set())  # all of it was frozen
    assert torch.equal(image_logits(other), image_logits(base))
    train_alone(base, tmp_path / "trained")
    complete(tmp_path / "trained", base, saved_skeleton(tmp_path / "trained", False), None)
    assert not torch.allclose(image_logits(tmp_path / "trained"), image_logits(base), atol=1e-3)


def test_infinities_of_a_config_are_read_as_transformers_writes_them(tmp_path: Path) -> None:
    base, folder = tiny_checkpoint("nemotron_h_omni", tmp_path / "base"), tmp_path / "out"
    train_alone(base, folder)
    assert complete(folder, base, saved_skeleton(folder, False), None).tensors
    assert json.loads((folder / "config.json").read_text()) == json.loads((base / "config.json").read_text())
