"""Generation by vLLM: what it is told and sent, with vLLM itself played by a few lines (it needs a GPU)."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
from transformers import AutoModelForCausalLM
from trl.generation import vllm_generation
from trl.trainer import grpo_trainer, rloo_trainer

from hftune.arguments.entry import parse_arguments
from hftune.errors import UserError
from hftune.preflight.check_run import check_run
from hftune.preflight.facts import resolve
from tests.unit.trainers.rl_runs import count_even, logged, make_trainer

pytestmark = pytest.mark.long

SMALL = ("--per_device_train_batch_size", "4", "--max_completion_length", "4", "--max_steps", "2", "--use_vllm")
LORA = ("--use_peft", "--lora_r", "4", "--target_modules", "all")
GENERATIONS = {"grpo": "2", "rloo": "2", "ppo": "1", "online_dpo": "2"}


class Played(vllm_generation.VLLMGeneration):
    """TRL's side of vLLM as it is, upon an engine that keeps what it is sent and says random words."""

    made: ClassVar[list[Played]] = []

    def _init_vllm(self) -> None:
        Played.made.append(self)
        self.sent: list[dict[str, torch.Tensor]] = []
        self.asked: list[int] = []
        model = SimpleNamespace(load_weights=self.keep)
        worker = SimpleNamespace(model_runner=SimpleNamespace(model=model))
        engine = SimpleNamespace(model_executor=SimpleNamespace(driver_worker=worker))
        self.llm = SimpleNamespace(llm_engine=engine, reset_prefix_cache=lambda: None)
        info = {"model_config": {"logprobs_mode": "processed_logprobs"}}
        self.vllm_client = SimpleNamespace(
            get_server_info=lambda: info, update_named_params=self.keep_all, reset_prefix_cache=lambda: None
        )

    def keep(self, weights: list[tuple[str, torch.Tensor]]) -> None:
        self.sent[-1] |= {name: tensor.clone() for name, tensor in weights}

    def keep_all(self, metadata: Any, weights: Any) -> None:
        self.keep(list(weights))

    def sync_weights(self) -> None:
        self.sent.append({})
        super().sync_weights()

    def generate(self, prompts: list[list[int]], images: Any, num_generations: int, profiler: Any = None) -> Any:
        self.asked.append(num_generations)
        generator = torch.Generator().manual_seed(len(self.asked))
        ids = torch.randint(10, 200, (len(prompts), 4), generator=generator).tolist()
        logps = [[[-3.0]] * 4 for _ in ids] if self.logprobs is not None else None
        return prompts, ids, logps, None


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> type[Played]:
    monkeypatch.setattr(Played, "made", [])
    for module in (grpo_trainer, rloo_trainer):
        monkeypatch.setattr(module, "VLLMGeneration", Played)
    return Played


@pytest.mark.parametrize(
    "algorithm, method, mode",
    [
        ("grpo", LORA, "server"),
        ("rloo", (), "colocate"),
        ("ppo", LORA, "colocate"),
        ("online_dpo", (), "colocate"),
    ],
)
def test_it_is_sent_the_policy_and_nothing_else(
    algorithm: str, method: tuple[str, ...], mode: str, played: type[Played], tiny_model: Path, tmp_path: Path
) -> None:
    flags = (*SMALL, *method, "--vllm_mode", mode, "--num_generations", GENERATIONS[algorithm])
    flags += ("--learning_rate", "1e-2", "--num_iterations", "1", "--eval_strategy", "no")
    trainer = make_trainer(tiny_model, tmp_path, algorithm, count_even, *flags)
    trainer.train()
    (engine,) = played.made
    assert engine.mode == mode
    plain = dict(AutoModelForCausalLM.from_pretrained(tiny_model).named_parameters())
    first, second = engine.sent[:2]
    assert set(first) == set(plain) == set(second), "no critic, no adapter"
    for name, tensor in plain.items():
        torch.testing.assert_close(first[name], tensor, msg=name)
    assert any(not torch.equal(first[name], second[name]) for name in plain), "the second batch is the new policy's"
    assert logged(trainer, "grad_norm")[0] > 0
    if algorithm == "grpo":
        assert len(logged(trainer, "sampling/importance_sampling_ratio/mean")) == 2


def test_it_is_told_what_the_flags_say(played: type[Played], tiny_model: Path, tmp_path: Path) -> None:
    flags = ("--vllm_mode", "server", "--vllm_server_base_url", "http://there:1234", "--vllm_group_port", "777")
    flags += ("--vllm_gpu_memory_utilization", "0.4", "--vllm_tensor_parallel_size", "2", "--vllm_max_model_length")
    flags += ("99", "--temperature", "0.7", "--top_p", "0.9", "--top_k", "5", "--num_generations", "2")
    make_trainer(tiny_model, tmp_path, "grpo", count_even, *SMALL, *flags)
    (engine,) = played.made
    wanted = {"mode": "server", "server_base_url": "http://there:1234", "group_port": 777, "max_model_length": 99}
    wanted |= {"gpu_memory_utilization": 0.4, "tensor_parallel_size": 2, "temperature": 0.7, "top_p": 0.9, "top_k": 5}
    assert {name: getattr(engine, name) for name in wanted} == wanted
    assert engine.max_num_seqs == 4 * 2 and engine.max_completion_length == 4


@pytest.mark.parametrize(("algorithm", "mode"), [("grpo", "colocate"), ("ppo", "server")])
def test_without_it_or_without_a_gpu_it_is_refused(
    algorithm: str, mode: str, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    argv = ["--model_name_or_path", str(tiny_model), "--train_file_dir", ".", "--output_dir", "not-there"]
    argv += ["--rl_algorithm", algorithm, "--reward_funcs", "length", "--use_vllm", "--vllm_mode", mode]

    def said() -> str:
        with pytest.raises(UserError) as error:
            check_run(resolve("rl", parse_arguments("rl", argv)))
        return str(error.value)

    assert "vLLM is not installed" in said() and "--use_vllm" in said()
    there, find = object(), importlib.util.find_spec
    monkeypatch.setattr("importlib.util.find_spec", lambda name, *_: there if name == "vllm" else find(name))
    assert "vLLM needs a GPU here" in said()
