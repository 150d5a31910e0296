"""The server's addresses, and who may use them."""

from __future__ import annotations

import asyncio
import hmac
import threading
import time
import uuid
from collections.abc import AsyncIterator, Coroutine
from functools import partial
from typing import Any, TypeVar

import torch
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from hftune.logging import get_logger
from hftune.tools.serving.answers import Finish, Prompt, Served
from hftune.tools.serving.completions import Completion, read_completion
from hftune.tools.serving.errors import RequestError, no_such_model
from hftune.tools.serving.queue import WorkQueue
from hftune.tools.serving.requests import ChatRequest, read_body, read_chat, read_scored
from hftune.tools.serving.responses import DONE, ChatResponse, error_event
from hftune.tools.serving.scores import Judge
from hftune.tools.talking.parsing import Part

LONGEST_BODY = 8 << 20
"""Bytes of a request."""
Result = TypeVar("Result")
# Seconds between two looks whether a client still waits.
_LOOK = 0.25


class Server:
    """What is served, behind the application that uvicorn runs.

    Args:
        models: By name.
        judge: The reward model; None for none.
        queue: Where answers are made, one after another.
        key: That clients must send; None: all may ask.
        hosts: Names of this server that a request may ask for; None: any.
    """

    def __init__(
        self,
        models: list[Served],
        judge: Judge | None,
        queue: WorkQueue,
        key: str | None = None,
        hosts: tuple[str, ...] | None = None,
    ) -> None:
        self.models, self.judge, self.queue = {one.name: one for one in models}, judge, queue
        self.key, self.hosts, self.began = key, hosts, int(time.time())
        # Both paths: vLLM has the first, and clients put /v1 before all that they ask.
        scores = [Route(path, self.pooling, methods=["POST"]) for path in ("/pooling", "/v1/pooling")]
        routes = [
            Route("/health", self.health),
            Route("/v1/models", self.list_models),
            Route("/v1/models/{name:path}", self.one_model),
            Route("/v1/chat/completions", self.chat, methods=["POST"]),
            Route("/v1/completions", self.complete, methods=["POST"]),
            *scores,
        ]
        handlers: dict[Any, Any] = {RequestError: _refuse, HTTPException: _refuse_path, Exception: _fail}
        self.app = Starlette(routes=routes, exception_handlers=handlers)

    # --- addresses ---

    async def health(self, request: Request) -> Response:
        """Whether the server takes requests; open to all."""
        return Response(status_code=503 if self.queue.stopped.is_set() else 200)

    async def list_models(self, request: Request) -> Response:
        """All that is served."""
        self._admit(request)
        names = [*self.models, *([self.judge.name] if self.judge else [])]
        return JSONResponse({"object": "list", "data": [self._card(name) for name in names]})

    async def one_model(self, request: Request) -> Response:
        """One of them."""
        self._admit(request)
        name = request.path_params["name"]
        if name not in self.models and not (self.judge and name == self.judge.name):
            raise no_such_model(name)
        return JSONResponse(self._card(name))

    async def chat(self, request: Request) -> Response:
        """An answer, whole or as a stream."""
        asked = read_chat(await self._body(request))
        if asked.model not in self.models:
            raise no_such_model(asked.model)
        self.queue.check()
        served = self.models[asked.model]
        # In a thread: a prompt of a million tokens takes seconds, in which others are served.
        prompt = await asyncio.to_thread(served.prompt, asked)
        answers = Answers(self.queue, served, asked, prompt)
        if asked.stream:
            # Events must not wait in a proxy until there are many.
            headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
            return StreamingResponse(answers.events(), media_type="text/event-stream", headers=headers)
        return JSONResponse(await answers.whole(request))

    async def complete(self, request: Request) -> Response:
        """Prompts continued as they are, and log-probabilities of their tokens."""
        asked = read_completion(await self._body(request))
        if asked.model not in self.models:
            raise no_such_model(asked.model)
        self.queue.check()
        found = await asyncio.to_thread(Completion, self.models[asked.model], asked, self.queue.stopped)
        content = await _while_asked(request, self.queue.run(found.make), found.gone)
        return Response(content, media_type="application/json")

    async def pooling(self, request: Request) -> Response:
        """The scores of a conversation."""
        asked = read_scored(await self._body(request))
        if self.judge is None or asked.model != self.judge.name:
            raise no_such_model(asked.model)
        said, tokens = await self.queue.run(partial(self.judge.score, asked))
        usage = {"prompt_tokens": tokens, "completion_tokens": 0, "total_tokens": tokens}
        head = {"id": f"pool-{uuid.uuid4().hex}", "object": "list", "created": int(time.time()), "model": asked.model}
        return JSONResponse(head | {"data": [{"index": 0, "object": "pooling", **said}], "usage": usage})

    def _card(self, name: str) -> dict[str, Any]:
        card: dict[str, Any] = {"id": name, "object": "model", "created": self.began, "owned_by": "hftune"}
        return card | ({"max_model_len": self.models[name].longest} if name in self.models else {})

    # --- who may ask ---

    def _admit(self, request: Request) -> None:
        """Refuse a request without the key, or for another host.

        Raises:
            RequestError: With status 401 or 403.
        """
        # A page in a browser may have its own name lead to this machine; then it would read what is said here.
        if self.hosts is not None and (request.url.hostname or "").lower() not in self.hosts:
            raise RequestError("this server is asked for by another name than its own", status=403, code="wrong_host")
        given = request.headers.get("authorization", "")
        if self.key is not None and not hmac.compare_digest(given.encode(), f"Bearer {self.key}".encode()):
            message = "Incorrect API key provided" if given else "You did not provide an API key"
            raise RequestError(message, status=401, code="invalid_api_key")

    async def _body(self, request: Request) -> dict[str, Any]:
        self._admit(request)
        # A page in a browser can send a form to any server, and JSON only to one that allows it.
        if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            raise RequestError("the content type must be application/json", status=415)
        raw = bytearray()
        async for piece in request.stream():
            raw += piece
            if len(raw) > LONGEST_BODY:
                raise RequestError(f"the request has more than {LONGEST_BODY} bytes", status=413)
        return await asyncio.to_thread(read_body, bytes(raw))


class Answers:
    """The answers to one request, made when it is its turn."""

    def __init__(self, queue: WorkQueue, served: Served, asked: ChatRequest, prompt: Prompt) -> None:
        self.queue, self.served, self.asked, self.prompt = queue, served, asked, prompt
        self.settings = served.settings(asked, prompt)
        self.response = ChatResponse(served.name, len(prompt.ids))
        self.loop, self.gone = asyncio.get_running_loop(), threading.Event()
        self.events_of: asyncio.Queue[str | None] = asyncio.Queue()
        self.began = time.monotonic()

    async def whole(self, request: Request) -> dict[str, Any]:
        """All of them, unless the client leaves."""
        return self.response.whole(await _while_asked(request, self.queue.run(self._work), self.gone))

    async def events(self) -> AsyncIterator[str]:
        """Events as they are made; one with an error at the end, where the answer cannot be finished."""
        task = asyncio.create_task(self.queue.run(self._work))
        task.add_done_callback(lambda _: self.events_of.put_nowait(None))
        try:
            while (event := await self.events_of.get()) is not None:
                yield event
            finished = task.result()
            if self.asked.include_usage:
                yield self.response.last(finished)
            yield DONE
        except RequestError as error:
            yield error_event(error.body())
        except Exception as error:
            # The response has begun: its status says that all is well.
            yield error_event(_unforeseen(error).body())
        finally:
            self.gone.set()
            task.cancel()

    def _work(self) -> list[Finish]:
        """In the queue's thread."""
        finished: list[Finish] = []
        for index in range(self.asked.n):
            # What was drawn for others before must not matter, and without a seed nothing must repeat.
            torch.manual_seed(self.asked.seed + index) if self.asked.seed is not None else torch.seed()
            self._send(self.response.begin(index))
            finished.append(
                self.served.answer(self.asked, self.prompt, self.settings, partial(self._part, index), self._cancelled)
            )
            # What was cut off has no end of its own: the stream ends with an error, or nobody reads it.
            if self._cancelled():
                break
            self._send(self.response.end(index, finished[-1]))
        said, reasons = sum(one.tokens for one in finished), " ".join(one.reason for one in finished)
        seconds = time.monotonic() - self.began
        # Names are this server's own; nothing that a client has sent is shown.
        given = (self.served.name, len(self.prompt.ids), said, "left" if self.gone.is_set() else reasons, seconds)
        get_logger().info("%s: %d + %d tokens, %s, %.1f s", *given)
        return finished

    def _cancelled(self) -> bool:
        return self.gone.is_set() or self.queue.stopped.is_set()

    def _part(self, index: int, part: Part) -> None:
        self._send(self.response.part(index, part))

    def _send(self, event: str) -> None:
        if self.asked.stream:
            self.loop.call_soon_threadsafe(self.events_of.put_nowait, event)


async def _while_asked(request: Request, work: Coroutine[Any, Any, Result], gone: threading.Event) -> Result:
    """The result of work; `gone` is set where the client leaves before."""
    task = asyncio.create_task(work)
    try:
        while not (await asyncio.wait({task}, timeout=_LOOK))[0]:
            if await request.is_disconnected():
                gone.set()
        return task.result()
    finally:
        gone.set()
        task.cancel()


async def _refuse(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestError)
    headers = {401: {"WWW-Authenticate": "Bearer"}, 503: {"Retry-After": "1"}}.get(error.status)
    return JSONResponse(error.body(), error.status, headers)


async def _refuse_path(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    message = {404: "there is nothing at this path", 405: "this path takes another method"}
    refusal = RequestError(message.get(error.status_code, error.detail), status=error.status_code)
    return JSONResponse(refusal.body(), error.status_code, error.headers)


async def _fail(request: Request, error: Exception) -> Response:
    refusal = _unforeseen(error)
    return JSONResponse(refusal.body(), refusal.status)


def _unforeseen(error: Exception) -> RequestError:
    """What a client is told of an error that nobody foresaw; the log has the whole of it."""
    get_logger().error("a request failed", exc_info=error)
    return RequestError("The server failed; its log says why", status=500, code="failed", kind="server_error")
