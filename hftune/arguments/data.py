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
    preprocessing_num_workers: int = field(default=1, metadata={"help": "Processes that tokenise."})
    overwrite_cache: bool = field(default=False, metadata={"help": "Tokenise anew even if nothing has changed."})
    data_cache_dir: str | None = field(
        default=None, metadata={"help": "Where tokenised records are kept; left out: ~/.cache/hftune."}
    )
    tokenized_dir: str | None = field(
        default=None,
        metadata={
            "help": "Pre-training on documents that are tokenised already: folders of `hftune tokenize` or "
            "`Dataset.save_to_disk`, or folders of such folders, with commas between them."
        },
    )
    validation_tokenized_dir: str | None = field(default=None, metadata={"help": "Held-out documents, likewise."})
    datasets: str | None = field(
        default=None,
        metadata={"help": "Sub-folders of --tokenized_dir to use, with commas between them; left out: all."},
    )
    weights: str | None = field(
        default=None,
        metadata={"help": "Share of the tokens for each of --datasets, such as 2,1; left out: by their size."},
    )
    logical_shards: int = field(
        default=2048,
        metadata={
            "help": "Pieces that each tokenised source is visited in, in random order. Any number works with any "
            "number of processes and workers; it must stay the same when a run goes on."
        },
    )
    shuffle_buffer: int = field(
        default=100_000,
        metadata={
            "help": "Tokenised documents that are shuffled together, drawn from all over their source; 0: keep their "
            "order. Must stay the same when a run goes on."
        },
    )
    streaming: bool = field(
        default=False,
        metadata={
            "help": "Tokenise records while training instead of ahead of it: for data that are too large to be kept "
            "tokenised. Needs --max_steps; records are mixed with their neighbours only."
        },
    )
    num_samples_each_epoch: int | None = field(
        default=None,
        metadata={"help": "Examples in an epoch where sources are mixed; left out: as many as there are."},
    )

    @property
    def tokenized(self) -> bool:
        """Whether the training data are tokenised folders."""
        return bool(self.tokenized_dir or self.datasets)
