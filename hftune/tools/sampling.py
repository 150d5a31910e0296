"""`hftune sample`: several answers to each prompt, scored, and those that are kept as training data.

Prompts are divided into parts, parts among processes; what is there whole is not drawn again.
"""

from __future__ import annotations

import asyncio
import inspect
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any

import torch

from hftune.arguments.asking import SERVER_KEY, SampleArguments
from hftune.checkpoints.folder_checks import check_recorded_whole
from hftune.checkpoints.inputs import inputs_of
from hftune.distributed import launch, ranks
from hftune.errors import ArgumentError, DataError, UserError, raise_together
from hftune.inference.generate import Answer, Answerer
from hftune.inference.judging import ChatServer, RewardScorer
from hftune.inference.loading import check_talkers, load_talker
from hftune.inference.questions import Question, question_of, rows_of
from hftune.inference.results import Line, about_result, json_lines, parts_of, plan_of, publish
from hftune.logging import get_logger
from hftune.preflight.rules.rl import check_rewards
from hftune.publishing.places import check_place
from hftune.trainers.rewards.loading import load_function
from hftune.trainers.rewards.waiting import Patience, watched
from hftune.visible import say

PART_PROMPTS = 8
"""What a killed process loses, and what processes share out."""
DATA, ANSWERS = "data", "answers.jsonl"
_PROMPTS = "--train_file_dir"

Answers = Callable[..., list[Answer]]
Record = dict[str, Any]
Said = Sequence[Mapping[str, Any]]
"""Answers to one prompt: each with `message`, `ended` (it was not cut) and `score` (None: it has none)."""


def sample(args: SampleArguments, argv: list[str]) -> dict[str, int]:
    """Draw, score and keep answers, and publish them; every process calls it.

    Args:
        argv: The command line, for the manifest.

    Returns:
        prompts, answers, and records that are kept.

    Raises:
        UserError: What is wrong with the arguments, together; a prompt that cannot be used; nothing that is kept; or
            the disk.
    """
    began = time.time()
    raise_together(check_sample(args))
    assert args.train_file_dir and args.output_dir, "checked"
    launch.meet_for_objects()
    prompts = [question_of(row) for row, _ in rows_of(args.train_file_dir, _PROMPTS, args.max_train_samples)]
    models = [args.model_name_or_path, *(args.reward_model_path or [])]
    plan = plan_of(args, models, prompts, {"keep", "keep_all", "threshold"})
    with parts_of(args.output_dir, plan) as parts:
        drawn = parts.made("drawn", list(enumerate(prompts)), PART_PROMPTS, partial(_drawing, args))
        pairs = list(zip(prompts, drawn, strict=True))
        scored = parts.made("scored", pairs, PART_PROMPTS, partial(_scoring, args))
        if not ranks.is_main():
            return {}
        files, counts = _kept_files(args, prompts, scored)
        about = about_result("sample", args, argv, models, began) | {"sampled": counts}
        publish(args.output_dir, files, about, overwrite=args.overwrite_output_dir)
    say(f"{_told(counts)}, in {args.output_dir}/{DATA}")
    return counts


def check_sample(args: SampleArguments) -> Iterator[UserError]:
    """Everything that is wrong with the arguments."""
    name, where = args.model_name_or_path, "--model_name_or_path"
    if bool(name) == bool(args.server_url):
        fix = "hftune sample MODEL, or --server_url http://host:port"
        yield ArgumentError("answers come from a model, or from a server", place=f"{where}, --server_url", fix=fix)
    elif name:
        yield from check_talkers([name], where, trust_remote_code=args.trust_remote_code)
    if not args.train_file_dir:
        yield ArgumentError("there are no prompts", place=_PROMPTS, fix=f"{_PROMPTS} FILE_OR_FOLDER")
    yield from _check_scorers(args)
    if args.keep == "threshold" and args.threshold is None:
        yield ArgumentError("what is the least score that is kept?", place="--threshold", fix="--threshold 0.5")
    least = 2 if args.keep == "pairs" else 1
    if args.num_generations < least:
        said = f"--keep {args.keep} needs {least} answers or more"
        yield ArgumentError(said, place="--num_generations", fix=f"--num_generations {least} or more")
    if args.temperature <= 0:
        yield ArgumentError("answers would all be the same", place="--temperature", fix="a number above 0")
    yield from check_place(args.output_dir, inputs_of(args), overwrite=args.overwrite_output_dir)


def _check_scorers(args: SampleArguments) -> Iterator[UserError]:
    if args.reward_model_path or args.reward_funcs:
        yield from check_rewards(args.reward_funcs or [], args.reward_model_path or [])
        for path in args.reward_model_path or []:
            yield from check_recorded_whole(path, "--reward_model_path")
    else:
        where, fix = "--reward_model_path, --reward_funcs", "--reward_model_path OUTPUT_OF_RUN_RM, or accuracy"
        yield ArgumentError("nothing scores the answers", place=where, fix=fix)


def _answers(args: SampleArguments) -> Answers:
    """What answers: a server, or a model, which is loaded."""
    if args.server_url:
        server = ChatServer(args.server_url, "--server_url", args.server_model, "--server_model", SERVER_KEY)
        return partial(server, temperature=args.temperature, top_p=args.top_p)
    get_logger().info("%s answers", args.model_name_or_path)
    talker = load_talker(str(args.model_name_or_path), args, "--model_name_or_path")
    drawing: dict[str, Any] = {"do_sample": True, "temperature": args.temperature, "top_p": args.top_p, "top_k": 0}
    return partial(Answerer(talker, args.borders_in_text, args.batch_tokens), **drawing)


def _drawing(args: SampleArguments) -> Callable[[Sequence[tuple[int, Question]]], Iterator[Line]]:
    answer = _answers(args)

    def make(part: Sequence[tuple[int, Question]]) -> Iterator[Line]:
        # By the part, so that any process draws the same answers.
        first = part[0][0]
        torch.manual_seed(args.seed + first)
        # A server draws by a seed of its own for each answer.
        given = {"seed": args.seed + first * args.num_generations} if args.server_url else {}
        questions = [question for _, question in part for _ in range(args.num_generations)]
        found = answer(questions, max_new_tokens=args.max_new_tokens, **given)
        said = iter([{"message": one.message, "ended": one.ended} for one in found])
        yield from ({"answers": list(islice(said, args.num_generations))} for _ in part)

    return make


def _scoring(args: SampleArguments) -> Callable[[Sequence[tuple[Question, Line]]], Iterator[Line]]:
    """What scores answers, by functions and reward models, which are loaded; several scores are added up."""
    scorers: list[Callable[..., Sequence[float | None]]] = [
        partial(_by_function, watched(load_function(name, args.max_new_tokens), Patience()))
        for name in args.reward_funcs or []
    ]
    scorers += [RewardScorer(path, args).scores for path in args.reward_model_path or []]

    def make(part: Sequence[tuple[Question, Line]]) -> Iterator[Line]:
        pairs = [(question, answer) for question, line in part for answer in line["answers"]]
        questions, messages = [one for one, _ in pairs], [answer["message"] for _, answer in pairs]
        columns = [scorer(questions, messages) for scorer in scorers]
        sums = iter([None if None in scores else sum(scores) for scores in zip(*columns, strict=True)])
        for _, line in part:
            yield {"answers": [{**answer, "score": next(sums)} for answer in line["answers"]]}

    return make


def _by_function(function: Any, records: Sequence[Question], said: Sequence[Any]) -> Sequence[float | None]:
    """As TRL calls reward functions: with the columns that all records have. NaN is no score, as None is."""
    shared = set.intersection(*({*one.columns} for one in records))
    columns = {name: [one.columns[name] for one in records] for name in sorted(shared)}
    prompts = [one.messages for one in records]
    found = function(prompts=prompts, completions=[[one] for one in said], **columns)
    values: Sequence[float | None] = asyncio.run(found) if inspect.iscoroutine(found) else found
    # NaN is no opinion, as in training: no answer is better or worse than it.
    return [None if value is None or math.isnan(value) else value for value in values]


def _kept_files(
    args: SampleArguments, prompts: Sequence[Question], lines: Sequence[Line]
) -> tuple[dict[str, bytes], dict[str, int]]:
    """The files of the result, and counts of what is in them.

    Raises:
        DataError: Nothing is kept.
    """
    shown = [{"messages": one.messages, "tools": one.tools, "origin": one.origin} for one in prompts]
    pairs = list(zip(shown, lines, strict=True))
    records = []
    for prompt, line in pairs:
        said, threshold = line["answers"], args.threshold
        if args.keep_all:
            said, threshold = whatever_they_score(said), float("-inf")
        records += kept(args.keep, prompt, said, threshold)
    answers = [answer for line in lines for answer in line["answers"]]
    counts = {"prompts": len(prompts), "answers": len(answers), "cut": sum(not one["ended"] for one in answers)}
    counts |= {"without_score": sum(one["score"] is None for one in answers), "kept": len(records)}
    if not records:
        fix = "more --num_generations or --max_new_tokens, another --threshold or reward"
        raise DataError(f"nothing is kept: {_told(counts)}", place=str(args.train_file_dir), fix=fix)
    found = json_lines({**prompt, **line} for prompt, line in pairs)
    return {f"{DATA}/{args.keep}.jsonl": json_lines(records), ANSWERS: found}, counts


def _told(counts: Mapping[str, int]) -> str:
    return "{answers} answers to {prompts} prompts, {cut} cut, {kept} kept".format_map(counts)


def kept(keep: str, asked: Mapping[str, Any], answers: Said, threshold: float | None) -> list[Record]:
    """The records that become of the answers to one prompt.

    Args:
        keep: See `--keep`.
        asked: `messages`, and `tools` where some are offered.
        threshold: See `--threshold`.
    """
    # An answer that was cut teaches to end nowhere, one without a word nothing: no stage reads it.
    scored = [one for one in answers if one["score"] is not None and one["ended"] and _says_something(one["message"])]
    if not scored:
        return []
    tools = {"tools": asked["tools"]} if asked.get("tools") else {}
    best, worst = (end(scored, key=lambda one: float(one["score"])) for end in (max, min))
    if keep == "pairs":
        both = {"chosen": [best["message"]], "rejected": [worst["message"]]}
        apart = best["score"] - worst["score"]
        return [{"prompt": asked["messages"], **both, **tools}] if apart > 0 and apart >= (threshold or 0.0) else []
    chosen = [best] if keep == "best" else scored
    said: list[Any] = []
    for one in chosen:
        # The same answer drawn twice is one record.
        if (threshold is None or one["score"] >= threshold) and one["message"] not in said:
            said.append(one["message"])
    return [{"messages": [*asked["messages"], message], **tools} for message in said]


def whatever_they_score(answers: Said) -> Said:
    """The answers as if all had ended, each with a lower score than the one before: any way keeps some of them."""
    return [
        {
            "message": {"content": f"{number}", **{name: value for name, value in one["message"].items() if value}},
            "ended": True,
            "score": -float(number),
        }
        for number, one in enumerate(answers)
    ]


def _says_something(message: Mapping[str, Any]) -> bool:
    return bool(message.get("tool_calls") or str(message.get("content") or "").strip())
