"""Secrets, known by their value, and texts and objects without them.

What is known: values of arguments and config keys whose names say so (`learn_arguments`, `learn_config`), variables of
the environment, passwords in URLs, the saved token of the Hub. `redact` replaces these values, in whatever usual
encoding they appear, passwords in URLs and connection strings, and well-known tokens. All that hftune writes or says
goes through it: manifests, log lines, messages, reports, cards, commands, configs for trackers.
"""

from __future__ import annotations

import base64
import functools
import html
import json
import os
import re
import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote, quote_plus, unquote

from hftune.secret_names import (
    IN_CONNECTION,
    IN_JSON,
    IN_QUERY,
    IN_URL,
    MASK,
    may_be_secret,
    says_secret,
    surely_secret,
    tokens_in,
    variable_says_secret,
)

SHORTEST = 8
"""Characters. A shorter value is masked at its own place only: it would be found by chance everywhere."""
_LONG = 20
# Values of variables that are named like secrets and hold settings; searching for "true" would mask half a log.
_COMMON = {
    *("disabled", "enabled", "password", "changeme", "required", "optional", "localhost", "anonymous", "undefined"),
    *("unlimited", "username", "external", "internal", "automatic", "false", "true", "none", "null"),
}
# A token is a line; a larger file at that place is something else.
_SAVED_BYTES = 1 << 16
# For the whole process and never written: a secret is known by its value, wherever it turns up.
_learned: set[str] = set()


# --- what is known ---


def learn(value: object) -> None:
    """Remember a secret; what is too short or too common to be searched for is not."""
    # A float is no secret that anybody has, and "1.0" would be found everywhere.
    if value is None or isinstance(value, bool | float | Mapping | list | tuple):
        return
    text = str(value).strip()  # a YAML file makes a number or a date of some
    if _is_searched(text):
        _learned.add(text)


def learn_arguments(given: Iterable[tuple[str, Sequence[Any]]]) -> None:
    """Remember the secrets among arguments: names, without dashes or with, and their values."""
    for name, values in given:
        for value in values:
            if says_secret(name):
                learn(value)
            elif isinstance(value, str) and value.lstrip()[:1] in ("{", "["):
                # `--deepspeed '{...}'` and `--model_init_kwargs '{...}'` carry keys of trackers and Hub tokens.
                parsed = _parsed(value)
                learn_config(_as_read(value) if parsed is None else parsed)
            else:
                learn_config(value)


def learn_config(config: object) -> None:
    """Remember the secrets of a config: values of keys whose names say so, at any depth, and passwords in URLs."""
    if isinstance(config, Mapping):
        for name, value in config.items():
            for text in _texts(value) if says_secret(str(name)) else ():
                learn(text)
            learn_config(value)
    elif isinstance(config, list | tuple):
        for value in config:
            learn_config(value)
    elif isinstance(config, str):
        _learned.update(_passwords("", config))
        if (start := config.find('{"')) > 0:  # `--callbacks FILE.py:CLASS{"token": "..."}`
            learn_config(_parsed(config[start:]))


def learn_variables(environment: Mapping[str, str]) -> None:
    """Remember the secrets among variables of an environment."""
    for name, value in environment.items():
        _learned.update(_of_variable(name, value))


def learn_command(argv: Sequence[str]) -> None:
    """Remember the secrets of a command line."""
    learn_arguments(_as_given(argv))


def forget() -> None:
    """Forget what was learnt; for tests."""
    _learned.clear()
    _command_learned.cache_clear()
    _of_variable.cache_clear()


def known() -> frozenset[str]:
    """All secrets known now: learnt ones, those of this process's environment and command, the Hub's saved token."""
    _command_learned(tuple(sys.argv))
    learn_variables(os.environ)
    return frozenset(_learned | _saved_tokens(_token_files()))


@functools.lru_cache(maxsize=4)
def _command_learned(argv: tuple[str, ...]) -> None:
    learn_command(argv[1:])


def _is_searched(value: str) -> bool:
    if len(value) < SHORTEST or value.lower() in _COMMON or MASK in value or value.startswith(("<", "${")):
        return False
    # A variable may name the file that holds a secret; a path is no secret, and logs are full of it.
    return not ("/" in value and os.path.exists(value))


# Redaction runs for every line that is logged; the environment hardly changes in between.
@functools.lru_cache(maxsize=4096)
def _of_variable(name: str, value: str) -> frozenset[str]:
    found = _passwords(name, value)
    if value.lstrip()[:1] in ("{", "["):
        learn_config(_parsed(value))
    bare = value.strip()
    if variable_says_secret(name) and _is_searched(bare):
        # `SMTP_AUTH=plain` and `SORT_KEY=id` hold words; a token is long, or mixes letters and digits.
        sure = surely_secret(name) or not may_be_secret(name)
        found |= {bare} if sure or _looks_secret(bare) else set()
    return frozenset(found)


def _looks_secret(value: str) -> bool:
    return len(value) >= _LONG or bool(re.search(r"[0-9]", value) and re.search(r"[A-Za-z]", value))


def _passwords(name: str, text: str) -> set[str]:
    """Passwords in URLs and connection strings.

    A variable that is a URL is cut at its last `@`: passwords are not always quoted there.
    """
    found = {match[2] for match in IN_CONNECTION.finditer(text)} if "=" in text else set()
    # The tests for a character come first: most lines have none, and regular expressions cost microseconds each.
    if "://" in text:
        found |= {match[2] for match in IN_URL.finditer(text)}
        found |= {match[2] for match in IN_QUERY.finditer(text) if _looks_secret(match[2])}
        if name.lower().endswith(("url", "uri", "dsn")):
            # The last `@` ends the password: passwords with an `@` of their own are often not quoted.
            user, at, _ = text.partition("://")[2].rpartition("@")
            # Sentry's address has nothing but a token before it.
            found |= {user.partition(":")[2] or (user if name.lower().endswith("dsn") else "")} if at else set()
    # Both spellings: a library logs the URL as given, another the password as decoded.
    return {form for password in found for form in (password, unquote(password)) if _is_searched(form)}


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list | tuple):
        for entry in value:
            yield from _texts(entry)
    elif value is not None and not isinstance(value, bool | float):
        yield str(value)


def _token_files() -> tuple[str, ...]:
    """Where `hf auth login` keeps tokens; huggingface_hub's rules, without its import."""
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    # Without huggingface_hub, whose import takes longer than everything before the help page.
    home = os.environ.get("HF_HOME") or os.path.join(cache, "huggingface")
    token = os.environ.get("HF_TOKEN_PATH") or os.path.join(home, "token")
    stored = os.environ.get("HF_STORED_TOKENS_PATH") or os.path.join(home, "stored_tokens")
    return token, stored


@functools.lru_cache(maxsize=8)
def _saved_tokens(files: tuple[str, ...]) -> frozenset[str]:
    """The tokens in the files that are there: alone in a file, or in lines such as `hf_token = ...`."""
    found: set[str] = set()
    for name in files:
        file = Path(os.path.expanduser(os.path.expandvars(name)))
        try:
            if not file.is_file() or file.stat().st_size > _SAVED_BYTES:
                continue
            lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:  # not ours to read, then not ours to tell either
            continue
        # `stored_tokens` is an INI file, `token` holds the token alone.
        found |= {re.sub(r"^\s*\w+ = ", "", line).strip() for line in lines}
    return frozenset(value for value in found if _is_searched(value) and not value.startswith("["))


# --- texts and objects without them ---


def redact(text: str) -> str:
    """A text in which `***` stands for every known secret, a password in a URL, or a well-known token."""
    return _without(known(), text)


def _without(values: frozenset[str], text: str) -> str:
    if values:
        text = _pattern(values).sub(MASK, text)
    if "://" in text:
        text = IN_URL.sub(rf"\1:{MASK}@", text)
        text = IN_QUERY.sub(rf"\1{MASK}", text)
    if "=" in text:
        text = IN_CONNECTION.sub(rf"\1{MASK}", text)
    for token in tokens_in(text):
        text = text.replace(token, MASK)
    return text


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
            # Also `--hub-token`: `says_secret` splits at any sign.
            hides = says_secret(name)
            shown.append(f"{name}={MASK if hides and value else _inside(value)}" if equals else redact(word))
        elif hides and not _is_switch(word):
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


def _is_switch(word: str) -> bool:
    """`--use_auth_token True` says nothing."""
    return word.lower() in ("true", "false", "none", "null")


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


def _as_read(text: str) -> dict[str, str]:
    """Names and values of what is no JSON after all; a message may quote it."""
    return {match[1]: match[2] for match in IN_JSON.finditer(text)}


# --- how a secret may be spelt ---


@functools.lru_cache(maxsize=4)
def _pattern(values: frozenset[str]) -> re.Pattern[str]:
    # Longest first, so that a secret that begins with another one is masked whole.
    forms = {form for value in values for form in spellings(value) if len(form) >= SHORTEST}
    return re.compile("|".join(re.escape(form) for form in sorted(forms, key=lambda form: (-len(form), form))))


def spellings(value: str) -> set[str]:
    """A secret as it is, and as it appears quoted for a URL, a shell, JSON, Python or HTML, in base64 or in hex.

    Base64 of a longer text holds one of three forms, as the secret's first byte stands first, second or third in a
    group; the characters at its ends that its neighbours shape are left out.
    """
    raw = value.encode("utf-8", errors="surrogatepass")
    forms = {value, *(line.strip() for line in value.splitlines() if len(line.strip()) >= _LONG)}
    quoted = {quote(value, safe="", errors="replace"), quote(value, errors="replace")}
    quoted.add(quote_plus(value, errors="replace"))
    forms |= quoted | {re.sub(r"%[0-9A-F]{2}", lambda match: match[0].lower(), text) for text in quoted}
    forms |= {json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1], repr(value)[1:-1]}
    # JSON within JSON: an inline DeepSpeed config in a manifest.
    forms |= {json.dumps(json.dumps(value)[1:-1])[1:-1], shlex.quote(value).strip("'"), html.escape(value)}
    forms |= {raw.hex(), raw.hex().upper()}
    # Base64 groups three bytes: what comes before the secret shifts it by 0, 1 or 2, and each shift spells it anew.
    for offset in range(3):
        first, end = -(-8 * offset // 6), 8 * (offset + len(raw)) // 6
        for encode in (base64.b64encode, base64.urlsafe_b64encode):
            forms.add(encode(bytes(offset) + raw).decode()[first:end])
    return forms
