"""Reward functions that may fail or hang: limits of time, further tries, and what they return looked at.

A function that asks a server waits, fails now and then, and may never come back. It is called in a thread of its own,
all functions at once; what was not answered in time is said with the function's name, and asked again.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import math
import threading
import traceback
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from hftune.arguments.named_code import line_of
from hftune.errors import ArgumentError, UserError, shown
from hftune.logging import notice
from hftune.trainers.rewards.kept import KeptRewards, Reward, code_of, key_of, rows_of

PAUSE, LONGEST_PAUSE = 1.0, 30.0
"""Seconds before a second try; twice as many before each further one, up to this."""
_GIVEN = ("prompts", "completions", "completion_ids", "trainer_state", "log_extra", "log_metric")


@dataclass(frozen=True)
class Patience:
    """How long and how often is waited.

    Args:
        timeout: Seconds of a call; None: any number.
        retries: Further calls after one that failed.
        kept: Where rewards are kept, and looked for before a function is called.
    """

    timeout: float | None = None
    retries: int = 0
    kept: KeptRewards | None = None

    def __bool__(self) -> bool:
        return self.timeout is not None or self.retries > 0 or self.kept is not None


def watched(function: Callable[..., Any], patience: Patience) -> Callable[..., Any]:
    """The function with its results looked at; where there is patience, called with it."""
    # Without, in this thread: what a function does with signals works there alone.
    if patience or inspect.iscoroutinefunction(function):
        return WaitingReward(function, patience)

    @functools.wraps(function)
    def ask(**given: Any) -> list[Reward]:
        try:
            values = looked_at(function(**given), len(given["prompts"]))
        except UserError:
            raise
        except Exception as error:  # the function is the user's, and may raise anything
            raise _refused(function, _told(error, function)) from error
        if isinstance(values, str):
            raise _refused(function, values)
        _count(function, given, values)
        return values

    return ask


class WaitingReward:
    """A reward function as TRL calls coroutine functions: several at once.

    Args:
        function: A function or coroutine function.
        patience: With it.
    """

    def __init__(self, function: Callable[..., Any], patience: Patience) -> None:
        self.function, self.patience = function, patience
        self.__name__ = _name(function)
        self._code = code_of(function) if patience.kept is not None else ""

    async def __call__(self, **given: Any) -> list[Reward]:
        """A reward for each answer, of those that are kept and of a call for all others."""
        kept, count = self.patience.kept, len(given["prompts"])
        if kept is None:
            return await self._ask(given, count)
        columns = {name: values for name, values in given.items() if name not in ("prompts", "completions")}
        pairs = zip(given["prompts"], given["completions"], rows_of(columns, count), strict=True)
        keys = [key_of(self._code, *each) for each in pairs]
        # Of two answers that are alike one is enough.
        new = {key: row for row, key in enumerate(keys) if key not in kept}
        if new:
            rows = list(new.values())
            some = {name: _some(values, rows, count) for name, values in given.items()}
            kept.add(dict(zip(new, await self._ask(some, len(rows)), strict=True)), self.__name__)
        _log(given, f"rewards/{self.__name__}/kept", float(count - len(new)))
        return [kept[key] for key in keys]

    async def _ask(self, given: dict[str, Any], count: int) -> list[Reward]:
        """A call, and further ones while they fail."""
        tries, found = 1 + self.patience.retries, ""
        for number in range(tries):
            if number:
                await asyncio.sleep(min(PAUSE * 2 ** (number - 1), LONGEST_PAUSE))
            values = await self._once(given, count)
            _log(given, f"rewards/{self.__name__}/failed", float(isinstance(values, str)))
            if not isinstance(values, str):
                _count(self.function, given, values)
                return values
            found = values
            if number + 1 < tries:
                notice(f"the reward function {self.__name__} {found}; asked again ({number + 1} of {tries - 1})")
        raise _refused(self.function, found, tries)

    async def _once(self, given: dict[str, Any], count: int) -> list[Reward] | str:
        """Rewards, or what is wrong."""
        coming = asyncio.wrap_future(_begun(self.function, given))
        # Its error, if any, is not raised here; a call that is late is left to itself.
        await asyncio.wait([coming], timeout=self.patience.timeout)
        if not coming.done():
            return f"has not answered in {self.patience.timeout:g} s"
        if (error := coming.exception()) is not None:
            return _told(error, self.function)
        return looked_at(coming.result(), count)


def looked_at(answer: Any, count: int) -> list[Reward] | str:
    """What a function returned as rewards, None for no opinion; or what is wrong with it."""
    if isinstance(answer, str | bytes | dict) or not hasattr(answer, "__iter__"):
        return f"returned {shown(repr(answer))}, where a list of {count} numbers is wanted"
    values = list(answer)
    if len(values) != count:
        return f"returned {len(values)} values for {count} answers"
    rewards: list[Reward] = []
    for row, value in enumerate(values):
        # Numbers of numpy and torch have the method as well.
        if value is not None and (isinstance(value, str) or not hasattr(value, "__float__")):
            return f"returned {shown(repr(value))} for answer {row}, where a number is wanted"
        number = math.nan if value is None else float(value)
        if math.isinf(number):
            return f"returned {number} for answer {row}, which no loss can take"
        rewards.append(None if value is None else number)
    return rewards


def _begun(function: Callable[..., Any], given: dict[str, Any]) -> Future[Any]:
    """A call in a thread that no one waits for at the end: it may never return."""
    loop = asyncio.new_event_loop()

    async def ask() -> Any:
        answer = function(**given)
        return await answer if inspect.isawaitable(answer) else answer

    coming = asyncio.run_coroutine_threadsafe(ask(), loop)
    coming.add_done_callback(lambda _: loop.call_soon_threadsafe(loop.stop))
    threading.Thread(target=loop.run_forever, name=f"reward {_name(function)}", daemon=True).start()
    return coming


def check_signature(function: Callable[..., Any], flag: str) -> None:
    """That a function takes what TRL calls it with.

    Raises:
        ArgumentError: It has no place for it, whatever the data hold.
    """
    try:
        inspect.signature(function).bind_partial(**dict.fromkeys(_GIVEN))
    except TypeError:
        raise ArgumentError(
            f"the reward function {_name(function)} does not take all that it is called with: {', '.join(_GIVEN)} and "
            "the columns of the data",
            place=f"{flag} ({_defined(function)})",
            fix=f"add **columns: def {_name(function)}(prompts, completions, **columns)",
        ) from None
    except ValueError:
        return  # written in C: nobody knows


def _told(error: BaseException, function: Callable[..., Any]) -> str:
    """An error of a function, and the line of the user's code that raised it."""
    at = _defined(function)
    file, _, _ = at.rpartition(":")
    inside = any(frame.filename == file for frame in traceback.extract_tb(error.__traceback__))
    return f"raised {type(error).__name__}: {shown(error, 200)} ({line_of(error, file) if inside else at})"


def _defined(function: Callable[..., Any]) -> str:
    """`file:line` where a function begins; of one that is not written in Python its name."""
    code = inspect.unwrap(function) if inspect.isroutine(function) else type(function).__call__
    found = getattr(code, "__code__", None)
    return _name(function) if found is None else f"{found.co_filename}:{found.co_firstlineno}"


def _count(function: Callable[..., Any], given: dict[str, Any], values: list[Reward]) -> None:
    """NaN trains nothing, as None does; unlike None it is seldom meant."""
    wrong = sum(value is not None and math.isnan(value) for value in values)
    if wrong:
        _log(given, f"rewards/{_name(function)}/nan", float(wrong))
        notice(f"the reward function {_name(function)} has returned NaN; such answers count as not its own")


def _log(given: dict[str, Any], name: str, value: float) -> None:
    # TRL's way for functions to log; `hftune sample` calls them without.
    if "log_metric" in given:
        given["log_metric"](name, value)


def _refused(function: Callable[..., Any], found: str, tries: int = 1) -> UserError:
    often = f", as the last of {tries} tries" if tries > 1 else ""
    return UserError(
        f"the reward function {_name(function)} {found}{often}",
        place=f"--reward_funcs ({_defined(function)})",
        fix='mend it: prompts and completions are lists of messages (the text is completion[-1]["content"]), columns '
        "of the data lists of values. Or let it be asked again: --reward_retries 3, --reward_timeout 60",
    )


def _name(function: Callable[..., Any]) -> str:
    return str(getattr(function, "__name__", type(function).__name__))


def _some(values: Any, rows: list[int], count: int) -> Any:
    """A column of these rows; what is no column as it is."""
    return [values[row] for row in rows] if isinstance(values, list) and len(values) == count else values
