"""How a base is loaded for peft: as training loaded it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from hftune.errors import ArgumentError
from hftune.merging import peft_model
from hftune.merging.inputs import Quantisation
from hftune.merging.peft_model import (
    _bitsandbytes,
    _folded,
    _is_renamed,
    _loading_options,
    _stretched,
    load_adapted,
    load_base,
    write_with_peft,
)


def inputs(**given: Any) -> Any:
    plain = {
        "base": SimpleNamespace(gguf_file=None, folder="b"),
        "rope": {},
        "scores": None,
        "trust_remote_code": False,
    }
    return SimpleNamespace(**plain | given)


def test_bits_as_in_training() -> None:
    eight = _bitsandbytes(Quantisation(8, "nf4", False, "F32"))
    assert eight.load_in_8bit and not eight.load_in_4bit
    assert eight.llm_int8_skip_modules == ["lm_head", "score"]
    for kind, nested, compute in (("nf4", True, "BF16"), ("fp4", False, "F32")):
        four = _bitsandbytes(Quantisation(4, kind, nested, compute))
        assert four.load_in_4bit and not four.load_in_8bit
        assert (four.bnb_4bit_quant_type, four.bnb_4bit_use_double_quant) == (kind, nested)
        assert four.bnb_4bit_compute_dtype == {"BF16": torch.bfloat16, "F32": torch.float32}[compute]


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({}, {}),
        ({"scores": 2}, {"num_labels": 2}),
        ({"base": SimpleNamespace(gguf_file="x.gguf", folder="b")}, {"gguf_file": "x.gguf"}),
        (
            {"base": SimpleNamespace(gguf_file="x.gguf", folder="b"), "scores": 1},
            {"gguf_file": "x.gguf", "num_labels": 1},
        ),
    ],
)
def test_options_of_loading(given: dict[str, Any], wanted: dict[str, Any]) -> None:
    assert _loading_options(inputs(**given)) == wanted


@pytest.mark.parametrize("scores", [None, 3])
def test_positions_of_training_stand_in_the_config_before_loading(
    monkeypatch: pytest.MonkeyPatch, scores: int | None
) -> None:
    text = SimpleNamespace(max_position_embeddings=512, hidden_size=8)
    config = SimpleNamespace(get_text_config=lambda: text, num_labels=1)
    monkeypatch.setattr(peft_model, "_config", lambda inputs, options: config)
    given = inputs(rope={"max_position_embeddings": 2048}, scores=scores)
    assert _stretched(given, {}) is config is _loading_options(given)["config"]
    assert text.max_position_embeddings == 2048 and text.hidden_size == 8
    assert config.num_labels == (scores or 1)


@pytest.mark.parametrize(
    ("name", "renamed"),
    [
        ("model.layers.0.mlp.experts.1.up_proj.lora_A.weight", True),
        ("model.layers.0.q_proj.base_layer.weight", True),
        ("lm_head.original_module.weight", True),
        ("lm_head.modules_to_save.weight", True),
        ("model.layers.0.q_proj.lora_A.weight", False),
        ("model.expert.weight", False),
    ],
)
def test_names_that_peft_changes(name: str, renamed: bool) -> None:
    assert _is_renamed(name) is renamed


class Adapted:
    """A model with the adapter of a folder; what is asked of it goes into `calls`."""

    def __init__(self, name: str, calls: list[Any]) -> None:
        self.name, self.calls = name, calls
        self.base_model = SimpleNamespace(set_adapter=lambda names: calls.append(("active", names)))

    def merge_and_unload(self, *, safe_merge: bool) -> str:
        assert safe_merge, "NaN must not get into the weights"
        return f"{self.name} merged"

    def load_adapter(self, folder: str, *, adapter_name: str) -> None:
        self.calls.append((folder, adapter_name))

    def eval(self) -> Adapted:
        return self


def test_adapters_below_are_folded_and_those_side_by_side_are_weighed(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []
    monkeypatch.setattr(peft_model, "load_base", lambda plan, *, quantised: f"base {quantised}")
    monkeypatch.setattr(peft_model, "load_adapter", lambda model, folder: Adapted(f"{model} + {folder}", calls))
    monkeypatch.setattr(peft_model, "_weigh", lambda adapted, name, weight: calls.append((name, weight)))
    one, two, three = (
        SimpleNamespace(folder=name, weight=weight) for name, weight in (("a", 1.0), ("b", 0.5), ("c", 2.0))
    )
    plan: Any = SimpleNamespace(inputs=SimpleNamespace(levels=[[one], [two, three]]))
    found: Any = load_adapted(plan, quantised=True)
    assert found.name == "base True + a merged + b"
    assert calls == [("c", "adapter1"), ("default", 0.5), ("adapter1", 2.0), ("active", ["default", "adapter1"])]
    calls.clear()
    alone: Any = load_adapted(SimpleNamespace(inputs=SimpleNamespace(levels=[[one]])))  # type: ignore[arg-type]
    assert alone.name == "base False + a" and calls == [("default", 1.0)]


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({}, [("AutoModelForCausalLM", {"dtype": torch.float32})]),
        (
            {"head": "score", "scores": 2},
            [("AutoModelForSequenceClassification", {"dtype": torch.float32, "num_labels": 2})],
        ),
        (
            {"base": SimpleNamespace(gguf_file="x.gguf", folder="b")},
            [("AutoModelForCausalLM", {"dtype": torch.float32, "gguf_file": "x.gguf"}), "dtype of GGUF"],
        ),
        (
            {"head": "score", "scores": 2, "quantised": Quantisation(8, "None", False, "BF16")},
            [(
                "AutoModelForSequenceClassification",
                {"dtype": torch.bfloat16, "num_labels": 2, "quantization_config": 8, "device_map": {"": "cpu"}},
            )],
        ),
    ],
)  # fmt: skip
def test_who_loads_a_base_and_with_what(
    given: dict[str, Any], wanted: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Code is trusted as asked."""
    asked: list[Any] = []
    model = SimpleNamespace(eval=lambda: "ready")

    def pretrained(auto: Any, folder: str, *, trust_remote_code: bool, **options: Any) -> Any:
        assert folder == "b" and trust_remote_code
        asked.append((auto.__name__, options))
        return model

    monkeypatch.setattr(peft_model, "pretrained", pretrained)
    monkeypatch.setattr(peft_model, "_bitsandbytes", lambda how: how.bits)
    monkeypatch.setattr(peft_model, "keep_differentiable", lambda model: None)
    monkeypatch.setattr(peft_model, "forget_gguf", lambda model: asked.append("dtype of GGUF"))
    monkeypatch.setattr(peft_model, "_rows_of_adapters", lambda model, adapters: None)
    own = {"head": "causal_lm", "quantised": None, "growth": None, "trust_remote_code": True, "adapters": []}
    plan: Any = SimpleNamespace(inputs=inputs(**own | given), outputs=None)
    loaded: Any = load_base(plan, quantised=True)
    assert loaded == "ready" and asked == wanted


class Written(torch.nn.Linear):
    """A model whose saving is noted."""

    def __init__(self) -> None:
        super().__init__(2, 2)
        self.config, self.saved = SimpleNamespace(get_text_config=lambda: self.config), []  # type: ignore[var-annotated]

    def get_input_embeddings(self) -> None:
        """None, and no head."""

    get_output_embeddings = get_input_embeddings

    def save_pretrained(self, folder: Path, *, max_shard_size: str, save_original_format: bool) -> None:
        assert save_original_format
        self.saved.append((folder, max_shard_size, self.weight.dtype))


def written(folder: Path, monkeypatch: pytest.MonkeyPatch, model: Written | None = None, **given: Any) -> Written:
    model = model or Written()
    monkeypatch.setattr(peft_model, "load_base", lambda plan, *, quantised: model)
    monkeypatch.setattr(peft_model, "_adapted", lambda model, levels: model)
    monkeypatch.setattr(peft_model, "_folded", lambda model, adapter: model)
    own = {"base": SimpleNamespace(gguf_file=None, folder=folder, name="b"), "reward_scale": None, "levels": []}
    own |= {"dtype": None, "config": {}, "tokenizer": folder, "growth": None, "last": None}
    plan: Any = SimpleNamespace(inputs=inputs(**own | given), unsupported="a test", dequantise=False)
    assert write_with_peft(plan, folder / "merged", None) == 0
    return model


@pytest.mark.parametrize(
    ("asked", "config", "stored"),
    [
        (None, {}, torch.float32),
        (None, {"torch_dtype": "bfloat16"}, torch.bfloat16),
        (None, {"dtype": "torch.float16", "torch_dtype": "bfloat16"}, torch.float16),
        ("float64", {"dtype": "float16"}, torch.float64),
    ],
)
def test_a_dtype_is_the_one_asked_for_or_the_base_s_under_either_name(
    asked: str | None, config: dict[str, Any], stored: torch.dtype, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = written(tmp_path, monkeypatch, dtype=asked, config=config)
    assert found.saved == [(tmp_path / "merged", "5GB", stored)]


@pytest.mark.parametrize(
    ("gguf", "own", "saved"), [("x.gguf", False, True), ("x.gguf", True, False), (None, False, False)]
)
def test_a_tokenizer_that_lies_in_a_gguf_file_is_made_of_it(
    gguf: str | None, own: bool, saved: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unless the adapter has one, or the base has files that are copied."""
    made: list[Any] = []

    def pretrained(auto: Any, folder: Path, **options: Any) -> Any:
        made.append((auto.__name__, folder, options))
        return SimpleNamespace(save_pretrained=made.append)

    monkeypatch.setattr(peft_model, "pretrained", pretrained)
    base = SimpleNamespace(gguf_file=gguf, folder=tmp_path)
    tokenizer = tmp_path / "adapter" if own else tmp_path
    written(tmp_path, monkeypatch, base=base, tokenizer=tokenizer, trust_remote_code=True)
    options = {"gguf_file": "x.gguf", "trust_remote_code": True}
    assert made == ([("AutoTokenizer", tmp_path, options), tmp_path / "merged"] if saved else [])


def test_what_cannot_be_folded() -> None:
    adapter: Any = SimpleNamespace(folder="a", config={"peft_type": "PREFIX_TUNING"})
    assert _folded(Adapted("base + a", []), adapter) == "base + a merged"  # type: ignore[arg-type, comparison-overlap]
    with pytest.raises(ArgumentError, match="of type PREFIX_TUNING cannot be merged"):
        _folded(object(), adapter)  # type: ignore[arg-type]
