"""The form has the arguments of the stages' classes, and becomes a file that the pipeline's own checks take."""

from __future__ import annotations

import html
import re
from pathlib import Path

import pytest
import yaml

from hftune.arguments.stages import stage_parser
from hftune.secret_names import says_secret
from hftune.tools.board.app import Board
from hftune.tools.board.form import fields_of
from tests.unit.tools.board.asking import TOKEN, ask


@pytest.fixture
def board(tmp_path: Path) -> Board:
    return Board([tmp_path / "outputs"], [], TOKEN)


def test_every_argument_has_a_field() -> None:
    fields = {field.name: field for field in fields_of("sft")}
    parser = stage_parser("sft")
    missing = {action.dest for action in parser._actions} - {*fields}
    # What the pipeline gives itself, and secrets, which would stand in a file.
    given = {"help", "output_dir", "overwrite_output_dir", "resume_from_checkpoint", "model_name_or_path", "local_rank"}
    assert {name for name in missing if not says_secret(name)} - given == set()
    assert "hub_token" not in fields
    assert (fields["use_peft"].kind, fields["use_peft"].default) == ("switch", "False")
    assert fields["lora_target_modules"].kind == "list" and fields["learning_rate"].kind == "text"
    assert fields["learning_rate"].help
    assert any(field.kind == "choice" and len(field.choices) > 1 for field in fields.values())


def test_the_form(board: Board) -> None:
    first = ask(board, "new").text
    assert first.count('type="checkbox"') == 6 and "post" not in first, "stages are chosen first"
    page = ask(board, "new?stage=sft&stage=nonsense&stage=dpo").text
    assert page.index("<legend>sft") < page.index("<legend>dpo") and "nonsense" not in page
    assert 'name="sft.learning_rate"' in page and 'name="dpo.beta"' in page and 'name="sft.hub_token"' not in page
    # What is needed often is not folded away; all else is.
    folded = page[page.index("<details") :]
    assert 'name="sft.train_file_dir"' not in folded and 'name="sft.weight_decay"' in folded


def filled(**more: object) -> dict[str, object]:
    found: dict[str, object] = {
        "name": "try-1",
        "model": "some/model",
        "stage": ["dpo", "sft"],
        "launcher": "deepspeed",
    }
    found |= {
        "processes": "2",
        "questions": "Who are you?\n\n Why? ",
        "sft.learning_rate": "1e-3",
        "sft.max_steps": "6",
    }
    found |= {"sft.use_peft": "true", "sft.lora_target_modules": "q_proj 'v proj'", "sft.train_file_dir": " data ä "}
    return found | {"sft.packing": "", "dpo.beta": "0.1", "then": "save"} | more


def test_it_becomes_a_file(board: Board, tmp_path: Path) -> None:
    (tmp_path / "outputs").mkdir()
    answer = ask(board, "new", filled())
    assert answer.status == 303, answer.said
    file = tmp_path / "outputs" / "board" / "try-1.yaml"
    assert yaml.safe_load(file.read_text()) == {
        "model": "some/model",
        "output_dir": str(tmp_path / "outputs" / "try-1"),
        "launcher": {"deepspeed": {"num_gpus": 2}},
        "stages": {
            "sft": {
                "learning_rate": "1e-3",
                "max_steps": 6,
                "use_peft": True,
                "lora_target_modules": ["q_proj", "v proj"],
                "train_file_dir": "data ä",
            },
            "dpo": {"beta": 0.1},
        },
        "answers": {"questions": ["Who are you?", "Why?"]},
    }
    assert "learning_rate: 1e-3\n" in file.read_text(), "as one would write it"
    # The pipeline reads the same.
    from hftune.tools.pipeline.spec import read_spec
    from hftune.tools.pipeline.steps import steps_of

    steps = {step.name: step for step in steps_of(read_spec(file))}
    assert steps["sft"].arguments["use_peft"] == ["True"] and steps["sft"].arguments["max_steps"] == ["6"]
    assert steps["sft"].launcher.options == {"num_gpus": 2} and [*steps][:2] == ["sft", "merge sft"]
    # And the form, to change it.
    one = board.found.pipelines.all()[0]
    page = ask(board, f"new?from={one.id}").text
    for name, value in (("name", "try-1"), ("model", "some/model"), ("processes", "2"), ("sft.learning_rate", "1e-3")):
        assert re.search(rf'name="{name}"[^>]*value="{value}"', page), name
    assert "q_proj &#x27;v proj&#x27;" in page and "<option selected>true</option>" in page
    assert "<option selected>deepspeed</option>" in page and "Who are you?\nWhy?" in page
    assert "Change it in the form" in ask(board, f"pipeline/{one.id}").said


SECRETS = ("hf_" + "aB3dE" * 7, "https://me:hunter2-of-mine@example.org/model")
SECRET_FIELDS = ("model", "questions", "sft.run_name", "sft.train_file_dir")


@pytest.mark.parametrize(
    "wrong, said",
    [
        ({"name": ""}, "name is empty"),
        ({"name": "../x"}, "cannot be the name"),
        ({"model": " "}, "model is empty"),
        ({"stage": []}, "no stage is chosen"),
        ({"launcher": "rm"}, "unknown launcher"),
        ({"processes": "many"}, "is not a number of processes"),
        ({"sft.nonsense": "1"}, "sft has no argument 'nonsense'"),
        ({"sft.hub_token": "hf_x"}, "sft has no argument 'hub_token'"),
        ({"sft.output_dir": "/"}, "sft has no argument 'output_dir'"),
        ({"sft.lora_target_modules": "'q_proj"}, "a quote that does not close"),
        *(({name: text}, "a secret was filled in") for name in SECRET_FIELDS for text in SECRETS),
        ({"sft.deepspeed": '{"comet": {"api_key": "aB3dE6gH9jKl"}}'}, "a secret was filled in"),
    ],
)
def test_what_is_wrong_is_said(board: Board, tmp_path: Path, wrong: dict, said: str) -> None:
    (tmp_path / "outputs").mkdir()
    answer = ask(board, "new", filled(**wrong))
    assert answer.status == 400 and said in answer.said, answer.said
    assert not (tmp_path / "outputs" / "board").exists()
    # Nothing of what was filled in is lost.
    for name, value in filled(**wrong).items():
        if name in ("name", "processes", "sft.learning_rate", "sft.lora_target_modules") and wrong.get("stage") != []:
            text = re.escape(html.escape(str(value)))
            assert re.search(rf'name="{re.escape(name)}"[^>]*value="{text}"', answer.text), name
