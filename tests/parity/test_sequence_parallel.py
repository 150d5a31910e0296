"""Two processes that share the tokens of rows (Ulysses) against one that has them all: the same run."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.architectures import make_model
from tests.parity.shared_models import ACCUMULATED, CLIPPED, FROZEN, cells

STEPS = 20
TOLERANCE = 1e-4
"""Of the losses and of the gradient norms, relative, in float32."""

TWO = "deepspeed --num_gpus 2"
METHODS = {
    "full": ("--learning_rate", "2e-4"),
    "lora": ("--use_peft", "--lora_rank", "4", "--target_modules", "all", "--learning_rate", "2e-3"),
}
DATA = {"pt": ("--block_size", "45"), "sft": ("--max_length", "96")}


@pytest.fixture(scope="module")
def train(
    run: Callable[..., Any], tiny_model: Path, tiny_data: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., dict[str, Any]]:
    """`train("pt", "full", 2, *flags)`: what was logged by one process, or by two that share rows; once a command."""
    finished: dict[tuple[Any, ...], dict[str, Any]] = {}

    def once(
        stage: str, method: str, size: int, *flags: str, processes: int = 0, model: Path = tiny_model, warm: bool = True
    ) -> Any:
        key = (stage, method, size, processes, model, warm, *flags)
        processes = processes or size
        if key not in finished:
            folder = tmp_path_factory.mktemp(f"{stage}-{method}-{size}")
            rows = 4 * size // processes // (2 if "--gradient_accumulation_steps" in flags else 1)
            said = run(
                f"run_{stage}.py",
                *("--model_name_or_path", str(model), "--output_dir", str(folder)),
                *("--train_file_dir", str(tiny_data / stage)),
                *("--validation_file_dir", str(tiny_data / f"{stage}_eval")),
                *("--per_device_train_batch_size", str(rows), "--max_steps", str(STEPS)),
                *("--per_device_eval_batch_size", "2", "--lr_scheduler_type", "constant", "--logging_steps", "1"),
                *("--save_strategy", "no", "--report_to", "none", "--gradient_checkpointing", "False"),
                *METHODS[method],
                *DATA[stage],
                *(("--sequence_parallel_size", str(size)) if size > 1 else ()),
                *flags,
                launcher="python" if processes == 1 else f"deepspeed --num_gpus {processes}",
                warm=warm,
            ).check()
            history = json.loads((folder / "trainer_state.json").read_text())["log_history"]
            manifest = json.loads((folder / "hftune.json").read_text())
            finished[key] = {
                "folder": folder,
                "output": said.output,
                "steps": [(entry["loss"], entry["grad_norm"]) for entry in history if "loss" in entry],
                "manifest": manifest,
                "metrics": manifest["metrics"],
                "logged": [entry for entry in history if "loss" in entry],
            }
        return finished[key]

    return once


def check_same(found: dict[str, Any], reference: dict[str, Any], *, one_group: bool = True) -> None:
    """Losses, gradient norms, what is held out and what was counted."""
    assert len(found["steps"]) == len(reference["steps"]) == STEPS
    for number, (here, there) in enumerate(zip(found["steps"], reference["steps"], strict=True)):
        assert here == pytest.approx(there, rel=TOLERANCE), f"step {number + 1}"
    assert found["metrics"]["eval_loss"] == pytest.approx(reference["metrics"]["eval_loss"], rel=TOLERANCE)
    for name in ("eval_mean_token_accuracy", "eval_token_accuracy", "eval_entropy"):
        assert (name in found["metrics"]) == (name in reference["metrics"])
        if name in found["metrics"]:
            assert found["metrics"][name] == pytest.approx(reference["metrics"][name], rel=1e-3), name
    for name in ("trained_tokens", "steps"):
        assert found["manifest"][name] == reference["manifest"][name]
    for here, there in zip(found["logged"], reference["logged"], strict=True):
        assert here["epoch"] == pytest.approx(there["epoch"])
        if one_group:  # TRL counts the rows that fill up the last batches of several groups, which are not trained
            assert here.get("num_tokens") == there.get("num_tokens")


QUICK = [("sft", "False", "lora")]


@pytest.mark.parametrize(("stage", "packing", "method"), cells(product(DATA, ("True", "False"), METHODS), QUICK))
def test_same_run(stage: str, packing: str, method: str, train: Callable[..., dict[str, Any]]) -> None:
    flags = ("--packing", packing)
    check_same(train(stage, method, 2, *flags), train(stage, method, 1, *flags))


ZERO3 = ("--deepspeed", "ds_configs/zero3.json")


def test_zero3_and_what_is_saved(train: Callable[..., dict[str, Any]]) -> None:
    """The same run, and a folder that plain transformers reads: the logits of a run in one process."""
    found, reference = train("pt", "full", 2, "--packing", "True", *ZERO3), train("pt", "full", 1, "--packing", "True")
    check_same(found, reference)
    ids = torch.arange(3, 43)[None]
    logits = []
    for each in (found, reference):
        model = AutoModelForCausalLM.from_pretrained(each["folder"], dtype=torch.float32).eval()
        assert model.config._attn_implementation == "sdpa"  # nothing of the attention of shared rows is left in it
        with torch.no_grad():
            logits.append(model(ids).logits)
    assert logits[0].std() > 0.1
    torch.testing.assert_close(logits[0], logits[1], rtol=1e-3, atol=1e-3)


RECOMPUTED = ("--gradient_checkpointing", "True")
MORE: dict[str, tuple[str, str, tuple[str, ...], tuple[str, ...], int]] = {
    # name: (stage, method, flags of both, flags of the shared run, its processes)
    "two groups of two": ("pt", "full", (), (), 4),
    "two groups, ZeRO-3": ("sft", "full", ("--packing", "True"), ZERO3, 4),
    "accumulation": ("sft", "full", ("--packing", "True"), ACCUMULATED, 2),
    "clipped": ("sft", "full", CLIPPED, ACCUMULATED, 2),
    "clipped, ZeRO-0": ("pt", "full", CLIPPED, ("--deepspeed", "zero0", *ACCUMULATED), 2),
    "clipped, ZeRO-3": ("pt", "full", CLIPPED, (*ZERO3, *ACCUMULATED), 2),
    "frozen layers": ("sft", "full", FROZEN, ("--deepspeed", "zero2"), 2),
    "ZeRO-1": ("sft", "full", (), ("--deepspeed", "ds_configs/zero1.json"), 2),
    "ZeRO-2": ("pt", "full", (), ("--deepspeed", "ds_configs/zero2.json", *RECOMPUTED), 2),
    "ZeRO-2, LoRA": ("sft", "lora", (), ("--deepspeed", "ds_configs/zero2.json", *RECOMPUTED), 2),
    "ZeRO-3, LoRA": ("sft", "lora", ("--packing", "True"), (*ZERO3, *RECOMPUTED), 2),
    "tiles": ("sft", "full", (), ("--tiled_mlp",), 2),
    "tiles, ZeRO-3": ("pt", "full", (), ("--tiled_mlp", *ZERO3, *RECOMPUTED), 2),
    "tiles, ZeRO-3, LoRA": ("sft", "lora", (), ("--tiled_mlp", *ZERO3, *RECOMPUTED), 2),
    "tiles, alone": ("pt", "full", (), ("--tiled_mlp",), 1),
    "weights of turns": ("sft", "full", ("--turn_weights", "True"), (), 2),
    "documents that see each other": ("pt", "full", ("--cross_document_attention", "True"), (), 2),
    "length groups": ("sft", "full", ("--train_sampling_strategy", "group_by_length"), (), 2),
    "loss of DFT": ("sft", "lora", ("--loss_type", "dft"), (), 2),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", MORE)
def test_same_run_otherwise(name: str, train: Callable[..., dict[str, Any]]) -> None:
    stage, method, both, shared, processes = MORE[name]
    found = train(stage, method, min(processes, 2), *both, *shared, processes=processes)
    check_same(found, train(stage, method, 1, *both), one_group=processes < 4)


@pytest.mark.slow
def test_quantised_base(train: Callable[..., dict[str, Any]]) -> None:
    """4-bit weights; bitsandbytes' own kernels for CPUs round by the number of tokens in a call."""
    flags = ("--packing", "True", "--qlora")
    found, reference = train("sft", "lora", 2, *flags), train("sft", "lora", 1, *flags)
    for here, there in zip(found["steps"], reference["steps"], strict=True):
        assert here == pytest.approx(there, rel=2e-3)


@pytest.mark.slow
def test_routers_of_whole_rows(train: Callable[..., dict[str, Any]], tmp_path_factory: pytest.TempPathFactory) -> None:
    """A router's loss is not a sum over tokens: shares of experts are those of the whole row."""
    model = make_model("mixtral", tmp_path_factory.mktemp("mixtral"))
    flags = ("--packing", "True", "--router_aux_loss_coef", "0.1", "--moe_z_loss_coef", "0.01")
    found, reference = (train("pt", "full", size, *flags, model=model) for size in (2, 1))
    check_same(found, reference)
    for here, there in zip(found["logged"], reference["logged"], strict=True):
        for name in ("aux_loss", "z_loss"):
            assert here[name] == pytest.approx(there[name], rel=1e-3)


@pytest.mark.slow
def test_positions_that_stretch(train: Callable[..., dict[str, Any]], tmp_path_factory: pytest.TempPathFactory) -> None:
    """By the largest position of a row, which the slices before it do not have."""
    model = make_model("llama", tmp_path_factory.mktemp("short"), max_position_embeddings=16)
    stretched = ("--rope_scaling", '{"rope_type": "dynamic", "factor": 4.0}')
    found, reference = (
        train("pt", "full", size, "--cross_document_attention", "True", *stretched, model=model) for size in (2, 1)
    )
    check_same(found, reference)


@pytest.mark.slow
def test_going_on_from_a_checkpoint(train: Callable[..., dict[str, Any]]) -> None:
    """Stopped after 10 steps and resumed, shared as before or not, the run is that which was not stopped."""
    flags = ("--packing", "True", "--save_strategy", "steps", "--save_steps", "10", *ZERO3)
    through = train("pt", "full", 2, *flags)
    checkpoint = through["folder"] / "checkpoint-10"
    for size in (2, 1):
        resumed = train("pt", "full", size, *flags, "--resume_from_checkpoint", str(checkpoint), processes=2)
        assert len(resumed["steps"]) == STEPS
        for here, there in zip(resumed["steps"], through["steps"], strict=True):
            assert here == pytest.approx(there, rel=1e-6 if size == 2 else TOLERANCE)


@pytest.mark.slow
def test_random_numbers_differ_between_slices(train: Callable[..., dict[str, Any]]) -> None:
    """With dropout and noise a run trains, and the same way each time."""
    dropout = ("--packing", "True", "--attention_probs_dropout_prob", "0.1", "--neftune_noise_alpha", "5")
    first, second = train("sft", "full", 2, *dropout), train("sft", "full", 2, *dropout, "--seed", "42")
    assert first["steps"] == second["steps"]
    plain = train("sft", "full", 2, "--packing", "True")
    assert first["steps"][0][0] != pytest.approx(plain["steps"][0][0], rel=1e-5)
    assert first["steps"][-1][0] < first["steps"][0][0]


def test_held_out_loss_of_processes_with_unlike_many_tokens(
    train: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    """Each with rows of its own: 5.23 divides by the tokens of all, and a mean of such losses is none over tokens."""
    texts = ["What is " + "2 plus " * number + "3?" for number in (1, 2, 30, 20)]
    (tmp_path / "text.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    flags = ("--packing", "False", "--block_size", "256", "--validation_file_dir", str(tmp_path))
    apart = train("pt", "full", 1, *flags, processes=2)["metrics"]
    assert apart["eval_loss"] == pytest.approx(train("pt", "full", 1, *flags)["metrics"]["eval_loss"], rel=1e-5)


@pytest.mark.slow  # test_tensor_parallel.py starts ranks in groups under the launcher, too
def test_under_the_real_launcher(train: Callable[..., dict[str, Any]]) -> None:
    flags = ("--packing", "False", "--deepspeed", "ds_configs/zero2.json")
    found = train("sft", "lora", 2, *flags, warm=False)
    check_same(found, train("sft", "lora", 1, "--packing", "False"))
    said = found["output"]
    assert "2 processes share the tokens of each row, 1 group(s) have rows of their own" in said
    assert "attention: hftune_ulysses" in said
