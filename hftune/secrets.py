"""One redacting filter: secrets are known by their value, or stand under a key or flag whose name says so.

Known are values of arguments and config keys whose names say so (`learn_command`, `learn_config`), variables of the
environment, passwords in URLs, the saved token of the Hub. All that hftune writes or says goes through `redact` or
`redacted`: manifests, log lines, messages, reports, cards, commands, configs for trackers.
"""

from __future__ import annotations

import functools
import json
import os
import re
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import quote, quote_plus, unquote

from hftune.tables import read_table

MASK = "***"
SHORTEST = 8
"""Characters. A shorter value is masked at its own place only: it would be found by chance everywhere."""
_LONG = 20
# By what they say of a name: `secret_words.csv` tells.
_COMMON, _ENDS, _TEXT_TOKENS, _OWNERS, _MAYBE = (
    tuple(row["words"].split()) for row in read_table(__package__, "secret_words.csv")
)

# --- names ---

_GLUED = re.compile(
    rf"(?:(?:{'|'.join(_OWNERS)})keys?|(?:api|access|auth|hub|hf|bearer|session|refresh)tokens?|accesskeyid|"
    r"connectionstring|connstr)$"
)

# --- forms in a text ---

IN_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]{0,30}://[^\s/?#@:'\"]*):([^\s/?#'\"]+)@")
"""Groups: scheme and user; password."""
_NAMED = re.compile(
    r"(?i)([?&;][ \t]{0,9}(?:[\w-]*(?:token|secret|password|pwd|signature|accountkey|api_?key|credential)|sig|key)"
    r"[ \t]?=[ \t]?)([^&;\s'\"#\\]+)"
)
"""Of a query (`?token=`) or a connection string (`;AccountKey=`); groups: name; secret."""

# For the whole process and never written: a secret is known by its value, wherever it turns up.
_learned: set[str] = set()


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
    return words[-1].endswith(_ENDS) or _GLUED.search("".join(words)) is not None


@functools.lru_cache(maxsize=4096)
def variable_says_secret(name: str) -> bool:
    """Whether a variable of the environment names a secret: also `MY_SERVICE_KEY`, `DB_PASS`, `SLACK_WEBHOOK_URL`."""
    words = _words(name)
    if says_secret(name) or words[-2:] == ["webhook", "url"]:
        return True
    # Alone, `user_token` is the mark before a user's turn; behind the name of a service a key.
    if words[-1:] == ["token"]:
        return words[-2:] == ["user", "token"] and len(words) > 2
    return len(words) > 1 and words[-1] in _MAYBE


def _words(name: str) -> list[str]:
    """Its words in lower case; numbers at the end count nothing: `API_KEY_2`, `PASSWORD1`."""
    # Cuts `hubToken`, `HUB_TOKEN` and `hub.token` alike.
    found = [word.lower() for word in re.findall(r"[A-Z]?[a-z0-9]+|[A-Z0-9]+(?![a-z])", name)]
    while found and not (last := found[-1].rstrip("0123456789")):
        found.pop()
    return [*found[:-1], last] if found else []


# --- what is known ---


def learn(value: object) -> None:
    """Remember a secret; what is too short or too common to be searched for is not."""
    # A float is no secret that anybody has, and "1.0" would be found everywhere.
    if value is not None and not isinstance(value, bool | float | Mapping | list | tuple):
        text = str(value).strip()  # a YAML file makes a number or a date of some
        _learned.update({text} if _is_searched(text) else ())


def learn_config(config: object) -> None:
    """Remember the secrets of a config: values of keys whose names say so, at any depth, and passwords in URLs."""
    if isinstance(config, Mapping):
        for name, value in config.items():
            for text in _leaves(value) if says_secret(str(name)) else ():
                learn(text)
            learn_config(value)
    elif isinstance(config, list | tuple):
        for value in config:
            learn_config(value)
    elif isinstance(config, str):
        _learned.update(_passwords(config))
        # `--deepspeed '{...}'`, `--callbacks FILE.py:CLASS{"token": "..."}`
        if (start := config.find("{")) >= 0:
            learn_config(_parsed(config[start:]))


def learn_variables(environment: Mapping[str, str]) -> None:
    """Remember the secrets among variables of an environment."""
    for name, value in environment.items():
        _learn_variable(name, value)


def learn_command(argv: Sequence[str]) -> None:
    """Remember the secrets of a command line."""
    for name, values in _as_given(argv):
        for value in values:
            learn_config({name: value})


def forget() -> None:
    """Forget what was learnt; for tests."""
    _learned.clear()
    _command_learned.cache_clear()
    _learn_variable.cache_clear()
    _saved_token.cache_clear()


def known() -> frozenset[str]:
    """All secrets known now: learnt ones, those of this process's environment and command, the Hub's saved token."""
    _command_learned(tuple(sys.argv))
    learn_variables(os.environ)
    return frozenset(_learned | _saved_token("huggingface_hub" in sys.modules))


@functools.lru_cache(maxsize=4)
def _command_learned(argv: tuple[str, ...]) -> None:
    learn_command(argv[1:])


# Redaction runs for every line that is logged; the environment hardly changes in between.
@functools.lru_cache(maxsize=4096)
def _learn_variable(name: str, value: str) -> None:
    learn_config(value)
    if variable_says_secret(name) and (says_secret(name) or _looks_secret(value)):
        learn(value)
    if name.lower().endswith(("url", "uri", "dsn")):
        # The last `@` ends the password: passwords with an `@` of their own are often not quoted there.
        user, at, _ = value.partition("://")[2].rpartition("@")
        learn(user.partition(":")[2] or user if at else None)


def _is_searched(value: str) -> bool:
    if len(value) < SHORTEST or value.lower() in _COMMON or MASK in value or value.startswith(("<", "${")):
        return False
    # A variable may name the file that holds a secret; a path is no secret, and logs are full of it.
    return not ("/" in value and os.path.exists(value))


def _looks_secret(value: str) -> bool:
    return len(value) >= _LONG or bool(re.search(r"[0-9]", value) and re.search(r"[A-Za-z]", value))


def _passwords(text: str) -> set[str]:
    """Passwords in URLs, queries and connection strings, as they are written there and decoded."""
    # The tests for a character come first: most texts have none, and regular expressions cost microseconds each.
    found = {match[2] for match in IN_URL.finditer(text)} if "://" in text else set()
    named = _NAMED.finditer(text) if "=" in text else ()
    # In a query `key=instruction` is a word.
    found |= {match[2] for match in named if match[1].startswith(";") or _looks_secret(match[2])}
    return {form for password in found for form in (password, unquote(password)) if _is_searched(form)}


def _leaves(value: object) -> Iterator[object]:
    if isinstance(value, Mapping | list | tuple):
        for entry in value.values() if isinstance(value, Mapping) else value:
            yield from _leaves(entry)
    else:
        yield value


@functools.lru_cache(maxsize=2)
def _saved_token(loaded: bool) -> frozenset[str]:
    """The token that `hf auth login` has saved: without the Hub's client nothing in this process has read it."""
    if not loaded:
        return frozenset()
    from huggingface_hub import get_token

    return frozenset(filter(_is_searched, [get_token() or ""]))


# --- texts and objects without them ---


def redact(text: str) -> str:
    """A text in which `***` stands for every known secret, and for a password in a URL or behind a name for it."""
    return _without(known(), text)


def _without(values: frozenset[str], text: str) -> str:
    if values:
        text = _pattern(values).sub(MASK, text)
    if "://" in text:
        text = IN_URL.sub(rf"\1:{MASK}@", text)
    return _NAMED.sub(rf"\1{MASK}", text) if "=" in text else text


def redacted(value: Any) -> Any:
    """A copy of dicts, lists and texts without secrets; under a key whose name says so no text is left at all.

    What is neither is returned as it is, unless its text holds a secret: then as that text, redacted.
    """
    return _copy_without(known(), value)  # looked up once: a manifest has some thousand texts


def _copy_without(values: frozenset[str], value: Any) -> Any:
    if isinstance(value, Mapping):
        return {
            _without(values, name) if isinstance(name, str) else name: masked(entry)
            if says_secret(str(name))
            else _copy_without(values, entry)
            for name, entry in value.items()
        }
    if isinstance(value, list | tuple | set | frozenset):
        entries = [_copy_without(values, entry) for entry in value]
        return entries if isinstance(value, list) else tuple(entries) if isinstance(value, tuple) else {*entries}
    if value is None or isinstance(value, bool | int | float):
        return value
    text = value if isinstance(value, str) else str(value)
    shown = _without(values, text)
    # What is no text stays what it is: a manifest has numbers, dtypes and paths as such.
    return value if shown == text else shown


def masked(value: Any) -> Any:
    """`***` for a text or number, also those inside; None, True and False say nothing and stay."""
    if isinstance(value, Mapping):
        return {name: masked(entry) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return [masked(entry) for entry in value]
    return value if value is None or isinstance(value, bool) or value == "" else MASK


def without_secrets(values: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments fit to be written down: None where a name says secret, `***` for a secret anywhere else."""
    secrets = known()
    return {name: None if says_secret(name) else _copy_without(secrets, value) for name, value in values.items()}


def variables_without_secrets(environment: Mapping[str, str]) -> dict[str, str]:
    """Variables fit to be shown."""
    learn_variables(environment)
    return {
        name: MASK if value and variable_says_secret(name) else redact(value) for name, value in environment.items()
    }


def command_without_secrets(argv: Sequence[str]) -> list[str]:
    """A command line fit to be written down and shown, word by word.

    Masked are values of flags whose names say so (`--hub-token X`, `--hub_token=X`, several values), `NAME=value` of
    such variables, and secrets inside of JSON and URLs.
    """
    learn_command(argv)
    shown, hides = [], False
    for word in argv:
        name, equals, value = word.partition("=")
        # A flag ends what the one before it hides, also where several values follow.
        if _is_flag(word):
            hides = says_secret(name)
            shown.append(f"{name}={MASK if hides and value else _inside(value)}" if equals else redact(word))
        elif hides and word.lower() not in ("true", "false", "none", "null"):  # `--use_auth_token True` says nothing
            shown.append(MASK)
        elif equals and name.isidentifier() and variable_says_secret(name) and value:
            shown.append(f"{name}={MASK}")
        else:
            shown.append(_inside(word))
    return shown


def _inside(word: str) -> str:
    """A word of a command: JSON is looked into by its keys, anything else by value."""
    parsed = _parsed(word) if word.lstrip()[:1] in ("{", "[") else None
    clean = redacted(parsed)
    return redact(word) if clean == parsed else json.dumps(clean, ensure_ascii=False)


def _is_flag(word: str) -> bool:
    """`--x`; with one dash only what names a secret, as a secret may begin with a dash itself."""
    return word.startswith("--") or (word.startswith("-") and says_secret(word.partition("=")[0]))


def _as_given(argv: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    name, values = "", list[str]()
    for word in argv:
        if _is_flag(word):
            yield name, values
            name, equals, word = word.partition("=")
            values = [word] if equals else []
        else:
            values.append(word)
        for part in re.split(r"[,\s]", word):  # `NAME=VALUE`, also several: `--export=ALL,NAME=VALUE`, `-x NAME=VALUE`
            variable, equals, value = part.partition("=")
            if equals and variable.isidentifier():
                learn_variables({variable: value})
    yield name, values


def _parsed(text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


@functools.lru_cache(maxsize=4)
def _pattern(values: frozenset[str]) -> re.Pattern[str]:
    # Longest first, so that a secret that begins with another one is masked whole.
    forms = {form for value in values for form in spellings(value) if len(form) >= SHORTEST}
    return re.compile("|".join(re.escape(form) for form in sorted(forms, key=lambda form: (-len(form), form))))


def spellings(value: str) -> set[str]:
    """A secret as it is, and as it appears quoted for a URL, in JSON, or by Python; long lines of one also alone."""
    quoted = {
        quote(value, errors="replace"),
        quote(value, safe="", errors="replace"),
        quote_plus(value, errors="replace"),
    }
    written = {json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1], repr(value)[1:-1]}
    return {value, *quoted, *written, *(line.strip() for line in value.splitlines() if len(line.strip()) >= _LONG)}


def to_copy(env: Mapping[str, str], command: Sequence[str]) -> str:
    """A command line to copy into a shell, with variables before it; secrets are `***`."""
    told = {name: _quoted(value) for name, value in variables_without_secrets(env).items()}
    words = [_quoted(word) for word in command_without_secrets(list(command))]
    return " ".join([*(f"{name}={value}" for name, value in told.items()), *words])


def _quoted(word: str) -> str:
    """A word quoted for a shell; the mask of a secret stays, since it is to be replaced anyway."""
    return word if word == MASK else shlex.quote(word)
