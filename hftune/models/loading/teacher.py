"""Teachers of a distillation: whole models or adapters, frozen, in the precision that was asked for."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from transformers import AutoModelForCausalLM, PreTrainedModel

from hftune.arguments.adapter import AdapterArguments
from hftune.arguments.distill import DistillArguments
from hftune.arguments.model import ModelArguments
from hftune.checkpoints.adapter_chain import whole_chain
from hftune.checkpoints.manifest import read_manifest
from hftune.errors import ArgumentError, UserError
from hftune.models.adapters.folding import fold_adapters
from hftune.models.adapters.saved_config import read_lora_config
from hftune.models.loading.causal_lm import build_model
from hftune.models.vocabulary.grown_model import grow_as_recorded

FLAG = "--teacher_model_name_or_path"


@dataclass(frozen=True)
class TeacherSource:
    """What a teacher is made of.

    Args:
        name: As it was given.
        base: Folder or Hub name of the weights.
        adapters: Folders of the adapters upon them, the one next to the base first.
    """

    name: str
    base: str
    adapters: tuple[str, ...] = ()


def teacher_source(name: str) -> TeacherSource:
    """What a folder or name stands for.

    Raises:
        ArgumentError: An adapter whose config cannot be read.
    """
    if not (Path(name) / "adapter_config.json").is_file():
        return TeacherSource(name, name)
    # The manifest knows the base by the name that was given, PEFT's config by what it was when the adapter was saved.
    recorded = (read_manifest(name) or {}).get("base", {}).get("name")
    base = recorded or read_lora_config(name, FLAG).base_model_name_or_path
    return TeacherSource(name, str(base), tuple(whole_chain([name])))


def teacher_arguments(
    source: TeacherSource, model_args: ModelArguments, training_args: DistillArguments
) -> tuple[ModelArguments, AdapterArguments]:
    """How a teacher is loaded: as the student where nothing else is said, but for what belongs to the student."""
    own = ModelArguments()
    found = dataclasses.replace(
        own,
        model_name_or_path=source.base,
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
        raise ArgumentError(error.cause, place=f"{FLAG} {name}", fix=error.fix) from error


def load_teachers(model_args: ModelArguments, training_args: DistillArguments) -> list[PreTrainedModel]:
    """The teachers, in evaluation mode and without gradients; partitioned where ZeRO-3 is.

    Raises:
        ArgumentError: There is no such model, or an adapter does not fit its base.
    """
    return [_load(teacher_source(name), model_args, training_args) for name in training_args.teachers]


def _load(source: TeacherSource, model_args: ModelArguments, training_args: DistillArguments) -> PreTrainedModel:
    own_args, adapter_args = teacher_arguments(source, model_args, training_args)
    training_args = copy.copy(training_args)
    training_args.fp8 = None  # speeds up layers that are trained
    with errors_of_teacher(source.name):
        model = build_model(AutoModelForCausalLM, own_args, adapter_args, training_args, None)
        grow_as_recorded(model, list(source.adapters))
        model = fold_adapters(model, source.adapters)
    model.requires_grad_(False)
    model.config.use_cache = False
    return model.eval()
