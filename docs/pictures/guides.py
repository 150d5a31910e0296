"""Draw the pictures of the guides: choosing a setting, long context, thoughts of earlier turns.

python docs/pictures/guides.py      choosing.svg, long_context.svg, rewritten_turns.svg
"""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from draw import arrow, box, svg, text  # noqa: E402

ROWS = {
    "all weights": [
        ("no flag", "18"),
        ("--deepspeed zero2", "2 + 16/N"),
        ("--deepspeed zero3", "18/N"),
        ("zero3_offload", "a few layers"),
    ],
    "an adapter": [
        ("--use_peft", "2"),
        ("+ zero3", "2/N"),
        ("--qlora", "about 1"),
        ("+ zero3_offload", "a few layers"),
    ],
}
"""What is trained -> settings, the dearest in memory first, each with its bytes a parameter on each of N GPUs."""


def main() -> None:
    """Draw all of them."""
    for name, draw in DRAWN.items():
        (HERE / f"{name}.svg").write_text(draw() + "\n", encoding="utf-8")


def choosing() -> str:
    """Settings from the one that takes the most memory to the one that takes the least."""
    wide, step, left = 158, 182, 20
    parts = [
        text(
            left, 28, "Does it fit? Stop. Does it not? One to the right. Below: bytes a parameter on each GPU.", "soft"
        )
    ]
    for row, (trained, settings) in enumerate(ROWS.items()):
        y = 62 + 106 * row
        parts.append(text(left, y - 10, trained, "bold"))
        for number, (flag, size) in enumerate(settings):
            x = left + step * number
            parts.append(box(x, y, flag, "adapter" if row else "box", wide))
            parts.append(text(x + wide / 2, y + 60, size, "soft mid"))
            if number:
                parts.append(arrow((x - step + wide + 3, y + 20), (x - 4, y + 20)))
    return svg(left + step * 4, 250, "Settings by the memory that they take, all weights and adapters", parts)


def long_context() -> str:
    """A row that four GPUs share: slices of tokens outside attention, shares of heads within."""
    left, wide, gpus = 90, 120, 4
    parts = [
        text(left, 28, "layers, MLPs, loss: a slice of the row each", "bold"),
        text(left + 400, 28, "attention: whole row, some heads", "bold"),
    ]
    for number in range(gpus):
        y = 48 + 46 * number
        parts.append(text(20, y + 24, f"GPU {number}", "soft"))
        for piece in range(gpus):
            kind = "adapter" if piece == number else "box"
            parts.append(f'<rect class="{kind}" x="{left + piece * 76}" y="{y}" width="70" height="34" rx="4"/>')
        parts.append(text(left + number * 76 + 35, y + 22, f"{32 * number}k-{32 * (number + 1)}k", "mid soft"))
        parts.append(arrow((left + 312, y + 17), (left + 390, y + 17)))
        parts.append(f'<rect class="adapter" x="{left + 400}" y="{y}" width="{wide * 2}" height="34" rx="4"/>')
        parts.append(text(left + 400 + wide, y + 22, f"0-128k, heads {8 * number}-{8 * number + 7}", "mid soft"))
    parts.append(text(left, 252, "A row of 128k tokens, 32 heads; exchanged before and after each attention.", "soft"))
    return svg(750, 272, "A row of tokens shared by four GPUs, outside and inside attention", parts)


def rewritten_turns() -> str:
    """Two rows of one conversation, each trained behind what a server shows."""
    first = [("question 1", False), ("thought 1", True), ("answer 1", True)]
    second = [
        ("question 1", False),
        ("answer 1", False),
        ("question 2", False),
        ("thought 2", True),
        ("answer 2", True),
    ]
    parts = [text(20, 28, "marked: trained; thought 1 is gone where turn 2 is trained, as in inference", "soft")]
    for number, (name, row) in enumerate((("row 1", first), ("row 2", second))):
        y = 48 + 62 * number
        parts.append(text(20, y + 25, name, "soft"))
        for place, (words, trained) in enumerate(row):
            parts.append(box(76 + 134 * place, y, words, "adapter" if trained else "box", 124))
    return svg(
        760, 170, "A conversation of two turns as two rows: earlier thoughts are not shown to later turns", parts
    )


DRAWN = {"choosing": choosing, "long_context": long_context, "rewritten_turns": rewritten_turns}


if __name__ == "__main__":
    main()
