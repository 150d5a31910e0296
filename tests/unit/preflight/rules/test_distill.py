"""Rules of run_distill.py."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hftune.arguments.entry import parse_arguments
from hftune.errors import UserError
from hftune.preflight.facts import resolve
from hftune.preflight.rules import refused
from hftune.preflight.rules.distill import _check_targets, check_distillation, check_teachers
from tests.unit.data.target_files import conversations, write

TEACHER = "--teacher_model_name_or_path"


def problems(model: Path, *flags: str) -> list[UserError]:
    argv = ["--model_name_or_path", str(model), "--output_dir", "o", "--report_to", "none", *flags]
    return list(check_distillation(resolve("distill", parse_arguments("distill", argv))))


def test_a_teacher_that_fits(tiny_model: Path, tiny_teacher: Path) -> None:
    assert problems(tiny_model, TEACHER, str(tiny_teacher)) == []


@pytest.mark.parametrize(
    ("flags", "place", "says"),
    [
        (("--loss_type", "dft"), "--loss_type", "divergence"),
    ],
)
def test_what_is_refused(flags: tuple[str, ...], place: str, says: str, tiny_model: Path, tiny_teacher: Path) -> None:
    (problem,) = problems(tiny_model, TEACHER, str(tiny_teacher), *flags)
    assert place in str(problem.place) and says in problem.cause and problem.fix


def test_a_teacher_that_is_not_there_is_named(tiny_model: Path, tmp_path: Path) -> None:
    (problem,) = problems(tiny_model, TEACHER, str(tmp_path))
    assert problem.place == f"{TEACHER} {tmp_path}"


def of_namespace(folder: Path | None, streaming: bool = False, **changes: Any) -> str:
    loaded = ("model_name_or_path", "load_in_4bit", "load_in_8bit", "model_revision")
    own: dict[str, Any] = dict.fromkeys(f"teacher_{name}" for name in (*loaded, "server_url", "top_k"))
    own |= {"teachers": [], "teacher_targets": folder and str(folder), "share_on_policy": 0.0, "temperature": 1.0}
    own |= {
        "packing": False,
        "eval_packing": None,
        "packing_strategy": "bfd",
        "distill_mode": "offline",
        "teacher_dtype": "auto",
    }
    args: Any = SimpleNamespace(**(own | changes))
    facts: Any = SimpleNamespace(training_args=args, data_args=SimpleNamespace(streaming=streaming))
    return "\n".join(
        problem.render()
        for problem in [*check_teachers(args), *refused("distill", args, facts.data_args), *_check_targets(facts)]
    )


def test_what_does_not_go_with_stored_targets_is_named(tmp_path: Path) -> None:
    write(tmp_path / "targets", conversations([8, 5]))
    folder = tmp_path / "targets"
    assert of_namespace(folder) == ""
    assert of_namespace(folder, packing=True) == ""
    assert "cuts them" in of_namespace(folder, eval_packing=True, packing_strategy="bfd_split")
    assert "of temperature 1.0" in of_namespace(folder, temperature=2.0)
    assert "holds no targets" in of_namespace(tmp_path)
    assert "no teacher was named" in of_namespace(None) and of_namespace(None, teachers=["T"]) == ""


def test_what_a_server_is_not_asked_for(tmp_path: Path) -> None:
    write(tmp_path / "targets", conversations([8, 5]))
    url = {"teacher_server_url": "http://h:8000"}
    assert of_namespace(None, **url) == of_namespace(None, **url, share_on_policy=1.0, teacher_top_k=5) == ""
    assert "no address" in of_namespace(None, teacher_server_url="h:8000")
