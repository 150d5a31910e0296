"""A warm start takes the weights of a checkpoint and nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from hftune import logging
from hftune.arguments.entry import parse_arguments
from hftune.arguments.names.translators.runs import starting
from hftune.checkpoints.warm_start import apply_warm_start, weights_in
from hftune.errors import ArgumentError
from tests.parity.stages import METHODS, losses, run_stage
from tests.unit.arguments.names.translators.questions import ask, translated


def settled(*flags: str) -> tuple[Any, ...]:
    arguments = parse_arguments("sft", ["--output_dir", "out", "--use_cpu", "--report_to", "none", *flags])
    apply_warm_start(arguments[0], arguments[2], arguments[3])
    return arguments


@pytest.mark.parametrize("method", METHODS)
def test_weights_and_nothing_else(
    method: str, tiny_model: Path, tiny_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same first loss as a run that went on would have; the step, the schedule and Adam's moments are new."""
    flags = (*METHODS[method], "--seed", "3", "--train_sampling_strategy", "sequential")
    saves = ("--save_strategy", "steps", "--save_steps", "2", "--lr_scheduler_type", "linear")
    first = run_stage("sft", tiny_model, tiny_data, tmp_path / "a", *flags, *saves, monkeypatch=monkeypatch, steps=4)
    checkpoint = tmp_path / "a" / "checkpoint-2"
    still = ("--warm_start", str(checkpoint), "--learning_rate", "0")
    warm = run_stage("sft", tiny_model, tiny_data, tmp_path / "b", *flags, *still, monkeypatch=monkeypatch, steps=3)
    assert warm.state.global_step == 3 and len(losses(warm)) == 3
    # In order, the third record of both runs is the same, and so are the weights that it meets.
    assert losses(warm)[2] == pytest.approx(losses(first)[2], rel=1e-6)
    name = "adapter_model.safetensors" if method == "lora" else "model.safetensors"
    saved, again = load_file(checkpoint / name), load_file(tmp_path / "b" / name)
    assert saved.keys() == again.keys() and all(torch.equal(saved[key], again[key]) for key in saved)
    manifest = json.loads((tmp_path / "b" / "hftune.json").read_text())
    assert any("warm start: weights of" in said for said in manifest["notices"])
    assert str(checkpoint) in [parent["folder"] for parent in manifest["parents"]]


def full(folder: Path, *, tokenizer: bool = True) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    if tokenizer:
        (folder / "tokenizer_config.json").write_text("{}")
    return folder


def test_a_full_checkpoint_takes_the_place_of_the_model(tmp_path: Path) -> None:
    folder = full(tmp_path / "run")
    model, _, adapter, _ = settled("--model_name_or_path", "base", "--warm_start", str(folder))
    assert (model.model_name_or_path, model.tokenizer_name_or_path) == (str(folder), None)
    assert adapter.peft_path is None
    bare = full(tmp_path / "bare", tokenizer=False)
    model, *_ = settled("--model_name_or_path", "base", "--warm_start", str(bare))
    assert (model.model_name_or_path, model.tokenizer_name_or_path) == (str(bare), "base")


def test_an_adapter_goes_on(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": "base"}))
    (tmp_path / "adapter_model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    model, _, adapter, _ = settled("--warm_start", str(tmp_path))
    assert model.model_name_or_path == "base"
    assert adapter.use_peft and adapter.continued_adapter == str(tmp_path)
    model, *_ = settled("--warm_start", str(tmp_path), "--model_name_or_path", "other")
    assert model.model_name_or_path == "other"


def test_an_output_folder_stands_for_its_newest_whole_checkpoint(tmp_path: Path) -> None:
    for step in (2, 4):
        folder = full(tmp_path / f"checkpoint-{step}")
        (folder / "trainer_state.json").write_text(json.dumps({"global_step": step}))
    (tmp_path / "checkpoint-4" / "trainer_state.json").write_text("{")
    assert weights_in(tmp_path) == tmp_path / "checkpoint-2"
    with pytest.raises(ArgumentError, match="is not whole"):
        weights_in(tmp_path / "checkpoint-4")
    with pytest.raises(ArgumentError, match="there is no folder"):
        weights_in(tmp_path / "nothing")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ArgumentError, match="hftune consolidate"):
        weights_in(tmp_path / "empty")


@pytest.mark.parametrize(
    "flags, says",
    [
        (("--resume_from_checkpoint", "auto"), "resumes with everything"),
        (("--peft_path", "a"), "names other weights"),
        (("--from_config",), "names other weights"),
    ],
)
def test_what_contradicts_it(flags: tuple[str, ...], says: str, tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=says):
        settled("--warm_start", str(full(tmp_path / "run")), *flags)


@pytest.mark.parametrize(
    "command, expected",
    [
        ("resume_from_checkpoint=c", {"resume_from_checkpoint": "c"}),
        ("resume_from_checkpoint=auto finetune=False", {"resume_from_checkpoint": "auto"}),
        ("resume_from_checkpoint=c no_load_optim=True no_load_rng=True", {"warm_start": "c"}),
        ("resume_from_checkpoint=c ignore_load_lr_and_optim=True", {"warm_start": "c"}),
        ("resume_from_checkpoint=c finetune=True", {"warm_start": "c"}),
        ("finetune=True", {}),
        ("no_load_optim=True", {}),
        ("no_load_optim=False", {}),
    ],
)
def test_names_of_other_tools(command: str, expected: dict[str, str]) -> None:
    assert translated(starting, ask(command)) == expected


@pytest.mark.parametrize(
    "command, says",
    [
        ("resume_from_checkpoint=c no_load_rng=True", "no_load_rng"),
        ("resume_from_checkpoint=auto no_load_optim=True", "--warm_start FOLDER"),
        ("finetune=False", "--resume_from_checkpoint"),
    ],
)
def test_what_cannot_be_taken_apart(command: str, says: str) -> None:
    with pytest.raises(ArgumentError, match=says):
        starting(ask(command))


def test_nothing_happens_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging, "_notices", [])
    model, *_ = settled("--model_name_or_path", "m")
    assert model.model_name_or_path == "m" and not logging.notices()
