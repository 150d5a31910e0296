"""Where the records come from, how many are used, and what happens to those that cannot be."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hftune.arguments.option import option
from hftune.checks import refuse
from hftune.template_arguments import FLAG, TemplateArguments, parse_arguments


@dataclass
class TemplateFields:
    """For all that writes conversations by a chat template."""

    chat_template_kwargs: dict[str, Any] | str | None = option(
        None,
        "What the chat template is given besides the conversation, a JSON object such as "
        "'{\"enable_thinking\": false}'; the field chat_template_kwargs of a record wins. Left out: as the model "
        "was trained, by its hftune.json; {}: nothing.",
    )

    @property
    def template_arguments(self) -> TemplateArguments | None:
        """`chat_template_kwargs` as an object; None where it was not given.

        Raises:
            ArgumentError: It is no object.
        """
        return None if self.chat_template_kwargs is None else parse_arguments(self.chat_template_kwargs, FLAG)


@dataclass
class TurnTokenFields(TemplateFields):
    """For all that tokenises conversations: the scripts, `hftune score` and `hftune ask`."""

    borders_in_text: str = option(
        "split",
        "What becomes of text in records that spells a token with which the chat template begins or ends "
        "turns, or BOS, EOS or padding, such as <|im_end|>. split: it stays text, tokenised like any other; error: "
        "the record cannot be used; allow: it becomes that token, and may end a turn or open another one.",
        choices=["error", "split", "allow"],
    )


@dataclass
class ThoughtFields:
    """For all that trains answers: run_sft.py and run_dpo.py."""

    empty_thoughts: str = option(
        "mask",
        "What becomes of the empty thoughts that templates of hybrid models write before an answer without "
        "thoughts, such as <think></think>. mask: they count as part of the prompt, which holds them where "
        "thinking is off; train: train them; drop: leave them out of the text.",
        choices=["mask", "train", "drop"],
    )
    rewritten_turns: str = option(
        "split",
        "What becomes of a conversation whose earlier turns the chat template writes otherwise than "
        "inference has shown them, such as without their thoughts. split: it becomes several rows, each turn "
        "trained behind the prompt that inference gives; last: only its last turn is trained; refuse: it cannot be "
        "used; keep: one row as the template writes it, whatever inference shows. DPO trains last turns: each "
        "behind that prompt, or with keep as the template writes it.",
        choices=["split", "last", "refuse", "keep"],
    )


@dataclass
class DataArguments:
    """MedicalGPT's names. Formats are recognised from the records themselves."""

    train_file_dir: str | None = option(
        None,
        "Training records: a file, a folder of .txt, .json, .jsonl, .csv, .tsv, .parquet or .arrow files, "
        "text also as .gz and .zst, a URL of such (s3://, gs://, hf://, ...), or a Hub name "
        "OWNER/NAME[:CONFIG][@SPLIT]; several with commas between. PATH#500 takes 500 records of one.",
    )
    validation_file_dir: str | None = option(None, "Held-out records, likewise.")
    dataset_dir: str | None = option(
        None,
        "Folder with a dataset_info.json, LLaMA-Factory's registry: names in --train_file_dir and "
        "--validation_file_dir are looked up there.",
    )
    dataset_name: str | None = option(
        None, "Training records from the Hub: NAME[:CONFIG][@SPLIT], also without an owner."
    )
    dummy_data: int | None = option(None, "Train on this many generated records instead of data, for benchmarks.")
    train_dataset_prob: str | None = option(
        None, "How much of each training source is drawn: a weight each, such as 0.8,0.2."
    )
    mix_strategy: str | None = option(
        None,
        "concat: all records, one source after the other; under: draw by weight until a source is used up; "
        "over: draw until all are, repeating the smaller ones. Left out: over with weights, concat without.",
        choices=["concat", "under", "over"],
    )
    columns: str | None = option(
        None, "Read columns under other names, OURS=YOURS: prompt=question response=answer, or JSON."
    )
    on_bad_record: str = option(
        "error",
        "error: stop at a record that cannot be used; drop: leave it out, and say how many and why.",
        choices=["error", "drop"],
    )
    validation_split_percentage: float = option(
        0.0, "Hold out this percentage of the training records where no validation folder is given."
    )
    max_train_samples: int = option(-1, "Use this many records at most; -1: all.")
    max_eval_samples: int = option(-1, "Hold out this many records at most; -1: all.")
    shuffle_seed: int | None = option(
        None,
        "Draw the records that --max_train_samples takes from all of the training data, with this seed. "
        "Left out: the first ones, in the order of the files.",
    )
    count_rows: bool = option(
        False,
        "Let --max_train_samples and --max_eval_samples count rows as they are trained (packed blocks), "
        "not records as they are read.",
    )
    preprocessing_num_workers: int = option(0, "Processes that tokenise; 0: one for each core, 16 at most.")
    preview: int = option(0, "Show so many records as they will be trained, with counts, before training.")
    overwrite_cache: bool = option(False, "Tokenise anew even if nothing has changed.")
    data_cache_dir: str | None = option(None, "Where tokenised records are kept; left out: ~/.cache/hftune.")
    tokenized_dir: str | None = option(
        None,
        "Records that are tokenised already, in place of files: a folder of `hftune tokenize`. For "
        "pre-training also one of `Dataset.save_to_disk`, several with commas between them, or a folder of such.",
    )
    validation_tokenized_dir: str | None = option(None, "Held-out documents for pre-training.")
    datasets: str | None = option(
        None, "Pre-training: the sub-folders of --tokenized_dir to use, by commas; left out: all."
    )
    weights: str | None = option(
        None, "Pre-training: share of the tokens for each of --datasets (2,1); left out: by size."
    )
    # As in fms-fsdp: many more shards than readers, so that any number of them divides the work alike.
    logical_shards: int = option(
        2048,
        "Pieces that each tokenised source is visited in, in random order. Any number works with any "
        "number of processes and workers; it must stay the same when a run is resumed.",
    )
    shuffle_buffer: int = option(
        100_000,
        "Tokenised documents that are shuffled together, drawn from all over their source; 0: keep their "
        "order. Must stay the same when a run is resumed.",
    )
    streaming: bool = option(
        False,
        "Tokenise records while training instead of ahead of it: for data that are too large to be kept "
        "tokenised. Needs --max_steps; records are mixed with their neighbours only.",
    )
    num_samples_each_epoch: int | None = option(
        None, "Examples in an epoch where sources are mixed; left out: as many as there are."
    )

    @property
    def tokenized(self) -> bool:
        """Whether the training data are tokenised folders."""
        return bool(self.tokenized_dir or self.datasets)

    def __post_init__(self) -> None:
        """Choose how sources are mixed.

        Raises:
            ArgumentError: Drawing by weight without weights.
        """
        refuse(__package__, "data", self)
        # Set here, so that the manifest and the fingerprint of the cache say what was done, not None.
        self.mix_strategy = self.mix_strategy or ("over" if self.train_dataset_prob else "concat")
