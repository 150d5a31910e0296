"""What each script makes of its records: the encoder that its arguments ask for, imported when it is chosen."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

from hftune.arguments.data import DataArguments
from hftune.arguments.stage_table import base_stage
from hftune.arguments.training import StageArguments
from hftune.data.encoder import Encoder
from hftune.data.readers.columns import apply_columns, parse_columns
from hftune.data.readers.files import Row, chunks
from hftune.data.readers.hub import data_files
from hftune.data.readers.specs import parse_sources
from hftune.data.tokenized_folder import settings_of
from hftune.on_demand import on_demand

LABELS = ("label", "kto_tag")
"""Columns by which an answer says that it is good or bad."""

ENCODERS = {
    "pt": "hftune.data.encode:TextEncoder",
    "sft": "hftune.data.encode:ChatEncoder",
    "rm": "hftune.data.encode_rewards:RewardPairEncoder",
    "rm process": "hftune.data.encode_rewards:StepEncoder",
    "dpo": "hftune.data.encode_pairs:PairEncoder",
    "dpo kto": "hftune.data.encode_pairs:MismatchedPairEncoder",
    "dpo labels": "hftune.data.encode_pairs:LabelledEncoder",
    "rl": "hftune.data.encode_prompts:PromptEncoder",
}
"""By stage, and what it is asked for beyond its usual records."""


def make_encoder(
    stage: str, tokenizer: PreTrainedTokenizerBase, args: StageArguments, data_args: DataArguments
) -> Encoder:
    """The encoder of a run.

    Args:
        stage: pt, sft, rm, dpo or rl.
    """
    made: Encoder = on_demand(ENCODERS[_kind(base_stage(stage), args, data_args)]).from_arguments(tokenizer, args)
    return made


def _kind(stage: str, args: Any, data_args: DataArguments) -> str:
    if stage == "rm" and args.reward_kind == "process":
        return "rm process"
    if stage == "dpo" and args.unpaired and _has_labels(data_args):
        return "dpo labels"
    return "dpo kto" if stage == "dpo" and "kto" in args.loss_type else stage


def _has_labels(data_args: DataArguments) -> bool:
    """Whether the first record of the training data is an answer with a label."""
    if data_args.tokenized_dir:
        # Its records are token ids; what they were before is written in its index.
        settings = settings_of(Path(data_args.tokenized_dir))
        return bool(settings.get("encoder") == "LabelledEncoder")
    given = data_args.train_file_dir or data_args.dataset_name
    if not given:
        return False
    (spec, *_) = parse_sources(given, flag="--train_file_dir")
    rows = (row for chunk in chunks(data_files(spec.path, "--train_file_dir")) for row in chunk.rows())
    # Bad records are passed over here: whoever tokenises them says what is wrong.
    first = next((row for row in rows if isinstance(row, Row)), None)
    return first is not None and any(
        name in apply_columns(first, parse_columns(data_args.columns)).value for name in LABELS
    )
