"""Teachers of a distillation: whole models or adapters, frozen, in the precision that was asked for."""

from __future__ import annotations

import copy

from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.integrations import is_deepspeed_zero3_enabled

from hftune.arguments.distill import DistillArguments
from hftune.arguments.model import ModelArguments
from hftune.models.adapters.folding import fold_adapters
from hftune.models.loading.causal_lm import build_model
from hftune.models.loading.stored_weights import check_finite
from hftune.models.vocabulary import grow_as_recorded
from hftune.preflight.teachers import FLAG, TeacherSource, errors_of_teacher, teacher_arguments, teacher_source


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
        if not is_deepspeed_zero3_enabled():
            check_finite(model, source.name, FLAG)
    model.requires_grad_(False)
    model.config.use_cache = False
    return model.eval()
