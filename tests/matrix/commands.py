"""The two command lines of a case, and the models and data that they name."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.conftest import tiny_config, tiny_tokenizer
from tests.matrix.cases import ONLINE, SHARING_OUT, STAGES_WITH, Case

RECORDS, PROMPTS, STEPS, BATCH = 16, 8, 8, 4
"""Two epochs. Records, batches, and workers of all processes divide each other, so that streamed epochs are whole."""
UNEVEN = 3
"""Records by which the last batch falls short: some micro batches of it have nothing to train."""
LINE = "PYTHONPATH=. HFTUNE_CACHE=$(mktemp -d) CUDA_VISIBLE_DEVICES= "

_SCRIPTS = {"kto": "dpo", **dict.fromkeys(ONLINE, "rl")}
_DATA = {"pt": "pt", "sft": "sft", "distill": "sft", "kto": "labelled", **dict.fromkeys(ONLINE, "prompts")}
_LAYOUTS = {
    "padded": {"padding_free": "False", "shared_prompts": "False"},
    "flat": {"padding_free": "True", "shared_prompts": "False"},
    "shared": {"padding_free": "True", "shared_prompts": "True"},
}
_ORDERS = {
    "by_length": ("--train_sampling_strategy", "group_by_length"),
    "streamed": ("--streaming", "True"),
    "mixed": ("--train_dataset_prob", "2,1", "--mix_strategy", "over"),
    "packed": ("--packing", "True", "--max_length", "96"),
}
_METHODS = {
    "full": ("--learning_rate", "2e-4"),
    "lora": ("--use_peft", "--lora_rank", "4", "--learning_rate", "2e-3"),
}
_OWN: dict[str, tuple[str, ...]] = {
    "pt": ("--block_size", "32"),
    "kto": ("--loss_type", "kto"),
    "distill": ("--distill_mode", "offline"),
    "online_dpo": ("--beta", "0.1"),
    **dict.fromkeys(("grpo", "rloo"), ("--beta", "0.05")),
    "ppo": ("--beta", "0.05", "--vf_coef", "1.0"),
}
_RECOMPUTED = {
    "full": ("--gradient_checkpointing", "True"),
    "none": ("--gradient_checkpointing", "False"),
    **{each: ("--activation_checkpointing", each) for each in ("attention", "mlp")},
}
_OTHERS = {
    "workers": ("workers", ("0", "2")),
    "layout": ("layout", _LAYOUTS),
    "recomputation": ("recomputed", _RECOMPUTED),
}
"""Changes to another value of a dimension, and its values."""
# A step of RL reads the answers to two prompts, PPO's and online DPO's as many as other stages read records.
_ANSWERS = 4
SCORED = 2
"""Answers to a prompt that `rewards.the_first_two` scores."""


@dataclass(frozen=True)
class Command:
    """A run: its script, its arguments but for the output folder, and how many processes it has."""

    script: str
    flags: tuple[str, ...]
    processes: int = 1

    def line(self, output: Path) -> str:
        """As a user types it."""
        start = f"torchrun --nproc_per_node {self.processes}" if self.processes > 1 else "python"
        words = " ".join(f"'{word}'" if set(word) & set(' {"') else word for word in self.flags)
        return f"{LINE}{start} {self.script} {words} --output_dir {output}"


def first(case: Case, folder: Path) -> Command:
    """The run as it is, with what `prepare` has put into `folder`; one that is to be resumed saves where it stops."""
    saved = ("--save_strategy", "steps", "--save_steps", str(stop(case))) if case.change == "resume" else _UNSAVED
    return _command(case, folder, more=saved)


_UNSAVED = ("--save_strategy", "no")


def second(case: Case, folder: Path, before: Path) -> Command:
    """The run with the change; `before` is the folder of the first one."""
    if case.change in _OTHERS:
        dimension, values = _OTHERS[case.change]
        others = [value for value in values if value != getattr(case, dimension) and _has(case, dimension, value)]
        return _command(case.at(**{dimension: others[case.draw % len(others)]}), folder, more=_UNSAVED)
    more = {
        "resume": ("--resume_from_checkpoint", str(before / f"checkpoint-{stop(case)}")),
        "recording": ("--cache_implementation", "dynamic"),
        **{zero: ("--deepspeed", zero) for zero in ("zero1", "zero2", "zero3")},
    }
    return _command(
        case,
        folder,
        processes=2 if case.change in SHARING_OUT else 1,
        # A pair of online DPO's is whole in a micro batch.
        pieces=(2, 4)[case.draw % 2 and case.stage != "online_dpo"] if case.change == "cut" else 1,
        answers=_ANSWERS + 1 if case.change == "unscored" else 0,
        more=(*_UNSAVED, *more.get(case.change, ())),
    )


def _has(case: Case, dimension: str, value: str) -> bool:
    return case.stage in STAGES_WITH.get((dimension, value), (case.stage,))


def stop(case: Case) -> int:
    """The step behind which a run is stopped: any but the last."""
    return 1 + case.draw % (STEPS - 1)


def _command(
    case: Case,
    folder: Path,
    *,
    processes: int = 1,
    pieces: int = 1,
    more: tuple[str, ...] = (),
    answers: int = 0,
) -> Command:
    data = folder / "data" / case.batches / _DATA.get(case.stage, "pairs")
    source = f"{data}/a.jsonl,{data}/b.jsonl" if case.order == "mixed" else str(data)
    online = case.stage in ONLINE
    rows = max(BATCH, 2 * (answers or _answers(case)) if online else 0) // processes // pieces
    flags = [
        *("--model_name_or_path", str(folder / case.head), "--train_file_dir", source),
        *("--per_device_train_batch_size", str(rows), "--gradient_accumulation_steps", str(pieces)),
        *("--max_steps", str(STEPS), "--logging_steps", "1", "--lr_scheduler_type", "constant", "--report_to", "none"),
        *("--adam_epsilon", "1e-4"),
        *(
            "--dataloader_num_workers",
            case.workers,
            *_OWN.get(case.stage, ()),
            *_METHODS[case.method],
            *_RECOMPUTED[case.recomputed],
        ),
        *(("--bf16", "True") if case.precision == "bf16" else ("--bf16", "False")),
        *_ORDERS.get(case.order, ()),
        *_layout(case),
        *(("--teacher_model_name_or_path", str(folder / "teacher")) if case.stage == "distill" else ()),
        *(_online(case, pieces, answers) if online else ()),
        *more,
        *case.option,
    ]
    return Command(f"run_{script_of(case.stage)}.py", tuple(flags), processes)


def script_of(stage: str) -> str:
    """The script that runs a stage of the matrix, without run_ and .py."""
    return _SCRIPTS.get(stage, stage)


def _layout(case: Case) -> list[str]:
    names = {"pt": (), "rm": ("padding_free",), "sft": ("padding_free",), "distill": ("padding_free",)}
    names |= dict.fromkeys(("grpo", "rloo"), ("shared_prompts",)) | dict.fromkeys(("ppo", "online_dpo"), ())
    if case.order == "packed":
        return []
    asked = names.get(case.stage, ("padding_free", "shared_prompts"))
    return [word for name in asked for word in (f"--{name}", _LAYOUTS[case.layout][name])]


def _answers(case: Case) -> int:
    if case.change == "unscored":
        return SCORED
    return {"ppo": 1, "online_dpo": 2}.get(case.stage, _ANSWERS)


def _online(case: Case, pieces: int, answers: int) -> tuple[str, ...]:
    rewards = "the_first_two" if case.change == "unscored" else f"{case.rewards}_scored"
    return (
        *("--rl_algorithm", case.stage, "--reward_funcs", f"tests.matrix.rewards:{rewards}"),
        *("--num_generations", str(answers or _answers(case)), "--max_completion_length", "6", "--top_k", "1"),
        *("--steps_per_generation", str(pieces * (1 + (case.rounds == "halves")))),
        *(("--num_iterations", "2") if case.rounds == "iterations" else ()),
        *(("--mask_truncated_completions", "True") if case.batches == "empty" else ()),
    )


# --- models and data ---


def prepare(folder: Path) -> None:
    """Two models that differ in whether their head is the embedding, a teacher, and records of every stage."""
    import torch
    from transformers import LlamaForCausalLM

    tokenizer = tiny_tokenizer()
    for seed, (name, changes) in enumerate(_MODELS.items()):
        torch.manual_seed(seed)
        # Numbers that 16 bits hold: DeepSpeed's engine begins with those.
        model = LlamaForCausalLM(tiny_config(tokenizer, **changes)).bfloat16().float()
        model.save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)
    for batches in ("whole", "empty"):
        for name, records in _records().items():
            number = PROMPTS if name == "prompts" else RECORDS - UNEVEN * (batches == "empty")
            _write(folder / "data" / batches / name, records[:number])


_MODELS: dict[str, dict[str, Any]] = {
    "tied": {},
    "untied": {"tie_word_embeddings": False},
    "teacher": {"hidden_size": 96},
}


def _records() -> dict[str, list[dict[str, Any]]]:
    """The same questions in each form, of lengths that differ."""
    drawn = random.Random(1)
    turns = []
    for number in range(RECORDS):
        question = f"What is {number} plus {drawn.randrange(9)}{' and why' * drawn.randrange(6)}?"
        turns.append((question, f"It is {number}.{' Because it is.' * drawn.randrange(5)}"))
    sft = [
        {"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]}
        for question, answer in turns
    ]
    pairs = [
        {"conversations": [{"from": "human", "value": question}], "chosen": answer, "rejected": f"Well, {question}"}
        for question, answer in turns
    ]
    labelled = [
        {"prompt": question, "completion": answer, "label": bool(number % 2)}
        for number, (question, answer) in enumerate(turns)
    ]
    prompts = [{"prompt": question} for question, _ in turns]
    pt = [{"text": f"{question} {answer}"} for question, answer in turns]
    return {"sft": sft, "pairs": pairs, "labelled": labelled, "prompts": prompts, "pt": pt}


def _write(folder: Path, records: list[dict[str, Any]]) -> None:
    """In two files, which are the sources of a mixture."""
    folder.mkdir(parents=True)
    half = len(records) // 2
    for name, part in (("a", records[:half]), ("b", records[half:])):
        text = "".join(json.dumps(record) + "\n" for record in part)
        (folder / f"{name}.jsonl").write_text(text, encoding="utf-8")
