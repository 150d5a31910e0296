"""`hftune sample`: prompts are divided into parts, parts among processes; what is there whole is not drawn again."""

from __future__ import annotations

import asyncio
import gc
import inspect
import math
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch

from hftune.arguments.asking import JUDGE_KEY, SERVER_KEY, SampleArguments
from hftune.checkpoints import manifest as manifests
from hftune.checkpoints.folder_checks import check_recorded_whole
from hftune.checkpoints.inputs import inputs_of, record_inputs
from hftune.distributed import launch, ranks
from hftune.errors import ArgumentError, DataError, UserError, raise_together
from hftune.logging import get_logger, notices
from hftune.preflight.rules.rl import check_rewards
from hftune.publishing.disk import write_file
from hftune.publishing.folder import published_folder
from hftune.publishing.places import check_place
from hftune.secrets import command_without_secrets, without_secrets
from hftune.tools.resumable.parts import Line, Parts, json_lines, parts_of
from hftune.tools.sampling.judging import ScoringJudge
from hftune.tools.sampling.keeping import Record, kept, whatever_they_score
from hftune.tools.talking.answering import Answer, Answerer, Question
from hftune.tools.talking.chat_server import ChatServer
from hftune.tools.talking.loading import check_talker, load_talker
from hftune.tools.talking.records import Asked, asked, rows_of
from hftune.trainers.rewards.answer_scorer import AnswerScorer
from hftune.trainers.rewards.loading import load_function
from hftune.trainers.rewards.waiting import Patience, watched
from hftune.visible import say
from hftune.weight_files import fingerprint

PART_PROMPTS = 8
"""What a killed process loses, and what processes share out."""
SAMPLED, DATA, ANSWERS = "sample", "data", "answers.jsonl"
_PROMPTS = "--train_file_dir"

Answers = Callable[..., list[Answer]]


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
    prompts = [asked(row) for row, _ in rows_of(args.train_file_dir, _PROMPTS, args.max_train_samples)]
    starts = range(0, len(prompts), PART_PROMPTS)
    drawn, scored = ([f"{kind}-{start}" for start in starts] for kind in ("drawn", "scored"))
    with parts_of(args.output_dir, _plan(args, prompts)) as parts:
        _draw(args, prompts, parts, drawn)
        _score(args, prompts, parts, scored)
        if not ranks.is_main():
            return {}
        return _publish(args, argv, prompts, parts.read(scored), began)


def check_sample(args: SampleArguments) -> Iterator[UserError]:
    """Everything that is wrong with the arguments."""
    name, where = args.model_name_or_path, "--model_name_or_path"
    if bool(name) == bool(args.server_url):
        fix = "hftune sample MODEL, or --server_url http://host:port"
        yield ArgumentError("answers come from a model, or from a server", place=f"{where}, --server_url", fix=fix)
    elif name:
        fix = "give a language model; --reward_model_path scores answers"
        yield from check_talker(name, where, fix, trust_remote_code=args.trust_remote_code)
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
    if not args.output_dir:
        yield ArgumentError("no folder for the data", place="--output_dir", fix="--output_dir outputs/sampled")
    else:
        yield from check_place(args.output_dir, inputs_of(args), overwrite=args.overwrite_output_dir)


def _check_scorers(args: SampleArguments) -> Iterator[UserError]:
    if args.reward_model_path or args.reward_funcs:
        yield from check_rewards(args.reward_funcs or [], args.reward_model_path or [])
        for path in args.reward_model_path or []:
            yield from check_recorded_whole(path, "--reward_model_path")
    elif not args.judge_url:
        where = "--reward_model_path, --reward_funcs, --judge_url"
        fix = "--reward_model_path OUTPUT_OF_RUN_RM, --reward_funcs accuracy, or --judge_url http://host:port"
        yield ArgumentError("nothing scores the answers", place=where, fix=fix)


def _plan(args: SampleArguments, prompts: Sequence[Asked]) -> dict[str, Any]:
    """All that decides what is in the parts."""
    without = {"output_dir", "overwrite_output_dir", "use_cpu", "keep", "keep_all", "threshold"}
    models = [args.model_name_or_path, *(args.reward_model_path or [])]
    return {
        "settings": without_secrets({name: value for name, value in vars(args).items() if name not in without}),
        "models": [(name, fingerprint(name)) for name in models if name],
        "data": manifests.text_fingerprint(repr([(one.prompt, one.tools) for one in prompts])),
        "versions": manifests.library_versions(),
    }


def _of(part: str, prompts: Sequence[Asked]) -> Sequence[Asked]:
    start = int(part.rpartition("-")[2])
    return prompts[start : start + PART_PROMPTS]


def _draw(args: SampleArguments, prompts: Sequence[Asked], parts: Parts, names: Sequence[str]) -> None:
    """Draw the answers of all parts; the model is freed afterwards, and not loaded where all are there."""
    if all(parts.has(name) for name in names):
        return
    # No process writes before all have looked.
    ranks.barrier()
    answer: Answers
    if args.server_url:
        server = ChatServer(args.server_url, "--server_url", args.server_model, SERVER_KEY)
        answer = partial(server, temperature=args.temperature, top_p=args.top_p)
    else:
        get_logger().info("%s answers", args.model_name_or_path)
        talker = load_talker(str(args.model_name_or_path), args, "--model_name_or_path")
        drawing: dict[str, Any] = {"do_sample": True, "temperature": args.temperature, "top_p": args.top_p, "top_k": 0}
        answer = partial(Answerer(talker, args.borders_in_text, args.batch_tokens), **drawing)
    parts.make(names, partial(_drawn, args, prompts, answer))
    # Models have reference cycles: only a collection frees the memory before reward models are loaded.
    del answer
    gc.collect()


def _drawn(args: SampleArguments, prompts: Sequence[Asked], answer: Answers, part: str) -> Iterator[Line]:
    own = _of(part, prompts)
    # By the part, so that any process draws the same answers.
    start = int(part.rpartition("-")[2])
    torch.manual_seed(args.seed + start)
    # A server draws by a seed of its own for each answer.
    given = {"seed": args.seed + start * args.num_generations} if args.server_url else {}
    questions = [
        Question(one.prompt.messages, one.tools, one.prompt.template_arguments, one.prompt.origin)
        for one in own
        for _ in range(args.num_generations)
    ]
    found = answer(questions, max_new_tokens=args.max_new_tokens, **given)
    for number in range(len(own)):
        group = found[number * args.num_generations :][: args.num_generations]
        yield {"answers": [{"message": one.message, "ended": one.ended} for one in group]}


def _score(args: SampleArguments, prompts: Sequence[Asked], parts: Parts, names: Sequence[str]) -> None:
    """Score the answers of all parts: by functions, one reward model after the other, then a judge."""
    if all(parts.has(name) for name in names):
        return
    ranks.barrier()
    common: dict[str, Any] = {"use_cpu": args.use_cpu, "trust_remote_code": args.trust_remote_code}
    scorers: list[Callable[..., Sequence[float | None]]] = [
        partial(_by_function, watched(load_function(name, args.max_new_tokens), Patience()))
        for name in args.reward_funcs or []
    ]
    for path in args.reward_model_path or []:
        scorer = AnswerScorer(path, borders_in_text=args.borders_in_text, **common)
        scorers.append(partial(_by_model, scorer))
    if args.judge_url:
        scorers.append(ScoringJudge(ChatServer(args.judge_url, "--judge_url", args.judge_model, JUDGE_KEY)))
    parts.make(names, partial(_scored, prompts, parts, scorers))


def _scored(prompts: Sequence[Asked], parts: Parts, scorers: Sequence[Any], part: str) -> Iterator[Line]:
    drawn = parts.read([part.replace("scored", "drawn")])
    pairs = [(one, answer) for one, line in zip(_of(part, prompts), drawn, strict=True) for answer in line["answers"]]
    columns = [scorer([one for one, _ in pairs], [answer["message"] for _, answer in pairs]) for scorer in scorers]
    sums = iter([None if None in scores else sum(scores) for scores in zip(*columns, strict=True)])
    for line in drawn:
        yield {"answers": [{**answer, "score": next(sums)} for answer in line["answers"]]}


def _by_function(function: Any, records: Sequence[Asked], said: Sequence[Any]) -> Sequence[float | None]:
    """As TRL calls reward functions: with the columns that all records have. NaN is no score, as None is."""
    shared = set.intersection(*({*one.prompt.extra} for one in records))
    columns = {name: [one.prompt.extra[name] for one in records] for name in sorted(shared)}
    prompts = [one.prompt.messages for one in records]
    found = function(prompts=prompts, completions=[[one] for one in said], **columns)
    values: Sequence[float | None] = asyncio.run(found) if inspect.iscoroutine(found) else found
    # NaN is no opinion, as in training: no answer is better or worse than it.
    return [None if value is None or math.isnan(value) else value for value in values]


def _by_model(scorer: AnswerScorer, records: Sequence[Asked], said: Sequence[Any]) -> Sequence[float | None]:
    return scorer([[*one.prompt.messages, message] for one, message in zip(records, said, strict=True)])


def _kept(args: SampleArguments, prompt: dict[str, Any], answers: list[dict[str, Any]]) -> list[Record]:
    if args.keep_all:
        return kept(args.keep, prompt, whatever_they_score(answers), float("-inf"))
    return kept(args.keep, prompt, answers, args.threshold)


def _publish(
    args: SampleArguments, argv: list[str], prompts: Sequence[Asked], lines: Sequence[Line], began: float
) -> dict[str, int]:
    shown = [{"messages": one.prompt.messages, "tools": one.tools, "origin": one.prompt.origin} for one in prompts]
    pairs = list(zip(shown, lines, strict=True))
    records = [one for prompt, line in pairs for one in _kept(args, prompt, line["answers"])]
    answers = [answer for line in lines for answer in line["answers"]]
    counts = {"prompts": len(prompts), "answers": len(answers), "cut": sum(not one["ended"] for one in answers)}
    counts |= {"without_score": sum(one["score"] is None for one in answers), "kept": len(records)}
    told = f"{counts['answers']} answers to {counts['prompts']} prompts, {counts['cut']} cut, {len(records)} kept"
    if not records:
        fix = "more --num_generations or --max_new_tokens, another --threshold or reward"
        raise DataError(f"nothing is kept: {told}", place=str(args.train_file_dir), fix=fix)
    parents = [name for name in [args.model_name_or_path, *(args.reward_model_path or [])] if name]
    with published_folder(str(args.output_dir), overwrite=args.overwrite_output_dir) as result:
        write_file(result / DATA / f"{args.keep}.jsonl", json_lines(records))
        write_file(result / ANSWERS, json_lines({**prompt, **line} for prompt, line in pairs))
        about = {
            "hftune": manifests.library_versions().get("hftune"),
            "stage": SAMPLED,
            "status": manifests.COMPLETE,
            "command": ["hftune", "sample", *command_without_secrets(argv)],
            "arguments": without_secrets(vars(args)),
            "versions": manifests.library_versions(),
            "parents": [
                {"folder": name, "fingerprint": fingerprint(name)} for name in parents if manifests.read_manifest(name)
            ],
            "inputs": record_inputs(argv),
            "sampled": counts,
            "wall_seconds": round(time.time() - began, 2),
            "notices": notices(),
        }
        manifests.finish_manifest(result, about)
    say(f"{told}, in {args.output_dir}/{DATA}")
    return counts
