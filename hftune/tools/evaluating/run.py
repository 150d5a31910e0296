"""`hftune evaluate`: what models can do on held-out records, printed as tables and kept record by record.

Records are divided into parts, parts among processes; what is there whole is not made again.
"""

from __future__ import annotations

import importlib.util
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property, partial
from itertools import cycle
from typing import Any

from hftune.arguments.asking import ANSWER_TASKS, COMPARED_TASKS, OF_ANSWERS, OWN_TASKS, EvaluateArguments
from hftune.checkpoints.folder_checks import check_recorded, check_recorded_whole
from hftune.checkpoints.inputs import inputs_of
from hftune.checkpoints.manifest import text_fingerprint
from hftune.data.files import Row
from hftune.distributed import launch, ranks
from hftune.errors import ArgumentError, UserError, did_you_mean, raise_together
from hftune.inference.generate import Answerer
from hftune.inference.judging import Judge, RewardScorer
from hftune.inference.loading import Talker, check_talkers, load_talker
from hftune.inference.questions import Question, question_of, rows_of
from hftune.inference.results import Line, Parts, about_result, json_lines, parts_of, plan_of, publish
from hftune.logging import get_logger, notice
from hftune.on_demand import on_demand
from hftune.publishing.places import check_place
from hftune.tools.evaluating.answer_scores import missing_libraries, scores
from hftune.tools.evaluating.losses import RecordLosses
from hftune.tools.evaluating.results import RECORDS, is_evaluation, lines_of, results
from hftune.tools.reporting.stages import EVALUATED, RESULTS
from hftune.tools.reporting.tables import evaluation_sections
from hftune.visible import say

PART_RECORDS = 32
"""What a killed process loses, and what processes share out."""
FLAG = "--validation_file_dir"


@dataclass
class Work:
    """What is to be measured."""

    args: EvaluateArguments
    rows: list[tuple[Row, str]] = field(init=False)

    def __post_init__(self) -> None:
        folder = self.args.validation_file_dir
        self.rows = rows_of(folder, FLAG, self.args.max_eval_samples) if folder else []
        self.tasks = list(self.args.eval_tasks or [])

    @property
    def models(self) -> list[str]:
        """All that are loaded; what the others are compared with is the last."""
        against = [self.args.against] if self.args.against and not is_evaluation(self.args.against) else []
        return list(dict.fromkeys([*(self.args.models or []), *against]))

    @cached_property
    def asked(self) -> list[Question]:
        """The questions of all records."""
        return [question_of(row) for row, _ in self.rows]

    def named(self, place: int) -> dict[str, Any]:
        """A record's name and source, and a digest by which another evaluation knows it again."""
        row, source = self.rows[place]
        # `default`: Parquet has dates and decimals.
        digest = text_fingerprint(json.dumps(row.value, sort_keys=True, default=str))
        return {"record": f"{source}:{row.line}", "digest": digest, "source": source}


def evaluate(args: EvaluateArguments, argv: list[str]) -> dict[str, Any]:
    """Evaluate all models and publish what was found; every process calls it.

    Args:
        argv: The command line, for the manifest.

    Returns:
        What `evaluation.json` holds.

    Raises:
        UserError: What is wrong with the arguments, together; a record that cannot be used; or the disk.
    """
    began = time.time()
    raise_together(check_evaluate(args))
    launch.meet_for_objects()
    work = Work(args)
    raise_together(_check_records(work))
    data = [(row.value, row.origin) for row, _ in work.rows]
    plan = plan_of(args, work.models, data, {"against", "models"})
    with parts_of(str(args.output_dir), plan) as parts:
        lines = [line for number in range(len(work.models)) for line in _measured(work, parts, number)]
        lines += judged(work, parts, lines)
        found = results(lines, args.against, _others(args, lines))
        if ranks.is_main():
            files = {
                RECORDS: json_lines(lines),
                RESULTS: (json.dumps(found, indent=1, ensure_ascii=False) + "\n").encode(),
            }
            about = about_result(EVALUATED, args, argv, [*found["models"], args.against], began)
            publish(str(args.output_dir), files, about, overwrite=args.overwrite_output_dir)
    if ranks.is_main():
        say("\n\n".join(section.render() for section in evaluation_sections(found)))
    return found


def check_evaluate(args: EvaluateArguments) -> Iterator[UserError]:
    """Everything that is wrong with the arguments."""
    yield from check_talkers(args.models, "--models", trust_remote_code=args.trust_remote_code)
    if args.against and is_evaluation(args.against):
        yield from check_recorded(args.against, "--against")
    elif args.against and args.against not in (args.models or []):
        yield from check_talkers([args.against], "--against", trust_remote_code=args.trust_remote_code)
    yield from check_recorded_whole(args.reward_model_path, "--reward_model_path")
    if not args.eval_tasks:
        yield ArgumentError("nothing to measure", place="--eval_tasks", fix="--eval_tasks loss exact_match")
    yield from _check_tasks(args)
    yield from check_place(args.output_dir, inputs_of(args), overwrite=args.overwrite_output_dir)


def _check_tasks(args: EvaluateArguments) -> Iterator[UserError]:
    tasks = args.eval_tasks or []
    yield from missing_libraries(tasks)
    if args.harness_tasks:
        if importlib.util.find_spec("lm_eval") is None:
            near = did_you_mean(args.harness_tasks[0], OWN_TASKS)
            fix = f"{near} Tasks of hftune: {', '.join(OWN_TASKS)}; for lm-eval's: pip install 'hftune[eval]'".strip()
            yield ArgumentError(f"hftune has no task {args.harness_tasks[0]}", place="--eval_tasks", fix=fix)
        else:
            yield from on_demand("hftune.tools.evaluating.harness:problems")(args)
    if not args.validation_file_dir and {*tasks} & {*OWN_TASKS}:
        yield ArgumentError("there are no held-out records", place=FLAG, fix=f"{FLAG} FILE_OR_FOLDER")
    if "reward" in tasks and not args.reward_model_path:
        fix = "--reward_model_path OUTPUT_OF_RUN_RM"
        yield ArgumentError("no reward model was named", place="--reward_model_path", fix=fix)
    if "judge" in tasks and not args.judge_url:
        yield ArgumentError("no judge was named", place="--judge_url", fix="--judge_url http://host:port")


def _check_records(work: Work) -> Iterator[UserError]:
    """Tasks that the records have nothing for; where only some have, a notice."""
    lacking = dict.fromkeys(COMPARED_TASKS, ("answers", [one for one in work.asked if one.right is None]))
    lacking["tool_calls"] = "tools", [one for one in work.asked if not one.tools]
    for task in work.tasks:
        what, without = lacking.get(task, ("", []))
        if without and len(without) == len(work.asked):
            fix = f"leave {task} out of --eval_tasks, or add {what} to the records"
            yield ArgumentError(f"{task} needs records with {what}, and none has", place=FLAG, fix=fix)
        elif without:
            notice(f"{task}: {len(without)} of {len(work.asked)} records are without {what}, and not in the figure")


def _measured(work: Work, parts: Parts, number: int) -> list[Line]:
    """The lines of one model, which is freed afterwards; it is not loaded where all its parts are there."""
    name, places, found = work.models[number], range(len(work.rows)), list[Line]()

    @cache
    def talker() -> Talker:
        get_logger().info("evaluating %s", name)
        return load_talker(name, work.args)

    if "loss" in work.tasks:
        found += parts.made(f"{number}-loss", places, PART_RECORDS, partial(_losses, work, talker))
    if not {*work.tasks}.isdisjoint((*ANSWER_TASKS, *OF_ANSWERS)):
        found += parts.made(f"{number}-answers", places, PART_RECORDS, partial(_answers, work, talker))
    for place, task in enumerate(work.args.harness_tasks):
        # All processes share out the requests of a task, and so all of them look first.
        part = f"{number}-lm_eval-{place}"
        done = parts.has(part)
        ranks.barrier()
        if not done:
            lines = on_demand("hftune.tools.evaluating.harness:lines")(work.args, talker(), task)
            if ranks.is_main():
                parts.write(part, lines)
            ranks.barrier()
        found += parts.read(part)
    return [{"model": name, **line} for line in found]


def _losses(work: Work, talker: Callable[[], Talker]) -> Callable[[Sequence[int]], Iterator[Line]]:
    args = work.args
    losses = RecordLosses(talker(), args.max_length, args.borders_in_text, args.batch_tokens)

    def make(places: Sequence[int]) -> Iterator[Line]:
        found = losses([work.rows[place][0] for place in places])
        for place, (loss, tokens) in zip(places, found, strict=True):
            # A record without a trained token within --max_length says nothing.
            if tokens:
                yield {**work.named(place), "weight": tokens, "scores": {"loss": loss / tokens}}

    return make


def _answers(work: Work, talker: Callable[[], Talker]) -> Callable[[Sequence[int]], Iterator[Line]]:
    args = work.args
    answer = Answerer(talker(), args.borders_in_text, args.batch_tokens)

    def make(places: Sequence[int]) -> Iterator[Line]:
        found = answer([work.asked[place] for place in places], max_new_tokens=args.max_new_tokens, do_sample=False)
        for place, one in zip(places, found, strict=True):
            record = work.asked[place]
            told = scores(work.tasks, one.message, record.right, record.tools)
            yield {**work.named(place), "answer": one.message, "ended": one.ended, "scores": told}

    return make


def judged(work: Work, parts: Parts, lines: Sequence[Line]) -> list[Line]:
    """The lines of `OF_ANSWERS`, by a reward model or a judge that is loaded once for the answers of all models.

    Args:
        lines: Of each model the answers to all records, among others.
    """
    pairs = list(zip((line for line in lines if "answer" in line), cycle(work.asked), strict=False))
    tasks = [task for task in OF_ANSWERS if task in work.tasks]
    found = [parts.made(task, pairs, PART_RECORDS, partial(_judging, work.args, task)) for task in tasks]
    return [line for lines in found for line in lines]


def _judging(args: EvaluateArguments, task: str) -> Callable[[Sequence[tuple[Line, Question]]], Iterator[Line]]:
    if task == "judge":
        judge: Callable[..., list[float | None]] = Judge(str(args.judge_url), args.judge_model).wins
    else:
        judge = RewardScorer(str(args.reward_model_path), args).scores

    def make(pairs: Sequence[tuple[Line, Question]]) -> Iterator[Line]:
        found = judge([question for _, question in pairs], [line["answer"] for line, _ in pairs])
        for (line, _), score in zip(pairs, found, strict=True):
            if score is not None:
                yield {name: line[name] for name in ("model", "record", "digest", "source")} | {"scores": {task: score}}

    return make


def _others(args: EvaluateArguments, lines: Sequence[Line]) -> list[Any]:
    """The lines of what the models are compared with."""
    if args.against is None:
        return []
    if is_evaluation(args.against):
        return list(lines_of(args.against))
    return [line for line in lines if line["model"] == args.against]
