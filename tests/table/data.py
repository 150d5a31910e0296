"""Small records of every stage, the same text in each form."""

from __future__ import annotations

import json
from pathlib import Path

from tests.conftest import CHATS


def write_data(folder: Path) -> None:
    """`pt`, `sft`, `pairs` and `prompts` below `folder`, unless they are there."""
    turns = [[turn["content"] for turn in record["messages"]] for record in CHATS]
    records = {
        "sft": CHATS,
        "pairs": [
            {
                "conversations": [{"from": "human", "value": question}],
                "chosen": answer,
                "rejected": f"Great question! Well, {question.lower()} Who knows.",
            }
            for question, answer in turns
        ],
        "prompts": [{"prompt": question} for question, _ in turns],
        "pt": [{"text": f"{question} {answer} " * 6} for question, answer in turns],
    }
    for name, values in records.items():
        file = folder / name / "train.jsonl"
        if not file.is_file():
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text("".join(json.dumps(value) + "\n" for value in values), encoding="utf-8")
