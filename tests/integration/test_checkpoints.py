"""Stopping on demand, resuming, going back to the best: with 2 processes under DeepSpeed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from hftune.checkpoints.integrity import checkpoint_fault, read_record
from hftune.tools.consolidating import ConsolidateArguments, consolidate
from tests.conftest import logged

TWO = "deepspeed --num_gpus 2"


def flags(model: Path, data: Path, output: Path, stage: int, *more: str) -> list[str]:
    return [
        *("--deepspeed", f"ds_configs/zero{stage}.json", "--model_name_or_path", str(model)),
        *("--train_file_dir", str(data / "sft"), "--validation_file_dir", str(data / "sft_eval")),
        *("--output_dir", str(output), "--max_steps", "10", "--logging_steps", "1"),
        *("--per_device_train_batch_size", "2", "--lr_scheduler_type", "linear", "--learning_rate", "1e-2"),
        *("--gradient_checkpointing", "False", *more),
    ]


@pytest.mark.parametrize("stage", [pytest.param(2, marks=pytest.mark.slow), 3])
def test_told_to_stop_a_run_saves_and_goes_on(
    run: Callable, tiny_model: Path, tiny_data: Path, tmp_path: Path, stage: int
) -> None:
    lora = ("--use_peft", "--lora_rank", "4", "--save_strategy", "no")
    asked = flags(tiny_model, tiny_data, tmp_path / "stopped", stage, *lora)
    # The slow one under the launcher, which passes a child's exit code on.
    stopped = run("tests/integration/signalled_sft.py", *asked, launcher=TWO, warm=stage == 3)
    assert stopped.code == 75, stopped.output[-3000:]
    assert "SIGUSR1: saving a checkpoint at step 5" in stopped.output
    (checkpoint,) = (tmp_path / "stopped").glob("checkpoint-*")
    assert checkpoint_fault(checkpoint) is None
    record = read_record(checkpoint)
    assert record is not None and record["world_size"] == 2 and record["zero_stage"] == stage
    assert json.loads((tmp_path / "stopped" / "hftune.json").read_text())["status"] == "interrupted"

    broken = tmp_path / "stopped" / "checkpoint-7"
    broken.mkdir()
    (broken / "trainer_state.json").write_text("{")
    # As a kill leaves it in the middle of an exchange.
    checkpoint.rename(checkpoint.with_name(".checkpoint-5.old"))
    resumed = run("run_sft.py", *asked, "--resume_from_checkpoint", "auto", launcher=TWO, warm=True).check()
    assert "checkpoint-7 is skipped: it has no weights" in resumed.output
    assert f"resuming from {checkpoint}" in resumed.output
    assert len(logged(tmp_path / "stopped")) == 10, "those of a run at one go: `test_towers.py`"


@pytest.mark.parametrize("method", [pytest.param("full", marks=pytest.mark.slow), "lora"])
def test_the_best_weights_are_what_is_saved_under_zero3(
    run: Callable, tiny_model: Path, tiny_data: Path, tmp_path: Path, method: str
) -> None:
    lora = ("--use_peft", "--lora_rank", "4") if method == "lora" else ()
    # Called better where the loss is higher, the first checkpoint is the best.
    more = ("--eval_strategy", "steps", "--eval_steps", "2", "--save_strategy", "steps", "--save_steps", "2")
    more += ("--load_best_model_at_end", "True", "--save_total_limit", "1", "--max_steps", "6")
    more += ("--metric_for_best_model", "eval_loss", "--greater_is_better", "True")
    asked = [*flags(tiny_model, tiny_data, tmp_path / "out", 3, *lora), *more, "--lr_scheduler_type", "constant"]
    finished = run("run_sft.py", *asked, launcher=TWO, warm=True).check()
    state = json.loads((tmp_path / "out" / "trainer_state.json").read_text())
    best = Path(state["best_model_checkpoint"])
    assert best.is_dir() and state["best_global_step"] < 6, finished.output[-2000:]
    name = "adapter_model.safetensors" if method == "lora" else "model.safetensors"
    kept, saved = load_file(best / name), load_file(tmp_path / "out" / name)
    assert kept.keys() == saved.keys()
    for key, tensor in kept.items():
        torch.testing.assert_close(saved[key], tensor, atol=0, rtol=0)


@pytest.mark.slow
def test_a_run_that_has_all_its_steps_says_so(run: Callable, tiny_model: Path, tiny_data: Path, tmp_path: Path) -> None:
    asked = flags(tiny_model, tiny_data, tmp_path / "out", 0, "--use_peft", "--max_steps", "2", "--save_steps", "2")[2:]
    asked += ["--lr_scheduler_type", "constant"]
    run("run_sft.py", *asked, warm=True).check()
    weights = load_file(tmp_path / "out" / "adapter_model.safetensors")
    again = run("run_sft.py", *asked, "--resume_from_checkpoint", "auto", "--overwrite_output_dir", warm=True).check()
    assert "nothing is left to train" in again.output and "raise --max_steps 2" in again.output
    assert json.loads((tmp_path / "out" / "hftune.json").read_text())["steps"] == 2, "within an epoch as well"
    for name, tensor in load_file(tmp_path / "out" / "adapter_model.safetensors").items():
        torch.testing.assert_close(tensor, weights[name], atol=0, rtol=0)


@pytest.mark.parametrize(
    "method, stage",
    [("full", 3), *(pytest.param(*case, marks=pytest.mark.slow) for case in (("lora", 3), ("full", 2)))],
)
def test_whole_weights_from_the_pieces(
    run: Callable, tiny_model: Path, tiny_data: Path, tmp_path: Path, method: str, stage: int
) -> None:
    lora = ("--use_peft", "--lora_rank", "4") if method == "lora" else ()
    asked = flags(tiny_model, tiny_data, tmp_path / "out", stage, *lora, "--max_steps", "2", "--save_steps", "2")
    run("run_sft.py", *asked, launcher=TWO, warm=True).check()
    checkpoint = tmp_path / "out" / "checkpoint-2"
    consolidate(ConsolidateArguments(checkpoint=str(checkpoint), output_dir=str(tmp_path / "whole")))
    name = "adapter_model.safetensors" if method == "lora" else "model.safetensors"
    exported, whole = load_file(checkpoint / name), load_file(tmp_path / "whole" / name)
    for key, tensor in exported.items():
        # The head is the embeddings once more, where an export has it at all.
        torch.testing.assert_close(
            whole[key if key != "lm_head.weight" else "model.embed_tokens.weight"], tensor, atol=0, rtol=0
        )
    if method == "full":
        _, info = AutoModelForCausalLM.from_pretrained(tmp_path / "whole", output_loading_info=True)
        assert not info["missing_keys"] and not info["unexpected_keys"]
    else:
        assert whole.keys() == exported.keys()
        PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(tiny_model), tmp_path / "whole")
