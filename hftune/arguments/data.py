"""Where the records come from and how many are used."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class DataArguments:
    """MedicalGPT's names. Formats are recognised from the records themselves."""

    train_file_dir: str | None = field(
        default=None, metadata={"help": "Training records: a file, or a folder that is searched for .txt/.json/.jsonl."}
    )
    validation_file_dir: str | None = field(default=None, metadata={"help": "Held-out records, likewise."})
    validation_split_percentage: float = field(
        default=0.0,
        metadata={"help": "Hold out this percentage of the training records where no validation folder is given."},
    )
    max_train_samples: int = field(default=-1, metadata={"help": "Use this many records at most; -1: all."})
    max_eval_samples: int = field(default=-1, metadata={"help": "Hold out this many records at most; -1: all."})
    on_bad_record: str = field(
        default="error",
        metadata={"help": "A record that cannot be used stops the run, or is dropped.", "choices": ["error", "drop"]},
    )
    preprocessing_num_workers: int = field(
        default=0, metadata={"help": "Processes that tokenise; 0: one for each core, 16 at most."}
    )
    tokenized_dir: str | None = field(
        default=None, metadata={"help": "Records that `hftune tokenize` has made, in place of the files above."}
    )
    preview: int = field(
        default=0, metadata={"help": "Show so many records as they will be trained, with counts, before training."}
    )
    overwrite_cache: bool = field(default=False, metadata={"help": "Tokenise anew even if nothing has changed."})
    data_cache_dir: str | None = field(
        default=None, metadata={"help": "Where tokenised records are kept; left out: ~/.cache/hftune."}
    )
