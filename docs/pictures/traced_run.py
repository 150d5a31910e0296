"""Run run_sft.py and write which methods of its trainer were called, in which order, from where and how often.

python docs/pictures/traced_run.py CALLS.json --model_name_or_path MODEL ...      the arguments of run_sft.py behind it
"""

from __future__ import annotations

import functools
import inspect
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

SCRIPT = "run_sft.py"


class Tracer:
    """Notes the calls of the functions that it has wrapped.

    Attributes:
        calls: By name in the order of the first calls: the wrapped function that called it first, and how often it
            was called by any.
    """

    def __init__(self) -> None:
        self.calls: dict[str, dict[str, Any]] = {}
        self._running = [SCRIPT]

    def note(self, name: str) -> None:
        """Count a call."""
        call = self.calls.setdefault(name, {"within": self._running[-1], "times": 0})
        call["times"] += 1

    def wrapped(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, noted under a name whenever it is called."""

        @functools.wraps(function)
        def traced(*args: Any, **kwargs: Any) -> Any:
            self.note(name)
            self._running.append(name)
            try:
                return function(*args, **kwargs)
            finally:
                self._running.pop()

        return traced

    def wrap(self, owner: Any, name: str) -> None:
        """Put the wrapped function in the place of `owner.name`."""
        setattr(owner, name, self.wrapped(name, getattr(owner, name)))


def main() -> None:
    """Run the script with everything noted, and write the calls and the trainer's features as JSON."""
    target = Path(sys.argv.pop(1))
    from hftune.distributed import launch

    launch.prepare_environment()  # as parsing does it, before anything imports transformers
    import run_sft

    tracer = Tracer()
    trainers = wrap_all(tracer)
    run_sft.main()
    features = [[type(feature).__module__, type(feature).__name__] for feature in trainers[0].features.all]
    target.write_text(json.dumps({"calls": tracer.calls, "features": features}, indent=1), encoding="utf-8")


def wrap_all(tracer: Tracer) -> list[Any]:
    """Wrap the trainer's methods and what surrounds them; the list that is returned will hold the trainer."""
    import accelerate
    from torch.optim.optimizer import register_optimizer_step_pre_hook

    import hftune.stage
    import hftune.trainers.sft
    from hftune.trainers.feature_host import FeatureHost
    from hftune.trainers.stage_trainer import StageTrainer

    for owner in (FeatureHost, StageTrainer):
        for name, value in list(vars(owner).items()):
            if inspect.isfunction(value) and name != "__init__":
                tracer.wrap(owner, name)
    tracer.wrap(accelerate.Accelerator, "backward")
    register_optimizer_step_pre_hook(lambda *_: tracer.note("optimizer.step"))
    tracer.wrap(hftune.stage, "finish_run")

    made: list[Any] = []
    make = tracer.wrapped("SFTTrainer", hftune.trainers.sft.SFTTrainer)

    def make_and_keep(*args: Any, **kwargs: Any) -> Any:
        made.append(make(*args, **kwargs))
        return made[-1]

    hftune.trainers.sft.SFTTrainer = make_and_keep
    return made


if __name__ == "__main__":
    from hftune.errors import run_script

    run_script(main)
