"""What is wrong with a request, in the form in which OpenAI says it."""

from __future__ import annotations

from typing import Any

INVALID = "invalid_request_error"


class RequestError(Exception):
    """A request that is refused.

    Args:
        message: For whoever sent it.
        status: Of HTTP.
        param: The field that is wrong.
        code: A word for programs.
    """

    def __init__(
        self, message: str, *, status: int = 400, param: str | None = None, code: str | None = None, kind: str = INVALID
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code, self.kind = status, message, param, code, kind

    def body(self) -> dict[str, Any]:
        """The body of the response."""
        return {"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}}


def no_such_model(name: str) -> RequestError:
    """The refusal of a name under which nothing is served."""
    return RequestError(f"The model {name!r} does not exist", status=404, param="model", code="model_not_found")


def too_long(limit: int, prompt: int, wanted: int | None = None, *, param: str = "messages") -> RequestError:
    """The refusal of more tokens than the model takes.

    Args:
        wanted: Tokens of the answer that were asked for; None: the prompt alone is too long.
    """
    said = f"your prompt has {prompt} tokens"
    if wanted is not None:
        said = f"you requested {prompt + wanted} tokens ({prompt} in the prompt, {wanted} for the answer)"
    message = f"This model's maximum context length is {limit} tokens, and {said}."
    return RequestError(message, param=param, code="context_length_exceeded")


def stopping() -> RequestError:
    """What is said to requests that the end of the server cuts off."""
    return RequestError("The server is stopping", status=503, code="stopping", kind="server_error")
