"""What the commands that have models answer or score need to know: ask, chat, sample, evaluate, score and serve."""

from __future__ import annotations

from dataclasses import dataclass

from hftune.arguments.data import TemplateFields, TurnTokenFields
from hftune.arguments.model import HubFields
from hftune.arguments.option import option

JUDGE_KEY = "HFTUNE_JUDGE_API_KEY"
"""The variable with the key of `--judge_url`."""

KEY_VARIABLE = "HFTUNE_API_KEY"
"""Variable with the key that clients of `hftune serve` send, for whoever does not want it in the list of processes."""


@dataclass
class LoadingFields(HubFields, TemplateFields):
    """How models that answer are loaded, here or by a server."""

    dtype: str = option(
        "auto",
        "Dtype of the weights; auto: as they are stored, on a CPU float32.",
        choices=["auto", "float32", "bfloat16", "float16"],
    )
    trust_remote_code: bool = option(False, "Run code that comes with a model.")
    use_cpu: bool = option(False, "Answer on the CPU even where there is a GPU.")


@dataclass
class TalkerFields(LoadingFields, TurnTokenFields):
    """What `hftune ask`, `chat`, `evaluate` and `sample` have in common."""

    max_new_tokens: int = option(256, "Tokens of an answer; a longer one is cut.")


@dataclass
class AskArguments(TalkerFields):
    """The same questions to one model or several, answered greedily."""

    models: list[str] | None = option(
        None, "Folders (whole, merged or adapters) or Hub names, in the order to be shown."
    )
    questions: list[str] | None = option(None, "Questions, each a text, or a file of them.")
    question_file: str | None = option(
        None, "File or folder of prompts, in any format that run_rl.py reads, or of lines in a .txt; asked last."
    )
    reward_model_path: str | None = option(
        None, "Reward model that scores every answer: a folder of run_rm.py or a Hub name."
    )
    output_dir: str | None = option(
        None, "Folder for answers.json, which `hftune report` shows; it may be the folder of a stage."
    )


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

    models: list[str] | None = option(
        None, "Folders (whole, merged or adapters) or Hub names; also given alone, before all arguments."
    )
    eval_tasks: list[str] | None = option(
        None,
        f"What is measured. On the records of --validation_file_dir: {', '.join(OWN_TASKS)}. Any other "
        "name is a task of lm-eval.",
    )
    validation_file_dir: str | None = option(
        None, "File or folder of held-out records, in any format that run_sft.py reads."
    )
    max_eval_samples: int | None = option(None, "At most so many records, the first ones; left out: all.")
    max_length: int | None = option(
        None, "Of loss: longer records lose their end, as in run_sft.py; left out: none does."
    )
    batch_tokens: int = option(4096, "Tokens in a batch, padding included; a longer record goes alone.")
    reward_model_path: str | None = option(
        None, "Of reward: what scores the answers: a folder of run_rm.py or a Hub name."
    )
    judge_url: str | None = option(
        None,
        "Of judge: an OpenAI-compatible server, http://host:port, that compares each answer with the record's, in both "
        f"orders. A key for it is read from the variable {JUDGE_KEY}.",
    )
    judge_model: str | None = option(None, "The judge's name on the server; left out: the only model that it serves.")
    include_path: str | None = option(None, "Folder with further task files of lm-eval, which win over its own.")
    num_fewshot: int | None = option(None, "Of lm-eval's tasks: examples in a prompt; left out: as each task says.")
    apply_chat_template: bool = option(False, "Of lm-eval's tasks: write prompts by the model's chat template.")
    per_device_eval_batch_size: int = option(8, "Of lm-eval's tasks: requests in a batch of each process.")
    against: str | None = option(
        None,
        "What all models are compared with, record by record: an output folder of hftune evaluate with the "
        "same tasks, or a model, which is then evaluated as well.",
    )
    output_dir: str | None = option(
        None, "Folder for evaluation.json and records.jsonl; the same command resumes there."
    )
    overwrite_output_dir: bool = option(False, "Replace an earlier evaluation there.")

    @property
    def harness_tasks(self) -> list[str]:
        """Tasks of lm-eval."""
        return [task for task in self.eval_tasks or [] if task not in OWN_TASKS]


SERVER_KEY = "HFTUNE_SERVER_API_KEY"
"""The variable with the key of `--server_url`."""


@dataclass
class SampleArguments(TalkerFields):
    """Several answers to each prompt, scored; the best ones, or pairs of the best and the worst, as training data."""

    model_name_or_path: str | None = option(None, "What answers: a folder (whole, merged or an adapter) or a Hub name.")
    server_url: str | None = option(
        None,
        "An OpenAI-compatible server that answers instead (vllm serve, hftune serve): http://host:port. "
        f"A key for it is read from the variable {SERVER_KEY}.",
    )
    server_model: str | None = option(None, "The model's name on the server; left out: the only one that it serves.")
    train_file_dir: str | None = option(None, "File or folder of prompts, in any format that run_rl.py reads.")
    max_train_samples: int | None = option(None, "At most so many prompts, the first ones; left out: all.")
    num_generations: int = option(4, "Answers to each prompt.")
    temperature: float = option(1.0, "Temperature of sampling, above 0.")
    top_p: float = option(1.0, "Only the most likely tokens of so much probability together.")
    batch_tokens: int = option(8192, "Tokens in a batch, padding and answers included.")
    seed: int = option(42, "Of sampling.")
    reward_funcs: list[str] | None = option(
        None,
        "Functions that score answers, as in run_rl.py: accuracy, format, length, or module:function or "
        "file.py:function; scores are added up.",
    )
    reward_model_path: list[str] | None = option(None, "Reward models that score answers: output folders of run_rm.py.")
    keep: str = option(
        "best",
        "best: of each prompt the answer with the highest score, for run_sft.py. threshold: all answers "
        "that score at least --threshold, for run_sft.py. pairs: the best and the worst answer where their scores "
        "differ, for run_dpo.py and run_rm.py.",
        choices=["best", "threshold", "pairs"],
    )
    threshold: float | None = option(
        None, "Least score that is kept; with pairs the least difference of the two scores."
    )
    keep_all: bool = option(
        False, "Keep answers whatever they score, and cut ones: to try what comes after, as a dry run does."
    )
    output_dir: str | None = option(
        None, "Folder; what is kept is in its folder data/, all answers with their scores are in answers.jsonl."
    )
    overwrite_output_dir: bool = option(False, "Replace an earlier result there.")


@dataclass
class ChatArguments(TalkerFields):
    """A conversation with a model in the terminal."""

    models: list[str] | None = option(None, "A folder (whole, merged or an adapter) or a Hub name; also given alone.")
    system_prompt: str | None = option(
        None, "The system message. Left out: as the run was that made the model; '': none."
    )
    tools: str | None = option(None, "JSON file of the tools that are offered, as records of a data set have them.")
    # A reader may wait for the end of what comes word by word, and stop it.
    max_new_tokens: int = option(1024, "Tokens of an answer; a longer one is cut, and said.")
    temperature: float | None = option(
        None, "0: the likeliest token each time. Left out: as the model's generation_config.json says."
    )
    top_p: float | None = option(None, "Draw from the likeliest tokens that have this probability together.")
    top_k: int | None = option(None, "Draw from this many of the likeliest tokens; 0: from all.")
    seed: int | None = option(None, "Seed of what is drawn; left out: another one each time.")


@dataclass
class ScoreArguments(LoadingFields, TurnTokenFields):
    """Scores of conversations, from an outcome or a process reward model."""

    input: str | None = option(
        None, "File or folder of conversations, preference pairs or answers in steps; also given alone."
    )
    model: str | None = option(None, "Reward model: a folder of run_rm.py, adapter or merged; or a Hub name.")
    output: str | None = option(None, "JSONL file for the scores; left out: standard output.")
    overwrite_output: bool = option(False, "Replace the output file.")
    batch_tokens: int = option(8192, "Tokens in a batch, padding included; a longer conversation goes alone.")
    max_length: int | None = option(None, "Longer conversations lose their beginning; left out: nothing is lost.")
    step_separator: str | None = option(
        None, "Parts answers into steps for a process model; left out: as the model was trained."
    )
    dtype: str = option("float32", "Dtype of the weights.", choices=["float32", "bfloat16", "float16"])
    on_bad_record: str = option(
        "error",
        "error: stop at a record that cannot be used; drop: leave it out, and say how many and why.",
        choices=["error", "drop"],
    )


@dataclass
class ServeArguments(LoadingFields):
    """vLLM's server, or transformers' own, for one model."""

    model: str | None = option(
        None, "Folder (whole, merged or adapter) or Hub name of the model to serve; also given alone."
    )
    adapter: list[str] | None = option(None, "NAME=FOLDER of an adapter that vLLM serves under that name.")
    served_model_name: str | None = option(None, "What the model is called in requests; left out: its folder's name.")
    host: str = option("127.0.0.1", "Address to listen at. Another one than this machine's own needs vLLM and a key.")
    port: int = option(8000, "Port to listen at; 0: any that is free, which is said.")
    api_key: str | None = option(
        None, f"Key that clients of vLLM must send; better in the variable {KEY_VARIABLE}, which is not shown."
    )
    backend: str = option(
        "auto",
        "Whose server is started. auto: vLLM's where it is installed and there is a GPU, else that of "
        "transformers (pip install 'hftune[serve]'), which answers one request at a time on any machine.",
        choices=["auto", "transformers", "vllm"],
    )
    max_model_len: int | None = option(
        None, "Tokens of prompt and answer together in vLLM; left out: what the model takes."
    )
