"""What an adapter's files say: modules, scales, rows, and why peft has to merge it."""

from __future__ import annotations

import json
import os
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig

from hftune.checkpoints.file_records import record_result
from hftune.constants import MANIFEST_NAME
from hftune.errors import ManifestError, UserError
from hftune.merging.adapters import ADAPTER_WEIGHTS, PREFIX, Adapter, read_adapter
from tests.unit.merging.models import store


def adapter(folder: Path, *tensors: str, **config: Any) -> Adapter:
    """A folder with tensors of one element and a config."""
    store(folder, {f"{PREFIX}{name}": torch.ones(1, 1) for name in tensors or ("q.lora_A.weight",)}, ADAPTER_WEIGHTS)
    (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": 1} | config))
    return Adapter(folder)


def test_tensors_by_module(tmp_path: Path) -> None:
    found = adapter(
        tmp_path,
        *("0.q.lora_A.weight", "0.q.lora_B.weight", "0.q.lora_magnitude_vector"),
        *("embed.lora_embedding_A", "embed.lora_embedding_B"),
        *("experts.base_layer.lora_A.weight", "experts.lora_A.weight"),
        *("score.weight", "norm.modules_to_save.bias"),
        "embed.original_module.weight",
    )
    assert {(module.name, module.depth): set(module.tensors) for module in found.modules} == {
        ("0.q", 0): {"lora_A", "lora_B", "lora_magnitude_vector"},
        ("embed", 0): {"lora_embedding_A", "lora_embedding_B"},
        ("experts", 1): {"lora_A"},
        ("experts", 0): {"lora_A"},
    }
    assert set(found.replaced) == {"score.weight", "norm.bias"}
    embedding = next(module for module in found.modules if module.is_embedding)
    assert embedding.matrices == (embedding.tensors["lora_embedding_A"], embedding.tensors["lora_embedding_B"])
    assert embedding.weight == "embed.weight"


def test_scales(tmp_path: Path) -> None:
    pattern = {"layers.1.q": 32, "q": 4}
    plain = adapter(tmp_path / "1", lora_alpha=6, alpha_pattern=pattern)
    assert [plain.scale(name, 4) for name in ("layers.0.k", "layers.1.q", "layers.0.q", "layers.0.qq")] == [
        1.5,
        8,
        1,
        1.5,
    ]
    assert adapter(tmp_path / "2", lora_alpha=6, use_rslora=True).scale("q", 4) == 3
    assert adapter(tmp_path / "3").scale("q", 4) == 2, "peft's own alpha is 8"


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({}, None),
        ({"init_lora_weights": "eva", "corda_config": None}, None),
        ({"peft_type": "LOHA"}, "of type LOHA"),
        ({"init_lora_weights": "pissa"}, "initialised with pissa"),
        ({"layer_replication": [[0, 2]]}, "sets layer_replication"),
        ({"use_something_new": 1, "another": 0}, "sets use_something_new"),
    ],
)
def test_what_peft_has_to_merge(config: dict[str, Any], words: str | None, tmp_path: Path) -> None:
    found = adapter(tmp_path, **config).unsupported()
    assert found is None if words is None else words in str(found)


def test_convolutions_and_pickles_are_peft_s(tmp_path: Path) -> None:
    store(tmp_path, {"conv.lora_A.weight": torch.ones(1, 1, 3)}, ADAPTER_WEIGHTS)
    (tmp_path / "adapter_config.json").write_text('{"peft_type": "LORA"}')
    assert "3 dimensions" in str(Adapter(tmp_path).unsupported())
    # Experts that were trained in full have three as well.
    store(tmp_path, {"experts.up": torch.ones(1, 1, 3), "q.lora_A.weight": torch.ones(1, 1)}, ADAPTER_WEIGHTS)
    assert Adapter(tmp_path).unsupported() is None
    (tmp_path / ADAPTER_WEIGHTS).unlink()
    assert ADAPTER_WEIGHTS in str(Adapter(tmp_path).unsupported())


def test_an_adapter_without_values(tmp_path: Path) -> None:
    adapter(tmp_path)
    store(tmp_path, {"q.lora_A.weight": torch.empty(0, 3)}, ADAPTER_WEIGHTS)
    with pytest.raises(ManifestError, match=r"q\.lora_A\.weight has size 0 \(and 0 more\)"):
        read_adapter(tmp_path, 1.0, "--peft_model_path")
    store(tmp_path, {}, ADAPTER_WEIGHTS)
    with pytest.raises(ManifestError, match="it has no tensors"):
        read_adapter(tmp_path, 1.0, "--peft_model_path")
    with pytest.raises(UserError, match="adapter"):
        read_adapter(tmp_path / "nowhere", 1.0, "--peft_model_path")


OTHERS = {
    *("alora_invocation_tokens", "arrow_config", "kasa_config", "layer_replication", "lora_bias", "megatron_config"),
    *("monteclora_config", "trainable_token_indices", "use_bdlora", "use_qalora", "velora_config"),
}
"""What peft's configs may say that changes what the saved tensors mean, in a way that hftune does not fold."""


@pytest.mark.parametrize("name", sorted({field.name for field in fields(LoraConfig)} - {"peft_type"}))
def test_every_setting_of_peft_is_known_or_left_to_it(name: str, tmp_path: Path) -> None:
    made = adapter(tmp_path)
    vars(made)["config"] = {"peft_type": "LORA", name: True}  # whatever kind of value it takes
    found = made.unsupported()
    assert found == (f"its config sets {name}" if name in OTHERS else None)


@pytest.mark.parametrize("init", [True, False, None, "gaussian", "eva", "orthogonal"])
def test_initialisations_that_leave_the_base_as_it_is(init: Any, tmp_path: Path) -> None:
    assert adapter(tmp_path, init_lora_weights=init).unsupported() is None


def test_an_adapter_counts_as_it_is_told(tmp_path: Path) -> None:
    made = adapter(tmp_path)
    assert made.weight == 1.0 and read_adapter(tmp_path, 0.5, "--peft_model_path").weight == 0.5
    assert made.manifest == {}, "it is from elsewhere"


def test_a_file_that_is_not_the_one_that_was_written(tmp_path: Path) -> None:
    """Of the size and the time that it had: every byte is read."""
    adapter(tmp_path)
    (tmp_path / MANIFEST_NAME).write_text(json.dumps({"files": record_result(tmp_path)}))
    read_adapter(tmp_path, 1.0, "--peft_model_path")
    weights = tmp_path / ADAPTER_WEIGHTS
    before = weights.stat()
    store(tmp_path, {f"{PREFIX}q.lora_A.weight": torch.zeros(1, 1)}, ADAPTER_WEIGHTS)
    assert weights.stat().st_size == before.st_size
    os.utime(weights, ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(UserError, match="is not as hftune wrote it"):
        read_adapter(tmp_path, 1.0, "--peft_model_path")
