"""Every command that loads a folder compares it with its manifest, before anything is loaded."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

from hftune.arguments.asking import (
    AskArguments,
    ChatArguments,
    EvaluateArguments,
    SampleArguments,
    ScoreArguments,
    ServeArguments,
)
from hftune.arguments.distill import DistillArguments
from hftune.checkpoints.manifest import finish_manifest
from hftune.errors import UserError
from hftune.preflight.rules.folders import check_contents
from hftune.tools.asking import check_ask
from hftune.tools.chatting.chat import chat
from hftune.tools.evaluating.run import check_evaluate
from hftune.tools.export.arguments import GgufArguments, HubArguments, ServingArguments
from hftune.tools.export.run import check_export
from hftune.tools.sampling import check_sample
from hftune.tools.scoring import check_score
from hftune.tools.serving.run import check_serve
from hftune.tools.teaching.run import check_teaching
from hftune.weight_files import fingerprint
from tests.spokes import spokes
from tests.unit.merging.models import merge


def _chat(**given: Any) -> Iterator[UserError]:
    try:
        chat(ChatArguments(**given))
    except UserError as problem:
        yield problem


def _teach(name: str) -> Iterator[UserError]:
    return check_teaching(DistillArguments(teacher_model_name_or_path=name, output_dir="out", use_cpu=True))


LANGUAGE: dict[str, Callable[[str], Iterator[UserError]]] = {
    "ask": lambda name: check_ask(AskArguments(models=[name])),
    "chat": lambda name: _chat(models=[name]),
    "evaluate": lambda name: check_evaluate(EvaluateArguments(models=[name])),
    "evaluate --against": lambda name: check_evaluate(EvaluateArguments(models=["owner/name"], against=name)),
    "serve": lambda name: check_serve(ServeArguments(model=name)),
    "serve --adapter": lambda name: check_serve(
        ServeArguments(model="owner/name", adapter=[f"a={name}"], backend="vllm")
    ),
    "sample": lambda name: check_sample(SampleArguments(model_name_or_path=name)),
    "teach": _teach,
}
WHOLE: dict[str, Callable[[str], Iterator[UserError]]] = {
    "export vllm": lambda name: check_export(ServingArguments(model_name_or_path=name, output_dir="out")),
    "export gguf": lambda name: check_export(GgufArguments(model_name_or_path=name, output_dir="out")),
    "export hub": lambda name: check_export(HubArguments(model_name_or_path=name, hub_model_id="a/b")),
}
REWARD: dict[str, Callable[[str], Iterator[UserError]]] = {
    "score": lambda name: check_score(ScoreArguments(model=name)),
    "ask": lambda name: check_ask(AskArguments(models=["owner/name"], reward_model_path=name)),
    "evaluate": lambda name: check_evaluate(EvaluateArguments(models=["owner/name"], reward_model_path=name)),
    "sample": lambda name: check_sample(SampleArguments(model_name_or_path="owner/name", reward_model_path=[name])),
}


@pytest.fixture(scope="module")
def made(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Results of hftune: a merged model, an adapter on it, a reward model."""
    folder = tmp_path_factory.mktemp("made")
    for name in ("base", "adapter", "reward"):
        shutil.copytree(tiny_model, folder / name)
    finish_manifest(folder / "base", {"stage": "merge", "status": "complete"})
    for name in ("config.json", "model.safetensors"):
        (folder / "adapter" / name).unlink()
    model: Any = AutoModelForCausalLM.from_pretrained(folder / "base")
    get_peft_model(model, LoraConfig(task_type="CAUSAL_LM")).save_pretrained(folder / "adapter")
    AutoModelForSequenceClassification.from_pretrained(tiny_model, num_labels=1).save_pretrained(folder / "reward")
    finish_manifest(folder / "reward", {"stage": "rm", "status": "complete", "head": "score"})
    return folder


@pytest.fixture
def folders(made: Path, tmp_path: Path) -> Path:
    shutil.copytree(made, tmp_path / "made")
    base = tmp_path / "made" / "base"
    about = {"stage": "sft", "status": "complete", "base": {"name": str(base), "fingerprint": fingerprint(base)}}
    finish_manifest(tmp_path / "made" / "adapter", about)
    return tmp_path / "made"


def said(problems: Iterator[UserError]) -> str:
    return "\n".join(str(problem) for problem in problems)


def flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)


@pytest.mark.parametrize(
    ("command", "file"), spokes(LANGUAGE, ["base/model.safetensors", "base/config.json", "adapter/chat_template.jinja"])
)
def test_a_flipped_bit_of_a_model_that_answers(folders: Path, command: str, file: str) -> None:
    if command != "chat":  # which would wait for a question
        assert "as hftune wrote it" not in said(LANGUAGE[command](str(folders / "adapter")))
    flip(folders / file)
    assert f"{folders / file} has other contents" in said(LANGUAGE[command](str(folders / "adapter")))


@pytest.mark.parametrize(("command", "file"), spokes(WHOLE, ["model.safetensors", "tokenizer.json"]))
def test_a_flipped_bit_of_a_model_that_is_exported(folders: Path, command: str, file: str) -> None:
    flip(folders / "base" / file)
    assert f"{file} has other contents" in said(WHOLE[command](str(folders / "base")))


@pytest.mark.parametrize("file", ["base/model.safetensors", "adapter/adapter_model.safetensors"])
def test_a_flipped_bit_of_an_adapter_or_its_base(folders: Path, file: str) -> None:
    flip(folders / file)
    with pytest.raises(UserError, match="other contents"):
        merge(folders / "adapter", folders / "out", base_model_name_or_path=str(folders / "base"), verify="false")
    assert not (folders / "out").exists()


@pytest.mark.parametrize("command", REWARD)
def test_a_flipped_bit_of_a_reward_model(folders: Path, command: str) -> None:
    assert "as hftune wrote it" not in said(REWARD[command](str(folders / "reward")))
    flip(folders / "reward" / "model.safetensors")
    assert "model.safetensors has other contents" in said(REWARD[command](str(folders / "reward")))


@pytest.mark.parametrize("command", LANGUAGE)
def test_another_base_than_the_recorded_one(folders: Path, command: str) -> None:
    file = folders / "base" / "model.safetensors"
    save_file({name: tensor + 1 for name, tensor in load_file(file).items()}, file, metadata={"format": "pt"})
    (folders / "base" / "hftune.json").unlink()
    assert "was trained on other weights than those in" in said(LANGUAGE[command](str(folders / "adapter")))


READ = ["model_name_or_path", "tokenizer_name_or_path", "adapter_chain", "ref_adapters"]
READ += ["ref_model", "reward_model_path", "teachers", "teacher_targets"]


@pytest.mark.parametrize("name", READ)
def test_everything_that_training_reads(folders: Path, name: str) -> None:
    """Targets of a teacher are such a folder as well: flipped bits in them, and exchanged shards."""
    value: Any = str(folders / "reward")
    given = {name: [value] if name in ("adapter_chain", "ref_adapters", "reward_model_path", "teachers") else value}
    group = {"adapter_chain": [], "model_name_or_path": "owner/name", "tokenizer_name_or_path": None} | given
    facts: Any = SimpleNamespace(**dict.fromkeys(("model_args", "adapter_args", "training_args"), None))
    for part in vars(facts):
        setattr(facts, part, SimpleNamespace(**group))
    assert said(check_contents(facts)) == ""
    flip(folders / "reward" / "model.safetensors")
    assert "model.safetensors has other contents" in said(check_contents(facts))
