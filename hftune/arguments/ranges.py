"""Which values each argument takes: numbers by one table for every class, words, fields that hftune fills itself.

A number beyond its range is refused when it is parsed. Upstream takes `--gradient_accumulation_steps -2` or
`--num_train_epochs -1` without a word, and such a run ends as if it had trained. Upper limits are generous: they keep
out slips of the keyboard (a rank of 999999999999) that would fill the memory of the machine.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Iterator
from dataclasses import MISSING, Field, dataclass, fields
from typing import Any

from hftune.errors import ArgumentError, shown
from hftune.tables import read_table


@dataclass(frozen=True)
class Range:
    """An interval of numbers, and single ones next to it.

    Args:
        low: Its lower end.
        high: Its upper end.
        above: The lower end itself is left out.
        below: The upper end itself is left out.
        also: Numbers that mean something of their own, such as -1 for all.
        steps: Below 1 a share of all steps, above 1 a number of them, which is whole.
    """

    low: float
    high: float
    above: bool = False
    below: bool = False
    also: tuple[float, ...] = ()
    steps: bool = False

    @classmethod
    def read(cls, text: str) -> Range:
        """From mathematics: `[1, 1e9]`, `(0, 1]`, `[1, 100] or -1`, `steps [0, 1e12]`."""
        # The notation of mathematics is shorter to read in a table of a hundred rows than keyword arguments.
        match = re.fullmatch(r"(steps )?([\[(])(\S+), (\S+)([\])])((?: or \S+)*)", text)
        assert match is not None, text
        also = tuple(float(word) for word in match[6].split(" or ") if word)
        return cls(float(match[3]), float(match[4]), match[2] == "(", match[5] == ")", also, steps=match[1] is not None)

    def holds(self, value: float) -> bool:
        """Whether a number is in it; NaN is in none."""
        if value in self.also:
            return True
        over = value > self.low if self.above else value >= self.low
        under = value < self.high if self.below else value <= self.high
        # transformers takes 2.5 logging steps, and rounds.
        return over and under and not (self.steps and value > 1 and value != int(value))

    def __str__(self) -> str:
        low = f"above {_shortest(self.low)}" if self.above else f"from {_shortest(self.low)}"
        high = f" and below {_shortest(self.high)}" if self.below else f" to {_shortest(self.high)}"
        also = "".join(f", or {_shortest(value)}" for value in self.also)
        return low + high + (", whole above 1" if self.steps else "") + also


def _shortest(value: float) -> str:
    # Powers of ten up to 15 digits are read more easily written out.
    return f"{int(value):,}" if value == int(value) and 1 <= abs(value) < 1e15 else f"{value:g}"


# A field of the same name means the same in every class; the tests hold it against all classes there are.
RANGES = {
    name: Range.read(row["range"]) for row in read_table(__package__, "ranges.csv") for name in row["names"].split()
}
"""By the name of a field, which means the same in every class that has it."""

_FIXES = {
    "score_difference_scale": "give a number above 0, or --score_difference none",
    "max_steps": "leave it out for whole epochs (--num_train_epochs); --do_eval alone evaluates without training",
    "num_train_epochs": "give the passes over the data, or --max_steps; --do_eval alone evaluates without training",
    "max_train_samples": "leave it out for all records; --do_eval alone evaluates without training",
    "max_eval_samples": "leave it out for all records; without --validation_file_dir none are held out",
}


def is_number(entry: Field[Any]) -> bool:
    """Whether a field of a dataclass holds a number, or a list of them."""
    # Annotations are texts here: `from __future__ import annotations` and upstream's unions.
    return re.search(r"\b(int|float)\b", str(entry.type)) is not None


def numbers_of(classes: Iterable[Any]) -> dict[str, Field[Any]]:
    """The fields of dataclasses that hold numbers, by their names."""
    return {entry.name: entry for cls in classes for entry in fields(cls) if is_number(entry)}


def out_of_range(entry: Field[Any], values: Iterable[object], place: str) -> Iterator[ArgumentError]:
    """What is wrong with the numbers that were given for a field.

    Args:
        entry: The field.
        values: Texts of a command line, or what a YAML file holds. Texts that are no numbers are left to the parser.
        place: Where they were given.
    """
    for value in values:
        words = _misfit(entry, value)
        if words:
            left_out = f"; left out it is {entry.default}" if entry.default not in (None, MISSING) else ""
            yield ArgumentError(
                f"--{entry.name} cannot be {shown(value)}: {words}",
                place=f"--{entry.name} ({place})",
                fix=_FIXES.get(entry.name) or f"give a number in this range{left_out}",
            )
            return


def _misfit(entry: Field[Any], value: object) -> str | None:
    kind, allowed = str(entry.type), RANGES[entry.name]
    whole = re.search(r"\bfloat\b", kind) is None
    takes = f"it takes {'whole ' if whole else ''}numbers {allowed}"
    if value is None:  # YAML's null
        return None if "None" in kind else takes
    # YAML's `yes` for a number: Python would take it for 1.
    if isinstance(value, bool):
        return takes
    if isinstance(value, str):
        value = _parsed(value)
        if value is None:
            return None
    # 2.0 for a whole number is a slip in a file; infinity is left for the range to refuse in its own words.
    if not isinstance(value, int | float) or (whole and isinstance(value, float) and abs(value) < float("inf")):
        return takes
    return None if allowed.holds(value) else takes


def _parsed(text: str) -> float | int | None:
    """The number that a text stands for; None where it is none. A number with thousands of digits is infinite."""
    try:
        # Python refuses to convert thousands of digits, with an error that is not about the argument.
        return int(text) if len(text) < 30 else float(text)
    except ValueError:
        pass
    try:
        return float(text)
    except ValueError:
        return None


_EVERYWHERE = {
    "torch_compile_mode": ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs", "lite"),
}
_CACHES: tuple[str, ...] = ("dynamic", "static", "offloaded", "offloaded_static", "quantized", "paged")
# Older names of the others, which transformers still takes.
_CACHES += ("sliding_window", "hybrid", "hybrid_chunked", "offloaded_hybrid", "offloaded_hybrid_chunked")
_OF_STAGE: dict[str, dict[str, tuple[str, ...]]] = {
    "distill": {"cache_implementation": _CACHES},
    "dpo": {"f_divergence_type": ("reverse_kl", "forward_kl", "js_divergence", "alpha_divergence")},
    "rl": {
        "cache_implementation": _CACHES,
        "importance_sampling_level": ("token", "sequence"),
        "loss_type": ("grpo", "dr_grpo", "dapo", "bnpo", "cispo", "sapo", "luspo", "vespo"),
        "multi_objective_aggregation": ("sum_then_normalize", "normalize_then_sum"),
        # The last two are older names of the first and the third.
        "scale_rewards": ("group", "batch", "none", "True", "False"),
    },
}

JSON_OBJECTS = ("generation_kwargs", "transformers_continuous_batching_config")
"""Texts that upstream takes for an object of JSON if they begin like one."""


def choices_of(stage: str, names: Container[str]) -> dict[str, tuple[str, ...]]:
    """The words that these arguments of a stage take (TRL 1.16, transformers 5.23, torch 2.13); none for others."""
    found = _EVERYWHERE | _OF_STAGE.get(stage, {})
    if "torch_compile_backend" in names:
        from accelerate.utils import DynamoBackend  # brings torch, which a merge reads its arguments without

        found |= {"torch_compile_backend": tuple(one.value.lower() for one in DynamoBackend)}
    return {name: choices for name, choices in found.items() if name in names}


# Fields of the trainers below whose work hftune does itself, before the trainer sees the data, or that would train
# otherwise than it says: a value given for them is refused. A value that means "no" is harmless and let through. A
# stage has those of the stage that it is based on as well.
DONE_BY_HFTUNE: dict[str, dict[str, str]] = {
    "sft": {
        "assistant_only_loss": "answers alone are trained already; --train_on_inputs trains all tokens",
        "completion_only_loss": "answers alone are trained already; --train_on_inputs trains all tokens",
        "truncation_mode": "what is longer than --max_length loses its end",
        "dataset_text_field": "formats are recognised from the records; run_pt.py takes plain text",
        "shuffle_dataset": "the Trainer shuffles; --data_seed sets its seed",
        "eos_token": "turns end as the chat template says; --chat_template takes another",
    },
    "distill": {
        "max_tool_calling_iterations": "answers are drawn in one turn; run_rl.py --tools has the policy call tools",
    },
    "rm": {"eos_token": "turns end as the chat template says; --chat_template takes another"},
    "dpo": {"truncation_mode": "prompts lose their start, answers their end; see --max_prompt_length"},
}
DONE_BY_HFTUNE_EVERYWHERE: dict[str, str] = {
    "model_init_kwargs": "use --dtype, --attn_implementation, --model_revision, --load_in_4bit, ...",
    "dataset_kwargs": "records are read, masked and tokenised by hftune",
    "ddp_static_graph": "with it the gradients of several processes are not those of their whole batch",
}

# Several values of one name, also from a list in a YAML file, become one text with this between them.
JOINED: dict[str, str] = {
    "train_file_dir": ",",
    "validation_file_dir": ",",
    "train_dataset_prob": ",",
    "datasets": ",",
    "weights": ",",
    "columns": " ",
    "add_tokens": ",",
    "add_special_tokens": ",",
    "peft_path": ",",
    "peft_model_path": ",",
    "adapter_weights": ",",
}
