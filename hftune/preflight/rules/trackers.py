"""Rules about trackers: transformers must know them, and their packages must be installed."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator

from hftune.errors import ArgumentError, UserError, did_you_mean
from hftune.preflight.facts import Facts

PACKAGES = {
    "azure_ml": ("azureml", "azureml-core"),
    "clearml": ("clearml", "clearml"),
    "codecarbon": ("codecarbon", "codecarbon"),
    "comet_ml": ("comet_ml", "comet-ml"),
    "dagshub": ("dagshub", "dagshub mlflow"),
    "dvclive": ("dvclive", "dvclive"),
    "flyte": ("flytekit", "flytekit flytekitplugins-deck-standard"),
    "mlflow": ("mlflow", "mlflow"),
    "neptune": ("neptune", "neptune"),
    "swanlab": ("swanlab", "swanlab"),
    "tensorboard": ("tensorboard", "tensorboard"),
    "trackio": ("trackio", "trackio"),
    "wandb": ("wandb", "wandb"),
}
"""The module of each tracker, and what is installed for it."""


def check_trackers(facts: Facts) -> Iterator[UserError]:
    """Problems of trackers; the Trainer would end with a traceback once the model is loaded."""
    from transformers.integrations.integration_utils import INTEGRATION_TO_CALLBACK

    # transformers takes one name as well as a list.
    asked = facts.training_args.report_to
    for name in [asked] if isinstance(asked, str) else asked or []:
        # `all` means those that are installed.
        if name in ("none", "all"):
            continue
        if name not in INTEGRATION_TO_CALLBACK:
            known = sorted([*INTEGRATION_TO_CALLBACK, "none"])
            near = did_you_mean(name, known, written="--report_to {}")
            fix = f"{near} one of: {', '.join(known)}".strip()
            yield ArgumentError(f"there is no tracker {name!r}", place="--report_to", fix=fix)
        elif name in PACKAGES and not _is_installed(name):
            yield ArgumentError(
                f"{name} is not installed",
                place="--report_to",
                fix=f"pip install {PACKAGES[name][1]}; or --report_to none: hftune keeps all figures in "
                "trainer_state.json, and `hftune report` draws them",
            )


def check_monitors(facts: Facts) -> Iterator[UserError]:
    """Problems of monitors in a DeepSpeed config, which would end in a traceback once the model is loaded."""
    config = facts.training_args.ds_resolved or {}
    for key, name in {"tensorboard": "tensorboard", "wandb": "wandb", "comet": "comet_ml"}.items():
        if config.get(key, {}).get("enabled") and not _is_installed(name):
            fix = f"pip install {PACKAGES[name][1]}; or take it out: hftune keeps all figures in trainer_state.json"
            yield ArgumentError(f"{name} is not installed", place=f"--deepspeed: {key}.enabled", fix=fix)


def _is_installed(name: str) -> bool:
    found = importlib.util.find_spec(PACKAGES[name][0])
    return found is not None or (name == "tensorboard" and importlib.util.find_spec("tensorboardX") is not None)
