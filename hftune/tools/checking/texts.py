"""What may be wrong with the text of a record: answers cut off, refusals, control tokens, broken encodings, tokens.

Each function gives the reason as a few words, "" where nothing is wrong. Patterns begin with a literal, or are tried
on a bounded part of the text, and repeat nothing without a bound: their time grows with the text and no faster.
"""

from __future__ import annotations

import re

from ftfy.badness import is_bad

from hftune.errors import shown
from hftune.secrets import IN_URL, MASK

# Of an answer: a refusal begins it.
_BEGINNING = 240
_REFUSAL = re.compile(
    r"(?:I['’]m|I am|We['’]re) (?:very |really |truly )?sorry,? (?:but )?(?:I|we|as an)\b"
    r"|(?:I|We) (?:can(?:no|['’])t|cannot|am unable to|am not able to|won['’]t) "
    r"(?:assist|help|provide|fulfil|comply|answer|create|generate|engage|write|do that|support)"
    r"|(?:Sorry|I apologi[sz]e),? (?:but )?I (?:can(?:no|['’])t|cannot|am unable|am not able)"
    r"|(?:对不起|抱歉|不好意思)[，,、。！! ]{0,3}(?:但|但是|作为[^，。\n]{0,20}[，,])?(?:我|目前我|作为)"
    r"[^，。\n]{0,12}(?:无法|不能|不会|没有办法|没法|不可以)"
    r"|(?:我|作为[^，。\n]{0,20}，我)(?:无法|不能)(?:提供|协助|回答|帮助|满足|完成|执行|生成)"
)
# Looked for first, one by one: most answers hold none, and each costs a thousandth of the pattern.
_BOILERPLATE_MARKS = ("n AI ", "语言模型", "人工智能", "AI助手", "OpenAI", "ChatGPT", "nowledge cut", "知识截止")
_BOILERPLATE = re.compile(
    r"(?:[Aa]s|I am|I['’]m) an AI (?:language |assistant|model|developed|trained|and|,)"
    r"|作为(?:一个|一名|一款)?(?:人工智能|AI|大型)[^，。\n]{0,10}(?:模型|助手|程序|系统)?[，,]"
    r"|我(?:只)?是(?:一个|一名|一款)?[^，。\n]{0,12}(?:语言模型|人工智能助手|AI助手)"
    r"|(?:developed|trained|created|made) by OpenAI|由 ?OpenAI ?[^，。\n]{0,6}(?:开发|训练|创建|研发)"
    r"|I(?:['’]m| am) ChatGPT|我是 ?ChatGPT|[Mm]y knowledge cut-?off|知识截止"
)
_CONTROL = re.compile(
    r"<\|[A-Za-z0-9_]{1,40}\|>|<｜[^｜\n<>]{1,40}｜>|\[/?(?:INST|SYSTEM_PROMPT|AVAILABLE_TOOLS|TOOL_RESULTS)\]|<</?SYS>>"
    r"|<(?:start|end)_of_(?:turn|image)>|<(?:bos|eos|pad|unk)>|</s>\s{0,9}(?:\Z|<s>)|<\[?(?:BOS|EOS)_(?:never_used|TOKEN)"
)
_GARBLED = re.compile("锟斤拷|烫烫烫|屯屯屯|ï¿½")
# Two signs of the Western alphabets' upper half, of Greek or of Cyrillic, or boxes: bytes of UTF-8 read as something
# else always give one of them. Whether they do is for ftfy to say, which takes its time.
_SUSPECT = re.compile("[\x80-\x9f\xa1-\xff\u0100-\u017f\u0370-\u045f\u2500-\u259f\u221a\u0192]")

_OPEN = ",，、;；:：([{（【「『《“‘&+=*/\\"
_HANGING = re.compile(
    r"(?<![A-Za-z'’-])(?:a|an|the|and|or|of|to|with|for|from|by|is|are|was|were|but|because|that|which|as|than|your|their)\Z"
)
_ENDS = ".!?。！？…；;:：\"”'’)）】」』》`*|~>"
_SENTENCE = re.compile(r"[.!?](?=\s)|[。！？]")
_ITEM = re.compile(r"\s{0,40}(?:[-*•#>|]|[0-9]{1,3}[.、)）])")
_SHORTEST, _LONG, _LONG_LINE = 30, 160, 40

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


def tokens_in(text: str) -> list[str]:
    """Tokens that anybody can tell by their form."""
    # The pattern of all forms takes a hundred times as long as looking for what each of them begins with.
    return [found[0] for found in _TOKEN.finditer(text)] if any(mark in text for mark in _TOKENS) else []


def refusal(answer: str) -> str:
    """Whether an answer begins with a refusal."""
    found = _REFUSAL.search(answer[:_BEGINNING])
    return f"the answer refuses: {shown(found[0], 40)}" if found else ""


def boilerplate(text: str) -> str:
    """Whether an assistant speaks of itself as another one does: a phrase that would be learnt."""
    if not any(mark in text for mark in _BOILERPLATE_MARKS):
        return ""
    found = _BOILERPLATE.search(text)
    return f"the assistant of another maker speaks: {shown(found[0], 40)}" if found else ""


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


def secret(text: str) -> str:
    """Whether a text holds tokens by their form, or passwords in URLs and headers; two characters of each are shown."""
    found = tokens_in(text)
    if "://" in text and "@" in text:
        found += [match[2] for match in IN_URL.finditer(text)]
    masked = dict.fromkeys(f"{one[: min(2, len(one) // 4)]}{MASK}" for one in found)
    return f"the text holds {', '.join([*masked][:3])}" if found else ""


def cut_off(answer: str) -> str:
    """Whether an answer ends in the middle."""
    text = answer.rstrip()
    if len(text) < _SHORTEST:
        return ""
    if text.count("```") % 2:
        return "a block of code is not closed"
    if text[-1] in _OPEN and not text.endswith("**"):
        return f"the answer ends with {text[-1]}"
    if found := _HANGING.search(text[-20:]):
        return f"the answer ends with the word {found[0]}"
    return _unfinished(text)


def _unfinished(text: str) -> str:
    """Prose whose last sentence has no end: not lists, titles, tables, code, or an answer of a word."""
    last = text[-2000:].rpartition("\n")[2]
    if len(text) < _LONG or len(last) < _LONG_LINE or text[-1] in _ENDS or not text[-1].isalnum() or _ITEM.match(last):
        return ""
    sentences = _SENTENCE.findall(text[-2000:])
    return "the last sentence has no end" if len(sentences) >= 3 else ""
