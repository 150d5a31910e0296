"""`hftune data check`: what is in data, and what should not be trained; here its arguments."""

from __future__ import annotations

from dataclasses import dataclass

from hftune.arguments.option import option

KINDS: dict[str, str] = {
    "unusable": "cannot be read, or trained by no stage",
    "duplicate": "equal to an earlier record",
    "near_duplicate": "nearly equal to an earlier record",
    "leak": "holds a record of the evaluation data",
    "control_tokens": "control tokens of chat templates in the text",
    "encoding": "decoded from the wrong encoding",
    "secret": "a token or password",
}
"""Kind of finding -> what it means."""


@dataclass
class DataCheckArguments:
    """What is in data, and what should not be trained."""

    files: list[str] | None = option(
        None, "Files and folders of records, in any format of any stage; also given alone."
    )
    against: list[str] | None = option(
        None, "Files and folders of evaluation data, which must not stand in the others."
    )
    output_dir: str | None = option(None, "Folder for the findings and, with --drop, the records that are left.")
    overwrite_output_dir: bool = option(False, "Replace an earlier result there.")
    drop: list[str] | None = option(
        None, "Kinds of findings whose records are left out of what is written.", choices=[*KINDS]
    )
    columns: str | None = option(None, "Columns with names of their own: prompt=question response=answer.")
    preprocessing_num_workers: int | None = option(None, "Processes; left out: one for each core.")
