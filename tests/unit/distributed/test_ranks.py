"""Which process this is, by the launchers' variables; and the processes of a plan."""

from __future__ import annotations

import pytest

from hftune.distributed import ranks


@pytest.fixture(autouse=True)
def no_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """A test before may have left a process group of one alive."""
    monkeypatch.setattr(ranks.dist, "is_initialized", lambda: False)


def test_processes_of_a_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    monkeypatch.setenv("WORLD_SIZE", "16")
    monkeypatch.setenv("LOCAL_SIZE", "8")  # DeepSpeed's launcher
    assert ranks.local_world_size() == 8
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert ranks.local_world_size() == 4


def test_without_a_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "LOCAL_SIZE"):
        monkeypatch.delenv(name, raising=False)
    assert (ranks.rank(), ranks.local_rank(), ranks.world_size(), ranks.local_world_size()) == (0, 0, 1, 1)
    assert ranks.is_main() and not ranks.is_distributed()
    assert ranks.gathered_objects("own") == ["own"] and ranks.max_over_ranks(3) == 3
    assert ranks.all_agree(True) and not ranks.all_agree(False)


def test_by_a_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RANK": "5", "LOCAL_RANK": "1", "WORLD_SIZE": "8"}.items():
        monkeypatch.setenv(name, value)
    assert (ranks.rank(), ranks.local_rank(), ranks.world_size()) == (5, 1, 8)
    assert not ranks.is_main()


def test_a_planned_world_lasts_for_its_block(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    with pytest.raises(KeyError), ranks.planning_for(ranks.PlannedWorld(64, 8)) as _:
        assert (ranks.world_size(), ranks.local_world_size()) == (64, 8)
        with ranks.planning_for(ranks.PlannedWorld(2, 2)):
            assert ranks.world_size() == 2
        assert ranks.world_size() == 64
        raise KeyError
    assert ranks.planned_world() is None and ranks.world_size() == 1
