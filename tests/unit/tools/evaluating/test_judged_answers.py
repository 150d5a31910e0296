"""Scores of answers by other models: of each record that has an answer to compare with, once, and by its name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hftune.arguments.asking import EvaluateArguments
from hftune.inference.results import Parts
from hftune.tools.evaluating import run as run_module
from hftune.tools.evaluating.run import Work, judged
from tests.answering import server
from tests.unit.tools import alone

RECORDS = [
    {"prompt": "What is 1 plus 1?", "answer": "2"},
    {"prompt": "Say anything."},
    {"messages": [{"role": "user", "content": "Why?"}, {"role": "assistant", "content": "Because."}]},
]


# What two models answered.
LINES = [
    {
        "model": model,
        "record": f"a.jsonl:{n + 1}",
        "digest": f"{n}",
        "source": "a.jsonl",
        "answer": {"role": "assistant", "content": f"{number}{n}"},
    }
    for number, model in enumerate("mn")
    for n in range(3)
]


@pytest.fixture
def parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Parts:
    """Two records a part."""
    monkeypatch.setattr(run_module, "PART_RECORDS", 2)
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(record) + "\n" for record in RECORDS))
    return Parts(tmp_path / "parts")


def work(tmp_path: Path, **given: Any) -> Work:
    return Work(EvaluateArguments(models=["m", "n"], validation_file_dir=str(tmp_path / "a.jsonl"), **given))


def test_a_judge_compares_with_the_records_own_answer(parts: Parts, tmp_path: Path) -> None:
    """It finds the second model's answers better than the right ones, and the first one's worse."""

    def answer(path: str, body: Any) -> tuple[int, dict[str, Any]]:
        first = body["messages"][0]["content"].partition("[answer A]\n")[2].partition("\n")[0]
        # 2 and "Because." are the records' own.
        order = {"0": 0, "2": 1, "B": 1, "1": 2}
        said = (
            "A" if order[first[0]] == 2 or (order[first[0]] == 1 and "\n0" in body["messages"][0]["content"]) else "B"
        )
        return 200, {"choices": [{"message": {"content": f"Verdict: {said}"}, "finish_reason": "stop"}]}

    with server(answer) as asked:
        asking = work(tmp_path, eval_tasks=["judge"], judge_url=asked.url, judge_model="j")
        found = judged(asking, parts, LINES)
        # Of each model two records in both orders: the second record has nothing to compare with.
        assert len(asked.requests) == 2 * 2 * 2
        assert judged(asking, parts, LINES) == found and len(asked.requests) == 8, "what is there is not asked again"
    about = {"source": "a.jsonl"}
    assert found == [
        about | {"model": model, "record": f"a.jsonl:{n}", "digest": f"{n - 1}", "scores": {"judge": value}}
        for model, value in (("m", 0.0), ("n", 1.0))
        for n in (1, 3)
    ]


def test_a_reward_model_scores_question_and_answer(parts: Parts, tiny_rewards: dict[str, Path], tmp_path: Path) -> None:
    reward = tiny_rewards["score"]
    asking = work(tmp_path, eval_tasks=["reward"], reward_model_path=str(reward), use_cpu=True)
    found = judged(asking, parts, [{"model": "m", "record": "of lm-eval"}, *LINES])
    assert [line["record"] for line in found] == [f"a.jsonl:{n}" for n in (1, 2, 3)] * 2
    questions = ["What is 1 plus 1?", "Say anything.", "Why?"]
    for place, line in enumerate(found):
        chat = [
            {"role": "user", "content": questions[place % 3]},
            {"role": "assistant", "content": f"{place // 3}{place % 3}"},
        ]
        assert line["scores"] == {"reward": pytest.approx(alone.score(reward, chat), abs=1e-4)}
