"""Which chat template to propose, where there is none or where the one at hand cannot write a record."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable

from transformers import PreTrainedTokenizerBase

from hftune.chat_templates import CHATML, GENERAL, text_of, tokens_of
from hftune.errors import DataError

_UNDEFINED = re.compile(r"'(\w+_token)' is undefined")
_TURNS = ("<|im_start|>", "<|im_end|>")


def require_chat_template(tokenizer: PreTrainedTokenizerBase, flag: str = "--chat_template") -> None:
    """Refuse a tokenizer without a chat template.

    Raises:
        DataError: Saying how to give one.
    """
    if not tokenizer.chat_template:
        # ChatML first: nearly all tools read it. Without its tokens they can be added.
        fitting = ["chatml"] if tokens_of(CHATML) <= tokenizer.get_vocab().keys() else fitting_templates(tokenizer)
        proposed = fitting[0] if fitting else f"chatml --add_special_tokens '{','.join(_TURNS)}'"
        raise DataError(
            "the tokenizer has no chat template, so conversations cannot be written as text",
            place=flag,
            fix=f"Add {flag} {proposed}; or give a .jinja file, or an instruct model and its tokenizer.",
        )


def fitting_templates(tokenizer: PreTrainedTokenizerBase) -> list[str]:
    """The general templates whose special tokens are in the tokenizer's vocabulary."""
    known = tokenizer.get_vocab().keys()
    return [name for name in GENERAL if tokens_of(text_of(name)) <= known]


def without_token(error: Exception, tokenizer: PreTrainedTokenizerBase) -> DataError | None:
    """The message for a template that asks for a token which the tokenizer has not; None for another error."""
    # Jinja's own words; the name is what the template has asked for.
    named = _UNDEFINED.match(str(error))
    if named is None:
        return None
    fitting = next((f"or --chat_template {name}, " for name in fitting_templates(tokenizer)), "")
    return DataError(
        f"the chat template writes the {named[1]}, and this tokenizer has none: it belongs to another model",
        place="--chat_template",
        fix=f"Leave --chat_template out, {fitting}or give a tokenizer with {named[1]} by --tokenizer_name_or_path.",
        kind="a template of another model",
    )


class TemplateProposals:
    """Proposes templates for one tokenizer, searching once for each sort of fault and not for each record.

    Args:
        tokenizer: With the template that has the faults.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self.tokenizer = tokenizer
        self.found: dict[str, str | None] = {}

    def fix_for(self, what: str, otherwise: str, works: Callable[[PreTrainedTokenizerBase], bool]) -> str:
        """What to do about a record: a template that was found to write it, if there is one; or something else.

        Args:
            what: The sort of fault.
            otherwise: What to do about the record itself.
            works: Whether the tokenizer, with another template, writes the record.
        """
        # Trying all templates takes a second, and a data set with this fault has it in thousands of records.
        if what not in self.found:
            fitting = fitting_templates(self.tokenizer)
            self.found[what] = next((name for name in fitting if works(self._with(name))), None)
        name = self.found[what]
        other = f"Add --chat_template {name}, which writes this record whole" if name else ""
        ways = [other, otherwise, "leave such records out with --on_bad_record drop"]
        if not name:
            ways.append("give a template that writes it, as --chat_template FILE.jinja")
        text = "; or ".join(way for way in ways if way)
        return f"{text[0].upper()}{text[1:]}."

    def _with(self, name: str) -> PreTrainedTokenizerBase:
        # The tokenizer of the run must keep the template that it has.
        other = copy.copy(self.tokenizer)
        other.chat_template = text_of(name)
        return other
