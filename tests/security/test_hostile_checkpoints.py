"""Checkpoints of strangers: pickles that run, tags and links that lead elsewhere, state that is something else.

Each is consolidated and resumed from, in this process. Nothing runs, nothing is written, and the message is the one.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from safetensors.torch import save_file

from hftune.checkpoints.engine_files import open_engine
from hftune.checkpoints.integrity import engine_folder
from hftune.checkpoints.resume import FoundCheckpoint, fault_of
from hftune.errors import UserError, raise_together
from hftune.tools.consolidating import ConsolidateArguments, consolidate
from tests.security.pickles import FORMS
from tests.spokes import spokes
from tests.unit.checkpoints.zero_files import write

Act = Callable[[Path, Path], Any]


def consolidates(checkpoint: Path, output: Path) -> None:
    consolidate(ConsolidateArguments(checkpoint=str(checkpoint), output_dir=str(output)))


def resumes(checkpoint: Path, output: Path) -> None:
    """What preflight asks before a model loads."""
    raise_together(FoundCheckpoint(checkpoint, fault=fault_of(checkpoint)).problems)


def opens(checkpoint: Path, output: Path) -> None:
    """What resuming in another world does; without the look before."""
    folder = engine_folder(checkpoint)
    assert folder is not None
    open_engine(folder)


ACTS: dict[str, Act] = {"consolidate": consolidates, "resume": resumes}


@pytest.fixture
def flag(tmp_path: Path) -> Path:
    return tmp_path / "flag"


def make(folder: Path, kind: str) -> Path:
    """A sound checkpoint of a kind: zero1 to zero3, with all that the Trainer leaves beside."""
    checkpoint = write(folder, int(kind[-1]), 2)
    save_file({"a": torch.arange(6.0).reshape(3, 2)}, checkpoint / "model.safetensors", metadata={"format": "pt"})
    torch.save({"numpy": numpy.random.get_state()}, checkpoint / "rng_state_0.pth")
    for name in ("scheduler.pt", "optimizer.pt", "pytorch_model.bin"):
        torch.save({}, checkpoint / name)
    return checkpoint


KINDS = ("zero1", "zero2", "zero3")


@pytest.mark.parametrize("kind", KINDS)
def test_sound_ones_are_taken(tmp_path: Path, kind: str) -> None:
    checkpoint = make(tmp_path, kind)
    resumes(checkpoint, tmp_path)
    opens(checkpoint, tmp_path)
    consolidates(checkpoint, tmp_path / "out")
    assert (tmp_path / "out" / "model.safetensors").is_file()


@pytest.mark.parametrize(("kind", "form", "name"), spokes(KINDS, FORMS, ["model", "optim"]))
def test_programs_in_the_engines_files(tmp_path: Path, flag: Path, kind: str, form: str, name: str) -> None:
    checkpoint = make(tmp_path, kind)
    for file in (checkpoint / "global_step1").glob(f"*{name}_states.pt"):
        FORMS[form](file, flag)
    for act in (consolidates, opens):
        with pytest.raises(UserError) as problem:
            act(checkpoint, tmp_path / "out")
        assert f"{name}_states.pt" in str(problem.value.place) and problem.value.fix
    assert not flag.exists()
    assert not (tmp_path / "out").exists() and not (tmp_path / ".out.partial").exists()


TAGS = ["../../elsewhere", "/etc", "..", "", "\x1b]0;x\x07", "a" * 5000]


@pytest.mark.parametrize(
    ("tag", "name"), spokes(TAGS, ["latest", "latest_universal"]), ids=lambda text: ascii(text)[:20]
)
def test_tags_that_lead_elsewhere(tmp_path: Path, flag: Path, tag: str, name: str) -> None:
    checkpoint = make(tmp_path, "zero2")
    (checkpoint / "latest").rename(checkpoint / name)
    (checkpoint / name).write_text(tag)
    (tmp_path / "elsewhere").mkdir(exist_ok=True)
    FORMS["function"](tmp_path / "elsewhere" / "zero_pp_rank_0_mp_rank_00_optim_states.pt", flag)
    for act in (consolidates, opens):
        with pytest.raises(UserError) as problem:
            act(checkpoint, tmp_path / "out")
        assert "\x1b" not in str(problem.value) and len(str(problem.value)) < 800
    assert not flag.exists() and not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("act", "name", "form"),
    spokes(ACTS, ["vocab.txt", "tokenizer.json", "model.safetensors", "optimizer.pt"], ["link", "pipe", "broken"]),
)
def test_strays_beside_the_state(tmp_path: Path, name: str, form: str, act: str) -> None:
    checkpoint = make(tmp_path, "zero2")
    (checkpoint / name).unlink(missing_ok=True)
    (tmp_path / "secret").write_text("secret")
    if form == "pipe":
        os.mkfifo(checkpoint / name)
    else:
        (checkpoint / name).symlink_to(tmp_path / "secret" if form == "link" else "nowhere")
    with pytest.raises(UserError):
        ACTS[act](checkpoint, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_an_engines_folder_that_is_a_link(tmp_path: Path) -> None:
    checkpoint, other = make(tmp_path / "a", "zero2"), make(tmp_path / "b", "zero2")
    for file in (checkpoint / "global_step1").iterdir():
        file.unlink()
    (checkpoint / "global_step1").rmdir()
    (checkpoint / "global_step1").symlink_to(other / "global_step1")
    for act in (consolidates, opens):
        with pytest.raises(UserError, match="leads out of"):
            act(checkpoint, tmp_path / "out")


STATES: dict[str, Any] = {
    "nothing": {},
    "a number": 3,
    "no groups": {"optimizer_state_dict": {}},
    "groups of texts": {"optimizer_state_dict": {"param_slice_mappings": "ab", "base_optimizer_state": "c"}},
    "stage 3 without groups": {"optimizer_state_dict": {"fp32_flat_groups": [], "optimizer_state_dict": {}}},
}


@pytest.mark.parametrize(("name", "kind", "part"), spokes(STATES, ["zero2", "zero3"], ["optim", "model"]))
def test_numbers_that_are_no_state(tmp_path: Path, name: str, kind: str, part: str) -> None:
    checkpoint = make(tmp_path, kind)
    for file in (checkpoint / "global_step1").glob(f"*{part}*_states.pt"):
        torch.save(STATES[name], file)
    for act in (consolidates, opens):
        with pytest.raises(UserError) as problem:
            act(checkpoint, tmp_path / "out")
        assert problem.value.fix
    assert not (tmp_path / "out").exists()


TRAINER_STATES = ["{", "[]", "[" * 100_000, '{"global_step": "4"}', '{"global_step": 1' + "0" * 99_999 + "}"]
TRAINER_STATES += ['{"global_step": null}', '{"global_step": -1, "log_history": []}']


@pytest.mark.parametrize("content", TRAINER_STATES, ids=range(len(TRAINER_STATES)))
def test_trainer_states(tmp_path: Path, content: str) -> None:
    checkpoint = make(tmp_path, "zero2")
    (checkpoint / "trainer_state.json").write_bytes(content.encode("latin-1"))
    with pytest.raises(UserError) as problem:
        resumes(checkpoint, tmp_path)
    assert len(str(problem.value)) < 1000


@pytest.mark.parametrize("content", ["{", "[]", '{"files": []}', '{"files": {}, "digests": 3}'])
def test_records(tmp_path: Path, content: str) -> None:
    checkpoint = make(tmp_path, "zero2")
    (checkpoint / "hftune_checkpoint.json").write_text(content)
    with pytest.raises(UserError, match="cannot be read"):
        resumes(checkpoint, tmp_path)


@pytest.mark.parametrize("name", ["../../outside", "/etc/passwd", "a/../../x"])
def test_records_of_files_elsewhere(tmp_path: Path, name: str) -> None:
    checkpoint = make(tmp_path, "zero2")
    (checkpoint / "hftune_checkpoint.json").write_text(json.dumps({"files": {name: 1}, "digests": {name: "0"}}))
    with pytest.raises(UserError):
        resumes(checkpoint, tmp_path)
