"""How a student is trained by a teacher."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar
from urllib.parse import urlsplit

import trl

from hftune.arguments.option import option
from hftune.arguments.training import SFTArguments
from hftune.checks import refuse
from hftune.weight_files import fingerprint

MODES = ("on_policy", "offline", "mixed")

KEY_VARIABLE = "HFTUNE_TEACHER_API_KEY"
"""Variable with the key of a teacher's server: a command can be read by others, and is written down."""


@dataclass
class DistillArguments(SFTArguments, trl.DistillationConfig):
    """Distillation: the records and rows of SFT, and a teacher's distribution of each trained token as the target."""

    # JSON of a command line becomes a dict; each of TRL's configs knows its own fields alone.
    _VALID_DICT_FIELDS: ClassVar[list[str]] = [
        *trl.SFTConfig._VALID_DICT_FIELDS,
        *set(trl.DistillationConfig._VALID_DICT_FIELDS) - set(trl.SFTConfig._VALID_DICT_FIELDS),
    ]

    teacher_model_name_or_path: str | None = option(
        None,
        "Model to learn from: folder or Hub name, whole or an adapter. With --teacher_server_url its name there.",
    )
    teacher_server_url: str | None = option(
        None,
        "http://host:port of an OpenAI-compatible server that says the log-probabilities of given tokens "
        f"(vllm serve), in place of a teacher. A key for it is read from the variable {KEY_VARIABLE}.",
    )
    teacher_top_k: int | None = option(
        None,
        "Tokens that --teacher_server_url is asked for at each place, the most likely ones; all others "
        "count as one. Left out: 20, as many as vLLM gives unless it is started with --max-logprobs.",
    )
    teacher_dtype: str = option(
        "auto",
        "Dtype of a teacher's weights. auto: that in which the run computes (bf16, fp16 or float32).",
        choices=["auto", "bfloat16", "float16", "float32"],
    )
    teacher_load_in_4bit: bool = option(False, "Quantise teachers to 4 bit (NF4).")
    teacher_load_in_8bit: bool = option(False, "Quantise teachers to 8 bit.")
    teacher_targets: str | None = option(
        None,
        "Folder of `hftune teach`: what a teacher said of these records, computed once, in place of a "
        "teacher. For --distill_mode offline.",
    )
    drop_untaught: bool = option(False, "Leave out, and count, records without targets in --teacher_targets.")
    distill_mode: str = option(
        "on_policy",
        "Whose answers are trained. on_policy: the student's own, drawn anew in each step; offline: those "
        "of the records; mixed: each step one of both, see --on_policy_share.",
        choices=list(MODES),
    )
    on_policy_share: float = option(0.5, "Share of the steps with the student's own answers in --distill_mode mixed.")
    # 1.0 is TRL's; what a student says itself is judged token by token, which the reverse KL does best.
    beta: float = option(
        1.0,
        "Which divergence: 0 the forward KL (teacher to student), 1 the reverse KL, between them the "
        "generalised Jensen-Shannon divergence (arXiv:2306.13649).",
    )
    hard_label_share: float = option(
        0.0, "Share of the plain loss of the records' own tokens in the loss; the rest is the teacher's."
    )
    sample_completions: int = option(
        8, "Answers of the student written to completions.jsonl in the output folder at each log."
    )

    def __post_init__(self) -> None:
        refuse(__package__, "distillation", self)
        super().__post_init__()

    @property
    def teachers(self) -> list[str]:
        """Name or folder of the teacher that this run loads; none with a server or stored targets."""
        named = self.teacher_model_name_or_path
        return [] if self.teacher_server_url or not named else [named]

    @property
    def served_teacher(self) -> str | None:
        """The teacher's name at its server; None: the only one there."""
        return self.teacher_model_name_or_path if self.teacher_server_url else None

    @property
    def teacher_names(self) -> list[str]:
        """What the teachers are called, also one behind a server."""
        if not self.teacher_server_url:
            return self.teachers
        host = urlsplit(self.teacher_server_url).netloc
        return [f"{self.served_teacher} at {host}" if self.served_teacher else host]

    @property
    def recorded_teachers(self) -> list[dict[str, str | None]]:
        """What a manifest says of the teachers; of a server's weights there is no fingerprint."""
        served = bool(self.teacher_server_url)
        return [{"name": name, "fingerprint": None if served else fingerprint(name)} for name in self.teacher_names]

    @property
    def share_on_policy(self) -> float:
        """Of the steps, those that train the student's own answers: 0 to 1."""
        return {"on_policy": 1.0, "offline": 0.0}.get(self.distill_mode, self.on_policy_share)
