"""From a name or folder to a reward model: a language model with a head that scores."""

from __future__ import annotations

import torch
import transformers
from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from hftune.arguments.adapter import AdapterArguments
from hftune.arguments.model import ModelArguments
from hftune.arguments.preference import RMArguments
from hftune.constants import AUTO_CLASSES, STEP_LABELS
from hftune.distributed import zero
from hftune.errors import ArgumentError
from hftune.models.loading.build import Build
from hftune.models.loading.causal_lm import build_model, fit_to_tokenizer
from hftune.weight_files import weight_shapes


def load_reward_model(
    model_args: ModelArguments,
    adapter_args: AdapterArguments,
    training_args: RMArguments,
    tokenizer: PreTrainedTokenizerBase,
    build: Build | None = None,
) -> PreTrainedModel:
    """A model with one score a sequence, read at its last token that is not padding; or with two classes a token.

    A head that the checkpoint does not have is drawn with the run's seed, the same whatever the ZeRO stage. Arguments
    are those of `load_causal_lm`.
    """
    labels = len(STEP_LABELS) if training_args.head == "steps" else 1
    stored = {} if model_args.from_config else weight_shapes(model_args.model_name_or_path)
    _refuse_other_head(str(model_args.model_name_or_path), stored.get("score.weight"), labels)
    auto = getattr(transformers, AUTO_CLASSES[training_args.head])
    model = build_model(auto, model_args, adapter_args, training_args, build, labels=labels)
    fit_to_tokenizer(model, tokenizer, model_args, adapter_args, training_args)
    # The model finds the last real token of a padded row by this id.
    model.config.get_text_config().pad_token_id = tokenizer.pad_token_id
    if "score.weight" not in stored:
        init_score_head(model, seed=training_args.seed)
    return model


def init_score_head(model: PreTrainedModel, seed: int) -> None:
    """Draw the score head from N(0, 1 / (hidden size + 1)) (arXiv:2009.01325, appendix B.1).

    Args:
        model: A classification model with a `score` of shape (labels, hidden size); a bias begins at 0.
        seed: The same seed gives the same head on every rank and under every ZeRO stage.
    """
    score: nn.Linear = model.score
    # Drawn whole on every rank by a generator of its own: under ZeRO-3 a rank holds a part of the weight, and the
    # global generator is not at the same place on all ranks.
    shape = tuple(getattr(score.weight, "ds_shape", score.weight.shape))
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randn(shape, generator=generator) / (shape[-1] + 1) ** 0.5
    with zero.gathered(list(score.parameters()), write=True), torch.no_grad():
        score.weight.copy_(drawn.to(score.weight.dtype))
        if score.bias is not None:
            score.bias.zero_()


def _refuse_other_head(name: str, shape: tuple[int, ...] | None, labels: int) -> None:
    """A head in the checkpoint must be of the kind that is trained: transformers would stop with a list of shapes."""
    if shape is not None and shape[0] != labels:
        kinds = {1: "scores conversations (--reward_kind outcome)", 2: "scores steps (--reward_kind process)"}
        raise ArgumentError(
            f"{name} has a score head of {shape[0]} outputs, and one of {labels} is trained",
            place="--model_name_or_path",
            fix=f"it {kinds[shape[0]]}" if shape[0] in kinds else "give a language model",
        )
