"""Distillation: whose answers are trained, which divergence, how much of the plain loss, and the teachers.

Every tool's beta runs as hftune's (0 the forward KL, 1 the reverse KL): TRL's GKD, ms-swift's, MedicalGPT's.
"""

from __future__ import annotations

from hftune.arguments.names.row import NamedValues, Request, Translated, cannot, each, number, shortest


def _own_answers(name: str, request: Request) -> NamedValues:
    """GKD's `lmbda`, MedicalGPT's `opd_lambda`: the share of steps with the student's own answers."""
    share = number(name, request.text(name) or "")
    if share in (0.0, 1.0):
        return [("distill_mode", ["on_policy" if share else "offline"])]
    return [("distill_mode", ["mixed"]), ("on_policy_share", [shortest(share)])]


own_answers = each(_own_answers)


def hard_label(request: Request) -> Translated:
    """ms-swift's `sft_alpha`: its loss is divergence + sft_alpha * plain loss.

    Raises:
        ArgumentError: A weight below 0.
    """
    alpha = number("sft_alpha", request.text("sft_alpha") or "")
    if alpha < 0:
        raise cannot("sft_alpha", shortest(alpha), "it is a weight of 0 or more; see --hard_label_share")
    said = f"--sft_alpha: the loss is ms-swift's divided by {1 + alpha:g}, which Adam's steps do not depend on"
    return Translated([("hard_label_share", [shortest(round(alpha / (1 + alpha), 6))])], (said,) if alpha else ())


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
        return Translated([("teacher_model_name_or_path", request.given["teacher_model"])])
    said = ("--teacher_adapters: the teacher is the adapter on the base that its own config names",)
    return Translated([("teacher_model_name_or_path", adapters)], said if "teacher_model" in request.given else ())


def prompt_length(request: Request) -> Translated:
    """`max_prompt_length`, which in distillation is the rest of `max_length`: MedicalGPT adds them up as well."""
    value = request.given["max_prompt_length"]
    if request.stage != "distill":
        return Translated([("max_prompt_length", value)])
    # The default of TRL's, or of MedicalGPT's: an answer has this room in any case.
    room = "128" if request.other("defaults") == "medicalgpt" else "512"
    answer = number("max_completion_length", request.other("max_completion_length") or room)
    total = shortest(number("max_prompt_length", request.text("max_prompt_length") or "") + answer)
    said = f"--max_prompt_length {value[0]} and {answer:g} tokens of an answer: --max_length {total} of a record"
    return Translated([("max_length", [total])], (said,))
