"""`hftune evaluate`: records are divided into parts, parts among processes; what is there whole is not made again."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from hftune.arguments.evaluating import ANSWER_TASKS, OWN_TASKS, EvaluateArguments
from hftune.checkpoints import manifest as manifests
from hftune.checkpoints.inputs import record_inputs
from hftune.data.readers.base import Row
from hftune.distributed import launch, ranks
from hftune.errors import ArgumentError, UserError, did_you_mean, raise_together
from hftune.logging import get_logger, notices
from hftune.publishing.disk import write_file
from hftune.publishing.folder import published_folder
from hftune.publishing.ownership import output_problems
from hftune.secrets import command_without_secrets, without_secrets
from hftune.tools.evaluating.answer_scores import Said, missing_libraries, scores
from hftune.tools.evaluating.losses import RecordLosses
from hftune.tools.evaluating.records import Asked, asked, rows_of
from hftune.tools.evaluating.results import RECORDS, is_evaluation, lines_of, results, results_text
from hftune.tools.reporting.stages import EVALUATED, RESULTS
from hftune.tools.resumable.parts import Line, Parts, json_lines, parts_of
from hftune.tools.talking.answering import Answerer, Question
from hftune.tools.talking.loading import Talker, check_talker, load_talker
from hftune.weight_files import fingerprint

PART_RECORDS = 32
"""What a killed process loses, and what processes share out."""
_FLAG = "--validation_file_dir"


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
    with parts_of(str(args.output_dir), _plan(work)) as parts:
        for number, model in enumerate(work.models):
            _measure(work, parts, number, model)
        lines = _lines(work, parts)
        found = results(lines, args.against, _others(args, lines))
        if ranks.is_main():
            _publish(found, lines, args, argv, began)
    return found


def check_evaluate(args: EvaluateArguments) -> Iterator[UserError]:
    """Everything that is wrong with the arguments."""
    if not args.models:
        yield ArgumentError("no model was named", place="--models", fix="hftune evaluate outputs/sft --eval_tasks loss")
    compared = [args.against] if args.against and not is_evaluation(args.against) else []
    for name in dict.fromkeys([*(args.models or []), *compared]):
        fix = "give language models; --reward_model_path scores answers"
        yield from check_talker(name, "--models", fix, trust_remote_code=args.trust_remote_code)
    if not args.eval_tasks:
        yield ArgumentError("nothing to measure", place="--eval_tasks", fix="--eval_tasks loss exact_match")
    for task in args.eval_tasks or []:
        if task not in OWN_TASKS:
            fix = f"{did_you_mean(task, OWN_TASKS)} one of: {', '.join(OWN_TASKS)}".strip()
            yield ArgumentError(f"there is no task {task}", place="--eval_tasks", fix=fix)
    yield from missing_libraries(args.eval_tasks or [])
    if not args.validation_file_dir:
        yield ArgumentError("there are no held-out records", place=_FLAG, fix=f"{_FLAG} FILE_OR_FOLDER")
    if not args.output_dir:
        yield ArgumentError("no folder for the results", place="--output_dir", fix="--output_dir outputs/evaluation")
    else:
        yield from output_problems(args.output_dir, overwrite=args.overwrite_output_dir, inputs=[])


@dataclass
class Work:
    """What is to be measured, and in which parts."""

    args: EvaluateArguments
    rows: list[tuple[Row, str]] = field(init=False)

    def __post_init__(self) -> None:
        assert self.args.validation_file_dir, "checked"
        self.rows = rows_of(self.args.validation_file_dir, _FLAG, self.args.max_eval_samples)
        self.tasks = list(self.args.eval_tasks or [])

    @property
    def models(self) -> list[str]:
        """All that are loaded; what the others are compared with is the last."""
        against = [self.args.against] if self.args.against and not is_evaluation(self.args.against) else []
        return list(dict.fromkeys([*(self.args.models or []), *against]))

    @property
    def answer_tasks(self) -> list[str]:
        """Those for which answers are generated."""
        return [task for task in self.tasks if task in ANSWER_TASKS]

    @cached_property
    def asked(self) -> list[Asked]:
        """The questions of all records."""
        return [asked(row) for row, _ in self.rows]

    def parts(self, kind: str, number: int) -> list[str]:
        """The names of a model's parts of one kind."""
        return [f"{number}-{kind}-{start}" for start in range(0, len(self.rows), PART_RECORDS)]

    def of(self, part: str) -> range:
        """The records of a part."""
        start = int(part.rpartition("-")[2])
        return range(start, min(start + PART_RECORDS, len(self.rows)))

    def kinds(self) -> Iterator[str]:
        """Of parts."""
        if "loss" in self.tasks:
            yield "loss"
        if self.answer_tasks:
            yield "answers"


def _plan(work: Work) -> dict[str, Any]:
    """All that decides what is in the parts."""
    args = work.args
    without = {"output_dir", "overwrite_output_dir", "against", "models", "use_cpu"}
    settings = {name: value for name, value in vars(args).items() if name not in without}
    data = manifests.text_fingerprint(repr([(row.value, row.origin) for row, _ in work.rows]))
    versions = manifests.library_versions()
    models = [(name, fingerprint(name)) for name in work.models]
    return {"settings": without_secrets(settings), "models": models, "data": data, "versions": versions}


def _measure(work: Work, parts: Parts, number: int, name: str) -> None:
    """Make the parts of one model, which is freed afterwards; it is not loaded where all are there."""
    kinds = list(work.kinds())
    if all(parts.has(part) for kind in kinds for part in work.parts(kind, number)):
        ranks.barrier()
        return
    # No process writes before all have looked.
    ranks.barrier()
    get_logger().info("evaluating %s", name)
    talker = load_talker(name, work.args)
    for kind in kinds:
        parts.make(work.parts(kind, number), _MAKERS[kind](work, talker))
    # Models have reference cycles: only a collection frees the memory before the next one is loaded.
    del talker
    gc.collect()


def _losses(work: Work, talker: Talker) -> Callable[[str], Iterable[Line]]:
    args = work.args
    losses = RecordLosses(talker, args.max_length, args.borders_in_text, args.batch_tokens)

    def make(part: str) -> Iterator[Line]:
        places = work.of(part)
        found = losses([work.rows[place][0] for place in places])
        for place, (loss, tokens) in zip(places, found, strict=True):
            # A record without a trained token within --max_length says nothing.
            if tokens:
                yield {**_named(work, place), "weight": tokens, "scores": {"loss": loss / tokens}}

    return make


def _answers(work: Work, talker: Talker) -> Callable[[str], Iterable[Line]]:
    args = work.args
    answer = Answerer(talker, args.borders_in_text, args.batch_tokens)

    def make(part: str) -> Iterator[Line]:
        places = work.of(part)
        questions = _questions(work.asked[places.start : places.stop])
        found = answer(questions, max_new_tokens=args.max_new_tokens, do_sample=False)
        for place, one in zip(places, found, strict=True):
            record, message = work.asked[place], one.message
            said = Said(message["content"], message.get("tool_calls") or (), one.ended)
            told = scores(work.answer_tasks, said, record.right, record.tools)
            yield {**_named(work, place), "answer": message, "ended": one.ended, "scores": told}

    return make


_MAKERS: dict[str, Callable[[Work, Talker], Callable[[str], Iterable[Line]]]] = {"loss": _losses, "answers": _answers}


def _questions(records: Sequence[Asked]) -> list[Question]:
    prompts = [(record.prompt, record.tools) for record in records]
    return [Question(one.messages, tools, one.template_arguments, one.origin) for one, tools in prompts]


def _named(work: Work, place: int) -> Line:
    row, source = work.rows[place]
    return {"record": f"{source}:{row.line}", "source": source}


def _lines(work: Work, parts: Parts) -> list[Line]:
    """The lines of all models, with the model's name."""
    return [
        {"model": model, **line}
        for number, model in enumerate(work.models)
        for kind in work.kinds()
        for line in parts.read(work.parts(kind, number))
    ]


def _others(args: EvaluateArguments, lines: Sequence[Line]) -> list[Any]:
    """The lines of what the models are compared with."""
    if args.against is None:
        return []
    if is_evaluation(args.against):
        return list(lines_of(args.against))
    return [line for line in lines if line["model"] == args.against]


def _publish(
    found: dict[str, Any], lines: Sequence[Line], args: EvaluateArguments, argv: list[str], began: float
) -> None:
    parents = [name for name in [*found["models"], args.against] if name and manifests.read_manifest(name)]
    with published_folder(str(args.output_dir), overwrite=args.overwrite_output_dir) as result:
        write_file(result / RECORDS, json_lines(lines))
        write_file(result / RESULTS, results_text(found))
        about = {
            "hftune": manifests.library_versions().get("hftune"),
            "stage": EVALUATED,
            "status": manifests.COMPLETE,
            "command": ["hftune", "evaluate", *command_without_secrets(argv)],
            "arguments": without_secrets(vars(args)),
            "versions": manifests.library_versions(),
            "parents": [{"folder": name, "fingerprint": fingerprint(name)} for name in dict.fromkeys(parents)],
            "inputs": record_inputs(argv),
            "wall_seconds": round(time.time() - began, 2),
            "notices": notices(),
        }
        manifests.finish_manifest(result, about)
