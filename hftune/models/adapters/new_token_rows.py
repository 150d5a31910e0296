"""Training the rows of new tokens next to or instead of LoRA, with peft's trainable tokens."""

from __future__ import annotations

from peft import LoraConfig
from peft.utils.constants import DUMMY_TARGET_MODULES
from transformers import PreTrainedModel

from hftune.constants import TASK_TYPES
from hftune.errors import ArgumentError
from hftune.logging import notice
from hftune.models.structure import head_of

NO_NEW_TOKEN = "no token is new in this model"
ADD_SOME = "add some with --add_tokens, or leave the flag out"


def new_rows_with_lora(
    model: PreTrainedModel, modules_to_save: list[str], asked: list[int] | None
) -> list[int] | dict[str, list[int]] | None:
    """The `trainable_token_indices` of a `LoraConfig`, so that tokens added in this run are trained.

    Rows of the new tokens in the embeddings, and in the head where it has its own, unless `modules_to_save` trains the
    whole of them.

    Args:
        asked: Ids that are trained in any case (`--trainable_token_indices`).

    Raises:
        ArgumentError: Only one of two tables would be trained.
    """
    growth = getattr(model, "vocabulary_growth", None)
    if growth is None or not growth.ids:
        return asked
    tables = _tables(model)
    # As peft compares them: by the end of the name.
    whole = [name for name in tables if any(name.endswith(saved) for saved in modules_to_save)]
    if not whole:
        notice(f"the rows of {len(growth.ids)} new tokens are trained alongside LoRA, in {' and '.join(tables)}")
        return _indices(model, sorted({*growth.ids, *(asked or [])}))
    if not _tied(model) and len(whole) < len(tables):
        raise ArgumentError(
            f"new tokens need {' and '.join(tables)}, which are not tied; only {whole[0]} would be trained",
            place="--lora_modules_to_save",
            fix=f"give {' '.join(tables)}, or leave the flag out: the rows of new tokens are trained in any case",
        )
    return asked


def new_rows_config(model: PreTrainedModel) -> LoraConfig:
    """The config of an adapter that is nothing but the rows of new tokens (`--train_new_tokens_only`).

    A score head is trained too.

    Raises:
        ArgumentError: No token is new.
    """
    ids = list(getattr(model, "trained_token_ids", []))
    if not ids:
        raise ArgumentError(NO_NEW_TOKEN, place="--train_new_tokens_only", fix=ADD_SOME)
    notice(f"only the rows of {len(ids)} new tokens are trained, in {' and '.join(_tables(model))}")
    # LoRA on no module: whatever loads, continues or merges LoRA takes it.
    return LoraConfig(
        target_modules=DUMMY_TARGET_MODULES,
        trainable_token_indices=_indices(model, ids),
        modules_to_save=["score"] if head_of(model) != "causal_lm" else None,
        task_type=TASK_TYPES[head_of(model)],
    )


def _indices(model: PreTrainedModel, ids: list[int]) -> dict[str, list[int]]:
    """Ids for each table; a tied head follows the embeddings by itself."""
    tables = _tables(model)
    head = model.get_output_embeddings()
    if head is not None and getattr(head, "bias", None) is not None:
        raise ArgumentError(
            "the head has a bias, which peft's trainable tokens would leave out",
            place="--add_tokens",
            fix=f"train both tables whole: --lora_modules_to_save {' '.join(tables)}",
        )
    return {name: list(ids) for name in (tables[:1] if _tied(model) else tables)}


def _tables(model: PreTrainedModel) -> list[str]:
    """Last names of the embeddings and of the head: embed_tokens, lm_head."""
    inputs, head = model.get_input_embeddings(), model.get_output_embeddings()
    names = {id(module): name.rsplit(".", 1)[-1] for name, module in model.named_modules()}
    return [names[id(module)] for module in (inputs, head) if module is not None]


def _tied(model: PreTrainedModel) -> bool:
    head = model.get_output_embeddings()
    return head is not None and head.weight is model.get_input_embeddings().weight
