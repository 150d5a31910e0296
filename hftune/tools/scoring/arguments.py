"""The arguments of `hftune score`."""

from __future__ import annotations

from dataclasses import dataclass, field

from hftune.arguments.data import TurnTokenFields
from hftune.arguments.model import HubFields


@dataclass
class ScoreArguments(HubFields, TurnTokenFields):
    """Scores of conversations, from an outcome or a process reward model."""

    input: str | None = field(
        default=None,
        metadata={"help": "File or folder of conversations, preference pairs or answers in steps; also given alone."},
    )
    model: str | None = field(
        default=None,
        metadata={"help": "Reward model: a folder of run_rm.py, adapter or merged; or a Hub name."},
    )
    output: str | None = field(default=None, metadata={"help": "JSONL file for the scores; left out: standard output."})
    overwrite_output: bool = field(default=False, metadata={"help": "Replace the output file."})
    batch_tokens: int = field(
        default=8192, metadata={"help": "Tokens in a batch, padding included; a longer conversation goes alone."}
    )
    max_length: int | None = field(
        default=None, metadata={"help": "Longer conversations lose their beginning; left out: nothing is lost."}
    )
    step_separator: str | None = field(
        default=None,
        metadata={"help": "Parts answers into steps for a process model; left out: as the model was trained."},
    )
    dtype: str = field(
        default="float32",
        metadata={"help": "Dtype of the weights.", "choices": ["float32", "bfloat16", "float16"]},
    )
    on_bad_record: str = field(
        default="error",
        metadata={
            "help": "error: stop at a record that cannot be used; drop: leave it out, and say how many and why.",
            "choices": ["error", "drop"],
        },
    )
    trust_remote_code: bool = field(default=False, metadata={"help": "Run code that comes with the model."})
    use_cpu: bool = field(default=False, metadata={"help": "Score on the CPU even where there is a GPU."})
