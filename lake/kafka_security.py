"""How to reach brokers that ask for TLS or a password: settings from the environment, never from a URL.

KAFKA_SECURITY_PROTOCOL    PLAINTEXT (unless set), SSL, SASL_PLAINTEXT or SASL_SSL
KAFKA_SASL_MECHANISM       SCRAM-SHA-512 (unless set), SCRAM-SHA-256 or PLAIN
KAFKA_SASL_USERNAME        with SASL_*: both are needed
KAFKA_SASL_PASSWORD
KAFKA_SSL_CAFILE           with *SSL: PEM of the authority to trust; the system's unless set
KAFKA_SSL_CERTFILE         PEM of the client's own certificate, where the broker asks for one
KAFKA_SSL_KEYFILE          its key, without a passphrase
KAFKA_SSL_CHECK_HOSTNAME   true (unless set) or false
"""

from __future__ import annotations

import os
import socket
import ssl
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PREFIX = "KAFKA_"
PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
MECHANISMS = ("SCRAM-SHA-512", "SCRAM-SHA-256", "PLAIN")
SASL_NAMES = ("SASL_MECHANISM", "SASL_USERNAME", "SASL_PASSWORD")
SSL_NAMES = ("SSL_CAFILE", "SSL_CERTFILE", "SSL_KEYFILE", "SSL_CHECK_HOSTNAME")
PROBE_S = 5.0


class Refused(Exception):
    """A broker answered, and will answer the same to the same settings."""


@dataclass(frozen=True)
class Security:
    """What every client of a cluster is given.  The password shows nowhere."""

    protocol: str = "PLAINTEXT"
    mechanism: str | None = None
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    context: ssl.SSLContext | None = field(default=None, repr=False)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Security:
        """Raises ValueError that names the variable which is wrong, missing, or set for nothing."""
        given = {
            n: environment.get(PREFIX + n) or None for n in ("SECURITY_PROTOCOL", *SASL_NAMES, *SSL_NAMES)
        }
        protocol = _one_of(given, "SECURITY_PROTOCOL", PROTOCOLS)
        sasl, tls = protocol.startswith("SASL_"), protocol.endswith("SSL")
        for name in (() if sasl else SASL_NAMES) + (() if tls else SSL_NAMES):
            if given[name] is not None:
                wanted = "SASL_SSL" if name in SASL_NAMES else "SSL or SASL_SSL"
                raise ValueError(
                    f"{PREFIX}{name} is set, but {PREFIX}SECURITY_PROTOCOL is {protocol}: "
                    f"set that to {wanted}, or unset {PREFIX}{name}"
                )
        if sasl:
            for name in ("SASL_USERNAME", "SASL_PASSWORD"):
                if given[name] is None:
                    raise ValueError(f"{PREFIX}{name} is not set; {protocol} needs it")
        return cls(
            protocol=protocol,
            mechanism=_one_of(given, "SASL_MECHANISM", MECHANISMS) if sasl else None,
            username=given["SASL_USERNAME"],
            password=given["SASL_PASSWORD"],
            context=_context(given) if tls else None,
        )

    def settings(self) -> dict[str, Any]:
        """As kafka-python takes them."""
        return {
            "security_protocol": self.protocol,
            "sasl_mechanism": self.mechanism,
            "sasl_plain_username": self.username,
            "sasl_plain_password": self.password,
            "ssl_context": self.context,
        }

    def probe(self, host: str, port: int, wait_s: float) -> None:
        """See that somebody listens there, and speaks TLS if and only if we do.

        Raises OSError where nobody listens, Refused where it will never do.
        """
        with socket.create_connection((host, port), timeout=wait_s) as connection:
            connection.settimeout(min(wait_s, PROBE_S))
            if self.context is None:
                if _answers_tls(connection):
                    raise Refused(
                        f"{host}:{port} speaks TLS, the client {self.protocol}: "
                        f"set {PREFIX}SECURITY_PROTOCOL to SSL or SASL_SSL"
                    )
                return
            try:
                self.context.wrap_socket(connection, server_hostname=host).close()
            except ssl.SSLCertVerificationError as error:
                raise Refused(
                    f"the certificate of {host}:{port} is not trusted ({error.verify_message}): set "
                    f"{PREFIX}SSL_CAFILE to the authority that signed it, and name the host as it does"
                ) from error
            except (ssl.SSLError, ConnectionResetError) as error:
                raise Refused(
                    f"{host}:{port} does not answer as a TLS server ({error}): see its listeners and "
                    f"{PREFIX}SECURITY_PROTOCOL, which is {self.protocol}"
                ) from error


def _one_of(given: Mapping[str, str | None], name: str, allowed: tuple[str, ...]) -> str:
    value = given[name] or allowed[0]
    if value not in allowed:
        raise ValueError(f"{PREFIX}{name} is {value!r}, not one of {', '.join(allowed)}")
    return value


def _context(given: Mapping[str, str | None]) -> ssl.SSLContext:
    for name in ("SSL_CAFILE", "SSL_CERTFILE", "SSL_KEYFILE"):
        path = given[name]
        if path is not None and not Path(path).is_file():
            raise ValueError(f"{PREFIX}{name} is {path!r}: there is no such file")
    try:
        context = ssl.create_default_context(cafile=given["SSL_CAFILE"])
    except (ssl.SSLError, OSError) as error:
        raise ValueError(
            f"{PREFIX}SSL_CAFILE is {given['SSL_CAFILE']!r}: no PEM certificate ({error})"
        ) from error
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = _one_of(given, "SSL_CHECK_HOSTNAME", ("true", "false")) == "true"
    certificate, key = given["SSL_CERTFILE"], given["SSL_KEYFILE"]
    if key is not None and certificate is None:
        raise ValueError(f"{PREFIX}SSL_KEYFILE is set without {PREFIX}SSL_CERTFILE; set both")
    if certificate is not None:
        try:
            context.load_cert_chain(certificate, key)
        except (ssl.SSLError, OSError) as error:
            raise ValueError(
                f"{PREFIX}SSL_CERTFILE is {certificate!r}, {PREFIX}SSL_KEYFILE {key!r}: {error}; "
                "PEM of a certificate and its key without a passphrase are needed"
            ) from error
    return context


def _answers_tls(connection: socket.socket) -> bool:
    """Whether a plain ApiVersions request (the first of every client) is met with a TLS alert."""
    connection.sendall(struct.pack(">ihhih", 10, 18, 0, 1, -1))
    try:
        return connection.recv(1) == b"\x15"
    except TimeoutError:
        return False
