"""Who calls: the token that is a harness's API key.

    token = "hr-" + base64url(JSON [group id, execution id]) + "." + base64url(HMAC-SHA256 of the first part)

The runner signs, the proxy verifies; both read the run's secret, which never leaves its folder.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import os
import re
import secrets
from dataclasses import dataclass
from functools import lru_cache

import msgspec

from lake.layout import Run

PREFIX = "hr-"
SECRET_BYTES = 32
TOKEN_LENGTH_MAX = 1024
_EXECUTION = re.compile(r"[A-Za-z0-9._~:@+-]{1,200}")  # it stands in a URL's path as it is


_decode_names = msgspec.json.Decoder(tuple[str, str]).decode


class BadToken(ValueError):
    """The token was not signed by this run, or was cut or changed on its way."""


class BadSecret(ValueError):
    """The run's secret cannot be used: why, and what to do."""


@dataclass(frozen=True)
class Identity:
    """Whose calls these are."""

    group_id: str
    execution_id: str


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _bytes(text: str) -> bytes:
    return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)


def _mac(secret: bytes, payload: str) -> bytes:
    return hmac.digest(secret, payload.encode(), "sha256")


def sign(secret: bytes, group_id: str, execution_id: str) -> str:
    """The API key of an execution.

    Raises ValueError for an execution id that cannot stand in a URL's path, or names too long.
    """
    if not _EXECUTION.fullmatch(execution_id):
        raise ValueError(
            f"execution id {execution_id!r}: 1 to 200 letters, digits and . _ ~ : @ + - are needed, "
            "since it stands in a URL"
        )
    payload = PREFIX + _text(msgspec.json.encode([group_id, execution_id]))
    token = f"{payload}.{_text(_mac(secret, payload))}"
    if len(token) > TOKEN_LENGTH_MAX:
        raise ValueError(
            f"the token of {execution_id} has {len(token)} characters, {TOKEN_LENGTH_MAX} at most"
        )
    return token


def control_key(secret: bytes) -> str:
    """The key of who steers the proxy of a run (ingest.proxy.control); no execution's token is one."""
    return f"hc-{_text(_mac(secret, 'control'))}"


@lru_cache(1 << 14)
def verify(secret: bytes, token: str) -> Identity:
    """Whose token it is.  Raises BadToken; compares in constant time, and remembers what was good."""
    payload, dot, mac = token.partition(".")
    if len(token) > TOKEN_LENGTH_MAX or not dot or not payload.startswith(PREFIX):
        raise BadToken("the API key is not a token of a run: it starts with hr- and has two parts")
    try:
        if not hmac.compare_digest(_bytes(mac), _mac(secret, payload)):
            raise BadToken("the API key was not signed by this run")
        group_id, execution_id = _decode_names(_bytes(payload[len(PREFIX) :]))
    except (binascii.Error, ValueError) as error:  # msgspec's errors and BadToken are ValueErrors
        if isinstance(error, BadToken):
            raise
        raise BadToken("the API key does not decode: it was cut or changed on its way") from error
    return Identity(group_id, execution_id)


def read_secret(run: Run) -> bytes:
    """The run's secret, made (mode 0600) where there is none.

    Two processes that ask at once get the same one: it is written in full under another name and
    linked into place, and the first link stays.  Raises BadSecret for a file that is too short.
    """
    path = run.secret_file
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_name(f"{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
        with os.fdopen(os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb") as file:
            file.write(secrets.token_hex(SECRET_BYTES).encode())
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(draft, path)
        except FileExistsError:
            pass  # another process was first
        finally:
            draft.unlink()
    secret = path.read_bytes().strip()
    if len(secret) < SECRET_BYTES:
        raise BadSecret(
            f"{path} holds {len(secret)} bytes, at least {SECRET_BYTES} are needed; delete it while nothing "
            "of the run is up, and a new one is made"
        )
    return secret
