"""`hftune evaluate` in this process: losses are SFT's, answers are a model's own, and both survive a kill."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy
from transformers import AutoModelForCausalLM, AutoTokenizer

from hftune.checkpoints.manifest import COMPLETE, read_manifest
from hftune.cli import dispatch
from hftune.data.counts import Counts
from hftune.data.encode import ChatEncoder
from hftune.data.files import Row
from hftune.digests import changed_files
from hftune.errors import ArgumentError, UserError
from hftune.logging import notices
from tests.unit.tools import alone

pytestmark = pytest.mark.long

RECORDS = [
    {"messages": [{"role": "user", "content": "Why?"}, {"role": "assistant", "content": "Because it is so."}]},
    {
        "messages": [
            {"role": "user", "content": "What is 2 plus 3, and why is it not 6?"},
            {"role": "assistant", "content": "5"},
            {"role": "user", "content": "And 2 plus 4?"},
            {"role": "assistant", "content": "6"},
        ]
    },
    {"prompt": "What is 1 plus 1?", "response": "2"},
]

JUDGE = ("--judge_url", "http://localhost:1")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("held_out")
    (folder / "a.jsonl").write_text("".join(json.dumps(record) + "\n" for record in RECORDS[:2]))
    (folder / "b.jsonl").write_text(json.dumps(RECORDS[2]) + "\n")
    return folder


def evaluated(folder: Path, data: Path, *flags: object) -> dict[str, Any]:
    more = ["--validation_file_dir", data, "--output_dir", folder, "--max_new_tokens", 4]
    dispatch(["evaluate", *map(str, [*flags, *more])])
    return json.loads((folder / "evaluation.json").read_text())


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "records.jsonl").read_text().splitlines()]


def losses_of(model: Any, folder: Path) -> list[tuple[float, int]]:
    """What a plain forward pass says of each record."""
    encode, found = ChatEncoder(AutoTokenizer.from_pretrained(folder), max_length=None), []
    for record in RECORDS:
        columns = encode.encode([encode.parse(Row(record, "a", 1))], Counts())
        ids, labels = (torch.tensor(columns[name][0], dtype=torch.long) for name in ("input_ids", "labels"))
        with torch.no_grad():
            logits = model(input_ids=ids[None]).logits[0, :-1]
        found.append((float(cross_entropy(logits, labels[1:], reduction="sum")), int((labels[1:] != -100).sum())))
    return found


def test_losses_are_those_of_sft(tiny_model: Path, tiny_adapter: Path, data: Path, tmp_path: Path) -> None:
    found = evaluated(tmp_path / "o", data, tiny_model, tiny_adapter, "--eval_tasks", "loss", "--against", tiny_model)
    base = AutoModelForCausalLM.from_pretrained(tiny_model)
    wanted = {str(tiny_model): losses_of(base, tiny_model)}
    from peft import PeftModel

    wanted[str(tiny_adapter)] = losses_of(PeftModel.from_pretrained(base, str(tiny_adapter)), tiny_model)
    totals = {}
    for model, losses in wanted.items():
        own = [line for line in lines(tmp_path / "o") if line["model"] == model]
        assert [line["record"] for line in own] == ["a.jsonl:1", "a.jsonl:2", "b.jsonl:1"]
        assert [line["weight"] for line in own] == [tokens for _, tokens in losses]
        scored = [line["scores"]["loss"] * line["weight"] for line in own]
        assert scored == pytest.approx([loss for loss, _ in losses], rel=1e-5)
        totals[model] = sum(loss for loss, _ in losses) / sum(tokens for _, tokens in losses)
        figures = found["models"][model]
        assert figures["loss"]["value"] == pytest.approx(totals[model], rel=1e-5)
        assert figures["loss"]["perplexity"] == pytest.approx(2.718281828 ** totals[model], rel=1e-4)
        assert figures["loss/b.jsonl"]["value"] == pytest.approx(losses[2][0] / losses[2][1], rel=1e-5)
    (less,) = found["differences"].values()
    assert less["loss"]["value"] == pytest.approx(totals[str(tiny_adapter)] - totals[str(tiny_model)], abs=1e-5)
    assert abs(less["loss"]["value"]) > 1e-3


def test_answers_are_the_models_own(tiny_model: Path, tiny_adapter: Path, data: Path, tmp_path: Path) -> None:
    evaluated(tmp_path / "o", data, tiny_model, "--eval_tasks", "exact_match", "math", "json")
    model = AutoModelForCausalLM.from_pretrained(tiny_model)
    asked = [RECORDS[0]["messages"][:1], RECORDS[1]["messages"][:3], [{"role": "user", "content": "What is 1 plus 1?"}]]  # type: ignore[index]  # lists of texts
    for line, chat, right in zip(lines(tmp_path / "o"), asked, ["Because it is so.", "6", "2"], strict=True):
        assert line["answer"]["content"] == alone.answer(model, tiny_model, chat, 4)
        assert line["scores"]["exact_match"] == float(line["answer"]["content"] == right)
    # The same records against an earlier evaluation.
    found = evaluated(
        *(tmp_path / "p", data, tiny_model, "--eval_tasks", "exact_match", "math", "--against", tmp_path / "o")
    )
    (less,) = found["differences"].values()
    assert less["exact_match"] == {"value": 0, "low": 0, "high": 0, "records": 3} == less["math"]
    # One that was changed since, and one of two models.
    records = tmp_path / "o" / "records.jsonl"
    records.write_text(records.read_text().replace("0.0", "1.0"))
    with pytest.raises(UserError, match="not as hftune wrote it"):
        evaluated(tmp_path / "q", data, tiny_model, "--eval_tasks", "math", "--against", tmp_path / "o")
    evaluated(tmp_path / "two", data, tiny_model, tiny_adapter, "--eval_tasks", "loss")
    with pytest.raises(ArgumentError, match="an evaluation of several models"):
        evaluated(tmp_path / "q", data, tiny_model, "--eval_tasks", "loss", "--against", tmp_path / "two")


def test_the_folder_says_how_it_was_made(tiny_model: Path, data: Path, tmp_path: Path) -> None:
    evaluated(tmp_path / "o", data, tiny_model, "--eval_tasks", "loss", "--max_eval_samples", 1)
    manifest = read_manifest(tmp_path / "o")
    assert manifest and manifest["stage"] == "evaluate" and manifest["status"] == COMPLETE
    assert manifest["command"][:4] == ["hftune", "evaluate", "--models", str(tiny_model)]
    assert str(data) in manifest["inputs"] and not any(changed_files(tmp_path / "o", manifest["files"]))
    assert len(lines(tmp_path / "o")) == 1
    with pytest.raises(ArgumentError, match="overwrite_output_dir"):
        evaluated(tmp_path / "o", data, tiny_model, "--eval_tasks", "loss")
    evaluated(tmp_path / "o", data, tiny_model, "--eval_tasks", "loss", "--overwrite_output_dir")
    assert len(lines(tmp_path / "o")) == 3


def test_everything_that_is_wrong_is_said_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    lm_eval = pytest.importorskip("lm_eval.tasks")
    # lm-eval's own index takes seconds to read.
    few = partial(lm_eval.TaskManager, include_defaults=False)
    monkeypatch.setattr("hftune.tools.evaluating.harness.TaskManager", few)
    with pytest.raises(ArgumentError) as refused:
        dispatch(["evaluate", "--eval_tasks", "exact_mach", "loss"])
    for said in ("no model was named", "did you mean exact_match?", "no held-out records", "no output folder"):
        assert said in str(refused.value)


@pytest.mark.parametrize(
    ("task", "record", "needed"),
    [
        ("judge", {"prompt": "Why?"}, "answers"),
        ("tool_calls", RECORDS[0], "tools"),
    ],
)
def test_a_task_that_the_records_have_nothing_for(
    task: str, record: dict[str, Any], needed: str, tiny_model: Path, tmp_path: Path
) -> None:
    """`judge` on bare prompts ended in a traceback, the others without a figure and without a word."""
    (tmp_path / "a.jsonl").write_text(json.dumps(record) + "\n")
    with pytest.raises(ArgumentError, match=f"{task} needs records with {needed}, and none has"):
        evaluated(tmp_path / "out", tmp_path / "a.jsonl", "--models", tiny_model, "--eval_tasks", task, *JUDGE)


def test_records_that_a_task_leaves_out_are_counted(tiny_model: Path, tmp_path: Path) -> None:
    records = [{"prompt": "Why?"}, {"prompt": "What is 1 plus 1?", "answer": "2"}]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    found = evaluated(tmp_path / "out", tmp_path / "a.jsonl", "--models", tiny_model, "--eval_tasks", "exact_match")
    assert found["models"][str(tiny_model)]["exact_match"]["records"] == 1
    assert "exact_match: 1 of 2 records are without answers, and not in the figure" in notices()
