"""Teachers of a distillation before they load: what each is made of, how it is loaded, the bytes that it takes."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager

from hftune.arguments.adapter import AdapterArguments
from hftune.arguments.distill import DistillArguments
from hftune.arguments.model import ModelArguments
from hftune.errors import UserError
from hftune.models.loading.build import skeleton, weight_dtype
from hftune.models.loading.config import model_config
from hftune.preflight.memory import packed_bytes, packed_linears
from hftune.preflight.model_folder import base_and_adapters

FLAG = "--teacher_model_name_or_path"
SERVER = "--teacher_server_url"


def teacher_arguments(
    base: str, model_args: ModelArguments, training_args: DistillArguments
) -> tuple[ModelArguments, AdapterArguments]:
    """How a teacher is loaded: as the student where nothing else is said, but for what belongs to the student.

    Args:
        base: Folder or Hub name of its weights.
    """
    own = ModelArguments()
    found = dataclasses.replace(
        own,
        model_name_or_path=base,
        model_revision=training_args.teacher_model_revision or own.model_revision,
        dtype=training_args.teacher_dtype,
        **{name: getattr(model_args, name) for name in ("cache_dir", "offline", "attn_implementation", "flash_attn")},
    )
    # Frozen, like the base of an adapter: in full training alone weights are read as float32.
    bits = {f"load_in_{bits}bit": getattr(training_args, f"teacher_load_in_{bits}bit") for bits in (4, 8)}
    return found, AdapterArguments(use_peft=True, **bits)


@contextmanager
def errors_of_teacher(name: str) -> Iterator[None]:
    """In the block, what is wrong with a model is said of the teacher, whatever flag it usually comes from."""
    try:
        yield
    except UserError as error:
        raise error.at(f"{FLAG} {name}") from error


def teacher_bytes(model_args: ModelArguments, training_args: DistillArguments, *, half: bool) -> float:
    """Bytes of all teachers, whole.

    Args:
        half: Whether DeepSpeed keeps weights in 16 bit.
    """
    return sum(_bytes(name, model_args, training_args, half) for name in training_args.teachers)


def _bytes(name: str, model_args: ModelArguments, training_args: DistillArguments, half: bool) -> float:
    own_args, adapter_args = teacher_arguments(base_and_adapters(name, FLAG)[0], model_args, training_args)
    with errors_of_teacher(name):
        bare = skeleton(model_config(own_args, training_args), training_args)
    count = sum(parameter.numel() for parameter in bare.parameters())
    packed = sum(linear.weight.numel() for linear in packed_linears(bare)) if adapter_args.quantised else 0
    each = 2.0 if half else float(weight_dtype(own_args, training_args, trains_all=False).itemsize)
    return (count - packed) * each + packed * (packed_bytes(adapter_args) if packed else 0.0)
