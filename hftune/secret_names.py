"""Which names say that their value is a secret, and what well-known tokens look like."""

from __future__ import annotations

import functools
import re

MASK = "***"

_ALWAYS = {"secret", "secrets", "password", "passwd", "passphrase", "passcode", "apikey", "credential", "credentials"}
_TEXT_TOKENS = {
    *("pad", "eos", "bos", "bol", "eol", "unk", "sep", "cls", "mask", "sys", "system", "user", "assistant", "image"),
    *("video", "audio", "img", "start", "end", "stop", "turn", "think", "step", "special", "new", "add", "first"),
    *("last", "next", "per", "each", "a", "boi", "eoi", "eot", "sot", "fim", "prefix", "suffix", "separator", "tool"),
    *("out", "one", "decoder", "multi", "target", "context", "placeholder", "str", "text", "split", "word", "sub"),
}
"""Words before `token` with which it is a piece of text, as in `pad_token`."""
_OWNERS = (
    *("api", "access", "secret", "private", "auth", "ssh", "encryption", "signing", "account", "storage", "service"),
    *("subscription", "openai", "anthropic", "hf", "hub", "huggingface", "wandb", "comet", "aws", "azure", "gcp"),
    *("google", "gemini", "swanlab", "mlflow", "neptune", "clearml", "cohere", "mistral", "groq", "deepseek"),
    *("dashscope", "openrouter", "together", "fireworks", "replicate", "judge"),
)
"""Words before `key` with which it opens something; a `prompt_key` or `tag_key` names a field."""
_PUBLIC_KEYS = {"public", "sort", "primary", "foreign", "partition", "tag", "cache", "query", "column", "field"}
_ABOUT = {
    *("file", "path", "dir", "name", "names", "length", "limit", "limits", "count", "type", "ttl", "expiry", "host"),
    *("port", "endpoint", "size", "max", "min", "issuer", "parallelism", "budget", "url", "uri", "enabled"),
}
"""Last words of variables that say something about a secret and hold none."""
_GLUED = re.compile(rf"(?:{'|'.join(_OWNERS)})key$|(?:api|access|auth|hub|hf|bearer|session|refresh)token$")


@functools.lru_cache(maxsize=4096)
def says_secret(name: str) -> bool:
    """Whether an argument, or a key of a config, names a secret: `hub_token`, `comet.api_key`; not `pad_token`.

    Only the last words count: `max_new_tokens` and `mask_out_eos_token` are none.
    """
    words = _words(name)
    if not words:
        return False
    if words[-1] == "token":
        return len(words) == 1 or words[-2] not in _TEXT_TOKENS
    if words[-3:] == ["access", "key", "id"]:
        return True
    return words[-1] in _ALWAYS or _GLUED.search("".join(words)) is not None


@functools.lru_cache(maxsize=4096)
def variable_says_secret(name: str) -> bool:
    """Whether a variable of the environment names a secret: also `OPENAI_KEY`, and `TOKEN_OF_MINE`."""
    words = _words(name)
    if not words or words[-1] in _ABOUT:
        return False
    return says_secret(name) or names_any_key(name) or bool({*words} & _ALWAYS) or "token" in words[:-1]


def names_any_key(name: str) -> bool:
    """Whether a variable ends in `KEY`: its value is a secret only if it looks like one (`SORT_BY_KEY=id`)."""
    words = _words(name)
    return words[-1:] == ["key"] and not {*words} & _PUBLIC_KEYS


def _words(name: str) -> list[str]:
    return [word.lower() for word in re.findall(r"[A-Z]?[a-z0-9]+|[A-Z0-9]+(?![a-z])", name)]


_START = r"(?<![A-Za-z0-9])"
_SHAPES = (
    r"-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----[\s\S]*?(?:-----END [A-Z ]{0,40}PRIVATE KEY-----|\Z)",
    _START + r"hf_[A-Za-z0-9]{20,}",
    # Looks ahead so far and no further: in a text of nothing but `sk-` each would read all that follows.
    _START + r"sk-(?=[A-Za-z_-]{0,100}[0-9])[A-Za-z0-9_-]{20,}",
    _START + r"gh[opusr]_[A-Za-z0-9]{20,}",
    _START + r"github_pat_[A-Za-z0-9_]{20,}",
    _START + r"glpat-[A-Za-z0-9_-]{16,}",
    _START + r"xox[abeoprs]-[A-Za-z0-9-]{10,}",
    _START + r"A(?:KIA|SIA)[0-9A-Z]{16}(?![0-9A-Za-z])",
    _START + r"AIza[0-9A-Za-z_-]{30,}",
    _START + r"(?:gsk|npm|r8)_[A-Za-z0-9]{24,}",
    _START + r"(?:nvapi|pypi|dop_v1)[-_][A-Za-z0-9_-]{24,}",
    _START + r"ya29\.[A-Za-z0-9_-]{20,}",
    _START + r"eyJ[A-Za-z0-9_-]{8,}\.eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*",
)
SHAPES = re.compile("|".join(_SHAPES))
"""Tokens that anybody can tell by their form."""

BEARER = re.compile(r"(?i)\b(Bearer|Basic)([ \t]+)(?=[A-Za-z._~+/-]*[0-9=])[A-Za-z0-9._~+/=-]{16,}")

IN_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]{0,30}://[^\s/?#@:'\"]*):([^\s/?#'\"]+)@")
"""Groups: scheme and user; password."""

USER_IN_URL = re.compile(r"(https?://)([^\s/?#@:'\"]{20,})@")
"""Hosts of git take a token as the user."""

IN_QUERY = re.compile(
    r"(?i)([?&](?:[a-z0-9_-]*(?:token|secret|password|signature|api_?key|credential)|sig|key)=)([^&\s'\"#]+)"
)
