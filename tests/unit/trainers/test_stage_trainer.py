"""What hftune overrides upstream stands in one place and on one list, and features are called in their order."""

from __future__ import annotations

import ast
import errno
import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from textwrap import dedent
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
import trl

import hftune.trainers
from hftune.compat.symbols import listed
from hftune.errors import ArgumentError
from hftune.on_demand import on_demand
from hftune.trainers import features as package
from hftune.trainers.distill import DistillTrainer
from hftune.trainers.dpo import DPOTrainer
from hftune.trainers.features.checkpoints import Checkpoints
from hftune.trainers.features.feature import Feature, Features
from hftune.trainers.features.record_order import RecordOrder
from hftune.trainers.process_reward import ProcessRewardTrainer
from hftune.trainers.pt import PTTrainer
from hftune.trainers.reward import RewardTrainer
from hftune.trainers.rl import TRAINERS
from hftune.trainers.sft import SFTTrainer
from hftune.trainers.stage_trainer import StageTrainer, _refuse_untrained

STAGES = {
    PTTrainer: transformers.Trainer,
    SFTTrainer: trl.SFTTrainer,
    RewardTrainer: trl.RewardTrainer,
    ProcessRewardTrainer: transformers.Trainer,
    DPOTrainer: trl.DPOTrainer,
    DistillTrainer: trl.DistillationTrainer,
    on_demand(TRAINERS["grpo"]): trl.GRPOTrainer,
    on_demand(TRAINERS["rloo"]): trl.RLOOTrainer,
    on_demand(TRAINERS["ppo"]): trl.RLOOTrainer,
    on_demand(TRAINERS["online_dpo"]): trl.RLOOTrainer,
}


@pytest.mark.parametrize(("stage", "upstream"), STAGES.items(), ids=lambda one: one.__name__)
def test_each_stage_extends_the_trainer_of_its_name(stage: type, upstream: type) -> None:
    assert issubclass(stage, StageTrainer) and issubclass(stage, upstream)
    assert all(len(one.__bases__) <= 2 for one in stage.__mro__ if one.__module__.startswith("hftune"))


class Full(StageTrainer):
    """The upstream trainer finds no room for its output folder."""

    def make_features(self, model: Any, args: Any) -> list[Feature]:
        return [RecordOrder(), Checkpoints()]

    def build_upstream(self, **kwargs: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", kwargs["args"].output_dir)


def test_a_disk_that_is_full_as_the_trainer_is_made_is_one_message(tmp_path: Path) -> None:
    args = SimpleNamespace(device="cpu", output_dir=str(tmp_path / "out"))
    with pytest.raises(ArgumentError, match="cannot be written: No space left on device"):
        Full(model=None, args=args)


def test_numbers_of_a_batch_are_not_rounded_under_deepspeed() -> None:
    """transformers casts them to the engine's dtype: in bf16 a log-probability of -123.3 would be -123.5."""
    trainer = object.__new__(SFTTrainer)
    config = SimpleNamespace(dtype=lambda: torch.bfloat16)
    plugin = SimpleNamespace(hf_ds_config=config)
    trainer.args = SimpleNamespace(device="cpu")
    trainer.is_deepspeed_enabled = True
    trainer.accelerator = SimpleNamespace(state=SimpleNamespace(deepspeed_plugin=plugin))
    batch = {"ref_chosen_logps": torch.tensor([-123.317]), "kl": {"weights": [torch.tensor(0.1)]}, "rows": 1}
    moved = trainer._prepare_inputs(batch)
    assert moved["ref_chosen_logps"].item() == pytest.approx(-123.317) and moved["rows"] == 1
    assert moved["kl"]["weights"][0].dtype == torch.float32


@cache
def overridden() -> set[tuple[str, str]]:
    """Class that a private method comes from, and its name, of all that hftune's trainers override."""
    found = set()
    for stage in STAGES:
        own = [one for one in stage.__mro__ if one.__module__.startswith("hftune")]
        theirs = [one for one in stage.__mro__ if one.__module__.startswith(("transformers", "trl"))]
        for name in {name for one in own for name in vars(one) if name.startswith("_") and not name.startswith("__")}:
            source = next((one for one in theirs if inspect.isfunction(vars(one).get(name))), None)
            if source is not None:
                found.add((f"{source.__module__}.{source.__qualname__}", name))
    return found


def test_every_private_override_is_listed_and_no_other() -> None:
    rows = {tuple(entry.symbol.rsplit(".", 1)) for entry in listed() if entry.use == "overridden"}
    rows = {row for row in rows if row[0].startswith(("transformers.trainer.", "trl."))}
    # TRL's own overrides of the Trainer's private methods are reached through those of the Trainer.
    names = {name for _, name in rows}
    assert {(one, name) for one, name in overridden() if name not in names} == set()
    assert {(one, name) for one, name in rows if (one, name) not in overridden()} == set()


def one_of(trainer: type, node: ast.AST) -> bool:
    """Whether a definition is of a method that a trainer has itself."""
    return isinstance(node, ast.FunctionDef) and node.name in vars(trainer)


def test_each_is_overridden_once() -> None:
    """Of transformers' methods in `stage_trainer.py` alone."""
    rows = [entry for entry in listed() if entry.use == "overridden"]
    names = {entry.name for entry in rows if entry.symbol.startswith("transformers.trainer.Trainer.")}
    folder = Path(str(hftune.trainers.__file__)).parent
    for file in folder.rglob("*.py"):
        for one in ast.walk(ast.parse(file.read_text())):
            # What TRL's trainer of distillation overrides itself is given back to the Trainer.
            given_back = file.name == "distill.py" and one_of(trl.DistillationTrainer, one)
            if isinstance(one, ast.FunctionDef) and one.name in names and not given_back:
                assert file.name == "stage_trainer.py", f"{file}: {one.name}"


def test_dpo_sets_what_trls_constructor_sets() -> None:
    """Its own constructor is left out: TRL's other methods must find their attributes."""

    def assigned(function: Any) -> set[str]:
        tree = ast.parse(dedent(inspect.getsource(function)))
        targets = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
        return {
            node.attr
            for node in targets
            if isinstance(node.ctx, ast.Store) and isinstance(node.value, ast.Name) and node.value.id == "self"
        }

    wanted = assigned(trl.DPOTrainer.__init__) - {"train_dataset", "eval_dataset"}
    assert wanted <= assigned(DPOTrainer.__init__) | assigned(DPOTrainer.build_upstream)


class Noted(Feature):
    """Writes down when it is called."""

    def __init__(self, name: str, said: list[str]) -> None:
        self.name, self.said = name, said

    def after_train(self, run: Any) -> None:
        self.said.append(f"after {self.name}")

    @contextmanager
    def training(self, run: Any) -> Iterator[None]:
        self.said.append(f"into {self.name}")
        yield
        self.said.append(f"out of {self.name}")


def test_features_are_wrapped_around_each_other() -> None:
    said: list[str] = []
    features = Features([Noted("a", said), Feature(), Noted("b", said)])
    with features.around(Feature.training, None):
        said.append("training")
    features.call_reversed(Feature.after_train, None)  # type: ignore[arg-type]  # no run is looked at
    assert said == ["into a", "into b", "training", "out of b", "out of a", "after b", "after a"]
    assert features.having(Feature.before_train) == (), "those that do nothing are not called"


def test_a_fault_in_the_second_context_leaves_the_first() -> None:
    class Fails(Feature):
        @contextmanager
        def training(self, run: Any) -> Iterator[None]:
            raise KeyError
            yield

    class Tidies(Feature):
        left = False

        @contextmanager
        def training(self, run: Any) -> Iterator[None]:
            try:
                yield
            finally:
                self.left = True

    outer = Tidies()
    with pytest.raises(KeyError), Features([outer, Fails()]).around(Feature.training, None):
        pass
    assert outer.left


def test_a_feature_has_no_other_base() -> None:
    for file in Path(str(package.__file__)).parent.glob("*.py"):
        for one in ast.walk(ast.parse(file.read_text())):
            names = (
                [base.id for base in one.bases if isinstance(base, ast.Name)] if isinstance(one, ast.ClassDef) else []
            )
            assert "Feature" not in names or names == ["Feature"], f"{file.name}: {one}"


def test_a_loss_without_a_gradient_is_one_message() -> None:
    model = torch.nn.Linear(1, 1).train()
    with pytest.raises(ArgumentError, match="the loss has no gradient"):
        _refuse_untrained(model, torch.tensor(1.0))
    _refuse_untrained(model, model(torch.ones(1)).sum())
    _refuse_untrained(model.eval(), torch.tensor(1.0))
    with torch.no_grad():
        _refuse_untrained(model.train(), torch.tensor(1.0))
