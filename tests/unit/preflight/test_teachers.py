"""What teachers are made of, and the bytes that they take."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

from hftune.arguments.entry import parse_arguments
from hftune.preflight.memory import ModelSize, Setup, estimate, packed_linears
from hftune.preflight.model_folder import base_and_adapters
from hftune.preflight.teachers import FLAG, teacher_arguments, teacher_bytes


def parsed(model: Path, *teachers: Path, flags: tuple[str, ...] = ()) -> Any:
    named = ("--teacher_model_name_or_path", *map(str, teachers))
    needed = ("--model_name_or_path", str(model), "--output_dir", "o", "--report_to", "none")
    return parse_arguments("distill", [*needed, *named, *flags])


@pytest.fixture(scope="session")
def adapter(tiny_teacher: Path, workspace: Path) -> Path:
    model = AutoModelForCausalLM.from_pretrained(tiny_teacher)
    folder = workspace / "teacher-adapter"
    get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", target_modules=["q_proj"])).save_pretrained(folder)
    return folder


def test_a_whole_model_and_an_adapter(tiny_teacher: Path, adapter: Path) -> None:
    assert base_and_adapters(str(tiny_teacher), FLAG) == (str(tiny_teacher), [])
    assert base_and_adapters("owner/name", FLAG) == ("owner/name", [])
    assert base_and_adapters(str(adapter), FLAG) == (str(tiny_teacher), [str(adapter)])


def test_what_belongs_to_the_student_alone_is_not_the_teachers(tiny_model: Path, tiny_teacher: Path) -> None:
    flags = ("--rope_scaling", "linear", "--model_revision", "x", "--teacher_model_revision", "y", "--cache_dir", "c")
    given = parsed(tiny_model, tiny_teacher, flags=(*flags, "--teacher_load_in_8bit", "True", "--use_peft"))
    model_args, adapter_args = teacher_arguments(str(tiny_teacher), given.model, given.training)
    assert model_args.model_name_or_path == str(tiny_teacher) and model_args.rope_scaling is None
    assert (model_args.model_revision, model_args.cache_dir) == ("y", "c")
    assert adapter_args.load_in_8bit and not adapter_args.load_in_4bit and adapter_args.use_peft


def test_bytes_are_those_of_the_weights(tiny_model: Path, tiny_teacher: Path, adapter: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(tiny_teacher)
    count = sum(parameter.numel() for parameter in model.parameters())
    packed = sum(linear.weight.numel() for linear in packed_linears(model))

    def bytes_of(*teachers: Path, half: bool = False, flags: tuple[str, ...] = ()) -> float:
        given = parsed(tiny_model, *teachers, flags=("--use_cpu", "True", *flags))
        return teacher_bytes(given.model, given.training, half=half)

    assert bytes_of(tiny_teacher) == bytes_of(adapter) == 4 * count
    assert bytes_of(tiny_teacher, half=True) == 2 * count
    assert bytes_of(tiny_teacher, flags=("--teacher_dtype", "bfloat16")) == 2 * count
    assert bytes_of(tiny_teacher, flags=("--teacher_load_in_8bit", "True")) == 4 * (count - packed) + packed


def test_they_count_as_weights_and_are_partitioned_as_these() -> None:
    size, plain = ModelSize(weights=100, trained=100), Setup()
    alone, both = (estimate(size, Setup(teacher_bytes=bytes_)) for bytes_ in (0.0, 1000.0))
    assert both.weights - alone.weights == 1000 and estimate(size, plain) == alone
    parts = [estimate(size, Setup(zero_stage=3, deepspeed=True, processes=4, teacher_bytes=it)) for it in (0.0, 1000.0)]
    assert parts[1].weights - parts[0].weights == 250
