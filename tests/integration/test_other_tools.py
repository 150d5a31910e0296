"""One run in the words of hftune, ERNIEKit and Megatron-SWIFT: the same losses."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import logged

ERNIEKIT = """
train_dataset_path: {data}/sft
train_dataset_type: erniekit
eval_dataset_path: {data}/sft_eval
model_name_or_path: {model}
fine_tuning: LoRA
lora_rank: 4
lora_alpha: 16
stage: SFT
do_train: True
do_eval: True
batch_size: 2
gradient_accumulation_steps: 1
max_steps: 10
max_evaluate_steps: 100
evaluation_strategy: "no"
save_strategy: "no"
logging_steps: 1
learning_rate: 1.0e-2
lr_scheduler_type: constant
optim: adamw_custom
tensor_parallel_degree: 1
pipeline_parallel_degree: 1
sharding: stage2
sharding_parallel_degree: 2
sequence_parallel: True
recompute: False
use_flash_attention: False
release_grads: True
unified_checkpoint: True
"""
MEGATRON = """--tuner_type lora --lora_rank 4 --lora_alpha 16 --lora_dropout 0 --target_modules all-linear
 --micro_batch_size 2 --global_batch_size 4 --train_iters 10 --lr 1e-2 --lr_decay_style constant
 --optimizer adam --adam_eps 1e-8 --clip_grad 1.0 --use_megatron_fsdp true
 --data_parallel_sharding_strategy optim_grads --recompute_granularity none --tensor_model_parallel_size 1
 --sequence_parallel true --logging_steps 1 --save_strategy no --split_dataset_ratio 0 --attention_backend auto
 --packing false --loss_scale default"""


@pytest.mark.slow
@pytest.mark.parametrize("tool", ["erniekit", "megatron"])
def test_a_run_in_the_words_of_another_tool(
    tool: str, run: Callable, stage_run: Callable, tiny_model: Path, tiny_data: Path, tmp_path: Path
) -> None:
    ours = stage_run("sft", "lora", "zero2")
    folder, config = tmp_path / "out", tmp_path / "theirs.yaml"
    config.write_text(ERNIEKIT.format(data=tiny_data, model=tiny_model))
    theirs = {
        "erniekit": ["--config", str(config)],
        "megatron": [*MEGATRON.split(), "--model", str(tiny_model), "--dataset", str(tiny_data / "sft")],
    }[tool]
    finished = run(
        "run_sft.py", *theirs, "--output_dir", str(folder), launcher="deepspeed --num_gpus 2", warm=True
    ).check()
    assert logged(folder) == pytest.approx(ours.losses, abs=1e-4)
    manifest = json.loads((folder / "hftune.json").read_text())
    assert manifest["deepspeed"]["zero_optimization"]["stage"] == 2
    assert manifest["deepspeed"] == ours.manifest["deepspeed"]
    assert manifest["kind"] == "adapter" and manifest["parameters"] == ours.manifest["parameters"]
    assert any("--sequence_parallel has no effect" in said for said in manifest["notices"])
    assert "--sequence_parallel has no effect" in finished.output
