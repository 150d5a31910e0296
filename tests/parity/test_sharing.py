"""Processes that share matrices, experts or the tokens of rows change no number: the run is that of one process."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path

import pytest

from tests.parity.shared_models import (
    FOUR,
    TOLERANCE,
    TWO,
    Curve,
    Runs,
    assert_measured_alike,
    cells,
    check_goes_on,
    check_same_run,
    furthest,
    read_curve,
)

SIZES = {name: f"--{name}_parallel_size" for name in ("tensor", "expert", "sequence")}
MODELS = {"tensor": "llama", "expert": "mixtral", "sequence": "llama"}
UNBALANCED = ("--router_aux_loss_coef", "0")
"""The balance of a batch is no sum over its rows: it is compared between runs that split a step alike."""
PADDED = ("--packing", "False", "--max_length", "96")
LORA = ("--use_peft", "--lora_rank", "4", "--target_modules", "all")
RECOMPUTED = ("--activation_checkpointing", "full")
CLIPPED = ("--max_grad_norm", "0.5")
"""A fraction of what the first steps' norms are."""
ACCUMULATED = ("--gradient_accumulation_steps", "2")
FROZEN = ("--freeze_parameters", "model.layers.0,model.embed_tokens")


def sharing(way: str, zero: str) -> tuple[str, ...]:
    """Flags of a run in groups of two."""
    return (*(("--deepspeed", zero) if zero else ()), SIZES[way], "2")


def check(
    runs: Runs, way: str, stage: str, zero: str, both: tuple[str, ...] = (), more: tuple[str, ...] = (),
    *, name: str = "", processes: int = 2,
) -> None:  # fmt: skip
    """Against one process: `both` are flags of both runs, `more` of the shared one."""
    # Each process has rows of its own where experts alone are shared, else each group has.
    rows = 4 // (processes if way == "expert" else processes // 2) // (2 if ACCUMULATED[0] in more else 1)
    both = (*both, *(UNBALANCED if way == "expert" else ()))
    launcher = TWO if processes == 2 else FOUR
    check_same_run(runs, stage, name or MODELS[way], both, (*more, *sharing(way, zero)), rows=rows, launcher=launcher)


QUICK = [("tensor", "sft", "zero3", ""), ("expert", "sft", "zero3", "")]
EVERY = [
    *product(["tensor"], ("pt", "sft"), ("zero0", "zero1", "zero2", "zero3"), ("", "qwen2")),
    *product(
        ["tensor"], ["pt"], ("zero1", "zero3"),
        ("qwen3", "mistral", "gemma2", "gemma3_text", "gemma", "phi", "ernie4_5"),
    ),
    *product(["tensor"], ["sft"], ("zero2_offload", "zero3_offload"), [""]),
    *product(["expert"], ("pt", "sft"), ("zero1", "zero2", "zero3"), [""]),
    *product(["expert"], ["sft"], ("zero1", "zero3"), ("qwen2_moe", "qwen3_moe", "deepseek_v2", "deepseek_v3")),
    *product(["sequence"], ("pt", "sft"), ("", "zero1", "zero2", "zero3"), [""]),
]  # fmt: skip


@pytest.mark.parametrize(("way", "stage", "zero", "name"), cells(EVERY, QUICK))
def test_two_processes_are_as_one(runs: Runs, way: str, stage: str, zero: str, name: str) -> None:
    """Packed; every kind of heads, norms and ropes, routed and shared experts, routers of softmax and sigmoid."""
    check(runs, way, stage, zero, name=name)


# name: ways, stage, flags of both, flags of the shared run, its processes
OTHERWISE: dict[str, tuple[tuple[str, ...], str, tuple[str, ...], tuple[str, ...], int]] = {
    "two groups of two": (tuple(SIZES), "pt", (), (), 4),
    "clipped and accumulated": (tuple(SIZES), "sft", CLIPPED, ACCUMULATED, 2),
    "frozen layers": (tuple(SIZES), "sft", FROZEN, (), 2),
    "recomputed": (tuple(SIZES), "sft", (), RECOMPUTED, 2),
    "tiles": (("tensor", "sequence"), "sft", (), ("--tiled_mlp", "True"), 2),
    "padded": (("sequence",), "sft", PADDED, (), 2),
    "weights of turns": (("sequence",), "sft", (*PADDED, "--turn_weights", "True"), (), 2),
    "documents that see each other": (("sequence",), "pt", ("--cross_document_attention", "True"), (), 2),
    "length groups": (("sequence",), "sft", (*PADDED, "--train_sampling_strategy", "group_by_length"), (), 2),
    "a length that is no sum of slices": (("sequence",), "pt", ("--block_size", "45"), (), 2),
}
FEW = [("padded", "sequence", "zero3")]


@pytest.mark.parametrize(
    ("what", "way", "zero"),
    cells([(what, way, zero) for what in OTHERWISE for way in OTHERWISE[what][0] for zero in ("zero1", "zero3")], FEW),
)
def test_same_run_otherwise(runs: Runs, what: str, way: str, zero: str) -> None:
    if (what, way, zero) == ("frozen layers", "expert", "zero3"):
        pytest.skip("refused: DeepSpeed leaves frozen experts out of checkpoints there")
    _, stage, both, more, processes = OTHERWISE[what]
    check(runs, way, stage, zero, both, more, processes=processes)


@pytest.mark.parametrize(
    ("way", "zero"),
    cells(product(["tensor", "expert"], ("zero1", "zero2", "zero3")), [("expert", "zero1")]),
)
def test_it_goes_on_from_a_checkpoint(runs: Runs, tmp_path: Path, way: str, zero: str) -> None:
    flags = (*(UNBALANCED if way == "expert" else ()), *sharing(way, zero))
    check_goes_on(runs, MODELS[way], flags, tmp_path, rows=2 if way == "expert" else 4, size=SIZES[way])


def curves(runs: Runs, stage: str, name: str, flags: tuple[str, ...], *shared: tuple[str, ...], rows: int = 4) -> float:
    """How far runs with these flags more lie from one another: each of two processes, the first maybe of one."""
    found: list[Curve] = [
        runs(stage, name, *flags, *more, launcher=TWO if more else "python", rows=rows)[0] for more in shared
    ]
    return max(furthest(one, found[0]) for one in found[1:])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mixtral", "qwen2_moe", "qwen3_moe", "deepseek_v2", "deepseek_v3"])
def test_routers_are_balanced_alike(runs: Runs, name: str) -> None:
    """Against two processes that hold all experts each; and rows that are shared have the shares of whole rows."""
    balanced = ("--router_aux_loss_coef", "0.5", "--moe_z_loss_coef", "0.1")
    assert curves(runs, "pt", name, balanced, ("--deepspeed", "zero1"), sharing("expert", "zero1"), rows=2) < TOLERANCE
    if name == "mixtral":
        assert curves(runs, "pt", name, balanced, (), sharing("sequence", "")) < TOLERANCE


@pytest.mark.slow
def test_lora_on_shared_rows(runs: Runs) -> None:
    shared = [sharing("sequence", zero) for zero in ("zero2", "zero3")]
    assert curves(runs, "sft", "llama", LORA, (), *shared) < TOLERANCE


@pytest.mark.slow
def test_noise(runs: Runs) -> None:
    """For activations that all processes hold as in one process; slices of a row draw their own, the same each time."""
    noise = ("--hidden_dropout_prob", "0.1", "--neftune_noise_alpha", "5")
    assert curves(runs, "pt", "llama", noise, (), sharing("tensor", "zero1")) < TOLERANCE
    again = ("--seed", "42")
    assert curves(runs, "pt", "llama", noise, sharing("sequence", ""), (*sharing("sequence", ""), *again)) == 0
    assert curves(runs, "pt", "llama", noise, (), sharing("sequence", "")) > TOLERANCE


@pytest.mark.slow
@pytest.mark.parametrize("zero", ["zero1", "zero3"])
def test_the_best_checkpoint_is_gone_back_to(runs: Runs, zero: str) -> None:
    """Whole weights go back into split matrices."""
    flags = ("--load_best_model_at_end", "True", "--eval_strategy", "steps", "--eval_steps", "4", "--save_steps", "4")
    rates = ("--learning_rate", "0.05")  # so high that it is not the last
    _, alone = runs("pt", "llama", *flags, *rates)
    _, folder = runs("pt", "llama", *flags, *rates, *sharing("tensor", zero), launcher=TWO)
    assert_measured_alike(folder, alone)


@pytest.mark.slow
@pytest.mark.parametrize("stage", ["sft", "pt"])
def test_a_stream_is_sharded_over_groups(runs: Runs, tmp_path: Path, stage: str) -> None:
    """Both processes read the same records; in one process the scripts stream as well."""
    length = ("--block_size", "32") if stage == "pt" else PADDED
    flags = ("--streaming", "True", "--save_strategy", "no", *length)
    for name, shared, launcher in (("alone", (), "python"), ("shared", sharing("tensor", "zero1"), TWO)):
        runs.start(stage, runs.model("llama"), tmp_path / name, *flags, *shared, launcher=launcher, rows=4)
    assert furthest(read_curve(tmp_path / "shared"), read_curve(tmp_path / "alone")) < TOLERANCE


@pytest.mark.slow
def test_under_the_launcher(runs: Runs) -> None:
    """As a user types it; the same numbers as forked."""
    for way in ("tensor", "sequence"):
        forked, _ = runs("sft", "llama", *sharing(way, "zero3"), launcher=TWO)
        launched, _ = runs("sft", "llama", *sharing(way, "zero3"), launcher="deepspeed --num_gpus 2")
        assert furthest(launched, forked) < 1e-6


def test_held_out_loss_of_processes_with_unlike_many_tokens(runs: Runs, tmp_path: Path) -> None:
    """Each with rows of its own: 5.23 divides by the tokens of all, and a mean of such losses is none over tokens."""
    texts = ["What is " + "2 plus " * number + "3?" for number in (1, 2, 30, 20)]
    data = tmp_path / "held_out" / "text.jsonl"
    data.parent.mkdir()
    data.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    flags = ("--packing", "False", "--block_size", "256", "--validation_file_dir", str(data.parent))
    losses = []
    for processes, launcher in ((1, "python"), (2, TWO)):
        folder = tmp_path / str(processes)
        runs.start(
            "pt", runs.model("llama"), folder, *flags, "--max_steps", "2", launcher=launcher, rows=4 // processes
        )
        losses.append(json.loads((folder / "hftune.json").read_text())["metrics"]["eval_loss"])
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)
