"""The bookends of a run: what is said before anything loads."""

from __future__ import annotations

import pytest

from hftune import stage
from hftune.arguments.defaults.recipe import recipe
from hftune.arguments.entry import parse_arguments
from hftune.errors import UserError
from hftune.preflight.facts import resolve


@pytest.mark.parametrize(("local_rank", "order"), [(0, ["restored", "resolved"]), (1, ["resolved"])])
def test_checkpoints_are_restored_before_anybody_looks_for_them(
    monkeypatch: pytest.MonkeyPatch, local_rank: int, order: list[str]
) -> None:
    said: list[str] = []

    def resolved(*_: object) -> None:
        said.append("resolved")
        raise UserError("enough")

    groups = parse_arguments("sft", ["--output_dir", "o"])
    monkeypatch.setattr(stage.ranks, "local_rank", lambda: local_rank)
    monkeypatch.setattr(stage.watchdog, "start", lambda *_: None)
    monkeypatch.setattr(stage, "restore_checkpoints", lambda args: said.append("restored"))
    monkeypatch.setattr(stage, "resolve", resolved)
    with pytest.raises(UserError, match="enough"):
        stage.start_run("sft", groups)
    assert said == order


def test_a_run_says_its_recipe_once_it_was_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    groups = parse_arguments("sft", ["--output_dir", "o", "--use_peft", "--per_device_train_batch_size", "2"])
    facts = resolve("sft", groups)
    # A resumed run may accumulate otherwise than it was asked to: the recipe is what is trained.
    vars(facts.training_args).update(gradient_accumulation_steps=4)
    monkeypatch.setattr(stage, "resolve", lambda *_: facts)
    monkeypatch.setattr(stage, "lock_output", lambda *_, **__: None)
    monkeypatch.setattr(stage, "set_seed", lambda *_: None)
    monkeypatch.setattr(stage.watchdog, "start", lambda *_: None)
    monkeypatch.setattr(stage, "check_run", lambda *_: said.append("checked"))
    monkeypatch.setattr(
        stage.get_logger(), "info", lambda text, *values: said.append(text % values if values else text)
    )
    run = stage.start_run("sft", groups)
    assert said[0] == "checked" and run.facts is facts and run.arguments is facts.arguments
    assert said[2:] == recipe(*facts.arguments)
    assert any("batch 8 = per_device_train_batch_size 2 x gradient_accumulation_steps 4*" in line for line in said)
