"""What translations are asked in tests, and their answers as texts."""

from __future__ import annotations

from hftune.arguments.names.row import Request, Translation


def ask(command: str, others: str = "", stage: str = "sft", world: int = 1, local: int | None = None) -> Request:
    """What a translation is asked: `a=1 b=x,y` as arguments; without "=", a switch."""
    pairs = [
        {
            name: value.split(",") if equals else []
            for name, equals, value in (part.partition("=") for part in text.split())
        }
        for text in (command, others)
    ]
    return Request(pairs[0], pairs[1], stage, world, local or world)


def translated(function: Translation, question: Request) -> dict[str, str]:
    """The answer's arguments, values as a text."""
    return {name: " ".join(values) for name, values in function(question).given}
