"""The decisions behind the facts of a run, one function each; they change the copies of arguments they are given."""

from __future__ import annotations

from hftune.arguments.adapter import AdapterArguments
from hftune.arguments.model import ModelArguments
from hftune.arguments.recomputation import MLP
from hftune.arguments.training import StageArguments
from hftune.checkpoints.manifest import read_manifest
from hftune.checkpoints.template_arguments import recorded_arguments, say_recorded
from hftune.logging import notice
from hftune.models.vocabulary import recorded_growth
from hftune.on_demand import on_demand

LIGER_LOSSES = ("fused_linear_cross_entropy", "cross_entropy")
"""Liger's keys that replace the model's forward pass, in which hftune's trainers ask for the loss of labels alone."""

LIGER_MLPS = ("swiglu", "geglu")
"""Those that replace the MLP's."""


def complete_chain(adapter_args: AdapterArguments) -> None:
    """Put the adapters that the named one was trained on before it."""
    if not adapter_args.adapter_chain:
        return
    whole = on_demand("hftune.checkpoints.folder_checks:whole_chain")(adapter_args.adapter_chain)
    if whole != adapter_args.adapter_chain:
        notice(f"{adapter_args.adapter_chain[0]} was trained upon others: --peft_path {','.join(whole)}")
        adapter_args.peft_path = ",".join(whole)


def take_tokenizer_of_adapter(model_args: ModelArguments, adapter_args: AdapterArguments) -> None:
    """Take the tokenizer of a continued adapter that added tokens, where no other was named."""
    grown = [folder for folder in adapter_args.adapter_chain if recorded_growth(read_manifest(folder)) is not None]
    # The last one of the chain: each tokenizer has the tokens of those before it.
    if grown and model_args.tokenizer_name_or_path is None:
        notice(f"the tokenizer is that of {grown[-1]}, which has the tokens that were added")
        model_args.tokenizer_name_or_path = grown[-1]


def take_template_arguments(
    model_args: ModelArguments, adapter_args: AdapterArguments, training_args: StageArguments
) -> None:
    """Take what the chat template was given when the base (or the last adapter upon it) was trained."""
    if training_args.chat_template_kwargs is not None:
        return
    # The last one trained comes first: it may have been trained with others than its base.
    for folder in [*reversed(adapter_args.adapter_chain), model_args.model_name_or_path]:
        if found := recorded_arguments(folder):
            say_recorded(found, folder)
            training_args.chat_template_kwargs = found
            return


def keep_own_layers(adapter_args: AdapterArguments, training_args: StageArguments) -> None:
    """Switch off Liger's replacements that would undo hftune's: the Trainer applies Liger last of all."""
    if not training_args.use_liger_kernel:
        return
    kept = kept_from_liger(adapter_args, training_args)
    # What was given stays, and is refused by its rule where it contradicts.
    settings = dict.fromkeys(kept, False) | dict(training_args.liger_kernel_config or {})
    vars(training_args)["liger_kernel_config"] = settings
    notice(f"--use_liger_kernel: norms and rotary embeddings; as hftune has them stay {', '.join(kept)}")


def kept_from_liger(adapter_args: AdapterArguments, training_args: StageArguments) -> list[str]:
    """Liger's keys for what hftune computes itself: losses, and MLPs that have LoRA, tiles or recomputation."""
    parts = training_args.recomputation.parts if training_args.recomputation is not None else ()
    # FP8 replaces the linear layers within, which Liger's MLP would not call.
    own_mlp = adapter_args.use_peft or training_args.tiled_mlp or MLP in parts or bool(training_args.fp8)
    return [*LIGER_LOSSES, *(LIGER_MLPS if own_mlp else ())]
