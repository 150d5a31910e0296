"""Whatever a folder's files say that nobody can load is one message."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer

from hftune.arguments.asking import AskArguments
from hftune.errors import UserError
from hftune.inference.loading import load_talker
from hftune.models.loading.from_pretrained import reporting_damage
from hftune.trainers.rewards.loading import load_reward_model

LOADERS: dict[str, Callable[[Path], Any]] = {
    "answers": lambda folder: load_talker(str(folder), AskArguments(use_cpu=True)),
    "scores": lambda folder: load_reward_model(str(folder), torch.float32),
}
CONFIGS: dict[str, tuple[dict[str, Any], str]] = {
    "unknown quantisation": ({"quantization_config": {"quant_method": "foo"}}, "is quantised by foo"),
    "no quantisation's name": ({"quantization_config": {"bits": 4}}, "has no `quant_method` attribute"),
    "half a quantisation": ({"quantization_config": {"quant_method": "torchao"}}, "another shape"),
    "kernels of the Hub": ({"_attn_implementation": "x/y"}, "code of others"),
    "kernels for a part": ({"attn_implementation": {"": "x/y:z"}}, "code of others"),
    "kernels within": ({"text_config": {"_experts_implementation": "x/y"}}, "code of others"),
    "no implementation": ({"_attn_implementation": 5}, "another shape"),
    "unknown activation": ({"hidden_act": "foo"}, "another shape"),
    "unknown rotation": ({"rope_parameters": {"rope_type": "foo", "rope_theta": 1e4}}, "another shape"),
    "a token beyond the rows": ({"pad_token_id": 10**6}, "another shape"),
    "other sizes": ({"num_key_value_heads": 4}, "another shape"),
    "fewer layers": ({"num_hidden_layers": 1}, "config.json says 1 layers"),
}


@pytest.fixture(scope="module")
def models(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    model: Any = AutoModelForCausalLM.from_pretrained(tiny_model)
    get_peft_model(model, LoraConfig(task_type="CAUSAL_LM")).save_pretrained(folder / "adapter")
    AutoModelForSequenceClassification.from_pretrained(tiny_model, num_labels=1).save_pretrained(folder / "scores")
    for name in ("adapter", "scores"):
        AutoTokenizer.from_pretrained(tiny_model).save_pretrained(folder / name)
    return {"answers": tiny_model, "scores": folder / "scores", "adapter": folder / "adapter"}


def changed(folder: Path, to: Path, file: str, **values: Any) -> Path:
    shutil.copytree(folder, to)
    (to / file).write_text(json.dumps(json.loads((to / file).read_text()) | values))
    return to


@pytest.mark.parametrize("case", CONFIGS)
def test_a_config(models: dict[str, Path], tmp_path: Path, case: str) -> None:
    values, words = CONFIGS[case]
    loader = [*LOADERS][[*CONFIGS].index(case) % 2]  # both read it by one function
    folder = changed(models[loader], tmp_path / "model", "config.json", **values)
    with pytest.raises(UserError) as problem:
        LOADERS[loader](folder)
    assert words in str(problem.value) and str(folder) in str(problem.value)


@pytest.mark.parametrize("loader", LOADERS)
def test_weights_that_are_nan(models: dict[str, Path], tmp_path: Path, loader: str) -> None:
    shutil.copytree(models[loader], tmp_path / "model")
    file = tmp_path / "model" / "model.safetensors"
    tensors = load_file(file)
    name = "model.layers.0.self_attn.q_proj.weight"
    tensors[name][0, 0] = torch.nan
    save_file(tensors, file, metadata={"format": "pt"})
    with pytest.raises(UserError, match=f"{name} of .* holds values that are NaN or infinite"):
        LOADERS[loader](tmp_path / "model")


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"alora_invocation_tokens": [1, 2]}, "acts on some tokens"),
        ({"arrow_config": {"arrow_top_k": 2}}, "acts on some tokens"),
        ({"task_type": "FOO"}, "refuses the adapter's config: Invalid task type"),
        ({"monteclora_config": {"x": 1}}, "another shape"),
        ({"layer_replication": [[0, 9]]}, "another shape"),
    ],
)
def test_an_adapter(models: dict[str, Path], tmp_path: Path, values: dict[str, Any], words: str) -> None:
    own = {"base_model_name_or_path": str(models["answers"])} | values
    folder = changed(models["adapter"], tmp_path / "adapter", "adapter_config.json", **own)
    with pytest.raises(UserError) as problem:
        LOADERS["answers"](folder)
    assert words in str(problem.value)


@pytest.mark.parametrize(
    "error", [torch.OutOfMemoryError("full"), ValueError("kept for the caller"), OSError("no such name"), SystemExit(1)]
)
def test_what_is_no_fault_of_the_files_passes(error: BaseException) -> None:
    with pytest.raises(type(error)), reporting_damage("folder"):
        raise error


def test_of_a_model_in_parts_only_damage_is_said() -> None:
    with pytest.raises(KeyError), reporting_damage("folder", shapes=False):
        raise KeyError("x")
    with pytest.raises(UserError, match="needs a package that is not here"), reporting_damage("folder", shapes=False):
        raise ImportError("pip install x")
