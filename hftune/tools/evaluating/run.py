"""`hftune evaluate`: records are divided into parts, parts among processes; what is there whole is not made again."""

from __future__ import annotations

import gc
import importlib.util
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from hftune.arguments.asking import COMPARED_TASKS, OWN_TASKS, EvaluateArguments
from hftune.checkpoints import manifest as manifests
from hftune.checkpoints.folder_checks import check_recorded_whole
from hftune.checkpoints.inputs import inputs_of, record_inputs
from hftune.distributed import launch, ranks
from hftune.errors import ArgumentError, UserError, did_you_mean, raise_together
from hftune.logging import get_logger, notice, notices
from hftune.on_demand import on_demand
from hftune.publishing.disk import write_file
from hftune.publishing.folder import published_folder
from hftune.publishing.places import check_place
from hftune.secrets import command_without_secrets, without_secrets
from hftune.tools.evaluating.answer_scores import Said, missing_libraries, scores
from hftune.tools.evaluating.judged_answers import judge_answers
from hftune.tools.evaluating.losses import RecordLosses
from hftune.tools.evaluating.results import RECORDS, is_evaluation, lines_of, results, results_text
from hftune.tools.evaluating.work import FLAG, Work
from hftune.tools.reporting.stages import EVALUATED, RESULTS
from hftune.tools.resumable.parts import Line, Parts, json_lines, parts_of
from hftune.tools.talking.answering import Answerer
from hftune.tools.talking.loading import Talker, check_talker, load_talker
from hftune.weight_files import fingerprint

_HARNESS = "hftune.tools.evaluating.harness:Harness"


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
    with parts_of(str(args.output_dir), _plan(work)) as parts:
        for number, model in enumerate(work.models):
            _measure(work, parts, number, model)
        judge_answers(work, parts)
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
    yield from check_recorded_whole(args.reward_model_path, "--reward_model_path")
    if not args.eval_tasks:
        yield ArgumentError("nothing to measure", place="--eval_tasks", fix="--eval_tasks loss exact_match")
    yield from _check_tasks(args)
    if not args.output_dir:
        yield ArgumentError("no folder for the results", place="--output_dir", fix="--output_dir outputs/evaluation")
    else:
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
            yield from on_demand(_HARNESS)(args).problems()
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
    harness = work.harness_parts(number)
    own = [part for kind in work.kinds for part in work.parts(kind, number)]
    missing = not all(parts.has(part) for part in [*own, *harness])
    # No process writes before all have looked.
    ranks.barrier()
    if not missing:
        return
    get_logger().info("evaluating %s", name)
    talker = load_talker(name, work.args)
    for kind in work.kinds:
        parts.make(work.parts(kind, number), _MAKERS[kind](work, talker))
    for part, task in harness.items():
        # All processes share out the requests of a task, and so all of them look first.
        done = parts.has(part)
        ranks.barrier()
        if not done:
            lines = on_demand(_HARNESS)(work.args).lines(talker, task)
            if ranks.is_main():
                parts.write(part, lines)
    ranks.barrier()
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
                yield {**work.named(place), "weight": tokens, "scores": {"loss": loss / tokens}}

    return make


def _answers(work: Work, talker: Talker) -> Callable[[str], Iterable[Line]]:
    args = work.args
    answer = Answerer(talker, args.borders_in_text, args.batch_tokens)

    def make(part: str) -> Iterator[Line]:
        places = work.of(part)
        questions = work.questions(places)
        found = answer(questions, max_new_tokens=args.max_new_tokens, do_sample=False)
        for place, one in zip(places, found, strict=True):
            record, message = work.asked[place], one.message
            said = Said(message["content"], message.get("tool_calls") or (), one.ended)
            told = scores(work.answer_tasks, said, record.right, record.tools)
            yield {**work.named(place), "answer": message, "ended": one.ended, "scores": told}

    return make


_MAKERS: dict[str, Callable[[Work, Talker], Callable[[str], Iterable[Line]]]] = {"loss": _losses, "answers": _answers}


def _lines(work: Work, parts: Parts) -> list[Line]:
    """The lines of all models, with the model's name."""
    return [
        {"model": model, **line}
        for number, model in enumerate(work.models)
        for line in parts.read(work.all_parts(number))
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
