"""From peft's names to parameters of a base: what fits, and what is left to peft."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers import Conv1D

from hftune.errors import ManifestError
from hftune.merging.adapters import ADAPTER_WEIGHTS, PREFIX, AdaptedModule, Adapter
from hftune.merging.changes import LowRank, Replace, _module_misfit, misfits, updates_of
from hftune.merging.skeleton import BaseTensors, Unsupported
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
    assert {name: (update.a.shape, update.scale, update.experts) for name, (update,) in found.items()} == {
        "experts.gate_up_proj": ((4, 2), 2.0, 2),  # alpha 4 over r = 4 / 2 experts
        "experts.down_proj": ((4, 4), 2.0, 2),
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
    assert {name: update.scale for name, (update,) in found.items()} == {"experts.gate_up_proj": 3.0, "q.weight": 4.0}
    # One that is for no parameter is for the module, whatever else the adapter wraps.
    config["alpha_pattern"] = {"experts": 6, "q.weight": 8}
    found = updates_of(adapter(tmp_path / "b", tensors, **config), base)
    assert {name: update.scale for name, (update,) in found.items()} == {"experts.gate_up_proj": 2.0, "q.weight": 2.0}


def test_which_weights_are_the_other_way_round(base: BaseTensors, tmp_path: Path) -> None:
    """Embeddings; experts that transformers marks; and a Conv1D, by its class alone."""
    skeleton: Any = base.skeleton
    tensors = lora("experts", (4, 4), (2, 4)) | lora("q", (1, 2), (4, 1))
    asked = {"target_parameters": ["experts.gate_up_proj"]}
    for mark, kind, transposed in ((True, nn.Linear, (True, False)), (False, Conv1D, (False, True))):
        skeleton.experts.is_transposed = skeleton.q.is_transposed = mark
        skeleton.q.__class__ = kind
        found = updates_of(adapter(tmp_path / str(mark), tensors, **asked), base)
        assert tuple(update.transposed for (update,) in found.values()) == transposed
    dora = lora("q", (1, 2), (4, 1)) | {"q.lora_magnitude_vector": torch.ones(4)}
    with pytest.raises(Unsupported, match=r"DoRA of q, which is stored as \(in, out\)"):
        updates_of(adapter(tmp_path / "dora", dora), base)
    embedding = {"q.lora_embedding_A": torch.ones(1, 4), "q.lora_embedding_B": torch.ones(2, 1)}
    skeleton.q.__class__ = nn.Linear
    (update,) = updates_of(adapter(tmp_path / "c", embedding), base)["q.weight"]
    assert update.transposed


def test_what_was_trained_in_full_comes_first(base: BaseTensors, tmp_path: Path) -> None:
    tensors = lora("q", (1, 2), (4, 1)) | {"q.weight": torch.ones(4, 2), "q.bias": torch.ones(4)}
    found = updates_of(adapter(tmp_path / "a", tensors), base)
    assert {name: [type(update) for update in updates] for name, updates in found.items()} == {
        "q.weight": [Replace, LowRank],
        "q.bias": [Replace],
    }


@pytest.mark.parametrize(
    ("tensors", "error", "words"),
    [
        ({"other.weight": torch.ones(1)}, ManifestError, "which has no other.weight"),
        ({"x.experts.0.up.weight": torch.ones(1)}, Unsupported, "belongs to no tensor of the base"),
        ({"q.lora_A.weight": torch.ones(1, 2)}, Unsupported, "only one of its two low-rank matrices"),
        ({"q.weight": torch.ones(6, 2)}, Unsupported, "its q.weight has 6 rows, the base has 4"),
    ],
)
def test_what_belongs_nowhere(
    tensors: dict[str, torch.Tensor], error: type[Exception], words: str, base: BaseTensors, tmp_path: Path
) -> None:
    with pytest.raises(error, match=words):
        updates_of(adapter(tmp_path / "a", tensors), base)


@pytest.mark.parametrize(
    ("tensors", "words"),
    [
        (lora("q", (1, 2), (4, 1)), None),
        (lora("q", (1, 4), (2, 1)), None),  # the other way round, as Conv1D has it
        (lora("q", (1, 3), (4, 1)), "q is [4, 2] in the base, its adapter has [4, 1] x [1, 3]"),
        (lora("q", (1, 2), (3, 1)), "q is [4, 2] in the base, its adapter has [3, 1] x [1, 2]"),
        (lora("q", (1, 2), (4, 2)), "its adapter has [4, 2] x [1, 2]"),
        ({"q.weight": torch.ones(3, 2)}, "q.weight is [4, 2] in the base and [3, 2] in the adapter"),
        ({"q.bias": torch.ones(5)}, "q.bias is [4] in the base and [5] in the adapter"),
    ],
)
def test_shapes(tensors: dict[str, torch.Tensor], words: str | None, base: BaseTensors, tmp_path: Path) -> None:
    found = adapter(tmp_path / "a", tensors)
    updates_of(found, base)  # nothing of it is left to peft: a bias does not grow
    problems = [str(problem) for problem in misfits(found, base)]
    assert len(problems) == (words is not None) and (words or "") in "".join(problems)
    if words:
        (problem,) = misfits(found, base)
        assert problem.cause.endswith(words), "one, and no more"


def test_a_parameter_is_named_from_a_dot_on(base: BaseTensors, tmp_path: Path) -> None:
    found = adapter(tmp_path / "a", lora("experts", (4, 2), (4, 4)), target_parameters=["up_proj"])
    with pytest.raises(ManifestError, match=r"no experts\.weight"):
        updates_of(found, base)


@pytest.mark.parametrize("more", [1, 2])
def test_the_first_misfit_is_named_and_the_others_counted(more: int, base: BaseTensors, tmp_path: Path) -> None:
    wrong = {"q.bias": torch.ones(5)} | lora("q", (1, 7), (4, 1))
    found = adapter(tmp_path / "a", wrong | ({"q.weight": torch.ones(3, 2)} if more == 2 else {}))
    (problem,) = misfits(found, base)
    assert problem.cause.endswith(f"(and {more} more)") and "is [4] in the base and [5]" in problem.cause


def test_matrices_that_have_nothing_to_be_compared_with(tmp_path: Path) -> None:
    stored = store(tmp_path, {"a": torch.ones(1, 9), "b": torch.ones(9, 1)})
    both = {"lora_A": stored["a"], "lora_B": stored["b"]}
    for tensors, shape in ((both, None), (both, (2, 4, 2)), ({"lora_A": both["lora_A"]}, (4, 2)), ({}, (4, 2))):
        assert not [*_module_misfit(AdaptedModule("q", 0, tensors), shape)]
    assert [*_module_misfit(AdaptedModule("q", 0, both), (4, 2))]
