"""What was trained of a stream, as a checkpoint holds it."""

from __future__ import annotations

from hftune.data.corpus.progress import End, Origin, Progress, Trained, Window


def test_progress_is_where_the_last_example_left_it() -> None:
    progress = Progress()
    progress.record([Origin(Window(0, 0, 0), End(3, 1), 2, 5), Origin(Window(0, 1, 4), End(6), 1, 4)])
    assert progress == Progress(Window(0, 1, 4), End(6, 0), 3, 9)


def test_whose_a_record_was() -> None:
    """Groups of two, three ranks: 0 1 to rank 0, 2 3 to rank 1, 4 5 to rank 2, 6 7 to rank 0 again."""
    trained = Trained(2, [End(7), End(9), End(4, 1)])
    assert [trained.end(position).position for position in range(8)] == [7, 7, 9, 9, 4, 4, 7, 7]
