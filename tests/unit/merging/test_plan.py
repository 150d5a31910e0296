"""What becomes of each tensor, from names and shapes alone."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from hftune.errors import UserError
from hftune.merging import plan as planning
from hftune.merging.adapters import ADAPTER_WEIGHTS, PREFIX, Adapter
from hftune.merging.changes import Replace
from hftune.merging.inputs import BaseFolder, Inputs
from hftune.merging.plan import Output, Plan, _dtype, _needs_skeleton, _usual_dtype, plan_merge
from hftune.merging.skeleton import BaseTensors, StoredSlice, Unsupported
from hftune.weight_files import stored_tensors
from tests.unit.merging.models import store

Q, K = "model.layers.0.self_attn.q_proj", "model.layers.0.self_attn.k_proj"
EMBED, HEAD = "model.embed_tokens", "lm_head"


def adapter(folder: Path, tensors: dict[str, torch.Tensor], weight: float = 1.0, **config: Any) -> Adapter:
    store(folder, {f"{PREFIX}{name}": tensor for name, tensor in tensors.items()}, ADAPTER_WEIGHTS)
    (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "lora_alpha": 2} | config))
    return Adapter(folder, weight)


def lora(name: str, out: int, inward: int, r: int = 2) -> dict[str, torch.Tensor]:
    return {f"{name}.lora_A.weight": torch.randn(r, inward), f"{name}.lora_B.weight": torch.randn(out, r)}


def planned(base: Path, *levels: list[Adapter], **more: Any) -> Plan:
    config = json.loads((base / "config.json").read_text()) if (base / "config.json").is_file() else {}
    return plan_merge(Inputs(BaseFolder("base", base), config, list(levels), tokenizer=base, **more))


def outputs(plan: Plan) -> dict[str, Output]:
    assert plan.outputs is not None, plan.unsupported
    return {output.name: output for output in plan.outputs}


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A base of which names alone tell everything."""
    floats = {f"{Q}.weight": torch.randn(4, 4).bfloat16(), f"{K}.weight": torch.randn(2, 4).bfloat16()}
    store(tmp_path / "base", floats | {"model.layers.0.steps": torch.ones(1, dtype=torch.int64)})
    return tmp_path / "base"


def test_what_is_not_touched_stays(small: Path, tmp_path: Path) -> None:
    found = outputs(planned(small, [adapter(tmp_path / "a", lora(Q, 4, 4))]))
    assert {name: bool(output.updates) for name, output in found.items()} == {
        f"{K}.weight": False,
        f"{Q}.weight": True,
        "model.layers.0.steps": False,
    }
    assert {output.dtype for output in found.values()} == {"BF16", "I64"}


def test_a_dtype_is_that_of_floating_point_tensors(small: Path, tmp_path: Path) -> None:
    found = outputs(planned(small, [adapter(tmp_path / "a", lora(Q, 4, 4))], dtype="float32"))
    assert [found[name].dtype for name in (f"{Q}.weight", f"{K}.weight", "model.layers.0.steps")] == [
        "F32",
        "F32",
        "I64",
    ]


def test_adapters_in_their_order(small: Path, tmp_path: Path) -> None:
    below, above = (adapter(tmp_path / name, lora(Q, 4, 4)) for name in ("below", "above"))
    updates = outputs(planned(small, [below], [above]))[f"{Q}.weight"].updates
    assert [update.a for update in updates] == [one.modules[0].tensors["lora_A"] for one in (below, above)]


@pytest.mark.parametrize(
    ("tensors", "words"),
    [
        (lora(Q, 4, 6), "q_proj is [4, 4] in the base, its adapter has [4, 2] x [2, 6]"),
        (lora("model.layers.0.other", 4, 4), "no model.layers.0.other.weight"),
        ({f"{K}.weight": torch.ones(2, 5)}, "is [2, 4] in the base and [2, 5] in the adapter"),
    ],
)
def test_another_model_s_adapter(
    tensors: dict[str, torch.Tensor], words: str, small: Path, tmp_path: Path, make_base: Callable
) -> None:
    (small / "config.json").write_text((make_base("llama") / "config.json").read_text())
    with pytest.raises(UserError) as error:
        planned(small, [adapter(tmp_path / "a", tensors)])
    assert words in str(error.value)


def test_what_peft_merges(small: Path, tmp_path: Path) -> None:
    """Other kinds, weights, a vocabulary that grew, what quantisation left of a base, and one that is stored so."""
    plan = planned(small, [adapter(tmp_path / "a", lora(Q, 4, 4), peft_type="LOHA")])
    assert plan.outputs is None and plan.unsupported == "it is of type LOHA"
    good = [[adapter(tmp_path / "c", lora(Q, 4, 4))]]
    assert planned(small, *good).outputs is not None
    assert planned(small, [adapter(tmp_path / "d", lora(Q, 4, 4), 0.5)]).unsupported == "adapters have weights"
    assert planned(small, [*good[0], *good[0]]).unsupported == "adapters have weights"
    inputs = Inputs(BaseFolder("base", small), {}, good, tokenizer=small)
    assert (
        plan_merge(dataclasses.replace(inputs, dequantise=True)).unsupported
        == "the base is what quantisation left of it"
    )
    stored = dataclasses.replace(inputs, config={"quantization_config": {"quant_method": "bitsandbytes"}})
    assert str(plan_merge(stored).unsupported).startswith("the base is stored in ")
    more = adapter(tmp_path / "e", {f"{K}.weight": torch.ones(3, 4)} | lora(Q, 4, 4))
    assert planned(small, [more]).unsupported == f"its {K}.weight has 3 rows, the base has 2"
    vocabulary = {"growth": {"base_rows": 4, "rows": 8, "ids": [[4, 7]]}}
    (good[0][0].folder / "hftune.json").write_text(json.dumps({"kind": "adapter", "vocabulary": vocabulary}))
    grown = [[Adapter(good[0][0].folder)]]
    assert planned(small, *grown).unsupported == "the vocabulary has grown"
    other = plan_merge(Inputs(BaseFolder("base", small, "it is in other files"), {}, good, tokenizer=small))
    assert other.outputs is None and other.unsupported == "it is in other files"


def test_an_empty_base(small: Path, tmp_path: Path) -> None:
    store(small, {f"{Q}.weight": torch.empty(0, 4), f"{K}.weight": torch.empty(0)})
    with pytest.raises(UserError, match=r"is empty: .* has size 0 \(and 1 more\)"):
        planned(small, [adapter(tmp_path / "a", lora(Q, 4, 4))])


# --- embeddings and head that are one tensor ---


@pytest.fixture
def tied(make_base: Callable) -> Path:
    return make_base("llama", tie_word_embeddings=True)


def rows_of(base: Path) -> tuple[int, int]:
    config = json.loads((base / "config.json").read_text())
    return config["vocab_size"], config["hidden_size"]


@pytest.mark.parametrize("trained", [[HEAD], [EMBED], [EMBED, HEAD]])
def test_peft_merges_what_trained_one_of_two_tied_tables(trained: list[str], tied: Path, tmp_path: Path) -> None:
    tensors = {f"{name}.weight": torch.randn(rows_of(tied)) for name in trained}
    plan = planned(tied, [adapter(tmp_path / "a", tensors)])
    names = " and ".join(f"{name}.weight" for name in sorted(trained))
    assert plan.outputs is None and plan.unsupported == f"it trains {names}, which the base ties"


def test_what_else_is_trained_leaves_the_tie(tied: Path, tmp_path: Path) -> None:
    norm = {"model.norm.weight": torch.ones(rows_of(tied)[1])}
    plan = planned(tied, [adapter(tmp_path / "a", norm)])
    assert f"{HEAD}.weight" not in outputs(plan)
    assert [name for name, output in outputs(plan).items() if output.updates] == ["model.norm.weight"]


def test_what_has_no_place_in_the_model(tied: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A causal LM keeps it; a reward model is written without, and says so."""
    said: list[str] = []
    monkeypatch.setattr(planning, "notice", said.append)
    columns = rows_of(tied)[1]
    norm, score = {"model.norm.weight": torch.ones(columns)}, {"score.weight": torch.randn(1, columns)}
    reward = adapter(tmp_path / "b", score, task_type="SEQ_CLS")
    assert "score.weight" in outputs(planned(tied, [reward], scores=1)) and said == []
    (tmp_path / "config.json").write_bytes((tied / "config.json").read_bytes())
    store(tmp_path, load_file(tied / "model.safetensors") | {"extra.weight": torch.ones(2)})
    assert "extra.weight" in outputs(planned(tmp_path, [adapter(tmp_path / "a", norm)])) and said == []
    assert "extra.weight" not in outputs(planned(tmp_path, [reward], scores=1))
    assert said == ["a reward model has no extra.weight; not written"]


def test_a_reward_model_has_no_language_model_head(make_base: Callable, tmp_path: Path) -> None:
    base = make_base("llama")
    score = {"score.weight": torch.randn(1, rows_of(base)[1])} | lora(Q, *(rows_of(base)[1],) * 2)
    below = adapter(tmp_path / "below", lora(HEAD, *rows_of(base)))
    found = outputs(planned(base, [below], [adapter(tmp_path / "a", score, task_type="SEQ_CLS")], scores=1))
    assert f"{HEAD}.weight" not in found
    assert found["score.weight"].source is None and found["score.weight"].shape == (1, rows_of(base)[1])


@pytest.mark.parametrize(
    ("own", "asked", "becomes"),
    [(one, "F32", "F32") for one in ("F64", "F32", "F16", "BF16")]
    + [("I64", "F32", "I64"), ("BOOL", "F32", "BOOL"), ("F16", None, "F16")],
)
def test_what_another_dtype_is_asked_of(own: str, asked: str | None, becomes: str) -> None:
    assert _dtype(own, asked) == becomes


@pytest.mark.parametrize(
    ("tensors", "config", "more", "needs"),
    [
        (lora(Q, 4, 4), {}, {}, False),
        ({f"{K}.weight": torch.ones(2, 4)}, {}, {}, False),
        (lora(HEAD, 4, 4), {}, {}, True),  # may be tied
        (lora("model.layers.0.experts", 4, 4), {}, {}, True),  # stored under another name
        (lora(Q, 4, 4) | lora(HEAD, 4, 4), {}, {}, True),
        (lora(Q, 4, 4), {"fan_in_fan_out": True}, {}, True),
        (lora(Q, 4, 4), {"target_parameters": ["x"]}, {}, True),
        (lora(Q, 4, 4), {}, {"scores": 1}, True),
    ],
)
def test_where_names_alone_do_not_tell(
    tensors: dict[str, torch.Tensor], config: dict[str, Any], more: dict[str, Any], needs: bool, small: Path,
    tmp_path: Path,
) -> None:  # fmt: skip
    inputs = Inputs(BaseFolder("base", small), {}, [[adapter(tmp_path / "a", tensors, **config)]], small, **more)
    assert _needs_skeleton(inputs, BaseTensors(dict(stored_tensors(small)))) is needs


def test_a_new_head_has_the_dtype_of_the_weights(tmp_path: Path) -> None:
    tensors = {"a.steps": torch.ones(1, dtype=torch.int64), "b": torch.ones(1).bfloat16()}
    assert _usual_dtype(BaseTensors(dict(store(tmp_path, tensors)))) == "BF16"


def test_experts_that_were_trained_whole_keep_their_shapes_on_disk(tmp_path: Path) -> None:
    """In memory they are one parameter, on disk one tensor each."""
    stored = store(tmp_path, {f"experts.{number}": torch.ones(3, 2) for number in range(2)})
    slices = [StoredSlice(f"experts.{number}", expert=number) for number in range(2)]
    base: Any = SimpleNamespace(stored=stored, slices=lambda name: slices)
    new = Replace(store(tmp_path / "adapter", {"new": torch.ones(2, 3, 2)})["new"])
    found = list(planning._changed(base, {"experts": [new]}, "experts", None))
    assert [(one.name, one.shape) for one in found] == [(f"experts.{n}", (3, 2)) for n in range(2)]


def test_what_only_the_models_own_names_show_is_merged_by_peft(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The configs say nothing against it; the tensors do."""

    def unsupported(*given: Any) -> Any:
        raise Unsupported("a reason")

    monkeypatch.setattr(planning, "_plan_outputs", unsupported)
    plan = planned(small, [adapter(tmp_path / "a", lora(Q, 4, 4))])
    assert plan.outputs is None and plan.unsupported == "a reason"
