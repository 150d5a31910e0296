"""What of DeepSpeed and of recomputing needs a CUDA device."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch.utils.cpp_extension import CUDA_HOME
from transformers import LlamaConfig, LlamaForCausalLM

from hftune.arguments.recomputation import Recomputation
from hftune.distributed.launch import has_async_io
from hftune.models.kernels.activation_checkpointing import recompute

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]

CONFIGS = {
    "zero3_zeropp": (),
    "zero3_superoffload": (),
    "zero3_deepcompile": ("--activation_checkpointing", "none"),
    "zero2_bf16_states": (),
    "zero3_nvme": (),
    "zero3_nvme_optimizer": (),
}
BUILT = ("zero3_zeropp", "zero3_deepcompile", "zero3_nvme", "zero3_nvme_optimizer")
"""They compile operators for CUDA first."""


@pytest.mark.parametrize("config", CONFIGS)
def test_it_trains(config: str, run: Callable, tiny_model: Path, tiny_data: Path, tmp_path: Path) -> None:
    if "nvme" in config and not has_async_io():
        pytest.skip("no libaio")
    if config in BUILT and CUDA_HOME is None:
        pytest.skip("no CUDA compiler")
    nvme = ("--nvme_path", str(tmp_path)) if "nvme" in config else ()
    run(
        "run_sft.py",
        *("--deepspeed", config, "--model_name_or_path", str(tiny_model), "--output_dir", str(tmp_path / "out")),
        *("--train_file_dir", str(tiny_data / "sft"), "--per_device_train_batch_size", "2", "--max_steps", "3"),
        *("--logging_steps", "1", "--save_strategy", "no", "--report_to", "none"),
        *CONFIGS[config],
        *nvme,
        # As a module: an installation into a folder has no `deepspeed` on PATH.
        launcher=f"{sys.executable} -m deepspeed.launcher.runner --num_gpus 1",
        gpu=True,
    ).check()
    assert (tmp_path / "out" / "model.safetensors").is_file()


def test_offloaded_inputs_leave_the_device_and_change_nothing() -> None:
    """The input of each layer is what full recomputation keeps: 16 x 2048 x 512 numbers of 4 bytes, 64 MiB."""
    peaks, losses, grads = [], [], []
    for offload in (False, True):
        torch.manual_seed(0)
        config = LlamaConfig(
            vocab_size=128, hidden_size=512, intermediate_size=512, num_hidden_layers=12, num_attention_heads=8
        )
        plain = LlamaForCausalLM(config).cuda().train()
        recompute(plain, Recomputation(offload=offload), on_cpu=False)
        plain.gradient_checkpointing_enable()
        tokens = torch.arange(16 * 2048, device="cuda").reshape(16, 2048) % 128
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        loss = plain(input_ids=tokens, labels=tokens).loss
        peaks.append(torch.cuda.memory_allocated() - before)
        loss.backward()
        losses.append(loss.detach())
        grads.append(plain.model.layers[0].self_attn.q_proj.weight.grad.clone())
        del plain, loss
    torch.testing.assert_close(losses[1], losses[0], rtol=1e-6, atol=0)
    # The backward pass of attention on a GPU adds up in any order (atomics): the last bits of a float32 differ.
    torch.testing.assert_close(grads[1], grads[0], rtol=1e-4, atol=1e-5 * grads[0].abs().max().item())
    assert peaks[0] - peaks[1] > 10 * 64 * 2**20, "ten of twelve inputs are elsewhere"
