"""`--activation_checkpointing auto`: no more layers are recomputed than memory needs, and every rank does the same."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from transformers import LlamaConfig

from hftune.arguments.entry import parse_arguments
from hftune.cli import dispatch
from hftune.distributed import ranks
from hftune.preflight import run_memory
from hftune.preflight.estimating.planner import Planner
from hftune.preflight.facts import resolve
from hftune.preflight.memory import Free
from hftune.preflight.rules.model import check_model
from hftune.preflight.run_memory import ROOM, SHARES, choose_recomputed_share
from hftune.tools.planning import command

pytestmark = pytest.mark.long

SIZES = {
    "vocab_size": 512, "hidden_size": 512, "intermediate_size": 2048, "num_hidden_layers": 16,
    "num_attention_heads": 8, "num_key_value_heads": 4,
}  # fmt: skip


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A config and nothing else."""
    folder = tmp_path_factory.mktemp("llama-16")
    LlamaConfig(**SIZES).save_pretrained(folder)
    return folder


def _asked(model: Path, tmp_path: Path, *flags: str) -> Any:
    given = ["--model_name_or_path", str(model), "--output_dir", str(tmp_path), "--use_cpu", "True", "--bf16", "False"]
    given += ["--max_length", "2048", "--activation_checkpointing", "auto", "--report_to", "none"]
    # In a plan, which leaves `auto` to its own search.
    with ranks.planning_for(ranks.PlannedWorld(1, 1, on_cpu=True)):
        facts = resolve("sft", parse_arguments("sft", [*given, *flags]))
    return Planner(facts), facts.training_args  # by formula: what is chosen does not depend on where figures are from


def test_as_few_layers_as_fit(model: Path, tmp_path: Path) -> None:
    planner, unsettled = _asked(model, tmp_path)
    everything = planner.asked()
    needs = []
    for free in (1e15, *(20e9 - 5e8 * step for step in range(38)), 1e6):
        args = copy.copy(unsettled)
        chosen = choose_recomputed_share(planner, everything, Free(free, free), args)
        count = len(args.recomputation.layers(16)) if args.recomputation else 0
        assert chosen.recompute == args.recomputation
        needs.append((count, planner.plan(chosen).needed(chosen.setup), free))
    counts = [count for count, _, _ in needs]
    assert counts[0] == 0 and counts[-1] == 16 and counts == sorted(counts) and len(set(counts)) > 3
    least = {count: need for count, need, _ in needs}
    for count, need, free in needs:
        if count < 16:
            assert need * ROOM <= free
        for fewer, would_need in least.items():
            assert fewer >= count or would_need * ROOM > free, "fewer layers would have done"


def test_the_rank_with_the_least_memory_decides(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    planner, args = _asked(model, tmp_path)
    monkeypatch.setattr(ranks, "max_over_ranks", lambda number: max(number, SHARES.index(SHARES[3])))
    choose_recomputed_share(planner, planner.asked(), Free(1e15, 1e15), args)
    assert args.recomputation.which == "3/8" and args.gradient_checkpointing


def test_in_the_checks_before_a_run(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flags = ["--model_name_or_path", str(model), "--output_dir", str(tmp_path), "--use_cpu", "True", "--bf16", "False"]
    monkeypatch.setattr(run_memory, "free_memory", lambda **_: Free(1e15, 1e15))
    facts = resolve("sft", parse_arguments("sft", [*flags, "--activation_checkpointing", "auto"]))
    args = facts.training_args
    assert list(check_model(facts)) == []
    assert args.recomputation is None and not args.gradient_checkpointing and not args.recomputes_least


def test_in_a_plan_for_other_machines(
    model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "traced_step", None)
    flags = ["--model_name_or_path", str(model), "--json", "--gpus", "H200", "--activation_checkpointing", "auto"]
    dispatch(["plan", "run_sft", *flags])
    found = json.loads(capsys.readouterr().out.strip().splitlines()[-1])
    assert "--activation_checkpointing full" in [one["flags"] for one in found["choices"]], "as asked has none"
