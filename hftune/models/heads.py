"""Which head a model in memory has, in the manifest's word, and how a tied one is saved."""

from __future__ import annotations

from typing import Any

from torch import nn


def head_of(model: nn.Module) -> str:
    """A key of `constants.TASK_TYPES`: causal_lm, score or steps.

    Args:
        model: The plain model, not an adapter around it.
    """
    if not hasattr(model, "score"):
        return "causal_lm"
    return "steps" if type(model).__name__.endswith("ForTokenClassification") else "score"


def body_of(model: Any) -> nn.Module:
    """The part below a causal LM's head, which returns hidden states; the model itself where it has no such part.

    transformers' `base_model` is the model itself where a class names a part that it does not have (Llama 4, Mllama):
    there it is the part that owns the token embeddings.
    """
    if model.base_model is not model:
        return model.base_model
    embeddings = model.get_input_embeddings()
    owners = (child for child in model.children() if child is not embeddings and embeddings in set(child.modules()))
    return next(owners, model)


def without_tied(model: nn.Module, state: dict[str, Any]) -> dict[str, Any]:
    """A state dict without the names under which a tied matrix is there a second time."""
    # transformers finds them by their memory, which DeepSpeed's copies (ZeRO-1 and 2) no longer share: the head would
    # be written next to the embeddings that it is.
    tied = getattr(model, "all_tied_weights_keys", None) or {}
    doubles = {
        name
        for name, source in tied.items()
        if name in state and source in state and model.get_parameter(name) is model.get_parameter(source)
    }
    return {name: value for name, value in state.items() if name not in doubles}
