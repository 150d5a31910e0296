"""JSON of a server: bounded in bytes, asked again where the server may come back; a fault is one message."""

from __future__ import annotations

import functools
import http.client
import json
import os
import re
import ssl
import time
from typing import Any
from urllib.parse import SplitResult, urlsplit

from hftune.errors import ArgumentError, UserError, shown
from hftune.logging import notice
from hftune.opening.files import MIB, size_text
from hftune.opening.json_file import parse_json
from hftune.secrets import learn, redact

# What a server answers while it starts, is busy, or is replaced.
_PASSING = frozenset((408, 425, 429, 500, 502, 503, 504))
_CONNECT = 20.0
_ERROR_BYTES = MIB >> 4
_LONGEST_WAIT = 30.0


class Refused(ArgumentError):
    """What a server answered to a request that it does not take; `status` is HTTP's."""

    status = 0


class _Passing(Exception):
    """What may be over when it is asked again; the message is the cause."""


class JsonServer:
    """A server that is asked for JSON. Redirections are refused, and proxies are not used: a key goes to it alone.

    Args:
        url: `http://host:port[/path]`.
        flag: What named it, for messages.
        key: Sent with each request; None: none.
        variable: Where users put the key, for messages.
        timeout: Seconds in which nothing may come of an answer.

    Raises:
        ArgumentError: The address or the key cannot be used.
    """

    def __init__(self, url: str, flag: str, *, key: str | None, variable: str, timeout: float = 300.0) -> None:
        parts = split_address(url, flag)
        if key is not None and not re.fullmatch(r"[!-~]+", key):
            fix = "letters, digits and signs of ASCII, without spaces"
            raise ArgumentError("this key cannot be sent in a header of HTTP", place=variable, fix=fix)
        learn(key)
        self.url, self.flag, self.key, self.variable, self.timeout = url, flag, key, variable, timeout
        self.host, self.port, self.path = str(parts.hostname), parts.port, parts.path.rstrip("/")
        self.secure = parts.scheme == "https"
        self._waits = False

    def ask(self, path: str, body: object = None, *, limit: int, patience: float) -> dict[str, Any]:
        """The object that the server answers.

        Args:
            path: Behind the address.
            body: Sent as JSON; None: the request is a GET.
            limit: Bytes of the answer.
            patience: Seconds in which a server that is away, or busy, is asked again.

        Raises:
            Refused: It does not take the request.
            ArgumentError: It is away, too slow, answers too much, or no JSON.
        """
        began, wait = time.monotonic(), 1.0
        while True:
            try:
                content = self._once(path, body, limit)
                break
            except _Passing as problem:
                left = patience - (time.monotonic() - began)
                if left <= 0:
                    fix = f"start it, or give the address at which it listens ({self.flag} http://host:port)"
                    raise self.error(f"the server does not answer: {problem}", fix) from problem
                if not self._waits:
                    self._waits = True
                    notice(f"{self.url} does not answer ({problem}): it is asked again for {patience:.0f} seconds")
                time.sleep(min(wait, left))
                wait = min(2 * wait, _LONGEST_WAIT)
        self._waits = False
        fix = "give the address of a server with OpenAI's API"
        found: dict[str, Any] = parse_json(content, self.url, error=ArgumentError, fix=fix)
        return found

    def error(self, cause: str, fix: str) -> ArgumentError:
        """A fault of the server as a message."""
        return ArgumentError(cause, place=f"{self.flag} {self.url}", fix=fix)

    def _once(self, path: str, body: object, limit: int) -> bytes:
        kind = http.client.HTTPSConnection if self.secure else http.client.HTTPConnection
        connection = kind(self.host, self.port, timeout=min(_CONNECT, self.timeout))
        try:
            connection.connect()
            connection.sock.settimeout(self.timeout)
            sent = None if body is None else json.dumps(body).encode()
            connection.request("GET" if body is None else "POST", self.path + path, sent, self._headers(sent))
            answer = connection.getresponse()
            content = answer.read((limit if answer.status == 200 else _ERROR_BYTES) + 1)
            if answer.length and len(content) <= limit and answer.status == 200:
                raise http.client.IncompleteRead(content)
        except ssl.SSLCertVerificationError as error:
            fix = "have this machine trust its certificate (SSL_CERT_FILE), or give its http:// address"
            raise self.error(f"the server's certificate is refused: {error.verify_message}", fix) from error
        except TimeoutError as error:
            raise _Passing(f"nothing came in {self.timeout:.0f} seconds") from error
        except (OSError, http.client.HTTPException, UnicodeError) as error:
            reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
            raise _Passing(shown(reason, 120)) from error
        finally:
            connection.close()
        if answer.status == 200 and len(content) > limit:
            fix = "give the address of a server with OpenAI's API"
            raise self.error(f"the server answers with more than {size_text(limit)}", fix)
        if answer.status != 200:
            self._refuse(answer, content)
        return content

    def _headers(self, sent: bytes | None) -> dict[str, str]:
        # Not compressed: a megabyte could unfold to a gigabyte.
        headers = {"Accept": "application/json", "Accept-Encoding": "identity", "User-Agent": "hftune"}
        headers |= {} if sent is None else {"Content-Type": "application/json"}
        return headers | ({"Authorization": f"Bearer {self.key}"} if self.key else {})

    def _refuse(self, answer: http.client.HTTPResponse, content: bytes) -> None:
        said = shown(redact(_message(content)), 300)
        cause = f"the server answers with status {answer.status}" + (f": {said}" if said else "")
        if answer.status in _PASSING:
            raise _Passing(f"status {answer.status}" + (f": {said}" if said else ""))
        if answer.status in (401, 403):
            fix = f"put the key that it asks for into the variable {self.variable}"
        elif answer.status // 100 == 3:
            place = shown(redact(answer.headers.get("Location", "")), 200)
            fix = f"give the address that it leads to: {place}"
        else:
            fix = "give the address of a server with OpenAI's API, a model that it serves, and no more than it takes"
        problem = Refused(cause, place=f"{self.flag} {self.url}", fix=fix)
        problem.status = answer.status
        raise problem


class ModelServer(JsonServer):
    """A server of OpenAI's API, and the one model there that is asked.

    Args:
        url: Its address, with `/v1` or without.
        name: Of the model; None: the only one. `name_flag` gives it.
        variable: That holds its key.

    Attributes:
        patience: Seconds in which it is asked again where it is away.
    """

    patience = 60.0

    def __init__(self, url: str, flag: str, name: str | None, name_flag: str, variable: str, **more: Any) -> None:
        address = url.rstrip("/").removesuffix("/v1") + "/v1"
        super().__init__(address, flag, key=os.environ.get(variable) or None, variable=variable, **more)
        self.given_name, self.name_flag = name, name_flag

    @functools.cached_property
    def name(self) -> str:
        """Of the model.

        Raises:
            ArgumentError: Several are served and none was named.
        """
        if self.given_name:
            return self.given_name
        found = self.ask("/models", limit=MIB, patience=self.patience).get("data")
        names = [one.get("id") for one in found if isinstance(one, dict)] if isinstance(found, list) else []
        if len(names) != 1 or not isinstance(names[0], str):
            said = shown(", ".join(map(str, names)), 200)
            raise self.error(f"it serves {len(names)} models: {said}", f"name one with {self.name_flag}")
        return names[0]


def split_address(url: str, flag: str) -> SplitResult:
    """The parts of an address.

    Raises:
        ArgumentError: It is none of HTTP, or holds more than scheme, host, port and path.
    """
    fix = f"{flag} http://host:port"
    try:
        parts = urlsplit(url)
        right = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        right = False
    if not right or not re.fullmatch(r"[!-~]+", url) or parts.query or parts.fragment:
        raise ArgumentError(f"{shown(redact(url))} is no address of a server", place=flag, fix=fix)
    if "@" in parts.netloc:
        raise ArgumentError("a key does not belong into an address, which is written down", place=flag, fix=fix)
    return parts


def _message(content: bytes) -> str:
    """What a server says of an error, in OpenAI's form or FastAPI's, or as plain text."""
    try:
        found: Any = parse_json(content[:_ERROR_BYTES], "the answer", kind=None)
    except UserError:
        return content[:1000].decode("utf-8", "replace")
    for name in ("error", "message", "detail"):
        if isinstance(found, dict) and found.get(name):
            found = found[name]
    return found if isinstance(found, str) else json.dumps(found)[:1000]
