"""Memory beside the layers: buffers of communication, what RL needs, and the head in chunks."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from transformers import AutoConfig

from hftune.arguments.entry import parse_arguments
from hftune.distributed import ranks
from hftune.distributed.ds_config import read_ds_config
from hftune.models.kernels.heads import LogitShape, answers
from hftune.preflight.estimating.parts import Largest, answer_head, buffers, cache_bytes, step_extra
from hftune.preflight.estimating.tracing import Tracker
from hftune.preflight.estimating.work import Generation
from hftune.preflight.memory import ModelSize, Setup, estimate, run_setup
from tests.architectures import make_config

GPUS = Setup(deepspeed=True, half=True, zero_stage=2, processes=8, local_processes=8)
LARGEST = Largest(layer=200_000_000, module=500_000_000, hidden=4096)
SIZE = ModelSize(weights=8_000_000_000, trained=8_000_000_000)


def test_buckets_of_zero_2_are_doubled_where_communication_overlaps() -> None:
    # "auto" is the square of the hidden size: 16.8M elements of 2 bytes, twice.
    found = buffers(SIZE, GPUS, read_ds_config("zero2"), LARGEST)
    assert found.standing == 4096**2 * 2 * 2 and found.gathered == 0
    assert found.step == SIZE.trained * 4 / 8
    # DeepSpeed's own default of 500M elements, which zero1.json leaves.
    assert buffers(SIZE, replace(GPUS, zero_stage=1), read_ds_config("zero1"), LARGEST).standing == 500_000_000 * 4
    plain = {"zero_optimization": {"stage": 2, "reduce_bucket_size": 1e6}}
    assert buffers(SIZE, GPUS, plain, LARGEST).standing == 2e6


def test_zero_3_gathers_the_largest_module_and_what_is_fetched_ahead() -> None:
    found = buffers(SIZE, replace(GPUS, zero_stage=3), read_ds_config("zero3"), LARGEST)
    assert found.gathered == (500_000_000 + int(0.9 * 4096**2)) * 2
    small = ModelSize(weights=1000, trained=1000)
    assert buffers(small, replace(GPUS, zero_stage=3), read_ds_config("zero3"), LARGEST).gathered == 2000


def test_distributed_data_parallel_has_gradients_twice() -> None:
    setup = Setup(processes=2, local_processes=2)
    assert buffers(ModelSize(100, 100), setup, None, LARGEST).standing == 400
    assert buffers(ModelSize(100, 100), Setup(), None, LARGEST).standing == 0
    adapter = ModelSize(100, 10, adapter=10)
    frozen = replace(setup, weight_bytes=2.0, adapter_bytes=4.0)
    assert buffers(adapter, frozen, None, LARGEST).standing == 40


def test_optimizers_that_are_not_fused_make_denominators() -> None:
    assert step_extra(ModelSize(100, 100), Setup(), "adamw_torch", LARGEST) == 400
    assert step_extra(ModelSize(100, 100), Setup(), "adamw_torch_fused", LARGEST) == 0
    assert step_extra(ModelSize(100, 100), replace(GPUS, zero_stage=2), "adamw_torch", LARGEST) == 400 / 8


@pytest.mark.parametrize(
    ("name", "fields", "numbers"),
    [
        # 2 layers, 2 heads for keys and values of size 16: 2 x 2 x 2 x 16 numbers a token.
        ("llama", {"num_key_value_heads": 2, "head_dim": 16}, 128),
        # Latent attention, expanded: 4 heads of 8 + 4 for keys and 8 for values.
        (
            "deepseek_v3",
            {
                "num_key_value_heads": 4,
                "kv_lora_rank": 16,
                "qk_nope_head_dim": 8,
                "qk_rope_head_dim": 4,
                "v_head_dim": 8,
            },
            2 * 4 * 20,
        ),
    ],
)
def test_keys_and_values(name: str, fields: dict[str, int], numbers: int) -> None:
    config = AutoConfig.for_model(name, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, **fields)
    assert cache_bytes(config, Generation(rows=8, prompt=30, tokens=70), 2) == 8 * 100 * numbers * 2


def test_states_in_bf16_are_halved(tmp_path: Path) -> None:
    make_config("llama").save_pretrained(tmp_path)
    flags = ["--model_name_or_path", str(tmp_path), "--output_dir", "o", "--deepspeed", "zero2_bf16_states"]
    with ranks.planning_for(ranks.PlannedWorld(8, 8)):
        model_args, _, adapter_args, training_args = parse_arguments("sft", flags)
        setup = run_setup(model_args, adapter_args, training_args)
    assert (setup.copy_bytes, setup.state_bytes, setup.half, setup.processes) == (2, 4, True, 8)
    need = estimate(ModelSize(800, 800), setup)
    assert need.optimizer == 800 * (2 + 4) / 8


F32, BF16 = torch.float32, torch.bfloat16


@pytest.mark.parametrize(("trained", "weighted", "dtype"), [*product((True, False), (True, False), (F32, BF16))])
@pytest.mark.parametrize(("tokens", "words"), [(256, 2000), (1024, 98304)])
def test_as_the_kernel_allocates(tokens: int, words: int, dtype: torch.dtype, trained: bool, weighted: bool) -> None:
    with FakeTensorMode():
        head = torch.nn.Linear(512, words, bias=False, dtype=dtype).requires_grad_(trained)
        hidden = torch.empty(tokens, 512, dtype=dtype, requires_grad=True)
        targets, factors = torch.empty(tokens, dtype=torch.long), torch.empty(tokens)
        tracker = Tracker([hidden, head.weight, targets, factors])
        with tracker:
            if weighted:
                loss, _ = answers(head, hidden, targets, LogitShape(), 0, factors)
            else:
                loss = answers(head, hidden, targets, LogitShape(), 0)[1]["log_probs"].sum()
            tracker.begin("backward")
            loss.backward()
    size = dtype.itemsize
    sizes = {"tokens": tokens, "words": words, "hidden": 512, "hidden_bytes": size, "weight_bytes": size}
    found = answer_head(**sizes, trained=trained, on_cpu=True, weighted=weighted)
    forward, backward = tracker.of("before"), tracker.of("backward")
    # The states are picked from all of a batch first, which is counted with the head.
    assert found.forward - hidden.nbytes == pytest.approx(forward.peak, rel=0.1, abs=2**23)
    assert found.backward == pytest.approx(backward.peak - backward.start, rel=0.1, abs=2**21)
