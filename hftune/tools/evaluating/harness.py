"""Tasks of lm-eval (EleutherAI's lm-evaluation-harness), through its Python API, on the model as hftune loads it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from typing import Any

from lm_eval import simple_evaluate
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager

from hftune.arguments.asking import OWN_TASKS, EvaluateArguments
from hftune.distributed import ranks
from hftune.errors import ArgumentError, did_you_mean
from hftune.inference.loading import Talker
from hftune.inference.results import Line
from hftune.tools.evaluating.results import lines_of_results


def share_out(model: Any) -> Any:
    """Have the processes share out the requests of a model; each has all answers. Returns the model."""
    for kind in ("loglikelihood", "loglikelihood_rolling", "generate_until"):
        setattr(model, kind, partial(_shared_out, getattr(model, kind)))
    return model


def _shared_out(answer: Callable[[list[Any]], list[Any]], requests: Sequence[Any]) -> list[Any]:
    own = list(requests[ranks.rank() :: ranks.world_size()])
    said = ranks.gathered_objects(answer(own) if own else [])
    return [said[number % len(said)][number // len(said)] for number in range(len(requests))]


@cache
def index(include_path: str | None) -> TaskManager:
    """lm-eval's index of tasks, with those in a folder, which takes seconds to read."""
    return TaskManager(include_path=include_path)


def problems(args: EvaluateArguments) -> Iterator[ArgumentError]:
    """Tasks that nobody knows."""
    known = index(args.include_path).all_tasks
    for task in args.harness_tasks:
        if task not in known:
            near = did_you_mean(task, [*OWN_TASKS, *known])
            fix = f"{near} `lm-eval ls tasks` lists lm-eval's; --include_path adds others"
            cause = f"neither hftune nor lm-eval has a task {task}"
            yield ArgumentError(cause, place="--eval_tasks", fix=fix.strip())


def lines(args: EvaluateArguments, talker: Talker, task: str) -> list[Line]:
    """The records of a task; every process calls it, and the first has them."""
    # As the model was saved: lm-eval's own command knows nothing of ends of turns.
    talker.model.generation_config = talker.sampling
    # Of an initialised model most of its arguments are ignored, which it says with a warning.
    model = HFLM(pretrained=talker.model, tokenizer=talker.tokenizer, batch_size=args.per_device_eval_batch_size)
    found = simple_evaluate(
        share_out(model),
        tasks=[task],
        num_fewshot=args.num_fewshot,
        limit=args.max_eval_samples,
        apply_chat_template=args.apply_chat_template,
        task_manager=index(args.include_path),
        bootstrap_iters=0,
    )
    return [] if found is None else list(lines_of_results(found))
