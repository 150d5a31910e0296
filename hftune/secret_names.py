"""Which names say that their value is a secret, where in a text one stands, and what well-known tokens look like."""

from __future__ import annotations

import functools
import re

MASK = "***"

_ALWAYS = {"secret", "secrets", "password", "passwd", "passphrase", "passcode", "apikey", "credential", "credentials"}
# Ends of a last word that others are glued to, as in `PGPASSWORD`.
_ALWAYS_ENDS = ("password", "passwords", "passwd", "passphrase", "apikey", "apikeys", "sshpass")
# Words before `token` with which it is a piece of text, as in `pad_token`.
_TEXT_TOKENS = {
    *("pad", "eos", "bos", "bol", "eol", "unk", "sep", "cls", "mask", "sys", "system", "user", "assistant", "image"),
    *("video", "audio", "img", "start", "end", "stop", "turn", "think", "step", "special", "new", "add", "first"),
    *("last", "next", "per", "each", "a", "boi", "eoi", "eot", "sot", "fim", "prefix", "suffix", "separator", "tool"),
    *("out", "one", "decoder", "multi", "target", "context", "placeholder", "str", "text", "split", "word", "sub"),
    *("max", "min", "num"),
}
# Words before `key` with which it opens something; a `prompt_key` or `tag_key` names a field.
_OWNERS = (
    *("api", "access", "secret", "private", "auth", "ssh", "encryption", "signing", "account", "storage", "service"),
    *("subscription", "openai", "anthropic", "hf", "hub", "huggingface", "wandb", "comet", "aws", "azure", "gcp"),
    *("google", "gemini", "swanlab", "mlflow", "neptune", "clearml", "cohere", "mistral", "groq", "deepseek"),
    *("dashscope", "openrouter", "together", "fireworks", "replicate", "judge"),
)
_PUBLIC_KEYS = {"public", "sort", "primary", "foreign", "partition", "tag", "cache", "query", "column", "field"}
# Last words of variables that say something about a secret and hold none.
_ABOUT = {
    *("file", "path", "dir", "name", "names", "length", "limit", "limits", "count", "type", "ttl", "expiry", "host"),
    *("port", "endpoint", "size", "max", "min", "issuer", "parallelism", "budget", "url", "uri", "enabled"),
}
_GLUED = re.compile(
    rf"(?:{'|'.join(_OWNERS)})keys?$|(?:api|access|auth|hub|hf|bearer|session|refresh)token$"
    r"|(?:api|access|auth|hf|refresh)tokens$"
)
# Words before `pass` with which it is a round.
_NO_PASSWORD = {"forward", "backward", "first", "second", "last", "single", "multi", "one", "two", "n", "num", "by"}
# Words before `pat`, a personal access token; a `FILE_PAT` is a pattern.
_OF_PAT = {"github", "gh", "gitlab", "gl", "azure", "ado", "devops", "bitbucket", "databricks", "personal", "access"}
# Last words of variables whose values are secrets if they look like it (`SMTP_AUTH=plain` is none).
_SHORT = {"pw", "pwd", "sas", "dsn", "auth", "jwt", "bearer", "authorization", "cookie", "creds", "connstr"}
# Last words of variables that say how a secret is written.
_FORMS = {"pem", "json", "b64", "base64", "raw", "value"}


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
    if words[-3:] == ["access", "key", "id"] or words[-2:] in (["connection", "string"], ["conn", "str"]):
        return True
    # The last word counts: `password_file` and `max_new_tokens` say something else.
    return words[-1] in _ALWAYS or words[-1].endswith(_ALWAYS_ENDS) or _GLUED.search("".join(words)) is not None


@functools.lru_cache(maxsize=4096)
def variable_says_secret(name: str) -> bool:
    """Whether a variable of the environment names a secret: also `OPENAI_KEY`, `DB_PASS`, and `TOKEN_OF_MINE`."""
    words = _words(name)
    if "webhook" in words and words[-1] in ("url", "uri", "endpoint"):
        return True
    if not words or words[-1] in _ABOUT:
        return False
    if surely_secret(name) or bool({*words} & _ALWAYS) or "token" in words[:-1]:
        return True
    # Alone it is the mark before a user's turn; behind the name of a service (`DAGSHUB_USER_TOKEN`) a key.
    if words[-2:] == ["user", "token"] and len(words) > 2:
        return True
    return may_be_secret(name) or words[-2:] == ["auth", "config"]


@functools.lru_cache(maxsize=4096)
def surely_secret(name: str) -> bool:
    """Whether any value of a variable of that name is a secret."""
    words = _words(name)
    if words and words[-1] in _FORMS:
        return surely_secret("_".join(words[:-1]))
    if says_secret(name):
        return True
    before = words[-2] if len(words) > 1 else ""
    if words[-1:] == ["pass"]:
        return before != "" and before not in _NO_PASSWORD
    return words[-1:] == ["pat"] and before in _OF_PAT


def may_be_secret(name: str) -> bool:
    """Whether a value of a variable of that name is a secret only if it looks like one (`SORT_BY_KEY=id`)."""
    words = _words(name)
    if words[-1:] == ["key"]:
        return not {*words} & _PUBLIC_KEYS
    return "webhook" in words or (bool(words) and words != ["pwd"] and words[-1] in _SHORT)


def _words(name: str) -> list[str]:
    """Its words in lower case; numbers at the end count nothing: `API_KEY_2`, `PASSWORD1`."""
    # Cuts `hubToken`, `HUB_TOKEN` and `hub.token` alike.
    found = [word.lower() for word in re.findall(r"[A-Z]?[a-z0-9]+|[A-Z0-9]+(?![a-z])", name)]
    while found and found[-1].isdecimal():
        found.pop()
    if found and found[-1] not in _FORMS:
        found[-1] = found[-1].rstrip("0123456789")
    return found


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


IN_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]{0,30}://[^\s/?#@:'\"]*):([^\s/?#'\"]+)@")
"""Groups: scheme and user; password."""

IN_QUERY = re.compile(
    r"(?i)([?&](?:[a-z0-9_-]*(?:token|secret|password|signature|api_?key|credential)|sig|key)=)([^&\s'\"#]+)"
)

IN_CONNECTION = re.compile(
    r"(?i)((?:;[ \t]{0,9}(?:password|pwd)|\b(?:accountkey|sharedaccess(?:key|signature)))[ \t]?=[ \t]?)"
    r"([^;\s'\"\\]+)"
)
"""Secrets in a connection string, `AccountName=me;AccountKey=...;`; groups: name; secret."""

IN_JSON = re.compile(r"(?<![\w.-])([\w.-]+)[\"']?[ \t\n]{0,9}[:=][ \t\n]{0,9}[\"']?([^\"',{}\[\]\s]+)")
"""Names and values in something like JSON."""
