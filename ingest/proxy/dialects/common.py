"""What dialects share: reading a body, tools, sampling; and of OpenAI's two parts of text, errors, models."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

import msgspec

from ingest.proxy.dialects.surrogates import mended
from ingest.proxy.neutral import Rejected, Sampling

NEW_TOKENS_MAX = 1 << 31
B = TypeVar("B")
TEXT_PARTS = ("text", "input_text", "output_text")
MEDIA = ("image", "image_url", "input_image", "document", "file", "input_file", "input_audio", "audio")


class Part(msgspec.Struct):
    """One part of a message's content."""

    type: str
    text: str | None = None
    refusal: str | None = None


class Sampled(Protocol):
    """The fields of a body that say how to sample."""

    temperature: float | None
    top_p: float | None
    top_k: int | None


def bad(sentence: str) -> Rejected:
    """A request that is wrong, or asks for what is not done here."""
    return Rejected(400, "invalid_request", sentence)


def decoded(decode: Callable[[bytes], B], body: bytes, what: str) -> B:
    """The body as `decode` reads it.  Raises Rejected (400) where it is no JSON, or not of that form."""
    try:
        try:
            return decode(body)
        except msgspec.DecodeError as error:
            if isinstance(error, msgspec.ValidationError):
                raise
            return decode(mended(body))
    except msgspec.ValidationError as error:
        raise bad(f"the body is not {what}: {error}") from error
    except RecursionError as error:
        raise bad("the body is nested too deeply") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise bad(f"the body is not JSON: {error}") from error


def not_shown(kind: str) -> str:
    """What the model reads in place of an image, say, that a tool brought back.

    A task can go on without it, and the harness cannot know that the model reads text only; an image that
    a user sends is refused.
    """
    return f"[{kind.removeprefix('input_').removesuffix('_url')}: not shown, this model reads text only]"


def text_of(
    content: str | Sequence[Part] | None, where: str, field: str = "content", *, result: bool = False
) -> str:
    """Content (of a tool's `result`) as text; a refusal is what the model said.

    Raises Rejected for what is no text.
    """
    if content is None or isinstance(content, str):
        return content or ""
    texts = []
    for k, part in enumerate(content):
        if part.type in TEXT_PARTS:
            texts.append(part.text or "")
        elif part.type == "refusal":
            texts.append(part.refusal or "")
        elif result and part.type in MEDIA:
            texts.append(not_shown(part.type))
        else:
            raise bad(f"{where}.{field}[{k}] is of type {part.type!r}; this model reads text only")
    return "".join(texts)


def arguments_text(value: str | dict[str, Any] | None) -> str:
    """A call's arguments as text, where a client sends them as an object too."""
    if isinstance(value, dict):
        return msgspec.json.encode(value).decode()
    return value or ""


# --------------------------------------------------------------------------------------- tools
def named(value: Any, where: str) -> str:
    """A name.  Raises Rejected where it is none."""
    if not isinstance(value, str) or not value:
        raise bad(f"{where}.name is {value!r}; a text that is not empty is needed")
    return value


def check_function(function: Any, where: str) -> None:
    """Raises Rejected where this is no definition that templates and parsers can read."""
    if not isinstance(function, dict):
        raise bad(f"{where} is {function!r}; an object with a name is needed")
    named(function.get("name"), where)
    for field, kind, words in (("description", str, "a text"), ("parameters", dict, "a JSON schema object")):
        value = function.get(field)
        if value is not None and not isinstance(value, kind):
            raise bad(f"{where}.{field} is {value!r}; {words} is needed")


def no_tools(tool_choice: Any) -> bool:
    """Whether the client wants no call: its tools are then left out of the prompt, so none can be made.

    Raises Rejected for a choice that would have to be forced on the policy.
    """
    choice = tool_choice.get("type") if isinstance(tool_choice, dict) else tool_choice
    if choice is None or choice in ("auto", "none"):
        return bool(choice == "none")
    raise bad(
        f"tool_choice is {tool_choice!r}; 'auto' and 'none' are supported, since a call that is forced "
        "is not the policy's"
    )


# ------------------------------------------------------------------------------------ sampling
def sampling_of(body: Sampled) -> Sampling:
    """Raises Rejected for values out of range."""
    temperature, top_p, top_k = body.temperature, body.top_p, body.top_k
    if temperature is not None and not 0 <= temperature <= 100:
        raise bad(f"temperature is {temperature}, 0 to 100 is needed")
    if top_p is not None and not 0 < top_p <= 1:
        raise bad(f"top_p is {top_p}, above 0 and at most 1 is needed")
    if top_k is not None and top_k != -1 and not 1 <= top_k <= NEW_TOKENS_MAX:
        raise bad(f"top_k is {top_k}, -1 (off) or at least 1 is needed")
    return Sampling(temperature, 1.0 if top_p is None else top_p, -1 if top_k is None else top_k)


def check_limit(name: str, value: int | None) -> None:
    """Raises Rejected for a number of new tokens that cannot be."""
    if value is not None and not 1 <= value <= NEW_TOKENS_MAX:
        raise bad(f"{name} is {value}, 1 to {NEW_TOKENS_MAX} is needed")


# -------------------------------------------------------------------------------- what goes out
def error_object(rejected: Rejected) -> dict[str, Any]:
    """OpenAI's error object."""
    kind = "invalid_request_error" if rejected.status < 500 else "server_error"
    return {"message": rejected.sentence, "type": kind, "param": None, "code": rejected.code}


def model_card(name: str) -> dict[str, Any]:
    """A model as OpenAI lists it."""
    return {"id": name, "object": "model", "created": 0, "owned_by": "headrace"}
