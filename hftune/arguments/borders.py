"""What becomes of turn borders in what records say."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class BorderFields:
    """For everything that turns what somebody has said into tokens."""

    borders_in_text: str = field(
        default="split",
        metadata={
            "help": "What becomes of text in records that spells a token with which the chat template begins or ends "
            "turns, or BOS, EOS or padding, such as <|im_end|>. split: it stays text, in pieces like any other; error: "
            "the record cannot be used; allow: it becomes that token, and may end a turn or open another one.",
            "choices": ["error", "split", "allow"],
        },
    )
