"""Training on blocks and on streams as it is written down and read again, with data and a run that are made up."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hftune import logging
from hftune.constants import ORIGIN
from hftune.data.streaming import End, Origin, Progress, Window
from hftune.distributed import ranks
from hftune.errors import ArgumentError, ManifestError
from hftune.trainers.features import corpora
from hftune.trainers.features.corpora import (
    LOADER_STATE_NAME,
    Streams,
    WithOrigins,
    progress_of,
    read_state,
    refuse_state,
)
from tests.unit.data.streams import stream_of
from tests.unit.trainers.features import made_up


def origin(position: int, *, begun: int = 0, dropped: int = 0, tokens: int = 5) -> Origin:
    return Origin(Window(), End(position, begun), dropped, tokens)


def run_of(dataset: Any = None, *, total: int = 4, **args: Any) -> Any:
    given = {
        "gradient_accumulation_steps": 2, "tensor_parallel_size": 1, "dataloader_num_workers": 0, "use_cpu": False,
        "dataloader_pin_memory": True, "dataloader_prefetch_factor": None, "dataloader_multiprocessing_context": None,
        "mesh": SimpleNamespace(sharing=1),
    }  # fmt: skip
    run = made_up.run(train_dataset=dataset or stream_of(8), _train_batch_size=2, args=given | args)
    run.data_collator = lambda features: {"ids": [one["ids"] for one in features]}
    run.get_total_train_batch_size = lambda args: total
    return run


def said() -> str:
    return "\n".join(map(str, logging._notices))


def test_a_checkpoint_has_it_and_a_run_resumes_from_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    feature, run = Streams(), run_of()
    run.train_dataset.progress.record([origin(3), origin(4)])
    feature.save_files(run, tmp_path)
    saved = json.loads((tmp_path / LOADER_STATE_NAME).read_text())
    assert saved == run.train_dataset.state([run.train_dataset.progress]) | {
        "window": [0, 0, 0], "trained": [{"group": 1, "ends": [[4, 0]]}], "totals": {"dropped": 0, "tokens": 10}
    }  # fmt: skip
    (tmp_path / "trainer_state.json").write_text('{"global_step": 9}')
    other = run_of()
    feature.before_train(other, None)
    assert other.train_dataset.progress == Progress() and other.args.ignore_data_skip is False
    feature.before_train(other, str(tmp_path))
    assert other.train_dataset.progress.end == (4, 0) and other.args.ignore_data_skip is True
    (tmp_path / LOADER_STATE_NAME).write_text(json.dumps({name: saved[name] for name in ("kind", "settings")}))
    with pytest.raises(ManifestError, match="is no state of a run"):
        feature.before_train(run_of(), str(tmp_path))
    monkeypatch.setattr(ranks, "is_main", lambda: False)
    feature.save_files(run, tmp_path / "nowhere")


def test_what_was_dropped_is_said_at_the_end() -> None:
    feature, run = Streams(), run_of()
    feature.say_dropped(run)
    assert said() == ""
    run.train_dataset.progress.record([origin(1, dropped=4)])
    feature.say_dropped(run)
    assert "4 records of the stream gave no example and were dropped" in said()


def test_epochs_are_shares_of_the_steps() -> None:
    run = run_of()
    run.state.global_step = 4
    Streams().before_log(run, {})
    assert run.state.epoch == 0.4


@pytest.mark.parametrize(("use_cpu", "pin"), [(True, False), (False, True)])
def test_the_loader(use_cpu: bool, pin: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Any] = []
    monkeypatch.setattr(corpora, "DataLoader", lambda dataset, **options: given.append((dataset, options)) or "loader")
    run = run_of(use_cpu=use_cpu, dataloader_num_workers=3, dataloader_prefetch_factor=5)
    assert Streams().make_loader(run) == "loader"
    ((dataset, options),) = given
    assert dataset is run.train_dataset and options.pop("collate_fn").collator is run.data_collator
    assert options == {"batch_size": 2, "pin_memory": pin}
    # Its workers are the stream's own: batches are cut from what comes back in order.
    assert dataset.loading == {"num_workers": 3, "prefetch_factor": 5, "multiprocessing_context": None}
    assert run_of(dataloader_pin_memory=False).args.dataloader_pin_memory is False


def test_all_processes_know_a_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four processes, two of which at a time share matrices and have noted the same."""
    run = run_of(mesh=SimpleNamespace(sharing=2))
    own, other = run.train_dataset.progress, Progress()
    own.record([origin(1)])
    other.record([origin(2, tokens=3)])
    monkeypatch.setattr(ranks, "gathered_objects", lambda mine: [mine, mine, other, other])
    assert progress_of(run) == [own, other]


def test_batches_carry_origins() -> None:
    features = [{"ids": 1, ORIGIN: origin(1)}, {"ids": 2, ORIGIN: origin(2)}]
    batch = WithOrigins(lambda given: {"given": [sorted(one) for one in given]})(features)
    assert batch == {"given": [["ids"], ["ids"]], ORIGIN: [origin(1), origin(2)]}


def test_read_with_the_steps_made(tmp_path: Path) -> None:
    (tmp_path / "trainer_state.json").write_text(json.dumps({"global_step": 12}))
    with pytest.raises(ArgumentError, match=f"no {LOADER_STATE_NAME}, so it is not known"):
        read_state(tmp_path)
    (tmp_path / LOADER_STATE_NAME).write_text(json.dumps({"kind": "blocks", "blocks": 3}))
    assert read_state(tmp_path) == ({"kind": "blocks", "blocks": 3}, 12)


def test_steps_of_another_size_train_what_is_left() -> None:
    """119 of 240 tokens in steps of 28 are four steps and a quarter."""
    run = run_of(SimpleNamespace(epoch_blocks=30, block_size=4), max_steps=-1, num_train_epochs=2)
    state = {"sources": {"a": {"position": 100}, "b": {"position": 21}}}
    corpora.fix_steps(run, state, 5, 7)
    assert run.args.max_steps == 10 and "and 5 are left" in said()
    corpora.fix_steps(run, state, 5, 1)
    assert run.args.max_steps == 10, "as many as were asked for"


def test_other_data_are_refused(tmp_path: Path) -> None:
    refuse_state(str(tmp_path))
    (tmp_path / LOADER_STATE_NAME).write_text("{}")
    with pytest.raises(ArgumentError, match="tokenised or streamed data"):
        refuse_state(str(tmp_path))
