"""Sources, mixing, lengths and batches, which other tools count over all processes."""

from __future__ import annotations

import json
import math

from hftune.arguments.names.row import Answer, Ask, Given
from hftune.arguments.names.translators.common import cannot, number
from hftune.errors import ArgumentError

# datasets' words: it stops with the first source that is used up, or with the last.
_STOPS = {"first_exhausted": "under", "all_exhausted": "over"}


def interleaved(ask: Ask) -> Answer:
    """Megatron-SWIFT's `interleave_prob`, which stops when the first source is used up unless told otherwise."""
    weights = ask.text("interleave_prob")
    stops = ask.text("stopping_strategy") or "first_exhausted"
    if weights is None:
        return Answer([], ("--stopping_strategy has no effect without --interleave_prob",))
    if stops not in _STOPS:
        raise cannot("stopping_strategy", stops, f"use one of {', '.join(_STOPS)}")
    given: Given = [("train_dataset_prob", [",".join(weights.replace(",", " ").split())])]
    return Answer([*given, ("mix_strategy", [_STOPS[stops]])])


def per_token(ask: Ask) -> Answer:
    """`calculate_per_token_loss`: tokens have the same weight over a step in pre-training and SFT, pairs elsewhere."""
    wanted, done = bool(ask.flag("calculate_per_token_loss")), ask.stage in ("pt", "sft")
    if wanted != done:
        why = "every token of a step has the same weight" if done else "every pair or answer has the same weight"
        raise cannot("calculate_per_token_loss", wanted, f"{why}; leave it out")
    return Answer()


def loss_scale(ask: Ask) -> Answer:
    """Megatron-SWIFT's `loss_scale`: which tokens are trained; presets are joined with +."""
    value = (ask.text("loss_scale") or "").lower()
    known: dict[str, Given] = {
        "default": [],
        "last_round": [("train_on_last_turn", ["True"])],
        "all": [("train_on_inputs", ["True"])],
        "ignore_empty_think": [("empty_thoughts", ["mask"])],
    }
    presets = [part.strip() for part in value.split("+") if part.strip()]
    if not known.keys() >= {*presets}:
        named = ", ".join(known)
        raise cannot("loss_scale", value, f"use {named} (with + between); or weights of turns in the records")
    return Answer([given for preset in dict.fromkeys(presets) for given in known[preset]])


def thinking(ask: Ask) -> Answer:
    """`enable_thinking` and `preserve_thinking`, which other tools give the chat template by flags of their own."""
    given = {name: ask.flag(name) for name in ("enable_thinking", "preserve_thinking")}
    said = {name: value for name, value in given.items() if value is not None}
    return Answer([("chat_template_kwargs", [json.dumps(said)])]) if said else Answer()


def empty_thoughts(ask: Ask) -> Answer:
    """Megatron-SWIFT's flags of answers without thoughts: written before them or not, trained or not."""
    if ask.flag("add_non_thinking_prefix") is False:
        return Answer([("empty_thoughts", ["drop"])])
    trained = ask.flag("disable_ignore_empty_think") or ask.flag("ignore_empty_think") is False
    return Answer([("empty_thoughts", ["train" if trained else "mask"])])


def truncation(ask: Ask) -> Answer:
    """`truncation_strategy`: hftune cuts the end of what is too long, which is "right"."""
    value = (ask.text("truncation_strategy") or "").lower()
    if value == "right":
        return Answer()
    if value == "split":
        return Answer([("packing_strategy", ["wrapped" if ask.stage == "pt" else "bfd_split"])])
    raise cannot("truncation_strategy", value, "what is too long loses its end (right), or is cut in pieces (split)")


def batches(ask: Ask) -> Answer:
    """`batch_size`, `micro_batch_size`, `global_batch_size` (sequences an optimizer step takes over all processes).

    Raises:
        ArgumentError: A global batch that the processes cannot share evenly, or that contradicts the accumulation.
    """
    micro = ask.text("micro_batch_size", "batch_size")
    given: Given = []
    if micro is not None:
        given.append(("per_device_train_batch_size", [micro]))
        # Their evaluation uses it as well. In RL the batch must hold whole groups of completions; left alone there.
        if ask.other("per_device_eval_batch_size") is None and ask.stage != "rl":
            given.append(("per_device_eval_batch_size", [micro]))
    total = ask.text("global_batch_size")
    if total is None:
        return Answer(given)
    steps = _accumulation(ask, int(number("global_batch_size", total)), micro)
    said = f"--global_batch_size {total}: {steps} micro batches are accumulated on each of {_groups(ask)} processes"
    return Answer([*given, ("gradient_accumulation_steps", [str(steps)])], (said,))


def _groups(ask: Ask) -> int:
    """Processes, or groups of them that see the same rows: those of tensor and sequence parallelism."""
    sizes = (ask.other("tensor_parallel_size"), ask.other("sequence_parallel_size"))
    # Processes that share matrices or tokens see the same rows: they count once in a batch.
    sharing = math.prod(max(1, int(number("size", size))) for size in sizes if size is not None)
    return max(1, ask.world_size // sharing)


def _accumulation(ask: Ask, total: int, micro: str | None) -> int:
    size = ask.other("per_device_train_batch_size") or micro
    if size is None:
        raise ArgumentError("--global_batch_size needs the size of a micro batch", fix="give --micro_batch_size too")
    rows = int(number("micro_batch_size", size)) * _groups(ask)
    # Rounded, a run would train on another batch than its learning rate was chosen for.
    if rows < 1 or total % rows or total < 1:
        raise ArgumentError(
            f"--global_batch_size {total} cannot be shared by {_groups(ask)} processes with micro batches of {size}",
            fix=f"use a multiple of {max(rows, 1)}",
        )
    asked = ask.other("gradient_accumulation_steps")
    if asked is not None and int(number("gradient_accumulation_steps", asked)) != total // rows:
        raise ArgumentError(
            f"--global_batch_size {total} means --gradient_accumulation_steps {total // rows}, not {asked}",
            fix="leave one of them out",
        )
    return total // rows


def evaluation_length(ask: Ask) -> Answer:
    """`max_evaluate_steps` and `eval_iters`, batches of an evaluation: as many held-out records as they hold."""
    name = next(iter(ask.given))
    steps = int(number(name, ask.text(name) or ""))
    if steps <= 0:
        return Answer()
    if ask.other("max_eval_samples") is not None:
        return Answer([], (f"--{name} has no effect beside --max_eval_samples",))
    # transformers' default, which holds where nothing else was given.
    size = int(number("per_device_eval_batch_size", ask.other("per_device_eval_batch_size") or "8"))
    records = steps * size * _groups(ask)
    said = f"--{name} {steps}: {records} held-out records at most ({_groups(ask)} processes, batches of {size})"
    return Answer([("max_eval_samples", [str(records)])], (said,))


def held_out_share(ask: Ask) -> Answer:
    """`split_dataset_ratio` 0.01: one record of a hundred is held out."""
    share = number("split_dataset_ratio", ask.text("split_dataset_ratio") or "")
    return Answer([("validation_split_percentage", [f"{100 * share:g}"])])
