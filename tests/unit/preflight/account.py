"""Rules that are held to change nothing: an account of a run before and after each of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

from hftune.errors import UserError
from hftune.preflight.facts import Facts

Rule = Callable[[Facts[Any]], Iterable[UserError]]


def account(facts: Facts[Any]) -> dict[str, str]:
    """All that a rule could change, as text: every argument, the config, the model's parts and what is trained."""
    found = {
        f"{type(group).__name__}.{name}": repr(value)
        for group in facts.arguments
        for name, value in sorted(vars(group).items())
    }
    live = getattr(facts.training_args, "hf_deepspeed_config", None)
    found["DeepSpeed"] = repr(live and live.config)
    found["config"] = repr(facts.config and facts.config.to_dict())
    if facts.skeleton is not None:
        found["modules"] = repr([(name, type(one).__name__) for name, one in facts.skeleton.named_modules()])
        parameters = facts.skeleton.named_parameters()
        found["parameters"] = repr([(name, one.shape, one.requires_grad, one.device) for name, one in parameters])
        found["skeleton's config"] = repr(facts.skeleton.config.to_dict())
    others = (facts.rows, facts.world, facts.checkpoint, facts.problems, facts.build and facts.build.dtype)
    return found | {"others": repr(others)}


def watched(rules: Iterable[Rule]) -> Iterator[Rule]:
    """The same rules, each of which fails where it has changed what it looked at."""
    last: dict[str, str] = {}

    def run(rule: Rule, facts: Facts[Any]) -> list[UserError]:
        before = last.copy() or account(facts)
        problems = list(rule(facts))
        last.update(account(facts))
        changed = [name for name in before.keys() | last.keys() if before.get(name) != last.get(name)]
        assert not changed, f"{rule.__name__} has changed {changed}"
        return problems

    for rule in rules:
        yield partial(run, rule)
