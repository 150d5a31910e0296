"""Rules about tokens that are added, before a model loads."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from hftune.arguments.adapter import AdapterArguments
from hftune.arguments.model import GrowthArguments, ModelArguments
from hftune.checkpoints.manifest import read_manifest
from hftune.errors import ArgumentError, UserError
from hftune.models.adapters.new_token_rows import ADD_SOME, NO_NEW_TOKEN
from hftune.models.vocabulary import named_tokens, new_tokens
from hftune.preflight.facts import Facts


def check_vocabulary(facts: Facts) -> Iterator[UserError]:
    """Problems of added tokens: unreadable, not trained, or unknown to the continued adapter."""
    model_args, adapter_args = facts.model_args, facts.adapter_args
    yield from check_growth(model_args)
    yield from _new_rows_problems(model_args, adapter_args)
    yield from _continued_problems(model_args, adapter_args)
    if model_args.grows and facts.stage == "rl" and not adapter_args.use_peft:
        yield ArgumentError(
            "the reference model, which is loaded from the same folder, would not have the new tokens",
            place="--add_tokens / --resize_vocab / --pad_vocab_to_multiple_of",
            fix="grow the model before: with run_pt.py or run_sft.py",
        )


def check_growth(args: GrowthArguments) -> Iterator[UserError]:
    """Problems of the tokens that are named."""
    for value, flag in ((args.add_tokens, "--add_tokens"), (args.add_special_tokens, "--add_special_tokens")):
        try:
            named_tokens(value, flag)
        except ArgumentError as problem:
            yield problem


def _new_rows_problems(model_args: ModelArguments, adapter_args: AdapterArguments) -> Iterator[UserError]:
    if not adapter_args.train_new_tokens_only:
        return
    if adapter_args.peft_path:
        yield ArgumentError(
            "an adapter that is continued trains what it has trained before",
            place="--peft_path, --train_new_tokens_only",
            fix="leave one of them out",
        )
    folder = model_args.model_name_or_path
    # Of a model on the Hub nothing is recorded about rows that were added.
    local = Path(folder or "").is_dir()
    if not model_args.grows and not (local and new_tokens(read_manifest(folder))):
        yield ArgumentError(NO_NEW_TOKEN, place="--train_new_tokens_only", fix=ADD_SOME)


def _continued_problems(model_args: ModelArguments, adapter_args: AdapterArguments) -> Iterator[UserError]:
    path = adapter_args.peft_path
    if not path or not model_args.grows:
        return
    yield ArgumentError(
        f"the adapter in {path} was trained without these rows, and would not train them",
        place="--add_tokens / --resize_vocab / --pad_vocab_to_multiple_of",
        fix=f"merge it first (python merge_peft_adapter.py --peft_model_path {path} --output_dir MERGED), then add "
        "them to the merged model",
    )
