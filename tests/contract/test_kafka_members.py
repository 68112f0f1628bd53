"""Workers that share out the lanes of a log in Kafka: who has which, when they come, go, die and stop."""

from __future__ import annotations

import logging
import signal
import time
from collections.abc import Callable, Iterator

import pytest
from kafka import KafkaAdminClient

from lake.kafka_members import Members
from lake.log import LogError
from lake.log_kafka import KafkaLog
from tests.support.events import tool
from tests.support.member import SESSION_S, Member, until

pytestmark = pytest.mark.kafka
ALL = frozenset(range(4))


class Group:
    """Starts members of one group, and ends those that are left."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.members: list[Member] = []

    def start(self, instance: str = "") -> Member:
        self.members.append(Member(self.url, "ingest", instance))
        return self.members[-1]

    def end(self) -> None:
        for member in self.members:
            member.kill()


@pytest.fixture
def url(kafka_url: Callable[..., str]) -> str:
    url = kafka_url(partitions=4)
    KafkaLog(url).close()
    return url


@pytest.fixture
def group(url: str) -> Iterator[Group]:
    group = Group(url)
    yield group
    group.end()


def shared(*members: Member) -> bool:
    """Every lane has one owner, and no member has more than its share."""
    lanes = [lane for m in members for lane in m.lanes]
    sizes = [len(m.lanes) for m in members]
    return sorted(lanes) == sorted(ALL) and max(sizes) - min(sizes) <= 1


def test_members_share_the_lanes_and_only_those_move_that_must(group: Group) -> None:
    first = group.start()
    until(lambda: first.lanes == ALL)
    second = group.start()
    until(lambda: shared(first, second))
    kept = first.lanes, second.lanes
    third = group.start()
    until(lambda: shared(first, second, third))
    assert first.lanes <= kept[0], "nobody got what another one had to give up"
    assert second.lanes <= kept[1]
    third.end()
    until(lambda: shared(first, second))


def test_the_lanes_of_a_killed_member_move_after_its_session(group: Group) -> None:
    first, second = group.start(), group.start()
    until(lambda: shared(first, second))
    first.kill()
    until(lambda: second.lanes == ALL)


def test_a_static_member_that_comes_back_has_its_lanes_again_and_nobody_notices(group: Group) -> None:
    first, second = group.start("worker-0"), group.start("worker-1")
    until(lambda: shared(first, second))
    lanes, said = first.lanes, list(second.said)
    first.kill()
    again = group.start("worker-0")
    until(lambda: again.lanes == lanes)
    time.sleep(1.0)
    assert second.said == said
    assert shared(again, second)


def test_a_member_that_was_stopped_past_its_session_owns_nothing_when_it_wakes(group: Group) -> None:
    first, second = group.start(), group.start()
    until(lambda: shared(first, second))
    generation, told = first.said[-1][0], len(first.said)
    first.process.send_signal(signal.SIGSTOP)
    until(lambda: second.lanes == ALL)
    first.process.send_signal(signal.SIGCONT)
    until(lambda: len(first.said) > told)
    assert first.said[told][1] == frozenset(), "the first that it says is that it owns nothing"
    until(lambda: shared(first, second))
    assert first.said[-1][0] > generation


@pytest.fixture
def log(url: str) -> Iterator[KafkaLog]:
    log = KafkaLog(url)
    yield log
    log.close()


def joined(members: Members) -> Members:
    until(lambda: members.lanes() == ALL)
    return members


def test_a_second_process_under_the_same_name_ends_the_first(log: KafkaLog) -> None:
    first = joined(log.members("ingest", "worker-0", SESSION_S))
    second = joined(log.members("ingest", "worker-0", SESSION_S))
    with pytest.raises(LogError, match="another process is the worker 'worker-0' of test-"):
        until(lambda: bool(first.lanes() and False))
    assert second.lanes() == ALL
    first.close()
    second.close()


def test_a_closed_member_is_gone_at_once_and_groups_of_other_names_do_not_share(log: KafkaLog) -> None:
    one, other = joined(log.members("ingest")), joined(log.members("other"))
    one.close()
    began = time.monotonic()
    again = joined(log.members("ingest"))
    assert time.monotonic() - began < SESSION_S
    assert other.lanes() == ALL
    again.close()
    other.close()


def test_positions_are_mirrored_for_lag_tools(log: KafkaLog, caplog: pytest.LogCaptureFixture) -> None:
    log.append([tool("g", 0)])
    members = joined(log.members("ingest"))
    members.mirror({("tools", 0): 1, ("calls", 3): 7, ("policy", 0): 2})
    admin: KafkaAdminClient = log._cluster.client(KafkaAdminClient)

    def mirrored() -> dict[tuple[str, int], int]:
        found = admin.list_group_offsets({members.group: None})[members.group]
        return {(tp.topic.rpartition(".")[2], tp.partition): at.offset for tp, at in found.items()}

    until(lambda: mirrored() == {("tools", 0): 1, ("calls", 3): 7, ("policy", 0): 2})
    admin.close()
    members.close()
    with pytest.raises(LogError, match="closed; open it again"):
        members.lanes()
    with caplog.at_level(logging.WARNING, "headrace.members"):
        members._mirrored(None, TimeoutError())
    assert "lag tools are behind: TimeoutError" in caplog.text


def test_wrong_use_is_told(log: KafkaLog) -> None:
    with pytest.raises(ValueError, match="give a name"):
        log.members("")
    with pytest.raises(ValueError, match="session_s is 300, between 0 and 300 is needed"):
        log.members("ingest", session_s=300.0)
    members = log.members("ingest", session_s=1.0)
    with pytest.raises(ValueError, match="the broker refuses a session of 1 s"):
        until(lambda: bool(members.lanes()))
    members.close()
