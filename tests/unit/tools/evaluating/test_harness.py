"""lm-eval in this process: hftune's figures are those of the model that lm-eval loads by itself."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from hftune.arguments.asking import EvaluateArguments
from hftune.distributed import ranks
from hftune.inference.loading import load_talker
from hftune.tools.evaluating.results import lines_of_results

pytestmark = pytest.mark.long

TASKS = Path(__file__).parents[3] / "lm_eval_tasks"


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("lm_eval")
    folder = tmp_path_factory.mktemp("tasks")
    for file in TASKS.iterdir():
        (folder / file.name).write_text(file.read_text().replace("FOLDER", str(folder)))
    return folder


@pytest.fixture(autouse=True)
def _own_tasks_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """lm-eval's own index takes seconds to read."""
    from hftune.tools.evaluating import harness

    monkeypatch.setattr(harness, "TaskManager", partial(harness.TaskManager, include_defaults=False))


def arguments(tasks: Path, *names: str, **more: Any) -> EvaluateArguments:
    return EvaluateArguments(eval_tasks=["loss", *names], include_path=str(tasks), use_cpu=True, **more)


def test_requests_are_shared_out(tasks: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from hftune.tools.evaluating.harness import share_out

    class Model:
        def loglikelihood(self, requests: list[int]) -> list[int]:
            return [10 * number for number in requests]

        generate_until = loglikelihood_rolling = loglikelihood

    monkeypatch.setattr(ranks, "world_size", lambda: 3)
    requests, said = [*range(8)], [10 * number for number in range(8)]
    shared = share_out(Model())
    own: list[Any] = []
    # What the other processes would send.
    monkeypatch.setattr(ranks, "gathered_objects", lambda mine: own.append(mine) or [said[n::3] for n in range(3)])
    for rank in range(3):
        monkeypatch.setattr(ranks, "rank", lambda rank=rank: rank)
        for kind in ("loglikelihood", "loglikelihood_rolling", "generate_until"):
            assert getattr(shared, kind)(requests) == said
            assert own.pop() == said[rank::3]


def test_figures_are_those_of_lm_eval(tasks: Path, tiny_model: Path) -> None:
    from lm_eval import simple_evaluate
    from lm_eval.models.huggingface import HFLM

    from hftune.tools.evaluating.harness import index, lines, problems

    args = arguments(tasks, "madeup_sums", max_eval_samples=4, num_fewshot=2, per_device_eval_batch_size=3)
    assert list(problems(args)) == []
    ours = lines(args, load_talker(str(tiny_model), args), "madeup_sums")
    theirs = simple_evaluate(
        HFLM(pretrained=str(tiny_model), device="cpu", batch_size=1),
        tasks=["madeup_sums"],
        num_fewshot=2,
        limit=4,
        task_manager=index(args.include_path),
        bootstrap_iters=0,
    )
    assert theirs is not None and ours == list(lines_of_results(theirs))
    assert len(ours) == 9 and {line["source"] for line in ours} == {"madeup_sums"}


def test_a_task_that_nobody_knows(tasks: Path) -> None:
    from hftune.tools.evaluating.harness import problems

    (problem,) = problems(arguments(tasks, "madeup_sum", "madeup_words"))
    assert "no task" not in problem.render() and "did you mean madeup_sums?" in problem.render()
