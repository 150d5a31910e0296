"""Any history of publishing, failing and editing: a folder holds what was finished last; nothing of anybody's goes."""

from __future__ import annotations

import tempfile
from contextlib import suppress
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from hftune.checkpoints.manifest import finish_manifest
from hftune.errors import ArgumentError
from hftune.publishing.folder import published_folder

ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("publish"), st.booleans()),
        st.tuples(st.just("fail"), st.booleans()),
        st.tuples(st.sampled_from(["add", "edit", "take away what was added"]), st.just(False)),
    ),
    min_size=1,
    max_size=8,
)


def publish(out: Path, content: str, overwrite: bool, fails: bool) -> None:
    with suppress(ZeroDivisionError), published_folder(out, overwrite=overwrite) as aside:
        (aside / "weights").write_text(content)
        finish_manifest(aside, {"status": "complete"})
        if fails:
            raise ZeroDivisionError


def seen(out: Path) -> dict[str, str]:
    return {file.name: file.read_text() for file in out.glob("*") if file.name != "hftune.json"}


@settings(max_examples=40)
@given(ACTIONS)
def test_any_history(actions: list[tuple[str, bool]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out"
        there: dict[str, str] = {}
        mine: set[str] = set()  # what somebody has added or edited
        for number, (action, overwrite) in enumerate(actions):
            if action in ("publish", "fail"):
                refused = bool(mine) or (bool(there) and not overwrite)
                said = ""
                try:
                    publish(out, f"result {number}", overwrite, fails=action == "fail")
                except ArgumentError as problem:
                    said = str(problem)
                assert bool(said) == refused
                if action == "publish" and not refused:
                    there = {"weights": f"result {number}"}
            elif there and action != "take away what was added":
                name = "weights" if action == "edit" else "thesis.txt"
                (out / name).write_text(f"mine {number}")
                there[name] = f"mine {number}"
                mine.add(name)
            elif "thesis.txt" in there:
                (out / "thesis.txt").unlink()
                del there["thesis.txt"]
                mine.discard("thesis.txt")
            assert seen(out) == there
            assert [file.name for file in Path(folder).iterdir()] == (["out"] if there else [])


@settings(max_examples=20)
@given(st.sets(st.sampled_from(["thesis.txt", "out.txt", ".out", "out.old", "weights"])), st.integers(1, 3))
def test_neighbours_stay(names: set[str], times: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            (Path(folder) / name).write_text(name)
        for number in range(times):
            publish(Path(folder) / "out", f"result {number}", overwrite=True, fails=False)
        assert {file.name for file in Path(folder).iterdir()} == names | {"out"}
        assert all((Path(folder) / name).read_text() == name for name in names)
