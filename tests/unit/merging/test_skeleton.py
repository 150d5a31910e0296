"""Names on disk and in memory, by transformers' own rules."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hftune.errors import ArgumentError
from hftune.merging import skeleton
from hftune.merging.skeleton import BaseTensors, StoredSlice, Unsupported, _match_converted, build_skeleton, match_names
from hftune.models.loading import stored_weights
from hftune.models.loading.stored_weights import Rules
from hftune.weight_files import stored_tensors


def read(folder: Path, **more: Any) -> tuple[BaseTensors, list[str]]:
    base = BaseTensors(dict(stored_tensors(folder)))
    return base, match_names(base, build_skeleton(folder, trust_remote_code=False, **more))


def test_names_that_are_the_same(make_base: Callable) -> None:
    base, unused = read(make_base("llama", tie_word_embeddings=True))
    assert unused == [] and base.tied == {"lm_head.weight": "model.embed_tokens.weight"}
    assert base.slices("model.embed_tokens.weight") == [StoredSlice("model.embed_tokens.weight")]
    assert base.slices("lm_head.weight") == [] and base.shape("lm_head.weight") == base.shape(
        "model.embed_tokens.weight"
    )
    assert base.shape("model.nothing") is None and base.module("model.nothing") is None


def test_experts_that_are_one_parameter_in_memory(make_base: Callable) -> None:
    base, _ = read(make_base("mixtral"))
    name = "model.layers.0.mlp.experts.gate_up_proj"
    slices = base.slices(name)
    shape = base.shape(name)
    assert shape is not None and name not in base.stored and len(slices) == 2 * shape[0]
    assert {(one.expert, one.part) for one in slices} == {(e, part) for e in range(shape[0]) for part in (0, 1)}
    up = next(one for one in slices if (one.expert, one.part) == (1, 1))
    assert up.stored.endswith("experts.1.w3.weight") and up.parts == 2
    assert base.stored[up.stored].shape == (shape[1] // 2, shape[2])


def test_a_reward_model_leaves_the_head(make_base: Callable) -> None:
    base, unused = read(make_base("llama"), head="score", labels=3)
    assert unused == ["lm_head.weight"]
    shape = base.shape("score.weight")
    assert shape is not None and shape[0] == 3


def test_a_conversion_that_is_not_known_is_peft_s() -> None:
    base = BaseTensors({})
    rule = SimpleNamespace(
        operations=[type("Chunk", (), {"dim": 0})()], source_patterns=["qkv"], target_patterns=["q", "k", "v"]
    )
    _match_converted(base, "layers.0.qkv.weight", "layers.0.q.weight", "qkv", rule)  # type: ignore[arg-type]  # a stand-in
    with pytest.raises(Unsupported, match=r"layers\.0\.q\.weight is made from stored tensors by Chunk"):
        base.slices("layers.0.q.weight")


def test_without_a_skeleton_names_are_all_there_is(make_base: Callable) -> None:
    base = BaseTensors(dict(stored_tensors(make_base("llama"))))
    assert base.tied == {} and base.module("model") is None
    assert base.slices("lm_head.bias") == []


def test_a_model_that_nobody_knows(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "no_such_model"}')
    with pytest.raises(ArgumentError, match="transformers cannot build the model of"):
        build_skeleton(tmp_path, trust_remote_code=False)


def test_code_of_a_model_runs_where_that_is_asked_for_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []
    for name in ("pretrained", "from_config"):
        monkeypatch.setattr(skeleton, name, lambda *_, trust_remote_code=None: asked.append(trust_remote_code))
    for trusted in (True, False):
        build_skeleton(tmp_path, trust_remote_code=trusted)
    assert asked == [True, True, False, False]


def operation(kind: str, dim: int) -> Any:
    return type(kind, (), {"dim": dim})()


MERGE, CONCATENATE = operation("MergeModulelist", 0), operation("Concatenate", 1)


@pytest.mark.parametrize(
    ("operations", "patterns", "targets", "found"),
    [
        ([MERGE, CONCATENATE], ["experts.*.w1.weight", "experts.*.w3.weight"], ["fused"], (13, 1, 2)),
        ([MERGE, CONCATENATE], ["experts.*.w3.weight", "experts.*.w1.weight"], ["fused"], (13, 0, 2)),
        ([MERGE], ["experts.*.w3.weight"], ["fused"], (13, 0, 1)),
        ([MERGE], ["experts.*.w3.weight"], ["one", "two"], "MergeModulelist"),
        ([CONCATENATE], ["experts.*.w3.weight"], ["fused"], "Concatenate"),
        ([MERGE, operation("Concatenate", 0)], ["experts.*.w3.weight"], ["fused"], "MergeModulelist and Concatenate"),
        ([operation("MergeModulelist", 1)], ["experts.*.w3.weight"], ["fused"], "MergeModulelist"),
        ([MERGE], ["experts.w3.weight"], ["fused"], "MergeModulelist"),
        ([MERGE], [".experts.*.w3.weight"], ["fused"], (13, 0, 1)),
        ([MERGE], [r"\.experts.*.w3.weight"], ["fused"], (13, 0, 1)),
        ([MERGE], ["moe.experts.*.w3"], ["fused"], "MergeModulelist"),
        ([MERGE], ["moe.experts....w3.weight"], ["fused"], "MergeModulelist"),
        ([type("Transpose", (), {})()], ["experts.*.w3.weight"], ["fused"], "Transpose"),
    ],
)
def test_which_expert_and_which_half(
    operations: list[Any], patterns: list[str], targets: list[str], found: Any
) -> None:
    """Experts stacked along the first dimension, gate above up within each; every other way is noted by its name."""
    name, base = "model.layers.4.moe.experts.13.w3.weight", BaseTensors({})
    rule: Any = SimpleNamespace(operations=operations, source_patterns=patterns, target_patterns=targets)
    pattern = next(one for one in patterns if "w3" in one)
    _match_converted(base, name, "fused", pattern, rule)
    if isinstance(found, str):
        assert base.unsupported == {"fused": found} and base.converted == {}
    else:
        assert base.converted == {"fused": [StoredSlice(name, *found)]} and base.unsupported == {}


def test_a_tensor_that_is_cut_into_several_parameters_is_peft_s_for_all_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rule: Any = SimpleNamespace(
        source_patterns=["qkv"], target_patterns=["q", "k", "v"], operations=[SimpleNamespace(dim=0)]
    )
    monkeypatch.setattr(stored_weights, "rules_of", lambda model: Rules([], [rule]))
    monkeypatch.setattr(stored_weights, "rename_source_key", lambda name, *_: ("q", "qkv"))
    base = BaseTensors({"qkv": SimpleNamespace(shape=(3, 1))})  # type: ignore[dict-item]
    model: Any = SimpleNamespace(state_dict=lambda: {"q": 0, "k": 0, "v": 0}, base_model_prefix="model")
    assert match_names(base, model) == []
    assert sorted(base.unsupported) == ["k", "q", "v"] and len({*base.unsupported.values()}) == 1
