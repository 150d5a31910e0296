"""Where a run begins: with everything of a checkpoint, or with its weights alone."""

from __future__ import annotations

from hftune.arguments.names.row import OFF, Answer, Ask
from hftune.arguments.names.values.common import cannot

_WITHOUT_OPTIMIZER = ("no_load_optim", "ignore_load_lr_and_optim", "finetune")


def starting(ask: Ask) -> Answer:
    """`resume_from_checkpoint`, which ERNIEKit and Megatron turn into a warm start by switches of their own.

    Raises:
        ArgumentError: The random states alone were to be left out, or the newest checkpoint was to be a warm start.
    """
    asked = ask.text("resume_from_checkpoint")
    resume = asked or "none"
    switched = [name for name in (*_WITHOUT_OPTIMIZER, "no_load_rng") if ask.flag(name)]
    if resume.lower() in OFF:
        if ask.flag("finetune") is False:
            raise cannot("finetune", "False", "name the checkpoint that goes on: --resume_from_checkpoint")
        idle = [name for name in switched if name != "finetune"]
        # Who says so begins anew; who says nothing may have forgotten to resume.
        anew: list[tuple[str, list[str]]] = [("resume_from_checkpoint", ["no"])] if asked else []
        return Answer(anew, tuple(f"--{name} has no effect: no checkpoint is named" for name in idle))
    if not switched:
        return Answer([("resume_from_checkpoint", [resume])])
    if switched == ["no_load_rng"]:
        raise cannot("no_load_rng", "True", "they come with the optimizer; --warm_start loads neither")
    if resume.lower() in ("auto", "last", "true"):
        raise cannot(switched[0], "True", "name the checkpoint: --warm_start FOLDER")
    return Answer([("warm_start", [resume])], (f"--{switched[0]}: a warm start from {resume}",))
