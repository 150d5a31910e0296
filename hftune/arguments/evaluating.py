"""What `hftune evaluate` needs to know."""

from __future__ import annotations

from dataclasses import dataclass, field

from hftune.arguments.asking import TalkerFields

ANSWER_TASKS = ("exact_match", "math", "bleu", "chrf", "rouge", "json", "tool_calls")
"""Tasks that compare a generated answer with the record's, or look at its form."""
OWN_TASKS = ("loss", *ANSWER_TASKS)
"""Tasks on the records of `--validation_file_dir`."""


@dataclass
class EvaluateArguments(TalkerFields):
    """Held-out loss, generated answers and their scores, of one model or several."""

    models: list[str] | None = field(
        default=None,
        metadata={"help": "Folders (whole, merged or adapters) or Hub names; also given alone, before all arguments."},
    )
    eval_tasks: list[str] | None = field(
        default=None,
        metadata={
            "help": f"What is measured. On the records of --validation_file_dir: {', '.join(OWN_TASKS)}.",
        },
    )
    validation_file_dir: str | None = field(
        default=None, metadata={"help": "File or folder of held-out records, in any format that run_sft.py reads."}
    )
    max_eval_samples: int | None = field(
        default=None, metadata={"help": "At most so many records, the first ones; left out: all."}
    )
    max_length: int | None = field(
        default=None,
        metadata={"help": "Of loss: longer records lose their end, as in run_sft.py; left out: none does."},
    )
    max_new_tokens: int = field(default=256, metadata={"help": "Tokens of an answer; a longer one is cut."})
    batch_tokens: int = field(
        default=4096, metadata={"help": "Tokens in a batch, padding included; a longer record goes alone."}
    )
    against: str | None = field(
        default=None,
        metadata={
            "help": "What all models are compared with, record by record: an output folder of hftune evaluate with the "
            "same tasks, or a model, which is then evaluated as well."
        },
    )
    output_dir: str | None = field(
        default=None, metadata={"help": "Folder for evaluation.json and records.jsonl; the same command resumes there."}
    )
    overwrite_output_dir: bool = field(default=False, metadata={"help": "Replace an earlier evaluation there."})
