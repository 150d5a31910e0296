"""Weights of another model than config.json says are refused by names and shapes; those of every architecture fit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSequenceClassification, BitsAndBytesConfig

from hftune.arguments.entry import parse_arguments
from hftune.errors import ArgumentError, UserError
from hftune.models.classes import make_reward_models
from hftune.models.loading.config_file import beyond_last, check_layers, layer_count, missing_layers
from hftune.models.loading.stored_weights import (
    check_loaded,
    check_stored,
    find_mismatch,
    stored_otherwise,
    tensors_by_parameter,
)
from hftune.preflight.check_run import check_run
from hftune.preflight.facts import resolve
from hftune.tools.export.arguments import GgufArguments
from hftune.tools.export.run import check_export
from hftune.trainers.features.saving import load_best, load_weights
from hftune.trainers.rewards.loading import load_reward_model as load_finished_reward_model
from hftune.weight_files import weight_shapes
from tests.architectures import ARCHITECTURES, few_quick, make_config, make_model
from tests.table.tiny import model_class, tiny_checkpoint, tiny_config
from tests.unit.models.adapting import loaded
from tests.unit.trainers.features import made_up

pytestmark = pytest.mark.long

NAMES = few_quick([*ARCHITECTURES, "qwen2_moe"])
FLAG = "--model_name_or_path"


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The folder of a tiny model of each architecture, made once."""
    made: dict[str, Path] = {}

    def folder(name: str) -> Path:
        if name not in made:
            made[name] = make_model(name, tmp_path_factory.mktemp(name))
        return made[name]

    return folder


def bare(folder: Path, *, scores: bool = False, **changes: Any) -> Any:
    config = AutoConfig.from_pretrained(folder, **({"num_labels": 1} if scores else {}))
    for name, value in changes.items():
        setattr(config, name, value)
    auto = AutoModelForSequenceClassification if scores else AutoModelForCausalLM
    if scores:
        make_reward_models(config)
    with torch.device("meta"):
        model = auto.from_config(config)
    model.tie_weights()
    return model


@pytest.mark.parametrize("name", NAMES)
def test_a_good_checkpoint_fits(name: str, models: Any) -> None:
    found = find_mismatch(bare(models(name)), weight_shapes(models(name)))
    assert not found and not found.aside, found
    check_layers(json.loads((models(name) / "config.json").read_text()), weight_shapes(models(name)), "m", FLAG)


def without(shapes: dict[str, Any], part: str) -> dict[str, Any]:
    return {name: shape for name, shape in shapes.items() if part not in name}


@pytest.mark.parametrize("name", NAMES)
def test_a_layer_too_many_or_too_few(name: str, models: Any) -> None:
    shapes = weight_shapes(models(name))
    last = max(int(part) for key in shapes for part in key.split(".") if part.isdecimal() and "layers." in key
               and key.split("layers.")[1].split(".")[0] == part)  # fmt: skip
    more = {key.replace(f"layers.{last}.", f"layers.{last + 2}."): shape for key, shape in shapes.items()}
    fewer = without(shapes, f"layers.{last}.")
    for scores in (False, True):
        model = bare(models(name), scores=scores)
        found = find_mismatch(model, shapes | more, scores=scores)
        assert found.beyond and all(f"layers.{last + 2}." in key for key in found.beyond) and not found.lacking
        found = find_mismatch(model, fewer, scores=scores)
        assert found.lacking and all(f"layers.{last}." in key for key in found.lacking) and not found.beyond
    config = json.loads((models(name) / "config.json").read_text())
    for other in (shapes | more, fewer):
        with pytest.raises(ArgumentError, match=f"config.json says {last + 1} layers"):
            check_layers(config, other, "m", FLAG)


def test_other_sizes(models: Any) -> None:
    shapes, embedding = weight_shapes(models("llama")), "model.embed_tokens.weight"
    found = find_mismatch(bare(models("llama")), shapes | {embedding: (7, 32)})
    assert [*found.shapes.values()] == [((7, 32), shapes[embedding])]
    assert "[7, 32] for [" in found.describe()


@pytest.mark.parametrize("name", ["mixtral", "deepseek_v3"])
@pytest.mark.parametrize("change", ["an expert less", "an expert more", "a matrix less"])
def test_experts(name: str, change: str, models: Any) -> None:
    shapes = weight_shapes(models(name))
    key = next(key for key in shapes if ".experts.3." in key)
    if change == "an expert more":
        other = shapes | {k.replace(".experts.3.", ".experts.4."): s for k, s in shapes.items() if ".experts.3." in k}
    else:
        other = without(shapes, ".experts.3." if change == "an expert less" else key)
    found = find_mismatch(bare(models(name)), other)
    assert found.lacking and "parts)" in found.describe()


def test_a_tied_head_need_not_be_stored_nor_lack(models: Any) -> None:
    shapes = weight_shapes(models("qwen3"))
    model = bare(models("qwen3"))
    head = {"lm_head.weight": shapes["model.embed_tokens.weight"]}
    assert "lm_head.weight" not in shapes and not find_mismatch(model, shapes | head)
    assert not find_mismatch(model, without(shapes, "embed_tokens") | head), "stored under the other name"
    assert find_mismatch(model, without(shapes, "embed_tokens")).lacking


def test_a_bias_that_the_config_switches_off(models: Any) -> None:
    shapes = weight_shapes(models("llama"))
    name = "model.layers.0.self_attn.q_proj.bias"
    assert find_mismatch(bare(models("llama")), shapes | {name: (32,)}).beyond == [name]


OTHERS = {
    "vision_tower.encoder.layers.7.weight": (4, 4),
    "model.vision_tower.blocks.9.attn.qkv.weight": (4, 4),
    "multi_modal_projector.linear.weight": (4, 4),
    "mtp.layers.0.mlp.weight": (4, 4),
}


def test_parts_that_are_not_loaded_are_said_and_no_fault(models: Any) -> None:
    from hftune.logging import notices

    shapes = weight_shapes(models("llama"))
    rotary = {f"model.layers.{number}.self_attn.rotary_emb.inv_freq": (4,) for number in (0, 1)}
    found = find_mismatch(bare(models("llama")), shapes | OTHERS | rotary)
    assert not found and {*OTHERS} <= {*found.aside} and not {*rotary} & {*found.aside}
    check_layers({"num_hidden_layers": 2}, {**shapes, **OTHERS}, "m", FLAG)
    save = models("llama").with_name("llama_and_more")
    save.mkdir()
    (save / "config.json").write_bytes((models("llama") / "config.json").read_bytes())
    save_file({name: torch.zeros(shape) for name, shape in (shapes | OTHERS).items()}, save / "model.safetensors")
    check_stored(bare(models("llama")), str(save), flag=FLAG)
    assert any("and 2 more; not loaded" in said for said in notices())


@pytest.mark.parametrize("number", [3, 4])
def test_layers_that_predict_further_tokens(number: int, models: Any) -> None:
    """DeepSeek-V3 and GLM-4.5 store them behind the others; some configs do not say how many there are."""
    shapes = weight_shapes(models("deepseek_v3"))
    more = {key.replace("layers.2.", f"layers.{number}."): s for key, s in shapes.items() if "layers.2." in key}
    model = bare(models("deepseek_v3"), num_nextn_predict_layers=0)
    assert find_mismatch(model, shapes | more).beyond
    assert not find_mismatch(model, shapes | more | {f"model.layers.{number}.eh_proj.weight": (32, 64)})
    said = bare(models("deepseek_v3"), num_nextn_predict_layers=number - 2)
    assert not find_mismatch(said, shapes | more)
    config = {"num_hidden_layers": 3, "num_nextn_predict_layers": number - 2}
    assert not beyond_last(config, more) and beyond_last(config | {"num_nextn_predict_layers": 0}, more)


@pytest.mark.parametrize(
    ("config", "count"),
    [
        ({"num_hidden_layers": 3}, 3),
        ({"n_layer": 4}, 4),
        ({"text_config": {"num_hidden_layers": 5}, "num_hidden_layers": 9}, 5),
        ({"text_config": {}}, 0),
        ({}, 0),
    ],
)
def test_how_many_layers_a_config_says(config: dict, count: int) -> None:
    assert layer_count(config) == count
    assert missing_layers(config, ["model.layers.0.a"]) == [*range(1, count)]
    assert missing_layers(config, ["something.else"]) == [], "an architecture that is not known"
    assert bool(beyond_last(config, [f"transformer.h.{count}.a"])) == (count > 0)


# --- through the doors -----------------------------------------------------------------------------------------------


def copied(models: Any, folder: Path, **config: Any) -> Path:
    """The llama with other fields in its config.json."""
    folder.mkdir()
    for file in models("llama").iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    fields = json.loads((folder / "config.json").read_text()) | config
    (folder / "config.json").write_text(json.dumps(fields))
    return folder


@pytest.mark.parametrize(
    ("stage", "fields", "said"),
    [
        ("sft", {"num_hidden_layers": 1}, "no part of the model: "),
        ("rm", {"num_hidden_layers": 3}, "not stored"),
        ("rl", {"intermediate_size": 48}, "[64, 32] for [48, 32]"),
        ("sft", {"attention_bias": True}, "_proj.bias"),
        ("rm", {"num_hidden_layers": 10**9}, "says 1000000000 layers, which no model has"),
    ],
)
def test_before_a_model_loads(
    stage: str, fields: dict, said: str, models: Any, tmp_path: Path, tiny_data: Path
) -> None:
    folder = copied(models, tmp_path / "m", **fields)
    argv = [FLAG, str(folder), "--output_dir", str(tmp_path / "o"), "--train_file_dir", str(tiny_data)]
    argv += ["--reward_funcs", "length"] if stage == "rl" else []
    groups = parse_arguments(stage, argv)
    with pytest.raises(UserError) as error:
        check_run(resolve(stage, groups))
    assert said in str(error.value) and FLAG in str(error.value)


@pytest.mark.parametrize("stage", ["sft", "rm"])
def test_after_it_has_loaded(stage: str, models: Any, tmp_path: Path) -> None:
    """Weights in another format have no names before."""
    folder = copied(models, tmp_path / "m", num_hidden_layers=1)
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    with pytest.raises(ArgumentError, match="different models"):
        loaded(stage, folder)


def test_a_reward_model_lacks_no_head(models: Any, tmp_path: Path) -> None:
    """One that is to score, not one that is to be trained."""
    folder = copied(models, tmp_path / "m", architectures=["LlamaForSequenceClassification"])
    with pytest.raises(ArgumentError, match=r"not stored: score.weight"):
        load_finished_reward_model(str(folder), torch.float32)


@pytest.mark.parametrize("count", [1, 3])
def test_nothing_is_exported(count: int, models: Any, tmp_path: Path) -> None:
    folder = copied(models, tmp_path / "m", num_hidden_layers=count)
    args = GgufArguments(model_name_or_path=str(folder), output_dir=str(tmp_path / "o"))
    assert any("different models" in problem.cause for problem in check_export(args))


@pytest.mark.parametrize("model_type", ["hrm_text", "deepseek_v4"])
def test_whatever_transformers_writes_and_reads_is_whole(model_type: str, tmp_path: Path) -> None:
    """One tensor that becomes several parameters, and one that a rule for others would rename."""
    folder = tiny_checkpoint(model_type, tmp_path)
    with torch.device("meta"):
        model = model_class(model_type)(tiny_config(model_type))
    stored = dict(weight_shapes(str(folder)))
    assert not find_mismatch(model, stored)
    cut = next(name for name in stored if "layers.0" in name and ("gqkv" in name or "wkv" in name))
    del stored[cut]
    assert find_mismatch(model, stored).lacking


def test_quantised_weights_are_not_read_by_their_names(models: Any) -> None:
    model = bare(models("llama"))
    model.config.quantization_config = BitsAndBytesConfig(load_in_4bit=True)
    check_stored(model, str(models("qwen2")), flag=FLAG)


def test_what_transformers_says_of_a_load(models: Any) -> None:
    model = bare(models("llama"))
    info: dict[str, Any] = {"missing_keys": {"score.weight"}, "unexpected_keys": {"lm_head.weight", "vision.x"}}
    check_loaded(info, model, "m", flag=FLAG, scores=True)
    with pytest.raises(ArgumentError, match=r"not stored: score.weight"):
        check_loaded(info, model, "m", flag=FLAG, scores=False)


SPLIT = {"llama": False, "mixtral": True, "qwen3_moe": True}


def made(name: str, seed: int, dtype: torch.dtype = torch.float32) -> Any:
    torch.manual_seed(seed)
    return AutoModelForCausalLM.from_config(make_config(name), dtype=dtype)


@pytest.mark.parametrize(
    ("name", "dtype"),
    [("llama", torch.float32), ("llama", None), ("mixtral", torch.bfloat16), ("mixtral", None), ("qwen3_moe", None)],
)
def test_the_weights_of_a_run_come_back(name: str, dtype: torch.dtype | None, tmp_path: Path) -> None:
    saved, live = (made(name, seed, dtype or torch.bfloat16) for seed in (1, 2))
    if dtype is None:  # several types: the norm's small differences would be lost in the other one
        for model in (saved, live):
            model.model.norm.float()
        saved.model.norm.weight.data += 1e-4
    saved.save_pretrained(tmp_path)
    assert stored_otherwise(live, tmp_path) == SPLIT[name]
    found, wanted = tensors_by_parameter(live, tmp_path), saved.state_dict()
    assert {*found} == {*wanted}
    for parameter, tensor in wanted.items():
        assert torch.equal(found[parameter].to(tensor.dtype), tensor), parameter
    run = made_up.run(model=live)
    assert load_weights(run, str(tmp_path)) == SPLIT[name]
    assert all(torch.equal(live.state_dict()[n], tensor) for n, tensor in wanted.items()) == SPLIT[name]


def test_the_best_weights_come_back(tmp_path: Path) -> None:
    saved, live = made("mixtral", 1), made("mixtral", 2)
    saved.save_pretrained(tmp_path)
    run = made_up.run(model=live)
    run.state.best_model_checkpoint = str(tmp_path)
    assert load_best(run)
    assert all(torch.equal(live.state_dict()[n], tensor) for n, tensor in saved.state_dict().items())


def test_adapters_have_peft_s_names(tmp_path: Path) -> None:
    model = get_peft_model(made("mixtral", 1), LoraConfig(r=2, target_modules=["q_proj"]))
    model.save_pretrained(tmp_path)
    assert not stored_otherwise(model, tmp_path)
    assert len(tensors_by_parameter(model, tmp_path)) == 2 * model.config.num_hidden_layers
