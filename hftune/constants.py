"""Names and values that several packages share."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent
SHIPPED = _PACKAGE / "shipped" if (_PACKAGE / "shipped").is_dir() else _PACKAGE.parent
"""The folder of the scripts, `ds_configs/` and `examples/`: that of a checkout, or one that `setup.py` puts into a
wheel."""

IGNORE_INDEX = -100
"""Label of a token that is not trained; the value torch's cross entropy ignores by default."""

TEACHER_ROWS = "teacher_rows"
"""Column of records: of each token the place of its stored targets (distillation), -1 for none."""

FILLER = "filler"
"""Marks records of a batch that only fill up the last one, of an evaluation or of an epoch on several processes."""

LABEL_COUNT = "label_count"
"""In a batch: how many of its tokens have a loss, counted before it went to the device; an int."""

MANIFEST_NAME = "hftune.json"
"""The file that says where an output folder came from."""

SAMPLES_NAME = "samples.json"
"""The file with a few records of what a stage trained on, as text."""
LOG_NAME = "run.log"
"""The file of an output folder that holds what libraries said, and hftune's own lines among it; of another rank than 0
`run-rank1.log`."""

USER_ERROR_EXIT_CODE = 2
"""What every script exits with after a `UserError`."""

GATE_EXIT_CODE = 3
"""What `hftune pipeline run` exits with after a stage that hurt a capability more than its gate allows."""

PREEMPTED_EXIT_CODE = 75
"""What every script exits with that was told to stop (Ctrl-C, SIGTERM, SIGHUP, SIGUSR1) and saved a checkpoint, or had
nothing to save yet: EX_TEMPFAIL of sysexits.h. Start it again with `--resume_from_checkpoint auto`."""

INTERRUPTED_EXIT_CODE = 130
"""What a tool that does not train exits with when it is told to stop, and everything that is told twice: as a shell
says of Ctrl-C."""

STALLED_EXIT_CODE = 76
"""What every process exits with after a hang (--hang_timeout), or when another process is gone: EX_PROTOCOL of
sysexits.h. Start the run again with `--resume_from_checkpoint auto`."""

TOKENIZER_FILES = (
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "chat_template.jinja"),
    *("chat_template.json", "vocab.json", "merges.txt", "vocab.txt", "tokenizer.model", "spiece.model"),
    *("sentencepiece.bpe.model", "tekken.json"),
)
"""All that a tokenizer may consist of; a folder has some."""

PROCESSOR_FILES = "*processor_config.json"
"""What makes images, videos and sounds into inputs of a model of several parts: a pattern of file names."""

VOICES_FILE = "spk_dict.pt"
"""The voices of Qwen2.5-Omni's talker, without which transformers loads none of the model. It is copied, never read."""

TASK_TYPES = {"causal_lm": "CAUSAL_LM", "score": "SEQ_CLS", "steps": "TOKEN_CLS"}
"""What a model ends with, in the manifest's word and in peft's: a language model's head, one score a conversation (an
outcome reward model), two classes a step, wrong and right (a process reward model)."""

AUTO_CLASSES = {
    "causal_lm": "AutoModelForCausalLM",
    "score": "AutoModelForSequenceClassification",
    "steps": "AutoModelForTokenClassification",
}
"""transformers' class for each head."""

STEP_LABELS = ("wrong", "right")
"""The classes of a step, in the order of the logits."""

REWARD_SCALE_FIELD = "reward_scale"
"""Of the scale of a reward model's scores: in config.json, which plain transformers carries along, and in the manifest,
since adapters have no config.json."""

ORIGIN = "stream_origin"
"""Of a batch of a stream: the `Origin` of each of its examples."""
