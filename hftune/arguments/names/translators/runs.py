"""Stages, algorithms, teachers and groups of processes, and where a run begins.

The beta of distillation runs as hftune's in every tool (0 the forward KL, 1 the reverse KL).
"""

from __future__ import annotations

from hftune.arguments.names.row import (
    OFF,
    NamedValues,
    Request,
    Translated,
    Translation,
    cannot,
    each,
    made,
    number,
    shortest,
)
from hftune.arguments.stage_table import STAGES


def stage_of(stages: dict[str, str]) -> Translation:
    """A name that says the stage: accepted where it is this script's, else refused with the script to use.

    Args:
        stages: Value in lower case -> hftune's stage.
    """

    def one(name: str, request: Request) -> NamedValues:
        value = request.text(name) or ""
        meant = stages.get(value.lower())
        # Their files name the stage in a key; here the script says it, so that a matching key is no news.
        if meant == request.stage:
            return []
        instead = (
            f"that is run_{meant}.py" if meant else f"the scripts are {', '.join(f'run_{name}.py' for name in STAGES)}"
        )
        raise cannot(name, value, instead)

    return each(one)


# ERNIEKit's; of further ones (LLaMA-Factory's kto and ppo) the script alone would say too little.
stage = stage_of({"pt": "pt", "sft": "sft", "rm": "rm", "dpo": "dpo"})
_LOSSES = {"kto": ("kto", "apo_zero_unpaired"), "orpo": ("orpo",), "cpo": ("cpo",), "simpo": ("cpo_simpo", "simpo")}
_rlhf = stage_of(
    {"dpo": "dpo", "rm": "rm", "ppo": "rl", "grpo": "rl", "gkd": "distill"} | dict.fromkeys(_LOSSES, "dpo")
)
task_type = stage_of({"causal_lm": "sft", "seq_cls": "rm"})


def rlhf_type(request: Request) -> Translated:
    """ms-swift's `rlhf_type`: the script, the loss or algorithm, and defaults of its own that differ from those here.

    Raises:
        ArgumentError: Another script's, or another loss was named as well.
    """
    answer, kind = _rlhf(request), request.word("rlhf_type")
    losses, named = _LOSSES.get(kind, ()), request.other("loss_type")
    if losses and named not in (None, *losses):
        raise cannot("rlhf_type", kind, f"the loss is {named}; {kind} is --loss_type {losses[0]}")
    meant: NamedValues = [("loss_type", [losses[0]])] if losses and named is None else []
    if kind == "simpo":
        # Its SimPO is CPO-SimPO unless the SFT loss weighs nothing.
        plain = number("cpo_alpha", request.other("cpo_alpha") or "1") == 0
        meant = [("loss_type", ["simpo" if plain else "cpo_simpo"])] if named is None else []
        meant += [("beta", ["2.0"]), ("simpo_gamma", ["1.0"])]
    elif kind == "grpo":
        meant = [("beta", ["0.04"])]
    elif kind == "ppo":
        meant = [("rl_algorithm", ["ppo"])]
    given = [pair for pair in meant if request.other(pair[0]) is None]
    defaults = [f"--{name} {values[0]}" for name, values in given if name in ("beta", "simpo_gamma")]
    said = (f"--rlhf_type {kind}: {' '.join(defaults)}, ms-swift's default",) if defaults else ()
    if kind == "gkd" and request.other("max_length"):
        said = ("--max_length counts prompt and answer here; in ms-swift's GKD the prompt alone",)
    return Translated([*answer.given, *given], said)


def any_language_model(request: Request) -> Translated:
    """`task_type`: causal_lm is every stage but the reward model."""
    return made() if request.word("task_type") == "causal_lm" and request.stage != "rm" else task_type(request)


def sft_model(request: Request) -> Translated:
    """MedicalGPT's `sft_model_path` belongs to its PPO script, which trains with RLOO."""
    path = request.given["sft_model_path"]
    if request.other("rl_algorithm"):
        return made(model_name_or_path=path)
    said = "--sft_model_path without --rl_algorithm: RLOO, which MedicalGPT's script of that name trains with"
    return made(said, model_name_or_path=path, rl_algorithm="rloo")


# Each keeps the optimizer's states out, so each turns resuming into a warm start.
_WITHOUT_OPTIMIZER = ("no_load_optim", "ignore_load_lr_and_optim", "finetune")


def starting(request: Request) -> Translated:
    """`resume_from_checkpoint`, which ERNIEKit and Megatron turn into a warm start by switches of their own.

    Raises:
        ArgumentError: The random states alone were to be left out, or the newest checkpoint was to be a warm start.
    """
    asked = request.text("resume_from_checkpoint")
    resume = asked or "none"
    switched = [name for name in (*_WITHOUT_OPTIMIZER, "no_load_rng") if request.flag(name)]
    if resume.lower() in OFF:
        if request.flag("finetune") is False:
            raise cannot("finetune", "False", "name the checkpoint to resume: --resume_from_checkpoint")
        idle = [name for name in switched if name != "finetune"]
        # Who says so begins anew; who says nothing may have forgotten to resume.
        anew = {"resume_from_checkpoint": "no"} if asked else {}
        return made(*(f"--{name} has no effect: no checkpoint is named" for name in idle), **anew)
    if not switched:
        return made(resume_from_checkpoint=resume)
    if switched == ["no_load_rng"]:
        raise cannot("no_load_rng", "True", "they come with the optimizer; --warm_start loads neither")
    # A warm start from whatever is newest would differ from start to start.
    if resume.lower() in ("auto", "last", "true"):
        raise cannot(switched[0], "True", "name the checkpoint: --warm_start FOLDER")
    return made(f"--{switched[0]}: a warm start from {resume}", warm_start=resume)


def _own_answers(name: str, request: Request) -> NamedValues:
    """GKD's `lmbda`, MedicalGPT's `opd_lambda`: the share of steps with the student's own answers."""
    share = request.number(name)
    if share in (0.0, 1.0):
        return [("distill_mode", ["on_policy" if share else "offline"])]
    return [("distill_mode", ["mixed"]), ("on_policy_share", [shortest(share)])]


own_answers = each(_own_answers)


def hard_label(request: Request) -> Translated:
    """ms-swift's `sft_alpha`: its loss is divergence + sft_alpha * plain loss.

    Raises:
        ArgumentError: A weight below 0.
    """
    alpha = request.number("sft_alpha")
    if alpha < 0:
        raise cannot("sft_alpha", shortest(alpha), "it is a weight of 0 or more; see --hard_label_share")
    said = f"--sft_alpha: the loss is ms-swift's divided by {1 + alpha:g}, which Adam's steps do not depend on"
    return made(*([said] if alpha else []), hard_label_share=shortest(round(alpha / (1 + alpha), 6)))


def teachers(request: Request) -> Translated:
    """ms-swift's `teacher_model` and `teacher_adapters`.

    Raises:
        ArgumentError: Several adapters on one teacher.
    """
    adapters = [part for value in request.given.get("teacher_adapters", []) for part in value.split(",")]
    if len(adapters) > 1:
        why = "merge them first: an adapter here is a teacher of its own"
        raise cannot("teacher_adapters", ",".join(adapters), why)
    if not adapters:
        return made(teacher_model_name_or_path=request.given["teacher_model"])
    said = "--teacher_adapters: the teacher is the adapter on the base that its own config names"
    return made(*([said] if "teacher_model" in request.given else []), teacher_model_name_or_path=adapters[0])


def prompt_length(request: Request) -> Translated:
    """`max_prompt_length`, which in distillation is the rest of `max_length`: MedicalGPT adds them up as well."""
    value = request.given["max_prompt_length"]
    if request.stage != "distill":
        return made(max_prompt_length=value)
    # The default of TRL's, or of MedicalGPT's: an answer has this room in any case.
    room = "128" if request.other("defaults") == "medicalgpt" else "512"
    answer = number("max_completion_length", request.other("max_completion_length") or room)
    total = shortest(request.number("max_prompt_length") + answer)
    said = f"--max_prompt_length {value[0]} and {answer:g} tokens of an answer: --max_length {total} of a record"
    return made(said, max_length=total)
