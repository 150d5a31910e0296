"""Rules of stored targets, on arguments that say nothing else."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from hftune.preflight.rules.distill import _check_targets, check_teachers
from tests.unit.data.target_files import conversations, write


def said(folder: Path | None, streaming: bool = False, **changes: Any) -> str:
    own = {"teachers": [], "teacher_targets": folder and str(folder), "drop_untaught": False, "share_on_policy": 0.0}
    own |= {"packing": False, "eval_packing": None, "packing_strategy": "bfd", "temperature": 1.0}
    own |= {"distill_mode": "offline", "teacher_weights": None, "teacher_model_init_kwargs": None}
    own |= {"teacher_server_url": None, "teacher_top_k": None, "teacher_model_name_or_path": None}
    own |= {"teacher_load_in_4bit": False, "teacher_load_in_8bit": False, "teacher_dtype": "auto"}
    own |= {"teacher_model_revision": None}
    args: Any = SimpleNamespace(**(own | changes))
    facts: Any = SimpleNamespace(training_args=args, data_args=SimpleNamespace(streaming=streaming))
    return "\n".join(problem.render() for problem in [*check_teachers(args), *_check_targets(facts)])


def test_what_does_not_go_with_stored_targets_is_named(tmp_path: Path) -> None:
    write(tmp_path / "targets", conversations([8, 5]))
    folder = tmp_path / "targets"
    assert said(folder) == ""
    assert said(folder, packing=True) == ""
    assert "stored already" in said(folder, teachers=["T"])
    assert "own answers" in said(folder, share_on_policy=1.0, distill_mode="on_policy")
    assert "--streaming" in said(folder, streaming=True)
    assert "cuts them" in said(folder, packing=True, packing_strategy="wrapped")
    assert "cuts them" in said(folder, eval_packing=True, packing_strategy="bfd_split")
    assert "of temperature 1.0" in said(folder, temperature=2.0)
    assert "holds no targets" in said(tmp_path)
    assert "no teacher was named" in said(None) and said(None, teachers=["T"]) == ""


def test_what_a_server_is_not_asked_for(tmp_path: Path) -> None:
    write(tmp_path / "targets", conversations([8, 5]))
    url = {"teacher_server_url": "http://h:8000"}
    assert said(None, **url) == said(None, **url, share_on_policy=1.0, teacher_top_k=5) == ""
    assert "no address" in said(None, teacher_server_url="h:8000")
    assert "at temperature 1" in said(None, **url, temperature=2.0)
    assert "stored already" in said(tmp_path / "targets", **url)
    assert "as one teacher" in said(None, **url, teacher_model_name_or_path=["a", "b"])
    for name, value in (("load_in_4bit", True), ("load_in_8bit", True), ("dtype", "float16"), ("model_revision", "v")):
        assert f"--teacher_{name}" in said(None, **url, **{f"teacher_{name}": value})
