"""Records, lengths and batches, which other tools count over all processes; optimizers, schedules and losses."""

from __future__ import annotations

import json
import math

from hftune.arguments.names.row import NamedValues, Request, Translated, cannot, made, number
from hftune.arguments.stage_table import base_stage
from hftune.errors import ArgumentError

THEIR_NAMES = {"or": "odds_ratio"}
"""ERNIEKit's names of losses that have another one here."""


def preference_loss(request: Request) -> Translated:
    """`rpo_alpha`, `sft_loss_ratio`, `orpo_beta` and their like: preference and SFT loss, weighted.

    Raises:
        ArgumentError: Weights that were given as well, or another loss next to `orpo_beta`.
    """
    if base_stage(request.stage) != "dpo":
        return _loss_type_alone(request)
    orpo = request.text("orpo_beta")
    given: NamedValues = [] if orpo is None else [("beta", [orpo])]
    named = request.text("loss_type") or ("sigmoid" if orpo is None else "orpo")
    kinds = [THEIR_NAMES.get(kind, kind) for kind in named.replace(",", " ").split()]
    if orpo is not None and kinds != ["orpo"]:
        raise cannot("orpo_beta", orpo, f"--loss_type is {named}; use --loss_type orpo, or --beta")
    if orpo is not None or "loss_type" in request.given:
        given.append(("loss_type", kinds))
    supervised = number("sft_loss_ratio", request.text("rpo_alpha", "sft_loss_ratio") or "0")
    preference = request.number("pref_loss_ratio", "1")
    # The plain loss needs no weights, and a manifest without them compares equal.
    if (supervised, preference) == (0, 1):
        return Translated(given)
    if request.other("loss_weights") is not None:
        raise cannot("sft_loss_ratio", supervised, "--loss_weights says it already; give one of them")
    # TRL adds losses up by weight.
    weighted = [*kinds, "sft"] if supervised else kinds
    weights = [f"{preference:g}"] * len(kinds) + ([f"{supervised:g}"] if supervised else [])
    rest = [pair for pair in given if pair[0] != "loss_type"]
    said = f"loss: {' + '.join(f'{weight} {kind}' for weight, kind in zip(weights, weighted, strict=True))}"
    return Translated([*rest, ("loss_type", weighted), ("loss_weights", weights)], (said,))


def _loss_type_alone(request: Request) -> Translated:
    """In other stages `loss_type` is the trainer's own; the rest has no meaning there."""
    own = ("loss_type", "label_smoothing") if base_stage(request.stage) == "rm" else ("loss_type",)
    for name in request.given:
        if name not in own:
            raise cannot(name, request.text(name), "it belongs to run_dpo.py")
    return Translated([(name, list(request.given[name])) for name in own if name in request.given])


def reference_update(request: Request) -> Translated:
    """ERNIEKit's `ref_model_update_steps`: the reference becomes the trained model every so many steps."""
    steps = int(request.number("ref_model_update_steps"))
    if steps <= 0:
        return made()
    # 1: the reference becomes the policy, as in ERNIEKit; TRL would mix the two.
    return made(sync_ref_model="True", ref_model_sync_steps=str(steps), ref_model_mixup_alpha="1.0")


# datasets' words: it stops with the first source that is used up, or with the last.
_STOPS = {"first_exhausted": "under", "all_exhausted": "over"}


def interleaved(request: Request) -> Translated:
    """Megatron-SWIFT's `interleave_prob`, which stops when the first source is used up unless told otherwise."""
    weights = request.text("interleave_prob")
    stops = request.text("stopping_strategy") or "first_exhausted"
    if weights is None:
        return made("--stopping_strategy has no effect without --interleave_prob")
    if stops not in _STOPS:
        raise cannot("stopping_strategy", stops, f"use one of {', '.join(_STOPS)}")
    return made(train_dataset_prob=",".join(weights.replace(",", " ").split()), mix_strategy=_STOPS[stops])


def per_token(request: Request) -> Translated:
    """`calculate_per_token_loss`: tokens have the same weight over a step in pre-training and SFT, pairs elsewhere."""
    wanted, done = bool(request.flag("calculate_per_token_loss")), base_stage(request.stage) in ("pt", "sft")
    if wanted != done:
        why = "every token of a step has the same weight" if done else "every pair or answer has the same weight"
        raise cannot("calculate_per_token_loss", wanted, f"{why}; leave it out")
    return made()


def loss_scale(request: Request) -> Translated:
    """Megatron-SWIFT's `loss_scale`: which tokens are trained; presets are joined with +."""
    value = request.word("loss_scale")
    known = {
        "default": made(),
        "last_round": made(train_on_last_turn="True"),
        "all": made(train_on_inputs="True"),
        "ignore_empty_think": made(empty_thoughts="mask"),
    }
    presets = [part.strip() for part in value.split("+") if part.strip()]
    if not known.keys() >= {*presets}:
        named = ", ".join(known)
        raise cannot("loss_scale", value, f"use {named} (with + between); or weights of turns in the records")
    return Translated([given for preset in dict.fromkeys(presets) for given in known[preset].given])


def thinking(request: Request) -> Translated:
    """`enable_thinking` and `preserve_thinking`, which other tools give the chat template by flags of their own."""
    given = {name: request.flag(name) for name in ("enable_thinking", "preserve_thinking")}
    said = {name: value for name, value in given.items() if value is not None}
    return made(chat_template_kwargs=json.dumps(said)) if said else made()


def system(request: Request) -> Translated:
    """`system` of ms-swift: the system message of records that have none.

    Raises:
        ArgumentError: A file of it, or a stage other than RL, whose records say it themselves.
    """
    text = request.text("system") or ""
    if request.stage != "rl":
        raise cannot("system", "TEXT", "put it into the records, as a message of role system")
    if text.endswith(".txt"):
        raise cannot("system", text, "write the text itself: --system_prompt TEXT")
    return made(system_prompt=text.replace("\\n", "\n"))


def truncation(request: Request) -> Translated:
    """`truncation_strategy`: hftune cuts the end of what is too long, which is "right"."""
    value = request.word("truncation_strategy")
    if value == "right":
        return made()
    if value == "split":
        return made(packing_strategy="wrapped" if request.stage == "pt" else "bfd_split")
    raise cannot("truncation_strategy", value, "what is too long loses its end (right), or is cut in pieces (split)")


def batches(request: Request) -> Translated:
    """`batch_size`, `micro_batch_size`, `global_batch_size` (sequences an optimizer step takes over all processes).

    Raises:
        ArgumentError: A global batch that the processes cannot share evenly, or that contradicts the accumulation.
    """
    micro = request.text("micro_batch_size", "batch_size")
    sizes = {} if micro is None else {"per_device_train_batch_size": micro}
    # Their evaluation uses it as well. In RL the batch must hold whole groups of completions; left alone there.
    if sizes and request.other("per_device_eval_batch_size") is None and request.stage != "rl":
        sizes["per_device_eval_batch_size"] = str(micro)
    total = request.text("global_batch_size")
    if total is None:
        return made(**sizes)
    steps = _accumulation(request, int(number("global_batch_size", total)), micro)
    said = f"--global_batch_size {total}: {steps} micro batches are accumulated on each of {_groups(request)} processes"
    return made(said, **sizes, gradient_accumulation_steps=str(steps))


def _groups(request: Request) -> int:
    """Processes, or groups of them that see the same rows: those of tensor and sequence parallelism."""
    sizes = (request.other("tensor_parallel_size"), request.other("sequence_parallel_size"))
    # Processes that share matrices or tokens see the same rows: they count once in a batch.
    sharing = math.prod(max(1, int(number("size", size))) for size in sizes if size is not None)
    return max(1, request.world_size // sharing)


def _accumulation(request: Request, total: int, micro: str | None) -> int:
    size = request.other("per_device_train_batch_size") or micro
    if size is None:
        raise ArgumentError("--global_batch_size needs the size of a micro batch", fix="give --micro_batch_size too")
    rows = int(number("micro_batch_size", size)) * _groups(request)
    # Rounded, a run would train on another batch than its learning rate was chosen for.
    if rows < 1 or total % rows or total < 1:
        raise ArgumentError(
            f"--global_batch_size {total} cannot be shared by {_groups(request)} processes with micro batches of "
            f"{size}",
            fix=f"use a multiple of {max(rows, 1)}",
        )
    asked = request.other("gradient_accumulation_steps")
    if asked is not None and int(number("gradient_accumulation_steps", asked)) != total // rows:
        raise ArgumentError(
            f"--global_batch_size {total} means --gradient_accumulation_steps {total // rows}, not {asked}",
            fix="leave one of them out",
        )
    return total // rows


def held_out_share(request: Request) -> Translated:
    """`split_dataset_ratio`, `val_size` 0.01: one record of a hundred is held out."""
    name = next(iter(request.given))
    share = request.number(name)
    if share >= 1:
        raise cannot(name, request.text(name), "give a share below 1, or a file of records in --validation_file_dir")
    return made(validation_split_percentage=f"{100 * share:g}")
