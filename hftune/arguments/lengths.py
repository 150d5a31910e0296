"""How long a prompt with its answers may be, and what becomes of one that is longer."""

from __future__ import annotations

from dataclasses import dataclass, field

from hftune.errors import ArgumentError

# MedicalGPT's RM scripts bound the sum; its DPO script bounds characters by a number of tokens.
EACH, SUM, CHARACTERS = "each", "sum", "sum_of_characters"
CUT, CUT_PROMPT, CUT_ANSWER, DROP = "cut", "cut_prompt", "cut_answer", "drop"


@dataclass
class PairLengths:
    """Mixed into arguments that have a `max_length`."""

    max_prompt_length: int | None = field(
        default=None, metadata={"help": "Tokens of the prompt that are kept, its end; left out: bound by max_length."}
    )
    max_completion_length: int | None = field(
        default=None, metadata={"help": "Tokens of an answer that are kept, its start; left out: bound by max_length."}
    )
    length_budget: str = field(
        default=EACH,
        metadata={
            "help": "each: --max_prompt_length and --max_completion_length bound prompt and answer apart. sum: their "
            "sum bounds both together. sum_of_characters: their sum is also the most characters of a prompt with an "
            "answer, longer records are dropped (MedicalGPT's DPO).",
            "choices": [EACH, SUM, CHARACTERS],
        },
    )
    too_long: str = field(
        default=CUT,
        metadata={
            "help": "What becomes of a record beyond its lengths. cut: the prompt loses its start, down to half of "
            "max_length, then an answer its end. cut_prompt, cut_answer: that alone, and what does not fit then is "
            "dropped. drop: the record is left out. Each is counted.",
            "choices": [CUT, CUT_PROMPT, CUT_ANSWER, DROP],
        },
    )

    def resolve_lengths(self) -> None:
        """Make `max_length` the sum of both lengths where both are given.

        Raises:
            ArgumentError: A sum of one length, or characters that nothing is dropped for.
        """
        if self.max_prompt_length is not None and self.max_completion_length is not None:
            # What TRL and the collators read; a --max_length that was given as well would contradict both parts.
            self.max_length = self.max_prompt_length + self.max_completion_length
        elif self.length_budget != EACH:
            raise ArgumentError(
                "a budget is the sum of two lengths",
                place=f"--length_budget {self.length_budget}",
                fix="give --max_prompt_length and --max_completion_length; or --max_length alone, which bounds both",
            )
        if self.length_budget == CHARACTERS and self.too_long != DROP:
            raise ArgumentError(
                "text is cut in tokens; by its characters a record is kept or dropped",
                place=f"--length_budget {CHARACTERS}, --too_long {self.too_long}",
                fix=f"add --too_long {DROP}, or use --length_budget {SUM}",
            )

    @property
    def separate_limits(self) -> tuple[int | None, int | None]:
        """Tokens of a prompt and of an answer, where each has a limit of its own."""
        return (self.max_prompt_length, self.max_completion_length) if self.length_budget == EACH else (None, None)

    @property
    def most_characters(self) -> int | None:
        """Characters of a prompt with an answer, where these are counted."""
        return self.max_length if self.length_budget == CHARACTERS else None
