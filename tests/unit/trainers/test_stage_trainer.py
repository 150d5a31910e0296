"""What hftune overrides upstream stands in one place and on one list, and features are called in their order."""

from __future__ import annotations

import ast
import errno
import inspect
import math
from contextlib import nullcontext
from functools import cache
from pathlib import Path
from textwrap import dedent
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
import trl
from transformers import LlamaConfig, MixtralConfig

from hftune.compat.symbols import listed
from hftune.distributed.ranks import Mesh
from hftune.errors import ArgumentError
from hftune.on_demand import on_demand
from hftune.trainers.distill import DistillTrainer
from hftune.trainers.dpo import DPOTrainer
from hftune.trainers.features.feature import Feature, Features
from hftune.trainers.features.run import perplexity, refuse_untrained
from hftune.trainers.preemption import EvaluationStopped
from hftune.trainers.process_reward import ProcessRewardTrainer
from hftune.trainers.pt import PTTrainer
from hftune.trainers.reward import RewardTrainer
from hftune.trainers.rl import TRAINERS
from hftune.trainers.sft import SFTTrainer
from hftune.trainers.stage_trainer import StageTrainer
from tests.unit.trainers.features import made_up

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
        return []

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
    # Its constructor, and its loss with what that alone calls: `stage_loss` stands for them.
    left_out = {"__init__", "_compute_loss", "compute_ref_log_probs", *vars(DPOTrainer)}
    kept = [one for name, one in vars(trl.DPOTrainer).items() if name not in left_out]
    read = " ".join(inspect.getsource(one) for one in kept if inspect.isfunction(one))
    wanted = {name for name in wanted if f"self.{name}" in read}
    assert "_metrics" in wanted
    assert wanted <= assigned(DPOTrainer.__init__) | assigned(DPOTrainer.build_upstream)


def test_a_loss_without_a_gradient_is_one_message() -> None:
    model = torch.nn.Linear(1, 1).train()
    with pytest.raises(ArgumentError, match="the loss has no gradient"):
        refuse_untrained(model, torch.tensor(1.0))
    refuse_untrained(model, model(torch.ones(1)).sum())
    refuse_untrained(model.eval(), torch.tensor(1.0))
    with torch.no_grad():
        refuse_untrained(model.train(), torch.tensor(1.0))


class Upstream:
    """A trainer of transformers that is made up: what it is asked, and what comes of it."""

    def __init__(self, **given: Any) -> None:
        args = {"flat_batches": False, "load_best_model_at_end": False, "output_dir": "out", "should_save": True}
        self.__dict__ |= vars(made_up.run(args=args | given.pop("args", {}), model_wrapped=None)) | given
        self.features, self.sequence_asked = Features([]), []

    def evaluate(self, **given: Any) -> dict[str, float]:
        return {"eval_loss": 2.0}

    def prediction_step(self, *given: Any) -> tuple[Any, ...]:
        return (torch.tensor(1.0), None, None)

    def training_step(self, *given: Any) -> torch.Tensor:
        return torch.tensor(1.0)

    def _maybe_log_save_evaluate(self, *given: Any) -> None:
        if given[0] is not None:
            raise given[0]


class Made(StageTrainer, Upstream):
    """Without the constructors."""

    nan_guard: Any = SimpleNamespace(on_step_end=lambda run, norm: None, after_step=lambda *given: None)

    def __init__(self, **given: Any) -> None:
        Upstream.__init__(self, **given)


def test_a_left_evaluation_ends_in_a_checkpoint() -> None:
    for error, stops in ((EvaluationStopped(), True), (None, False), (KeyError(), False)):
        saved: list[str] = []
        made: Any = Made(save_checkpoint=lambda saved=saved: saved.append("checkpoint"))
        with pytest.raises(KeyError) if isinstance(error, KeyError) else nullcontext():
            made._maybe_log_save_evaluate(error, 1.0, None, None)
        control = made.control
        assert saved == ["checkpoint"] * stops and control.should_training_stop == stops
        assert control.should_evaluate == control.should_save == (not stops)


def test_rows_are_proven_apart_once_a_run() -> None:
    asked: list[Any] = []
    made: Any = Made(prove_isolation=asked.append, args={"flat_batches": True})
    for model in ("engine", "other"):
        made.prediction_step(model, {"input_ids": 1}, True)
    assert asked == ["engine"]
    other: Any = Made(prove_isolation=asked.append)
    other.prediction_step("padded", {"input_ids": 1}, True)
    assert asked == ["engine"]


@pytest.fixture
def evaluated(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A trainer that has been evaluated at step 7, with what upstream has logged."""
    monkeypatch.setattr("hftune.distributed.zero.release_fetched", lambda engine: None)
    made: Any = Made()
    assert made.current_evaluation is None, "there was none"
    made.state.log_history = [
        {"eval_loss": 9.0, "eval_entropy": 8.0},
        {"eval_loss": 2.0, "eval_entropy": 1.0, "epoch": 3},
        {"loss": 1},
    ]
    made.evaluate()
    return made


def test_logged_figures_and_perplexity_are_returned(evaluated: Any) -> None:
    assert evaluated.evaluate() == {"eval_loss": 2.0, "eval_entropy": 1.0}
    evaluated.reports_perplexity = True
    assert evaluated.evaluate() == {"eval_loss": 2.0, "eval_entropy": 1.0, "eval_perplexity": math.exp(2)}
    assert perplexity(1e4) == math.inf, "of a loss that has diverged"


@pytest.mark.parametrize("best", [7, 3])
def test_whether_it_measured_the_weights_that_are_there(
    evaluated: Any, best: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hftune.trainers.features.saving.load_best", lambda run: True)
    evaluated.checkpoints = SimpleNamespace(wait_together=lambda: None)
    evaluated.state.global_step, evaluated.state.best_global_step = 7, best
    evaluated._load_best_model()
    assert evaluated.current_evaluation == ({"eval_loss": 2.0, "eval_entropy": 1.0} if best == 7 else None)


def test_a_step_takes_the_evaluation_back(evaluated: Any) -> None:
    evaluated.training_step("model", {})
    assert evaluated.current_evaluation is None


@pytest.mark.parametrize(
    ("config", "args", "names"),
    [
        (LlamaConfig(), {}, set()),
        (LlamaConfig(), {"router_aux_loss_coef": 0.1}, {"routers"}),
        (LlamaConfig(), {"moe_z_loss_coef": 0.1}, {"routers"}),
        (MixtralConfig(), {}, {"routers"}),
        (LlamaConfig(), {"mesh": Mesh(world=2, sequence=2)}, {"sequence"}),
    ],
)
def test_what_is_asked_for_is_a_feature(config: Any, args: dict[str, Any], names: set[str]) -> None:
    given = {"router_aux_loss_coef": None, "moe_z_loss_coef": 0.0, "mesh": Mesh(world=2), "recomputation": None}
    made: Any = Made()
    for name in ("digests", "totals", "speed", "nan_guard", "checkpoints", "repeated_rows"):
        setattr(made, name, name)
    arguments: Any = SimpleNamespace(device=torch.device("cpu"), **(given | args))
    found = made.make_features(SimpleNamespace(config=config), arguments)
    assert {name for name in ("routers", "sequence") if getattr(made, name) in found} == names
    assert found.index("repeated_rows") == len(found) - 1 - ("sequence" in names), "rows are shared when they are whole"
