"""What `hftune ask` needs to know, and what it shares with the other commands that have models answer."""

from __future__ import annotations

from dataclasses import dataclass, field

from hftune.arguments.data import TemplateFields, TurnTokenFields
from hftune.arguments.hub import HubFields

JUDGE_KEY = "HFTUNE_JUDGE_API_KEY"
"""The variable with the key of `--judge_url`, of `hftune evaluate` and `hftune sample`."""


@dataclass
class LoadingFields(HubFields, TemplateFields):
    """How models that answer are loaded, here or by a server."""

    dtype: str = field(
        default="auto",
        metadata={
            "help": "Dtype of the weights; auto: as they are stored, on a CPU float32.",
            "choices": ["auto", "float32", "bfloat16", "float16"],
        },
    )
    trust_remote_code: bool = field(default=False, metadata={"help": "Run code that comes with a model."})
    use_cpu: bool = field(default=False, metadata={"help": "Answer on the CPU even where there is a GPU."})


@dataclass
class TalkerFields(LoadingFields, TurnTokenFields):
    """What `hftune ask`, `chat` and their like have in common."""


@dataclass
class AskArguments(TalkerFields):
    """The same questions to one model or several, answered greedily."""

    models: list[str] | None = field(
        default=None, metadata={"help": "Folders (whole, merged or adapters) or Hub names, in the order to be shown."}
    )
    questions: list[str] | None = field(default=None, metadata={"help": "Questions, each a text, or a file of them."})
    question_file: str | None = field(
        default=None,
        metadata={
            "help": "File or folder of prompts, in any format that run_rl.py reads, or of lines in a .txt; asked last."
        },
    )
    max_new_tokens: int = field(default=48, metadata={"help": "Tokens of an answer; a longer one is cut."})
    reward_model_path: str | None = field(
        default=None, metadata={"help": "Reward model that scores every answer: a folder of run_rm.py or a Hub name."}
    )
    output_dir: str | None = field(
        default=None,
        metadata={"help": "Folder for answers.json, which `hftune report` shows; it may be the folder of a stage."},
    )
