"""Rules about uploading during a run: nothing but its finished result."""

from __future__ import annotations

from collections.abc import Iterator

from transformers.trainer_utils import HubStrategy

from hftune.errors import ArgumentError, UserError
from hftune.preflight.facts import Facts


def check_hub(facts: Facts) -> Iterator[UserError]:
    """A problem where checkpoints would be uploaded: they hold optimizer states, pickles and settings."""
    # The argument may be a text or a member already; both are taken.
    strategy = HubStrategy(facts.training_args.hub_strategy)
    if facts.training_args.push_to_hub and strategy != HubStrategy.END:
        yield ArgumentError(
            "checkpoints are not uploaded: they hold optimizer states and settings, which do not belong on the Hub",
            place=f"--hub_strategy {strategy.value}",
            fix="leave it out, so that --push_to_hub uploads the finished result; for another folder: "
            "hftune export hub --model_name_or_path FOLDER --hub_model_id OWNER/NAME",
        )
