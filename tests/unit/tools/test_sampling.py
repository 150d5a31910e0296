"""`hftune sample` in this process: what is drawn, how it is scored, and what is left after a kill."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from hftune.checkpoints.manifest import COMPLETE, read_manifest
from hftune.cli import dispatch
from hftune.data.compared_answers import to_preference
from hftune.data.files import Row
from hftune.data.records import to_conversation
from hftune.errors import ArgumentError, DataError, UserError
from hftune.inference.generate import Answerer
from hftune.tools import sampling as run_module
from hftune.tools.sampling import kept, whatever_they_score
from tests.answering import server
from tests.unit.tools import alone

pytestmark = pytest.mark.long

LONGEST = """def longest(completions, prompts, answer, **columns):
    return [float(len(completion[-1]["content"])) for completion in completions]
"""


@pytest.fixture(scope="module")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("prompts")
    rows = [{"prompt": f"What is {a} plus 1?", "answer": str(a + 1)} for a in range(3)]
    (folder / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "longest.py").write_text(LONGEST)
    return folder


@pytest.fixture(scope="module")
def talkative(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model that draws anything, and ends its turn soon."""
    folder = tmp_path_factory.mktemp("models") / "talkative"
    model, tokenizer = AutoModelForCausalLM.from_pretrained(tiny_model), AutoTokenizer.from_pretrained(tiny_model)
    # States that are nearly alike everywhere, and a few tokens that are likely there, one of which ends the turn.
    few = [*tokenizer(" a b c d e f g", add_special_tokens=False)["input_ids"], tokenizer.eos_token_id]
    model.lm_head = torch.nn.Linear(model.config.hidden_size, model.config.vocab_size, bias=False)
    torch.nn.init.zeros_(model.lm_head.weight)
    with torch.no_grad():
        model.model.embed_tokens.weight[:, 0] = 10
        model.lm_head.weight[few, 0] = 10
    model.config.tie_word_embeddings = False
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def sampled(folder: Path, prompts: Path, *flags: object) -> list[dict[str, Any]]:
    given = ["--train_file_dir", prompts / "prompts.jsonl", "--output_dir", folder, "--max_new_tokens", 12]
    dispatch(["sample", *map(str, [*flags, *given])])
    (file,) = (folder / "data").iterdir()
    return [json.loads(line) for line in file.read_text().splitlines()]


def answers(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "answers.jsonl").read_text().splitlines()]


def test_the_best_by_a_function(talkative: Path, prompts: Path, tmp_path: Path) -> None:
    longest = ["--reward_funcs", f"{prompts}/longest.py:longest", "--num_generations", 6]
    records = sampled(tmp_path / "o", prompts, talkative, *longest)
    drawn = answers(tmp_path / "o")
    assert [one["messages"][0]["content"] for one in drawn] == [f"What is {a} plus 1?" for a in range(3)]
    assert all(len(one["answers"]) == 6 for one in drawn)
    texts = [answer["message"]["content"] for one in drawn for answer in one["answers"]]
    assert len({*texts}) > 6, "they are drawn, and not greedy"
    scores = [answer["score"] for one in drawn for answer in one["answers"]]
    assert scores == [float(len(text)) for text in texts]
    for record, one in zip(records, drawn, strict=True):
        whole = [answer for answer in one["answers"] if answer["ended"]]
        assert len(record["messages"][-1]["content"]) == max(answer["score"] for answer in whole)
    manifest = read_manifest(tmp_path / "o")
    assert manifest and manifest["stage"] == "sample" and manifest["status"] == COMPLETE
    assert manifest["sampled"]["answers"] == 18 and manifest["sampled"]["kept"] == len(records) == 3
    # The seed says what is drawn, and nothing else does.
    assert sampled(tmp_path / "again", prompts, talkative, *longest) == records
    assert sampled(tmp_path / "other", prompts, talkative, *longest, "--seed", 7) != records


def test_pairs_by_a_reward_model(talkative: Path, tiny_rewards: dict[str, Path], prompts: Path, tmp_path: Path) -> None:
    flags = ["--reward_model_path", tiny_rewards["score"], "--keep", "pairs", "--num_generations", 6]
    records = sampled(tmp_path / "o", prompts, talkative, *flags)
    assert len(records) == 3
    for record, line in zip(records, answers(tmp_path / "o"), strict=True):
        pair = to_preference(Row(record, "a", 1))
        scores = [alone.score(tiny_rewards["score"], [*pair.prompt, *said]) for said in (pair.chosen, pair.rejected)]
        known = [one["score"] for one in line["answers"] if one["ended"] and one["score"] is not None]
        assert scores == pytest.approx([max(known), min(known)], abs=1e-4)


def test_a_killed_command_draws_the_same(
    talkative: Path, prompts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_module, "PART_PROMPTS", 1)
    flags = [talkative, "--reward_funcs", f"{prompts}/longest.py:longest", "--num_generations", 6]
    whole = sampled(tmp_path / "whole", prompts, *flags)
    real, calls = Answerer.__call__, []

    def killed(self: Answerer, questions: Any, **options: Any) -> Any:
        calls.append(len(questions))
        if len(calls) == 2:
            raise KeyboardInterrupt
        return real(self, questions, **options)

    monkeypatch.setattr(Answerer, "__call__", killed)
    with pytest.raises(KeyboardInterrupt):
        sampled(tmp_path / "o", prompts, *flags)
    assert sampled(tmp_path / "o", prompts, *flags) == whole and calls == [6] * 4
    assert answers(tmp_path / "o") == answers(tmp_path / "whole")


def test_a_server_answers(prompts: Path, tmp_path: Path) -> None:
    def answer(path: str, body: Any) -> tuple[int, dict[str, Any]]:
        if path == "/v1/models":
            return 200, {"data": [{"id": "served"}]}
        question = body["messages"][-1]["content"]
        reason = "length" if "2" in question else "stop"
        message = {"role": "assistant", "content": f" {question} {body['temperature']} "}
        return 200, {"choices": [{"message": message, "finish_reason": reason}]}

    with server(answer) as service:
        flags = ["--server_url", service.url, "--reward_funcs", f"{prompts}/longest.py:longest", "--temperature", 0.5]
        records = sampled(tmp_path / "o", prompts, *flags, "--num_generations", 2)
    assert [one["messages"][-1]["content"] for one in records] == [f"What is {a} plus 1? 0.5" for a in (0, 1)]
    bodies = [body for path, body, _ in service.requests if path.endswith("/chat/completions")]
    assert sorted(body["seed"] for body in bodies) == [*range(42, 48)], "every answer has its own"
    assert len(bodies) == 6 and all(body["model"] == "served" and body["max_tokens"] == 12 for body in bodies)


def test_what_is_wrong_is_said_at_once(talkative: Path, prompts: Path, tmp_path: Path) -> None:
    with pytest.raises(ArgumentError) as refused:
        dispatch(["sample", "--keep", "pairs", "--num_generations", "1", "--temperature", "0"])
    told = ("from a model, or from a server", "no prompts", "nothing scores", "needs 2", "all be the same", "no output")
    for said in told:
        assert said in str(refused.value)
    with pytest.raises(ArgumentError, match="--judge_url was removed"):
        dispatch(["sample", "--judge_url", "http://localhost:1"])
    with pytest.raises(DataError, match="nothing is kept: 12 answers to 3 prompts"):
        flags = ["--reward_funcs", f"{prompts}/longest.py:longest", "--threshold", 1000]
        sampled(tmp_path / "o", prompts, talkative, *flags)


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("async def own(completions, **columns):\n    return [float(len(completions))] * len(completions)", ""),
        ("def own(completions, **columns):\n    return [float('nan')] * len(completions)", "nothing is kept"),
        ("async def own(completions, **columns):\n    return 1 / 0", r"raised ZeroDivisionError: .*own\.py:2"),
    ],
)
def test_reward_functions_of_every_kind(talkative: Path, prompts: Path, tmp_path: Path, body: str, told: str) -> None:
    (tmp_path / "own.py").write_text(body + "\n")
    flags = [talkative, "--reward_funcs", f"{tmp_path}/own.py:own", "--num_generations", 2]
    if not told:
        sampled(tmp_path / "o", prompts, *flags)
        scores = [answer["score"] for one in answers(tmp_path / "o") for answer in one["answers"]]
        assert scores == [6.0] * 6
        return
    with pytest.raises(UserError, match=told):
        sampled(tmp_path / "o", prompts, *flags)


# --- which answers are kept, by hand ---

TOOL = {"type": "function", "function": {"name": "add", "parameters": {}}}
ASKED: dict[str, Any] = {"messages": [{"role": "user", "content": "Why?"}], "tools": None}


def said(text: str, score: float | None, ended: bool = True) -> dict[str, Any]:
    return {"message": {"role": "assistant", "content": text}, "score": score, "ended": ended}


DRAWN = [
    said("b", 0.5),
    said("a", 0.1),
    said("c", 0.9),
    said("cut", 2.0, ended=False),
    said("", None),
    said("c", 0.9),
]


def texts(keep: str, threshold: float | None = None, answers: list[dict[str, Any]] = DRAWN) -> list[str]:
    return [record["messages"][-1]["content"] for record in kept(keep, ASKED, answers, threshold)]


@pytest.mark.parametrize("keep, count", [("best", 1), ("threshold", 3), ("pairs", 1)])
def test_a_dry_run_keeps_what_a_run_would_not(keep: str, count: int) -> None:
    answers = [said("", 0.0), said("cut", 0.0, ended=False), said("x", None)]
    assert kept(keep, ASKED, answers, 0.5) == []
    records = kept(keep, ASKED, whatever_they_score(answers), float("-inf"))
    assert len(records) == count
    for number, record in enumerate(records):
        read = to_preference if keep == "pairs" else to_conversation
        assert read(Row(record, "a", number + 1))


def test_an_answer_without_a_word_is_no_record() -> None:
    """It scored best: no stage reads it."""
    assert texts("best", answers=[said(" ", 2.0), said("b", 1.0)]) == ["b"]
    assert kept("pairs", ASKED, [said("a", 1.0), said("", 0.0)], None) == []


def test_the_best_answer_is_a_record_of_sft() -> None:
    (record,) = kept("best", {**ASKED, "tools": [TOOL]}, DRAWN, None)
    assert record == {"messages": [*ASKED["messages"], {"role": "assistant", "content": "c"}], "tools": [TOOL]}
    conversation = to_conversation(Row(record, "a", 1))
    assert conversation.messages == record["messages"] and conversation.tools == [TOOL]
    assert texts("best", 0.9) == ["c"] and texts("best", 0.91) == []


def test_all_above_a_threshold_each_once() -> None:
    assert texts("threshold", 0.5) == ["b", "c"] and texts("threshold", 0.51) == ["c"]


def test_pairs_are_of_the_best_and_the_worst() -> None:
    (record,) = kept("pairs", ASKED, DRAWN, None)
    pair = to_preference(Row(record, "a", 1))
    assert [one[-1]["content"] for one in (pair.prompt, pair.chosen, pair.rejected)] == ["Why?", "c", "a"]
    assert len(kept("pairs", ASKED, DRAWN, 0.8)) == 1 and kept("pairs", ASKED, DRAWN, 0.81) == []
    assert kept("pairs", ASKED, [said("a", 1.0), said("b", 1.0)], None) == [], "neither is better"
