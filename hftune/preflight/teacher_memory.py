"""The bytes that the teachers of a distillation take, from their configs alone."""

from __future__ import annotations

from hftune.arguments.distill import DistillArguments
from hftune.arguments.model import ModelArguments
from hftune.models.loading.config import model_config
from hftune.models.loading.dtype import weight_dtype
from hftune.models.loading.skeleton import skeleton
from hftune.models.loading.teacher import errors_of_teacher, teacher_arguments, teacher_source
from hftune.preflight.sizes import packed_bytes, packed_linears

_known: dict[str, float] = {}
"""By what decides it: a planner asks for each of its choices."""


def teacher_bytes(model_args: ModelArguments, training_args: DistillArguments, *, half: bool) -> float:
    """Bytes of all teachers, whole.

    Args:
        half: Whether DeepSpeed keeps weights in 16 bit.
    """
    return sum(_bytes(name, model_args, training_args, half) for name in training_args.teachers)


def _bytes(name: str, model_args: ModelArguments, training_args: DistillArguments, half: bool) -> float:
    own_args, adapter_args = teacher_arguments(teacher_source(name), model_args, training_args)
    key = f"{own_args} {adapter_args} {half}"
    if key not in _known:
        with errors_of_teacher(name):
            bare = skeleton(model_config(own_args, training_args), training_args)
        count = sum(parameter.numel() for parameter in bare.parameters())
        packed = sum(linear.weight.numel() for linear in packed_linears(bare)) if adapter_args.quantised else 0
        each = 2.0 if half else float(weight_dtype(own_args, training_args, trains_all=False).itemsize)
        _known[key] = (count - packed) * each + packed * (packed_bytes(adapter_args) if packed else 0.0)
    return _known[key]
