"""`hftune ask`: each model answers as it would alone, adapters are folded, and what is written can be trusted later."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from hftune.checkpoints.manifest import COMPLETE, read_manifest, write_manifest
from hftune.cli import dispatch
from hftune.errors import ArgumentError
from hftune.tools.reporting.stages import ASKED
from tests.unit.tools import alone

pytestmark = pytest.mark.long

QUESTIONS = ["What is 2 plus 3?", "Why?"]


@pytest.fixture
def models(tiny_model: Path, tiny_adapter: Path, tiny_rewards: dict[str, Path]) -> dict[str, Path]:
    return {"base": tiny_model, "adapter": tiny_adapter, "reward": tiny_rewards["score"]}


def asked(folder: Path, *flags: object) -> dict[str, Any]:
    dispatch(["ask", *map(str, flags), "--output_dir", str(folder), "--max_new_tokens", "6"])
    return json.loads((folder / "answers.json").read_text())


def said_alone(model: Any, folder: Path, question: str) -> str:
    return alone.answer(model, folder, [{"role": "user", "content": question}], 6)


def test_models_answer_as_they_would_said_alone(models: dict[str, Path], tmp_path: Path) -> None:
    file = tmp_path / "more.jsonl"
    file.write_text('{"prompt": "Why?"}\n')
    names = [str(models["base"]), str(models["adapter"])]
    found = asked(tmp_path / "o", "--models", *names, "--questions", QUESTIONS[0], "--question_file", file)
    assert found["questions"] == QUESTIONS and [*found["answers"]] == names and "rewards" not in found
    from peft import PeftModel

    base = AutoModelForCausalLM.from_pretrained(models["base"])
    wanted = [said_alone(base, models["base"], question) for question in QUESTIONS]
    assert found["answers"][names[0]] == wanted
    adapted = PeftModel.from_pretrained(base, str(models["adapter"]))
    assert (
        found["answers"][names[1]]
        == [said_alone(adapted, models["base"], question) for question in QUESTIONS]
        != wanted
    )


def test_questions_from_files(models: dict[str, Path], tmp_path: Path) -> None:
    """Not the name of the file is asked, but what is in it; a plain text has a question a line."""
    lines, records = tmp_path / "questions.txt", tmp_path / "more.jsonl"
    lines.write_text("Who are you?\nWhat is 2 plus 3?\n")
    records.write_text('{"prompt": "Why?"}\n')
    found = asked(tmp_path / "o", "--models", models["base"], "--questions", lines, "And you?", records)
    assert found["questions"] == ["Who are you?", "What is 2 plus 3?", "And you?", "Why?"]


def test_an_answer_ends_with_a_whole_character(models: dict[str, Path], tmp_path: Path) -> None:
    """Tokens are bytes here: of an answer that is cut in a character the rest of it says nothing."""
    from hftune.visible import whole

    assert whole("你好\ufffd\ufffd") == "你好" and whole("good") == "good"
    found = asked(tmp_path / "o", "--models", models["base"], models["adapter"], "--questions", *map(str, range(30)))
    answers = [text for said in found["answers"].values() for text in said]
    assert any("\ufffd" in text for text in answers), "such models say halves of characters"
    assert not any(text.endswith("\ufffd") for text in answers)


def test_rewards_and_what_is_printed(
    models: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ("--models", models["base"], "--reward_model_path", models["reward"], "--questions", *QUESTIONS)
    found = asked(tmp_path, *flags)
    name = str(models["base"])
    for question, answer, reward in zip(QUESTIONS, found["answers"][name], found["rewards"][name], strict=True):
        chat = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
        assert reward == pytest.approx(alone.score(models["reward"], chat), abs=1e-5)
    printed = capsys.readouterr().out
    assert "mean reward" in printed and QUESTIONS[0] in printed and "tiny-llama" in printed


def test_the_manifest_and_the_folder_of_a_stage(models: dict[str, Path], tmp_path: Path) -> None:
    asked(tmp_path / "own", "--models", models["base"], "--questions", "Why?")
    manifest = read_manifest(tmp_path / "own")
    assert manifest is not None and manifest["status"] == COMPLETE and manifest["stage"] == ASKED
    assert [*manifest["inputs"]] == [str(models["base"])] and [*manifest["files"]] == ["answers.json"]
    assert manifest["command"][:3] == ["hftune", "ask", "--models"]
    stage = {"stage": "sft", "status": COMPLETE}
    write_manifest(tmp_path / "sft", stage)
    asked(tmp_path / "sft", "--models", models["base"], "--questions", "Why?")
    assert read_manifest(tmp_path / "sft") == stage, "a stage keeps its own"


@pytest.mark.parametrize(
    "flags, words",
    [
        ([], "2 problems"),
        (["--models", "EMPTY", "--questions", "Why?"], "there is no model in"),
        (["--models", "./nowhere", "--questions", "Why?"], "there is no folder ./nowhere"),
        (["--models", "REWARD", "--questions", "Why?"], "is a reward model and says nothing"),
        (["--models", "PARTIAL", "--questions", "Why?"], "not stored: model.norm.weight"),
        (["--modles", "x"], "did you mean --models"),
        (["--models", "BASE", "--questions", "Why?", "--reward_model_path", "BASE"], "has no score head"),
    ],
)
def test_refusals(models: dict[str, Path], tmp_path: Path, flags: list[str], words: str) -> None:
    (tmp_path / "empty").mkdir()
    shutil.copytree(models["base"], tmp_path / "partial")
    weights = load_file(models["base"] / "model.safetensors")
    del weights["model.norm.weight"]
    save_file(weights, tmp_path / "partial" / "model.safetensors", metadata={"format": "pt"})
    places = {name.upper(): str(folder) for name, folder in models.items()}
    places |= {name.upper(): str(tmp_path / name) for name in ("empty", "partial")}
    with pytest.raises(ArgumentError, match=words):
        dispatch(["ask", *(places.get(flag, flag) for flag in flags)])
