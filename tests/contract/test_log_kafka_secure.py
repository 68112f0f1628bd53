"""The log over TLS with a password (SASL_SSL, SCRAM), on a broker that takes nobody else."""

from __future__ import annotations

import ssl
import time
from collections.abc import Iterator

import pytest

from lake.kafka_security import Security
from lake.log import LogError, LogUnavailable, open_log
from lake.log_kafka import KafkaLog
from tests.support import kafka
from tests.support.events import cell, tool
from tests.support.member import until

WAIT_S = 20.0
SOON_S = 10.0  # far below WAIT_S together with what a start of clients takes
SETTINGS = {
    "KAFKA_SECURITY_PROTOCOL": "SASL_SSL",
    "KAFKA_SASL_USERNAME": "headrace",
    "KAFKA_SASL_PASSWORD": "secret",
}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[kafka.Broker]:
    with kafka.running(tmp_path_factory.mktemp("secure"), secure=True) as broker:
        yield broker


@pytest.fixture
def settings(broker: kafka.Broker, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    settings = broker.client_settings()
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    return settings


@pytest.mark.kafka
@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_the_log_over_tls_with_a_password(
    broker: kafka.Broker, settings: dict[str, str], monkeypatch: pytest.MonkeyPatch, mechanism: str
) -> None:
    monkeypatch.setenv("KAFKA_SASL_MECHANISM", mechanism)
    log = open_log(f"kafka://{broker.address}/{mechanism}?partitions=2")
    assert isinstance(log, KafkaLog)
    written = log.append([tool("g", n) for n in range(20)] + [cell("s", 0)])
    assert log.end_offsets("cells") == {0: 1}
    lane = written[0][:2]
    reader = log.reader({lane: 5})
    records = []
    until(lambda: bool(records.extend(reader.poll(1.0)) or len(records) == 15))
    assert [r.headers.event_id for r in records] == [f"e:tool:{n}" for n in range(5, 20)]
    assert reader.lag() == {lane: 0}
    reader.close()
    members = log.members("ingest")
    until(lambda: members.lanes() == {0, 1})
    members.close()
    log.close()


def refused(broker: kafka.Broker, address: str = "") -> str:
    """What a log says that is not let in; soon, and for good."""
    began = time.monotonic()
    with pytest.raises(LogError) as error:
        KafkaLog(f"kafka://{address or broker.address}/x", wait_s=WAIT_S)
    assert time.monotonic() - began < SOON_S, "not after the whole wait"
    assert not isinstance(error.value, LogUnavailable), "trying again would not help"
    assert "secret" not in str(error.value)
    return str(error.value)


@pytest.mark.kafka
def test_who_is_not_let_in_is_told_so_at_once(
    broker: kafka.Broker, settings: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KAFKA_SASL_PASSWORD", "secret")
    assert "authentication failed for user 'headrace' by SCRAM-SHA-512" in refused(broker)
    monkeypatch.setenv("KAFKA_SASL_MECHANISM", "PLAIN")
    assert "authentication failed for user 'headrace' by PLAIN" in refused(broker)


@pytest.mark.kafka
def test_a_plain_client_is_told_that_the_broker_speaks_tls(broker: kafka.Broker) -> None:
    assert "speaks TLS, the client PLAINTEXT: set KAFKA_SECURITY_PROTOCOL to" in refused(broker)


@pytest.mark.kafka
def test_an_authority_or_a_name_that_is_not_trusted(
    broker: kafka.Broker, settings: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    port = broker.address.rpartition(":")[2]
    assert "is not trusted (Hostname mismatch" in refused(broker, f"127.1:{port}"), (
        "the same host, spelled so"
    )
    monkeypatch.delenv("KAFKA_SSL_CAFILE")
    assert "is not trusted (self-signed certificate" in refused(broker)


@pytest.mark.kafka
def test_a_tls_client_is_told_that_the_broker_speaks_none(
    kafka_broker: kafka.Broker, settings: dict[str, str]
) -> None:
    assert "does not answer as a TLS server" in refused(kafka_broker)


# ------------------------------------------------------------------------------ settings
@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"KAFKA_SECURITY_PROTOCOL": "TLS"}, "KAFKA_SECURITY_PROTOCOL is 'TLS', not one of PLAINTEXT, SSL,"),
        ({"KAFKA_SASL_MECHANISM": "GSSAPI"}, "KAFKA_SASL_MECHANISM is 'GSSAPI', not one of SCRAM-SHA-512,"),
        ({"KAFKA_SASL_PASSWORD": ""}, "KAFKA_SASL_PASSWORD is not set; SASL_SSL needs it"),
        ({"KAFKA_SASL_USERNAME": ""}, "KAFKA_SASL_USERNAME is not set; SASL_SSL needs it"),
        ({"KAFKA_SECURITY_PROTOCOL": ""}, "KAFKA_SASL_USERNAME is set, but KAFKA_SECURITY_PROTOCOL is PLAIN"),
        ({"KAFKA_SSL_CAFILE": "/no/such.pem"}, "KAFKA_SSL_CAFILE is '/no/such.pem': there is no such file"),
        ({"KAFKA_SSL_CAFILE": __file__}, "KAFKA_SSL_CAFILE is '.*': no PEM certificate"),
        ({"KAFKA_SSL_KEYFILE": __file__}, "KAFKA_SSL_KEYFILE is set without KAFKA_SSL_CERTFILE; set both"),
        ({"KAFKA_SSL_CERTFILE": __file__}, "KAFKA_SSL_CERTFILE is '.*', KAFKA_SSL_KEYFILE None: "),
        ({"KAFKA_SSL_CHECK_HOSTNAME": "no"}, "KAFKA_SSL_CHECK_HOSTNAME is 'no', not one of true, false"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_a_wrong_setting_is_named(changed: dict[str, str], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence) as error:
        Security.from_environment(SETTINGS | changed)
    assert "secret" not in str(error.value)


def test_settings_of_the_environment_and_those_that_are_assumed() -> None:
    assert Security.from_environment({}) == Security()
    security = Security.from_environment(SETTINGS)
    assert (security.mechanism, security.username, security.password) == (
        "SCRAM-SHA-512",
        "headrace",
        "secret",
    )
    assert security.context is not None
    assert security.context.check_hostname
    assert security.context.verify_mode is ssl.CERT_REQUIRED
    assert "secret" not in repr(security)
    lax = Security.from_environment(SETTINGS | {"KAFKA_SSL_CHECK_HOSTNAME": "false"}).context
    assert lax is not None
    assert not lax.check_hostname
    assert lax.verify_mode is ssl.CERT_REQUIRED, "the authority still has to be ours"
