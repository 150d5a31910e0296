"""What names of other tools become are hftune's own: translated once more, they stay."""

from __future__ import annotations

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from hftune.arguments.names.row import ALIAS
from hftune.arguments.names.table import table
from hftune.arguments.names.translate import Entry
from hftune.arguments.stage_table import STAGES
from hftune.errors import ArgumentError
from tests.unit.arguments.names.test_table import example, parser_of, stages_of

ALIASES = [name for name, row in table().items() if row.verdict == ALIAS]


def said(entries: list[Entry]) -> list[tuple[str, str]]:
    """Names and values, in an order of their own: the last one of a name counts."""
    return sorted({entry.name: " ".join(map(str, entry.values)) for entry in entries}.items())


@settings(max_examples=100)
@given(names=st.lists(st.sampled_from(ALIASES), min_size=1, max_size=4, unique=True), stage=st.sampled_from([*STAGES]))
def test_any_names_together(names: list[str], stage: str) -> None:
    parser, rows = parser_of(stage), [row for row in map(table().get, names) if row and stage in stages_of(row)]
    try:
        words = [word for row in rows for word in example(row)]
        flags = [word for word in words if word.startswith("--")]
        assume(len(flags) == len({*flags}))  # of a flag given twice the last one counts: the order matters
        once = parser.translate(words)
    except ArgumentError:  # two of them contradict each other
        return
    given_again = [word for entry in once for word in (f"--{entry.name}", *map(str, entry.values))]
    again = parser.translate(given_again)
    assert said(again) == said(once)
    # Whatever the order in which they are given.
    others = parser.translate([word for row in reversed(rows) for word in example(row)])
    assert {entry.name for entry in others} == {entry.name for entry in once}
