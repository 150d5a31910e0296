"""The data of a reward model, as `--reward_kind` says: preference pairs, or answers in labelled steps."""

from __future__ import annotations

from transformers import PreTrainedTokenizerBase

from hftune.arguments.reward import RMArguments
from hftune.data.preferences.reward_pairs import RewardPairEncoder
from hftune.data.preferences.step_encoder import StepEncoder
from hftune.data.tokenizing.encoder import Encoder


class RewardEncoder:
    """Makes the encoder of a kind."""

    @classmethod
    def from_arguments(cls, tokenizer: PreTrainedTokenizerBase, args: RMArguments) -> Encoder:
        """The encoder that the flags of run_rm.py ask for."""
        kinds: dict[str, type[Encoder]] = {"outcome": RewardPairEncoder, "process": StepEncoder}
        return kinds[args.reward_kind].from_arguments(tokenizer, args)
