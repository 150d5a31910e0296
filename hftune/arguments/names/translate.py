"""From names and values as they were given to arguments of hftune: one place, no side effects but notices."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field

from hftune.arguments.names.row import NO_EFFECT, OFF, REFUSED, Request, Row, Translated, Translation, Values
from hftune.arguments.names.table import table
from hftune.arguments.raw_arguments import COMMAND_LINE, given_twice
from hftune.arguments.stage_table import STAGES
from hftune.errors import ArgumentError

MERGE = "merge"


@dataclass(frozen=True)
class Entry:
    """An argument as it was given.

    Args:
        values: Texts from a command line; from a YAML file of any type.
        place: `COMMAND_LINE`, or the path of the file.
    """

    name: str
    values: list[object]
    place: str


@dataclass
class Outcome:
    """Arguments of hftune, notices and problems: what a command line is translated to."""

    entries: list[Entry] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)
    problems: list[ArgumentError] = field(default_factory=list)


class Translator:
    """The names of one script.

    Args:
        stage: A key of `STAGES`; of another command, such as `MERGE`, its own names count first.
        known: Names of the script's own arguments.
        aliases: Further aliases of the script, which come first.
        unknown: Makes the error for a name that the script does not know, and its place.
        done_by_hftune: The script's own fields that hftune fills, and why.
        removed: Names that commands other than stages had.
    """

    def __init__(
        self,
        stage: str,
        known: Collection[str],
        aliases: Mapping[str, str],
        unknown: Callable[[str, str], ArgumentError],
        done_by_hftune: Mapping[str, str],
        removed: Collection[str] = (),
    ) -> None:
        self.stage, self.known, self.aliases, self.unknown = stage, known, aliases, unknown
        self.done_by_hftune, self.removed = done_by_hftune, removed

    def translate(self, given: Iterable[Entry], world_size: int = 1, local_world_size: int = 1) -> Outcome:
        """All of `given`, problems together; later entries of a name win over earlier ones, with a notice."""
        outcome = Outcome()
        # Names of one function are translated together: `global_batch_size` needs the micro batch, whatever its name.
        groups: dict[Translation, list[Entry]] = {}
        for entry in given:
            row = self.row(entry.name)
            if row is not None and row.translation is not None and _has_value(entry):
                _add(groups.setdefault(row.translation, []), entry, outcome.notices)
            else:
                self._add_plain(entry, row, outcome)
        # Plain names come first: a translation may ask for the model's path or the accumulation.
        others = {entry.name: list(map(str, entry.values)) for entry in outcome.entries}
        for function, members in sorted(groups.items(), key=lambda item: _order_in_table(item[0])):
            answer = self._answer(function, members, others, (world_size, local_world_size), outcome)
            # Later functions see what earlier ones made, in the order of the table.
            others |= self._add_translated(answer, members, outcome)
        return outcome

    def row(self, name: str) -> Row | None:
        """The row of the table that applies to a name in this script; None for an argument of its own."""
        # `--dtype` of a merge is its own, whatever the tables of trainers say of that name.
        if name in self.aliases or (self.stage not in STAGES and (name in self.known or name in self.removed)):
            return None
        return table().get(name)

    def _add_plain(self, entry: Entry, row: Row | None, outcome: Outcome) -> None:
        name = self._renamed(entry.name, row)
        if name in self.done_by_hftune and not _means_no(entry.values):
            reason = self.done_by_hftune[name]
            outcome.problems.append(
                ArgumentError(f"--{name} cannot be used: {reason}", place=entry.place, fix=_leave_out(name))
            )
        elif name in self.done_by_hftune and name.endswith("_kwargs"):
            return  # no is what it comes to anyway, and no object of JSON
        elif row is not None and row.verdict in (REFUSED, NO_EFFECT):
            _refuse_or_ignore(entry, row, outcome)
        elif name in self.known:
            _add(outcome.entries, Entry(name, entry.values, entry.place), outcome.notices)
        else:
            outcome.problems.append(self.unknown(entry.name, entry.place))

    def _renamed(self, name: str, row: Row | None) -> str:
        if name in self.aliases:
            return self.aliases[name]
        if row is None or row.verdict in (NO_EFFECT, REFUSED):
            return name
        return row.target(self.stage) or name

    def _answer(
        self,
        function: Translation,
        members: list[Entry],
        others: Mapping[str, Values],
        world: tuple[int, int],
        outcome: Outcome,
    ) -> Translated:
        given = {entry.name: _texts(entry) for entry in members}
        try:
            answer = function(Request(given, others, self.stage, *world))
        except ArgumentError as error:
            outcome.problems.append(error.at(members[-1].place))
            return Translated()
        unknown = [name for name, _ in answer.given if name not in self.known]
        if unknown:
            outcome.problems.append(self.unknown(members[-1].name, members[-1].place))
            return Translated()
        outcome.notices += answer.notices
        return answer

    @staticmethod
    def _add_translated(answer: Translated, members: list[Entry], outcome: Outcome) -> dict[str, Values]:
        """Add what was translated, unless the argument itself was given where it counts for more."""
        said = " ".join(f"--{entry.name}" for entry in members)
        # One word of the command line is enough: it wins over a file, whatever the names.
        place = COMMAND_LINE if any(entry.place == COMMAND_LINE for entry in members) else members[-1].place
        taken: dict[str, Values] = {}
        for name, values in answer.given:
            own = next((entry for entry in outcome.entries if entry.name == name), None)
            if own is None or (own.place != COMMAND_LINE and place == COMMAND_LINE):
                # By identity: another entry of the same name and value may stand in the list.
                outcome.entries = [entry for entry in outcome.entries if entry is not own]
                outcome.entries.append(Entry(name, list(values), COMMAND_LINE))
                taken[name] = values
            if own is not None and list(map(str, own.values)) != values:
                used, dropped = (f"--{name}", said) if name not in taken else (said, f"--{name}")
                outcome.notices.append(f"{used} counts; {dropped} ({name}: {' '.join(values)}) was given as well")
        return taken


def _leave_out(name: str) -> str:
    return f"leave --{name} out; what does the same here, if anything, is named above"


def _refuse_or_ignore(entry: Entry, row: Row, outcome: Outcome) -> None:
    """A name that is refused or has no effect, unless its value asks for what happens anyway."""
    if not _has_value(entry):
        return
    if row.asks_for_nothing(_texts(entry)):
        asked = " ".join(_texts(entry)) if entry.values else "True"
        # Switching off what is off needs no notice; another value that is so anyway gets one.
        if not Row(entry.name, "", REFUSED, harmless=OFF).asks_for_nothing([asked]):
            outcome.notices.append(f"--{entry.name} {asked} has no effect: it is so anyway")
        return
    if row.verdict == REFUSED:
        cause = f"--{entry.name} cannot be used: {row.because}"
        outcome.problems.append(ArgumentError(cause, place=entry.place, fix=_leave_out(entry.name)))
    else:
        outcome.notices.append(f"--{entry.name} has no effect: {row.because}")


def _order_in_table(function: Translation) -> int:
    """Functions in the order of the table, whatever order their arguments were given in."""
    # Functions have no order of their own; the first row that uses one stands for it.
    return next(place for place, row in enumerate(table().values()) if row.translation is function)


def _add(entries: list[Entry], new: Entry, notices: list[str]) -> None:
    """The command line wins over a file; within one, the last value counts, with a notice where it differs."""
    for old in [entry for entry in entries if entry.name == new.name]:
        if old.place == new.place and list(map(str, old.values)) != list(map(str, new.values)):
            notices.append(given_twice(new.name, old.values, new.values))
        entries.remove(old)
    entries.append(new)


def _texts(entry: Entry) -> Values:
    return [str(value) for value in entry.values]


def _has_value(entry: Entry) -> bool:
    """A YAML file may hold `name:` with nothing behind it."""
    return entry.values != [None]


def _means_no(values: list[object]) -> bool:
    return [str(value).lower() for value in values] in (["false"], ["none"], ["null"], ["no"], ["0"])
