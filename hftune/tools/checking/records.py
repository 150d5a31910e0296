"""A record of any stage as the check looks at it, and what may be wrong with its text.

Functions on texts give the reason as a few words, "" where nothing is wrong. Patterns begin with a literal, or are
tried on a bounded part of the text, and repeat nothing without a bound: their time grows with the text alone.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

import xxhash
from ftfy.badness import is_bad

from hftune.data.compared_answers import to_preference
from hftune.data.files import Row
from hftune.data.formats import CONVERSATIONS, TEXTS, first_fit, is_labelled, pair_format
from hftune.data.messages import Message
from hftune.data.records import NO_ASSISTANT, to_conversation, to_labelled, to_prompt, to_text
from hftune.errors import DataError, shown
from hftune.secrets import IN_URL, MASK

FOR = CONVERSATION, PAIR, LABELLED, PROMPT, TEXT = "conversation", "pair", "labelled", "prompt", "text"


@dataclass(slots=True)
class Record:
    """What one record says.

    Attributes:
        kind: What it is for: one of the names above.
        spoken: (role, text) of each turn, prompt before answers; of a text for pre-training one turn of nobody.
        label: False for an answer that is labelled bad.
    """

    kind: str
    spoken: list[tuple[str, str]]
    label: bool = True

    @property
    def compared(self) -> str:
        """What is compared with other records: all but system texts, which thousands of records share."""
        return "\n".join(text for role, text in self.spoken if role != "system")

    @property
    def asked(self) -> str:
        """What the user says."""
        return "\n".join(text for role, text in self.spoken if role == "user")

    @property
    def exact(self) -> int:
        """A hash of everything that is trained, 64 bits; where one part ends and the next begins counts."""
        digest = xxhash.xxh3_64()
        for part in (self.kind, str(self.label), *(part for turn in self.spoken for part in turn)):
            content = part.encode("utf-8", "surrogatepass")
            digest.update(len(content).to_bytes(8, "little") + content)
        return digest.intdigest()


def to_record(row: Row) -> Record:
    """The record of a row, in whichever of the known formats it is.

    Raises:
        DataError: In none of them, or one that no stage could train on.
    """
    value = row.value
    if pair_format(value) or (isinstance(value.get("output"), list) and value.get("instruction") is not None):
        pair = to_preference(row)
        return _made(PAIR, [*pair.prompt, *pair.chosen, *pair.rejected])
    if is_labelled(value):
        labelled = to_labelled(row)
        return _made(LABELLED, [*labelled.prompt, *labelled.completion], label=labelled.label)
    if first_fit(value, CONVERSATIONS):
        try:
            return _made(CONVERSATION, to_conversation(row).messages)
        except DataError as error:
            if error.kind != NO_ASSISTANT:
                raise
    elif first_fit(value, TEXTS):
        return Record(TEXT, [("", to_text(row))])
    return _made(PROMPT, to_prompt(row).messages)


def _made(kind: str, messages: list[Message], *, label: bool = True) -> Record:
    return Record(kind, [(str(message["role"]), _text(message)) for message in messages], label)


def _text(message: Message) -> str:
    """All that a turn says: thoughts, text, calls."""
    if len(message) == 2:
        return str(message["content"])
    parts = [message.get("reasoning_content") or "", message.get("content") or ""]
    for call in message.get("tool_calls") or []:
        parts.append(json.dumps(call.get("function"), ensure_ascii=False, default=str))
    return "\n".join(str(part) for part in parts if part)


# --- what may be wrong with a text ---

_CONTROL = re.compile(
    r"<\|[A-Za-z0-9_]{1,40}\|>|<｜[^｜\n<>]{1,40}｜>|\[/?(?:INST|SYSTEM_PROMPT|AVAILABLE_TOOLS|TOOL_RESULTS)\]|<</?SYS>>"
    r"|<(?:start|end)_of_(?:turn|image)>|<(?:bos|eos|pad|unk)>|</s>\s{0,9}(?:\Z|<s>)|<\[?(?:BOS|EOS)_(?:never_used|TOKEN)"
)
_GARBLED = re.compile("锟斤拷|烫烫烫|屯屯屯|ï¿½")
# Two signs of the Western alphabets' upper half, of Greek or of Cyrillic, or boxes: bytes of UTF-8 read as something
# else always give one of them. Whether they do is for ftfy to say, which takes its time.
_SUSPECT = re.compile("[\x80-\x9f\xa1-\xff\u0100-\u017f\u0370-\u045f\u2500-\u259f\u221a\u0192]")

# By what they begin with: tokens by their issuers' own prefixes, and a length below which prose would match. Where one
# looks ahead, it looks so far and no further: in a text of nothing but `sk-` each would read all that follows.
_TOKENS = {
    "-----BEGIN": r"-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----[\s\S]*?(?:-----END [A-Z ]{0,40}PRIVATE KEY-----|\Z)",
    **{mark: mark + r"[A-Za-z0-9]{20,}" for mark in ("hf_", "ghp_", "gho_", "ghu_", "ghs_", "ghr_")},
    "github_pat_": r"github_pat_[A-Za-z0-9_]{20,}",
    **{mark: mark + r"[A-Za-z0-9_-]{16,}" for mark in ("glpat-", "gsk_", "npm_", "nvapi-", "pypi-", "AIza", "hvs.")},
    "sk-": r"sk-(?=[A-Za-z_-]{0,100}[0-9])[A-Za-z0-9_-]{20,}",
    "xox": r"xox[abeoprs]-[A-Za-z0-9-]{10,}",
    "AKIA": r"AKIA[0-9A-Z]{16}(?![0-9A-Za-z])",
    "eyJ": r"eyJ[A-Za-z0-9_-]{8,500}\.eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*",
    "hooks.slack.com": r"https://hooks\.slack\.com/[A-Za-z0-9/_-]{20,}",
    # A digit or a sign among the characters: "Bearer authentication" is prose.
    "earer": r"[Bb]earer[ \t]+(?=[A-Za-z._~+/-]{0,200}[0-9=])[A-Za-z0-9._~+/=-]{16,}",
}
_TOKEN = re.compile(rf"(?<![A-Za-z0-9])(?:{'|'.join(_TOKENS.values())})")


def control_token(text: str) -> str:
    """Whether a text holds control tokens: a chat template wrote it, or it means to break out of one."""
    found = _CONTROL.search(text)
    return f"the text holds {shown(found[0], 40)}" if found else ""


def damage(text: str) -> str:
    """Whether a text was decoded from the wrong encoding."""
    if text.isascii():
        return ""
    if "\ufffd" in text:
        return "a character was lost (U+FFFD)"
    if found := _GARBLED.search(text):
        return f"decoded from the wrong encoding: {shown(found[0])}"
    found = _SUSPECT.search(text)
    # From there on: nothing before it can be part of what is looked for.
    return "decoded from the wrong encoding (mojibake)" if found and is_bad(text[max(0, found.start() - 2) :]) else ""


def tokens_in(text: str) -> list[str]:
    """Tokens that anybody can tell by their form."""
    # The pattern of all forms takes a hundred times as long as looking for what each of them begins with.
    return [found[0] for found in _TOKEN.finditer(text)] if any(mark in text for mark in _TOKENS) else []


def secret(text: str) -> str:
    """Whether a text holds tokens by their form, or passwords in URLs and headers; two characters of each are shown."""
    found = tokens_in(text)
    if "://" in text and "@" in text:
        found += [match[2] for match in IN_URL.finditer(text)]
    masked = dict.fromkeys(f"{one[: min(2, len(one) // 4)]}{MASK}" for one in found)
    return f"the text holds {', '.join([*masked][:3])}" if found else ""


FAULTS = {"control_tokens": control_token, "encoding": damage, "secret": secret}
"""Kind of finding -> what looks for it in a text."""
