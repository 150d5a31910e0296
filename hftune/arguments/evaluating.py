"""What `hftune evaluate` needs to know."""

from __future__ import annotations

from dataclasses import dataclass, field

from hftune.arguments.asking import JUDGE_KEY, TalkerFields

ANSWER_TASKS = ("exact_match", "math", "bleu", "chrf", "rouge", "json", "tool_calls")
"""Tasks that compare a generated answer with the record's, or look at its form."""
OF_ANSWERS = ("reward", "judge")
"""Tasks that score answers by another model."""
COMPARED_TASKS = (*(task for task in ANSWER_TASKS if task not in ("json", "tool_calls")), "judge")
"""Tasks that compare a generated answer with the record's."""
OWN_TASKS = ("loss", *ANSWER_TASKS, *OF_ANSWERS)
"""Tasks on the records of `--validation_file_dir`; all others are lm-eval's."""


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
            "help": f"What is measured. On the records of --validation_file_dir: {', '.join(OWN_TASKS)}. Any other "
            "name is a task of lm-eval.",
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
    reward_model_path: str | None = field(
        default=None, metadata={"help": "Of reward: what scores the answers: a folder of run_rm.py or a Hub name."}
    )
    judge_url: str | None = field(
        default=None,
        metadata={
            "help": "Of judge: an OpenAI-compatible server, http://host:port, that compares each answer with the "
            f"record's, in both orders. A key for it is read from the variable {JUDGE_KEY}."
        },
    )
    judge_model: str | None = field(
        default=None, metadata={"help": "The judge's name on the server; left out: the only model that it serves."}
    )
    include_path: str | None = field(
        default=None, metadata={"help": "Folder with further task files of lm-eval, which win over its own."}
    )
    num_fewshot: int | None = field(
        default=None, metadata={"help": "Of lm-eval's tasks: examples in a prompt; left out: as each task says."}
    )
    apply_chat_template: bool = field(
        default=False, metadata={"help": "Of lm-eval's tasks: write prompts by the model's chat template."}
    )
    per_device_eval_batch_size: int = field(
        default=8, metadata={"help": "Of lm-eval's tasks: requests in a batch of each process."}
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

    @property
    def harness_tasks(self) -> list[str]:
        """Tasks of lm-eval."""
        return [task for task in self.eval_tasks or [] if task not in OWN_TASKS]
