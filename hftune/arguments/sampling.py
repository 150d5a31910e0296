"""What `hftune sample` needs to know."""

from __future__ import annotations

from dataclasses import dataclass, field

from hftune.arguments.asking import JUDGE_KEY, TalkerFields

SERVER_KEY = "HFTUNE_SERVER_API_KEY"
"""The variable with the key of `--server_url`."""


@dataclass
class SampleArguments(TalkerFields):
    """Several answers to each prompt, scored; the best ones, or pairs of the best and the worst, as training data."""

    model_name_or_path: str | None = field(
        default=None, metadata={"help": "What answers: a folder (whole, merged or an adapter) or a Hub name."}
    )
    server_url: str | None = field(
        default=None,
        metadata={
            "help": "An OpenAI-compatible server that answers instead (vllm serve, hftune serve): http://host:port. "
            f"A key for it is read from the variable {SERVER_KEY}."
        },
    )
    server_model: str | None = field(
        default=None, metadata={"help": "The model's name on the server; left out: the only one that it serves."}
    )
    train_file_dir: str | None = field(
        default=None, metadata={"help": "File or folder of prompts, in any format that run_rl.py reads."}
    )
    max_train_samples: int | None = field(
        default=None, metadata={"help": "At most so many prompts, the first ones; left out: all."}
    )
    num_generations: int = field(default=4, metadata={"help": "Answers to each prompt."})
    max_new_tokens: int = field(default=256, metadata={"help": "Tokens of an answer; a longer one is cut."})
    temperature: float = field(default=1.0, metadata={"help": "Temperature of sampling, above 0."})
    top_p: float = field(default=1.0, metadata={"help": "Only the most likely tokens of so much probability together."})
    batch_tokens: int = field(default=8192, metadata={"help": "Tokens in a batch, padding and answers included."})
    seed: int = field(default=42, metadata={"help": "Of sampling."})
    reward_funcs: list[str] | None = field(
        default=None,
        metadata={
            "help": "Functions that score answers, as in run_rl.py: accuracy, format, length, or module:function or "
            "file.py:function; scores are added up."
        },
    )
    reward_model_path: list[str] | None = field(
        default=None, metadata={"help": "Reward models that score answers: output folders of run_rm.py."}
    )
    judge_url: str | None = field(
        default=None,
        metadata={
            "help": "An OpenAI-compatible server, http://host:port, that scores each answer from 1 to 10, against the "
            f"record's own where it has one. A key for it is read from the variable {JUDGE_KEY}."
        },
    )
    judge_model: str | None = field(
        default=None, metadata={"help": "The judge's name on the server; left out: the only model that it serves."}
    )
    keep: str = field(
        default="best",
        metadata={
            "help": "best: of each prompt the answer with the highest score, for run_sft.py. threshold: all answers "
            "that score at least --threshold, for run_sft.py. pairs: the best and the worst answer where their scores "
            "differ, for run_dpo.py and run_rm.py.",
            "choices": ["best", "threshold", "pairs"],
        },
    )
    threshold: float | None = field(
        default=None, metadata={"help": "Least score that is kept; with pairs the least difference of the two scores."}
    )
    keep_all: bool = field(
        default=False,
        metadata={
            "help": "Keep answers whatever they score, and cut ones: to try what comes after, as a dry run does."
        },
    )
    output_dir: str | None = field(
        default=None,
        metadata={
            "help": "Folder; what is kept is in its folder data/, all answers with their scores are in answers.jsonl."
        },
    )
    overwrite_output_dir: bool = field(default=False, metadata={"help": "Replace an earlier result there."})
