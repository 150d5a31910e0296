"""From peft's names to parameters of a base: what fits, and what is left to peft."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from hftune.errors import ManifestError
from hftune.merging.adapters import ADAPTER_WEIGHTS, PREFIX, AdaptedModule, Adapter
from hftune.merging.changes import Changes, _misfit, _module_misfit, misfits, updates_of
from hftune.merging.skeleton import BaseTensors, Unsupported
from hftune.merging.updates import add_bias, grow_rows, replace
from hftune.models.vocabulary.growth import Growth
from tests.unit.merging.models import store


class Experts(nn.Module):
    """Two experts of (4, 2) and (2, 4)."""

    def __init__(self) -> None:
        super().__init__()
        self.gate_up_proj, self.down_proj = nn.Parameter(torch.zeros(2, 4, 2)), nn.Parameter(torch.zeros(2, 2, 4))


class Model(nn.Module):
    """What `BaseTensors` asks of a model."""

    def __init__(self) -> None:
        super().__init__()
        self.experts, self.q = Experts(), nn.Linear(2, 4)


@pytest.fixture
def base(tmp_path: Path) -> BaseTensors:
    skeleton: Any = Model()
    return BaseTensors(dict(store(tmp_path / "base", skeleton.state_dict())), skeleton)


def adapter(folder: Path, tensors: dict[str, torch.Tensor], **config: Any) -> Adapter:
    store(folder, {f"{PREFIX}{name}": tensor for name, tensor in tensors.items()}, ADAPTER_WEIGHTS)
    (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "lora_alpha": 4} | config))
    return Adapter(folder)


def lora(name: str, a: tuple[int, int], b: tuple[int, int]) -> dict[str, torch.Tensor]:
    return {f"{name}.lora_A.weight": torch.ones(a), f"{name}.lora_B.weight": torch.ones(b)}


def test_which_parameter_of_two(base: BaseTensors, tmp_path: Path) -> None:
    """peft wraps a module once per parameter: the last one is outermost."""
    tensors = lora("experts.base_layer", (4, 2), (4, 4)) | lora("experts", (4, 4), (2, 4))
    asked = ["experts.gate_up_proj", "experts.down_proj"]
    found = updates_of(adapter(tmp_path / "a", tensors, target_parameters=asked), base)
    assert {name: (update.key[1].shape, update.key[3:6]) for name, (update,) in found.items()} == {
        "experts.gate_up_proj": ((4, 2), (2.0, 2, False)),  # alpha 4 over r = 4 / 2 experts
        "experts.down_proj": ((4, 4), (2.0, 2, False)),
    }
    one = updates_of(adapter(tmp_path / "b", lora("experts", (4, 4), (2, 4)), target_parameters=["down_proj"]), base)
    assert list(one) == ["experts.down_proj"]
    for number, names in enumerate((asked[:1], ["other"])):  # two adapters around a module for one parameter, or none
        odd = adapter(tmp_path / f"odd {number}", lora("experts.base_layer", (4, 2), (4, 4)), target_parameters=names)
        with pytest.raises(ManifestError, match=r"which has no experts\.weight"):
            updates_of(odd, base)


def test_patterns_name_parameters_where_peft_wraps_them_and_modules_elsewhere(
    base: BaseTensors, tmp_path: Path
) -> None:
    tensors = lora("experts", (4, 2), (4, 4)) | lora("q", (2, 2), (4, 2))
    config = {"target_parameters": ["experts.gate_up_proj"], "alpha_pattern": {"experts.gate_up_proj": 6, "q": 8}}
    found = updates_of(adapter(tmp_path / "a", tensors, **config), base)
    assert {name: update.key[3] for name, (update,) in found.items()} == {"experts.gate_up_proj": 3.0, "q.weight": 4.0}
    # One that is for no parameter is for the module, whatever else the adapter wraps.
    config["alpha_pattern"] = {"experts": 6, "q.weight": 8}
    found = updates_of(adapter(tmp_path / "b", tensors, **config), base)
    assert {name: update.key[3] for name, (update,) in found.items()} == {"experts.gate_up_proj": 2.0, "q.weight": 2.0}


def test_which_weights_are_the_other_way_round(base: BaseTensors, tmp_path: Path) -> None:
    """Embeddings; experts that transformers marks; and a Conv1D, by its class alone."""
    skeleton: Any = base.skeleton
    tensors = lora("experts", (4, 4), (2, 4)) | lora("q", (1, 2), (4, 1))
    asked = {"target_parameters": ["experts.gate_up_proj"]}
    for mark, kind, transposed in ((True, nn.Linear, (True, False)), (False, Conv1D, (False, True))):
        skeleton.experts.is_transposed = skeleton.q.is_transposed = mark
        skeleton.q.__class__ = kind
        found = updates_of(adapter(tmp_path / str(mark), tensors, **asked), base)
        assert tuple(update.key[5] for (update,) in found.values()) == transposed
    embedding = {"q.lora_embedding_A": torch.ones(1, 4), "q.lora_embedding_B": torch.ones(2, 1)}
    skeleton.q.__class__ = nn.Linear
    (update,) = updates_of(adapter(tmp_path / "c", embedding), base)["q.weight"]
    assert update.key[5]


def test_matrices_bias_and_replaced_parameters(base: BaseTensors, tmp_path: Path) -> None:
    tensors = lora("q", (1, 2), (4, 1)) | {"q.lora_B.bias": torch.ones(4), "q.bias": torch.ones(4)}
    found = updates_of(adapter(tmp_path / "a", tensors), base)
    assert {name: [update.key[0] for update in updates] for name, updates in found.items()} == {
        "q.bias": ["replace", "bias"],
        "q.weight": ["low rank"],
    }


@pytest.mark.parametrize(
    ("tensors", "error", "words"),
    [
        ({"other.weight": torch.ones(1)}, ManifestError, "which has no other.weight"),
        ({"x.experts.0.up.weight": torch.ones(1)}, Unsupported, "belongs to no tensor of the base"),
        ({"q.lora_A.weight": torch.ones(1, 2)}, Unsupported, "only one of its two low-rank matrices"),
        ({"q.trainable_tokens_delta": torch.ones(1, 2)}, Unsupported, "rows of its own"),
    ],
)
def test_what_belongs_nowhere(
    tensors: dict[str, torch.Tensor], error: type[Exception], words: str, base: BaseTensors, tmp_path: Path
) -> None:
    with pytest.raises(error, match=words):
        updates_of(adapter(tmp_path / "a", tensors, trainable_token_indices={"embed": [1]}), base)


def test_rows_of_a_tied_head_are_a_copy(base: BaseTensors, tmp_path: Path) -> None:
    """ZeRO-3 saves them under both names; the config names one."""
    rows = torch.randn(1, 2)
    config = {"trainable_token_indices": {"q": [3]}}
    both = {"q.token_adapter.trainable_tokens_delta": rows, "head.token_adapter.trainable_tokens_delta": rows.clone()}
    assert list(updates_of(adapter(tmp_path / "a", both, **config), base)) == ["q.weight"]
    both["head.token_adapter.trainable_tokens_delta"] += 1
    with pytest.raises(Unsupported, match="its head has rows of its own"):
        updates_of(adapter(tmp_path / "b", both, **config), base)


@pytest.mark.parametrize(
    ("tensors", "words"),
    [
        (lora("q", (1, 2), (4, 1)), None),
        (lora("q", (1, 4), (2, 1)), None),  # the other way round, as Conv1D has it
        (lora("q", (1, 3), (4, 1)), "q is [4, 2] in the base, its adapter has [4, 1] x [1, 3]"),
        (lora("q", (1, 2), (4, 2)), "its adapter has [4, 2] x [1, 2]"),
        ({"q.weight": torch.ones(6, 2)} | lora("q", (1, 2), (6, 1)), None),  # grown, and LoRA upon that
        ({"q.weight": torch.ones(3, 2)}, "q.weight is [4, 2] in the base and [3, 2] in the adapter"),
        ({"q.bias": torch.ones(5)}, "q.bias is [4] in the base and [5] in the adapter"),
    ],
)
def test_shapes(tensors: dict[str, torch.Tensor], words: str | None, base: BaseTensors, tmp_path: Path) -> None:
    found = adapter(tmp_path / "a", tensors)
    problems = [str(problem) for problem in misfits(found, updates_of(found, base), base, {})]
    assert len(problems) == (words is not None) and (words or "") in "".join(problems)
    if words:
        (problem,) = misfits(found, updates_of(found, base), base, {})
        assert problem.cause.endswith(words), "one, and no more"


@pytest.mark.parametrize("more", [1, 2])
def test_the_first_misfit_is_named_and_the_others_counted(more: int, base: BaseTensors, tmp_path: Path) -> None:
    wrong = {"q.bias": torch.ones(5)} | lora("q", (1, 7), (4, 1))
    found = adapter(tmp_path / "a", wrong | ({"q.weight": torch.ones(3, 2)} if more == 2 else {}))
    (problem,) = misfits(found, updates_of(found, base), base, {})
    assert problem.cause.endswith(f"(and {more} more)") and "is [4] in the base and [5]" in problem.cause


@pytest.mark.parametrize(("rows", "problems"), [(4, 1), (6, 0), (7, 0)])
def test_what_had_grown_before_is_measured_as_it_was_then(
    rows: int, problems: int, base: BaseTensors, tmp_path: Path
) -> None:
    """Six rows of the base's four: an adapter may bring more, and not the four that were there before."""
    grown = {"q.weight": [grow_rows(Growth(4, 4, 6, [4, 5], "mean"), (4, 2))]}
    for name, tensors in (("whole", {"q.weight": torch.ones(rows, 2)}), ("lora", lora("q", (1, 2), (rows, 1)))):
        found = adapter(tmp_path / name, tensors)
        wrong = [*misfits(found, updates_of(found, base), base, grown)]
        assert len(wrong) == (problems if name == "whole" else int(rows != 6))


def test_matrices_that_have_nothing_to_be_compared_with(tmp_path: Path) -> None:
    stored = store(tmp_path, {"a": torch.ones(1, 9), "b": torch.ones(9, 1)})
    both = {"lora_A": stored["a"], "lora_B": stored["b"]}
    for tensors, shape in ((both, None), (both, (2, 4, 2)), ({"lora_A": both["lora_A"]}, (4, 2)), ({}, (4, 2))):
        assert not [*_module_misfit(AdaptedModule("q", 0, tensors), shape, {})]
    assert [*_module_misfit(AdaptedModule("q", 0, both), (4, 2), {})]


def test_levels_that_change_a_parameter(tmp_path: Path) -> None:
    stored = store(tmp_path, {"new": torch.ones(5, 2), "other": torch.ones(6, 2)})
    new, other = replace(stored["new"]), replace(stored["other"])
    changes = Changes([[(1.0, {"a": [new]})], [(0.5, {"b": [new]}), (2.0, {"a": [other, new]})]])
    assert changes.parameters() == ["a", "b"]
    assert changes.of("a") == [[(1.0, [new])], [(2.0, [other, new])]] and changes.of("c") == []
    assert changes.shape("a", (4, 2)) == (5, 2) and changes.shape("c", (4, 2)) == (4, 2)


def test_each_update_of_a_parameter_is_looked_at(tmp_path: Path) -> None:
    """One that keeps the shape says nothing of the next; embeddings may grow, and in rows alone."""
    stored = store(
        tmp_path, {"b": torch.ones(4), "w": torch.ones(4, 2), "long": torch.ones(5, 2), "wide": torch.ones(5, 3)}
    )
    keeps, same = add_bias(stored["b"], 1.0), replace(stored["w"])
    for updates, before, problems in (
        ([keeps, same, replace(stored["wide"])], (4, 2), 1),
        ([keeps, replace(stored["long"]), replace(stored["wide"])], (4, 2), 1),
        ([replace(stored["long"])], (6, 2), 1),
        ([replace(stored["long"])], None, 0),
        ([same], (4, 2), 0),
    ):
        assert len([*_misfit("w", updates, before)]) == problems
