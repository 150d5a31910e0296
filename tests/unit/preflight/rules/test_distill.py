"""Rules of run_distill.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from hftune.arguments.entry import parse_arguments
from hftune.errors import UserError
from hftune.preflight.facts import resolve
from hftune.preflight.rules.distill import check_distillation

TEACHER = "--teacher_model_name_or_path"


def problems(model: Path, *flags: str) -> list[UserError]:
    argv = ["--model_name_or_path", str(model), "--output_dir", "o", "--report_to", "none", *flags]
    return list(check_distillation(resolve("distill", parse_arguments("distill", argv))))


def test_a_teacher_that_fits(tiny_model: Path, tiny_teacher: Path) -> None:
    assert problems(tiny_model, TEACHER, str(tiny_teacher)) == []
    assert problems(tiny_model, TEACHER, str(tiny_teacher), str(tiny_model), "--teacher_weights", "1", "0") == []


@pytest.mark.parametrize(
    ("flags", "place", "says"),
    [
        ((TEACHER,), TEACHER, "no teacher"),
        (("--teacher_weights", "1", "2"), "--teacher_weights", "2 weights for 1"),
        (("--teacher_weights", "0"), "--teacher_weights", "weight 0"),
        (("--temperature", "0"), "--temperature", "temperature"),
        (("--label_smoothing_factor", "0.1"), "--loss_type", "divergence"),
        (("--loss_type", "dft"), "--loss_type", "divergence"),
        (("--add_tokens", "<ref>"), "--add_tokens", "tokens that it does not know"),
        (("--add_special_tokens", "<ref>"), "--add_tokens", "tokens that it does not know"),
    ],
)
def test_what_is_refused(flags: tuple[str, ...], place: str, says: str, tiny_model: Path, tiny_teacher: Path) -> None:
    given = () if flags == (TEACHER,) else (TEACHER, str(tiny_teacher), *flags)
    (problem,) = problems(tiny_model, *given)
    assert place in str(problem.place) and says in problem.cause and problem.fix


def test_a_teacher_that_is_not_there_is_named(tiny_model: Path, tmp_path: Path) -> None:
    (problem,) = problems(tiny_model, TEACHER, str(tmp_path))
    assert problem.place == f"{TEACHER} {tmp_path}"
