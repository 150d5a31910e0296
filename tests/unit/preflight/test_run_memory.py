"""Memory before a run: what is said, what is refused and with which way out, and what `auto` asks."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from transformers import LlamaConfig

from hftune.arguments.entry import parse_arguments
from hftune.distributed import ranks
from hftune.errors import UserError
from hftune.preflight import run_memory
from hftune.preflight.estimating.candidates import combinations
from hftune.preflight.estimating.plan import Moment, Plan
from hftune.preflight.estimating.planner import COMMUNICATOR, CONTEXT, Planner
from hftune.preflight.facts import resolve
from hftune.preflight.memory import GIB, Free, Setup
from hftune.preflight.run_memory import check_memory, planner_of, shortfall, way_out

CPU = ("--use_cpu", "True", "--bf16", "False")


def facts_of(model: Path, *flags: str) -> Any:
    return resolve("sft", parse_arguments("sft", ["--model_name_or_path", str(model), "--output_dir", "o", *flags]))


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    found: list[str] = []
    monkeypatch.setattr(run_memory, "notice", found.append)
    logger = SimpleNamespace(info=lambda text, *values: found.append(text % values))
    monkeypatch.setattr(run_memory, "get_logger", lambda: logger)
    return found


def has_free(monkeypatch: pytest.MonkeyPatch, count: float) -> None:
    monkeypatch.setattr(run_memory, "free_memory", lambda **_: Free(count, count))


def test_before_a_run(tiny_model: Path, said: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """It is said; what certainly does not fit is refused, what probably does not is a notice with a way out."""
    facts = facts_of(tiny_model, *CPU, "--max_length", "4096", "--activation_checkpointing", "none")
    has_free(monkeypatch, 1e15)
    assert list(check_memory(facts)) == []
    assert len(said) == 1 and said[0].startswith("memory: about 0.") and "activations 0." in said[0]
    said.clear()
    # 100k weights take 2 MB, libraries 270, and the activations of 8 rows of 4,096 tokens some 300.
    has_free(monkeypatch, 400e6)
    assert list(check_memory(facts)) == []
    assert len(said) == 2 and said[1].startswith("this will probably run out of memory at its peak. To fix it, add --")
    said.clear()
    has_free(monkeypatch, 1e3)
    (problem,) = check_memory(facts)
    assert "the model does not fit: 0.0 GiB are needed for the process" in str(problem) and said == []
    assert "use more processes or a smaller model" in str(problem)
    facts.model_args.ignore_memory_check = True
    assert list(check_memory(facts)) == [] and said[0].startswith("--ignore_memory_check: 0.0 GiB are needed")


def test_which_memory_is_too_small() -> None:
    plan = Plan(Moment("training", {"weights": 4.0 * GIB}), host=2.0 * GIB, context=0.0)
    cpu = Setup(on_cpu=True, processes=2, local_processes=2)
    assert shortfall(plan, Free(12 * GIB, 12 * GIB), cpu) is None
    said = shortfall(plan, Free(11 * GIB, 11 * GIB), cpu)
    assert said == "12.0 GiB are needed for 2 processes, 11.0 GiB of memory are free"
    gpus = Setup(processes=2, local_processes=2)
    assert shortfall(plan, Free(4 * GIB, 4 * GIB), gpus) is None
    assert (
        shortfall(plan, Free(3 * GIB, 4 * GIB), gpus) == "4.0 GiB are needed in each process, 3.0 are free on the GPU"
    )
    said = shortfall(plan, Free(4 * GIB, 3 * GIB), gpus)
    assert said == "4.0 GiB are needed in the machine's memory, 3.0 are free"


@pytest.mark.parametrize(
    ("processes", "device", "host", "flags"),
    [
        # 1B weights: 16 GB in float32, a third of it with the states spread over 8.
        (8, 14.0, 2000.0, "--deepspeed zero1"),
        (1, 8.0, 200.0, "--deepspeed zero2_offload"),
        (1, 8.0, 8.0, "--use_peft"),
        (1, 2.0, 2.0, "--qlora"),
        (1, 0.5, 2.0, None),
    ],
)
def test_the_least_change_that_fits(
    processes: int, device: float, host: float, flags: str | None, tmp_path: Path
) -> None:
    LlamaConfig(
        vocab_size=32000, hidden_size=2048, intermediate_size=5632, num_hidden_layers=22, num_attention_heads=32,
        num_key_value_heads=4,
    ).save_pretrained(tmp_path)  # fmt: skip
    with ranks.planning_for(ranks.PlannedWorld(processes, processes, major=9)):
        planner = Planner(facts_of(tmp_path, "--max_length", "128", "--per_device_train_batch_size", "1"))
        way = way_out(planner, planner.asked(), Free(device * GIB, host * GIB))
    assert way == flags or (flags and way and way.startswith(flags)), way


def test_sharding_comes_before_smaller_micro_batches_and_offloading_last(tiny_model: Path) -> None:
    with ranks.planning_for(ranks.PlannedWorld(8, 8, major=9)):
        planner = Planner(facts_of(tiny_model, "--per_device_train_batch_size", "2"))
        flags = [one.flags for one in combinations(planner, planner.asked())]
    halved = "--per_device_train_batch_size 1 --gradient_accumulation_steps 2"
    places = [flags.index(one) for one in ("as asked", "--deepspeed zero3", halved, "--deepspeed zero2_offload")]
    assert places == sorted(places) and places[0] == 0


def test_a_context_is_counted_where_free_memory_has_not_lost_it_yet(tiny_model: Path) -> None:
    planner, gpu = Planner(facts_of(tiny_model, *CPU)), Setup()
    with ranks.planning_for(ranks.PlannedWorld(1, 1)):
        assert planner.context(gpu) == CONTEXT
    assert planner.context(gpu) == 0 and planner.context(Setup(processes=2)) == COMMUNICATOR


def test_a_model_that_takes_no_adapter(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    planner = Planner(facts_of(tiny_model, *CPU))

    def takes_none(adapter_args: Any) -> Any:
        if adapter_args.use_peft:
            raise UserError("no adapter of this")
        return Planner.size(planner, adapter_args)

    monkeypatch.setattr(planner, "size", takes_none)
    assert way_out(planner, planner.asked(), Free(1e3, 1e3)) is None


def test_what_cannot_be_counted_is_said(tiny_model: Path, monkeypatch: pytest.MonkeyPatch, said: list[str]) -> None:
    def failing(*_: Any) -> None:
        raise UserError("no such module\nmore")

    monkeypatch.setattr(Planner, "size", failing)
    assert planner_of(facts_of(tiny_model)) is None and said == ["memory is not checked: no such module"]
    assert planner_of(SimpleNamespace(skeleton=None)) is None  # type: ignore[arg-type]


@pytest.mark.parametrize(("free", "planned"), [(1e15, True), (1e3, False)])
def test_layers_are_chosen_where_the_weights_fit(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch, free: float, planned: bool
) -> None:
    asked: list[Any] = []
    has_free(monkeypatch, free)
    monkeypatch.setattr(run_memory, "choose_recomputed_share", lambda *given: asked.append(given))
    run_memory.choose_recomputed_layers(facts_of(tiny_model))
    assert bool(asked) == planned
