"""What was trained of a stream, as a checkpoint holds it."""

from __future__ import annotations

from hftune.data.corpus.progress import Origin, from_dict, merged


def test_progress_by_hand() -> None:
    """Two ranks that began with portion 0 done and one example of portion 1; rank b finishes portion 1."""
    state = {"done": {"0": [[0, 0]]}, "begun": [[0, 1, 1]], "totals": {"dropped": 2, "tokens": 10}}
    one, two = from_dict(state), from_dict(state)
    one.record([Origin(0, 2, 0, 0, 0, 5), Origin(0, 2, 1, 0, 0, 5)])
    two.record([Origin(0, 1, 1, 1, 1, 5), Origin(0, 3, 0, 1, 0, 5)])
    assert merged([one, two]).to_dict() == {
        "done": {"0": [[0, 1], [3, 3]]},
        "begun": [[0, 2, 2]],
        "totals": {"dropped": 3, "tokens": 30},
    }
