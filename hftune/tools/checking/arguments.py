"""The arguments of `hftune data check`."""

from __future__ import annotations

from dataclasses import dataclass, field

from hftune.arguments.asking import TalkerFields
from hftune.tools.checking.result import KINDS


@dataclass
class DataCheckArguments(TalkerFields):
    """What is in data, and what should not be trained."""

    files: list[str] | None = field(
        default=None, metadata={"help": "Files and folders of records, in any format of any stage; also given alone."}
    )
    against: list[str] | None = field(
        default=None, metadata={"help": "Files and folders of evaluation data, which must not stand in the others."}
    )
    ancestors: str | None = field(
        default=None,
        metadata={"help": "Folder of a model: what all stages before it were trained on is looked for, too."},
    )
    model: str | None = field(
        default=None, metadata={"help": "Language model: counts tokens, and says how likely each record is."}
    )
    output_dir: str | None = field(
        default=None, metadata={"help": "Folder for a page, the findings and, with --drop, the records that are left."}
    )
    overwrite_output_dir: bool = field(default=False, metadata={"help": "Replace an earlier result there."})
    drop: list[str] | None = field(
        default=None,
        metadata={"help": "Kinds of findings whose records are left out of what is written.", "choices": [*KINDS]},
    )
    columns: str | None = field(
        default=None, metadata={"help": "Columns with names of their own: prompt=question response=answer."}
    )
    preprocessing_num_workers: int | None = field(
        default=None, metadata={"help": "Processes; left out: one for each core."}
    )
    max_length: int = field(default=2048, metadata={"help": "Tokens of a record that its loss is computed of."})
    batch_tokens: int = field(default=4096, metadata={"help": "Tokens in a batch for the loss, padding included."})


COMMANDS = {"check": DataCheckArguments}
"""What stands behind `hftune data`."""
