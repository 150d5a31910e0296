"""Scores of answers by a reward model or a judge, once all models have given theirs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from hftune.arguments.asking import JUDGE_KEY, OF_ANSWERS, EvaluateArguments
from hftune.distributed import ranks
from hftune.tools.evaluating.judging import Judge
from hftune.tools.evaluating.work import Work
from hftune.tools.resumable.parts import Line, Parts
from hftune.tools.talking.chat_server import ChatServer
from hftune.tools.talking.records import Asked
from hftune.trainers.rewards.answer_scorer import AnswerScorer


def judge_answers(work: Work, parts: Parts) -> None:
    """Make the parts of `OF_ANSWERS`, of all models, by a reward model or a judge that is loaded once."""
    for task in OF_ANSWERS:
        names = [part for number in range(len(work.models)) for part in work.parts(task, number)]
        if task not in work.tasks or all(parts.has(name) for name in names):
            continue
        ranks.barrier()
        parts.make(names, partial(_judged, work, parts, task, _LOADERS[task](work.args)))


def _judged(work: Work, parts: Parts, task: str, judge: Any, part: str) -> Iterator[Line]:
    answers = parts.read([part.replace(f"-{task}-", "-answers-")])
    records = [(work.asked[place], line["answer"]) for place, line in zip(work.of(part), answers, strict=True)]
    for line, score in zip(answers, judge(records), strict=True):
        if score is not None:
            yield {name: line[name] for name in ("record", "digest", "source")} | {"scores": {task: score}}


def _by_reward_model(args: EvaluateArguments) -> Any:
    scorer = AnswerScorer(
        str(args.reward_model_path),
        use_cpu=args.use_cpu,
        trust_remote_code=args.trust_remote_code,
        borders_in_text=args.borders_in_text,
    )
    return lambda records: scorer([[*one.prompt.messages, answer] for one, answer in records])


def _by_judge(args: EvaluateArguments) -> Any:
    judge = Judge(ChatServer(str(args.judge_url), "--judge_url", args.judge_model, JUDGE_KEY))

    def compare(records: Sequence[tuple[Asked, Any]]) -> list[float | None]:
        # A record without an answer has nothing to compare with.
        known = [
            (one.prompt.messages, answer["content"], one.right) for one, answer in records if one.right is not None
        ]
        found = iter(judge(known))
        return [None if one.right is None else next(found) for one, _ in records]

    return compare


_LOADERS: dict[str, Callable[[EvaluateArguments], Any]] = {"reward": _by_reward_model, "judge": _by_judge}
