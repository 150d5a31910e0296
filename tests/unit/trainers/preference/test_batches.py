"""Batches of pairs against literal tensors."""

from __future__ import annotations

from hftune.trainers.preference.batches import PairCollator

PAIRS = [
    {"prompt_ids": [1, 2, 3], "chosen_ids": [4, 5], "rejected_ids": [6], "margin": 2.0},
    {"prompt_ids": [7], "chosen_ids": [8], "rejected_ids": [9, 10], "margin": 1.0},
]


def test_padded() -> None:
    batch = PairCollator(0, flat=False)(PAIRS)
    assert batch["input_ids"].tolist() == [
        [1, 2, 3, 4, 5],  # places 0-4
        [7, 8, 0, 0, 0],  # 5-9
        [1, 2, 3, 6, 0],  # 10-14
        [7, 9, 10, 0, 0],  # 15-19
    ]
    assert batch["attention_mask"].sum(1).tolist() == [5, 2, 4, 3]
    # 3 predicts 4, 4 predicts 5, 7 predicts 8; then the rejected answers
    assert batch["answer_at"].tolist() == [2, 3, 5, 12, 15, 16]
    assert batch["answer_ids"].tolist() == [4, 5, 8, 6, 9, 10]
    assert batch["answer_lengths"].tolist() == [2, 1, 1, 2]
    assert (batch["chosen_total"], int(batch["num_tokens"].sum())) == (3, 14)
    assert batch["differences"].tolist() == [2.0, 1.0]
    assert PairCollator(0, flat=False, pad_to_multiple_of=4)(PAIRS)["input_ids"].shape == (4, 8)


def test_side_by_side() -> None:
    batch = PairCollator(0, flat=True)(PAIRS)
    assert batch["input_ids"].tolist() == [[1, 2, 3, 4, 5, 7, 8, 1, 2, 3, 6, 7, 9, 10]]
    assert batch["position_ids"].tolist() == [[0, 1, 2, 3, 4, 0, 1, 0, 1, 2, 3, 0, 1, 2]]
    assert batch["answer_at"].tolist() == [2, 3, 5, 9, 11, 12]
    assert batch["cu_seq_lens_q"].tolist() == [0, 5, 7, 11, 14]


def test_shared() -> None:
    batch = PairCollator(0, flat=True, shared=True)(PAIRS)
    #                                       prompt   chosen rejected
    assert batch["input_ids"].tolist() == [[1, 2, 3, 4, 5, 6, 7, 8, 9, 10]]
    # the rejected answer goes on behind the prompt
    assert batch["position_ids"].tolist() == [[0, 1, 2, 3, 4, 3, 0, 1, 1, 2]]
    # both answers' first tokens are predicted at the end of the prompt
    assert batch["answer_at"].tolist() == [2, 3, 6, 2, 6, 8]
    assert batch["answer_ids"].tolist() == [4, 5, 8, 6, 9, 10]
    assert batch["cu_seq_lens_q"].tolist() == [0, 5, 6, 8, 10]
    assert int(batch["num_tokens"].sum()) == 14
    shared = batch["shared_prompts"]
    assert (shared.runs, shared.key_runs) == ([5, 1, 2, 2], [5, 4, 2, 3])
    assert shared.counts.tolist() == [2, 2, 2, 1, 1, 1, 2, 1, 1, 1]


def test_single_answers_and_mismatches() -> None:
    records = [{"prompt_ids": [1, 2], "completion_ids": [3], "label": True, "kl_ids": [4, 5], "filler": False}]
    batch = PairCollator(0, flat=True, shared=True)(records)
    assert (batch["paired"], batch["label"].tolist(), batch["answer_ids"].tolist()) == (False, [True], [3])
    assert batch["kl"]["input_ids"].tolist() == [[1, 2, 4, 5]]
    assert batch["filler"].tolist() == [False]
