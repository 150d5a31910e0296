"""Arguments of distillation: the teacher, whose answers are trained."""

from __future__ import annotations

from pathlib import Path

import pytest
import trl

from hftune.arguments.entry import parse_arguments
from hftune.errors import ArgumentError


def parsed(*flags: str):
    needed = ("--model_name_or_path", "m", "--output_dir", "o", "--use_cpu", "True", "--report_to", "none")
    return parse_arguments("distill", [*needed, *flags]).training


def test_it_is_sfts_and_trls() -> None:
    args = parsed("--teacher_model_name_or_path", "t")
    assert isinstance(args, trl.DistillationConfig) and isinstance(args, trl.SFTConfig)
    assert (args.beta, args.temperature, args.share_on_policy) == (1.0, 1.0, 1.0)


@pytest.mark.parametrize(
    ("flags", "share"),
    [
        (("--distill_mode", "offline"), 0.0),
        (("--distill_mode", "mixed"), 0.5),
        (("--distill_mode", "mixed", "--on_policy_share", "0.2"), 0.2),
        (("--distill_mode", "on_policy", "--on_policy_share", "0.2"), 1.0),
    ],
)
def test_whose_answers(flags: tuple[str, ...], share: float) -> None:
    assert parsed(*flags).share_on_policy == share


def test_a_teacher_and_none() -> None:
    assert parsed("--teacher_model_name_or_path", "a").teachers == ["a"]
    assert parsed().teachers == []
    with pytest.raises(ArgumentError, match="one teacher"):
        parsed("--teacher_weights", "1")


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (("--hard_label_share", "2"), "--hard_label_share"),
        (("--on_policy_share", "-1"), "--on_policy_share"),
    ],
)
def test_what_is_refused(flags: tuple[str, ...], says: str) -> None:
    with pytest.raises(ArgumentError, match=says):
        parsed(*flags)


def test_a_config_file_may_hold_dicts(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("generation_kwargs: {num_beams: 2}\nteacher_model_name_or_path: t\n")
    args = parsed("--config", str(file))
    assert args.generation_kwargs == {"num_beams": 2} and args.teachers == ["t"]
    assert parsed("--generation_kwargs", '{"num_beams": 2}').generation_kwargs == {"num_beams": 2}
