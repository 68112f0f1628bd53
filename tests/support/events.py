"""One event of each type, made of fixed values, and other events for tests of the log."""

from __future__ import annotations

from lake.events import (
    PLACE_BYTES,
    CellEvent,
    Event,
    ExecutionFinished,
    ExecutionLaunched,
    ExecutionScored,
    GroupClaimed,
    GroupConsumed,
    GroupDispatched,
    GroupReady,
    ModelCalled,
    PolicyPublished,
    ReplyUndelivered,
    RunStarted,
    ScheduleDecided,
    StepCommitted,
    StepPlanned,
    ToolCalled,
    VersionSpan,
    ids_to_bytes,
    logprobs_to_bytes,
)

AT = {"time_us": 1_795_000_000_000_000}
OF = AT | {"group_id": "g-1"}
BY = OF | {"execution_id": "e-1"}

ONE_OF_EACH: tuple[Event, ...] = (
    GroupDispatched(**OF, task='{"seed": 7}', size=8, policy_version=3, boundary=1),
    GroupReady(**OF, set_name="main", scores_end=9, tokens=400, targets=120, executions_valid=7, digest="d1"),
    GroupClaimed(**OF, step=4, claimed_by="trainer-0"),
    GroupConsumed(**OF, step=4, policy_version=3),
    ExecutionLaunched(**BY, index=2, attempt=1, cell="cell-0"),
    ExecutionFinished(**BY, status="harness_timeout", calls=2, detail="after 120 s"),
    ReplyUndelivered(**BY, call_id=1),
    ExecutionScored(**BY, assessment="partial", value=0.25, evaluator="tests", version=1, detail="1 of 4"),
    ModelCalled(
        **BY,
        call_id=1,
        role="main",
        parent_call_id=0,
        shared_len=5,
        context_ids=ids_to_bytes([7, 151_643]),
        output_ids=ids_to_bytes([3, 2**31 - 1, 0]),
        output_logprobs=logprobs_to_bytes([-0.5, 0.0, -12.25]),
        relation="branches",
        difference="message 2",
        retry_of=0,
        delivered=False,
        finish_reason="length",
        spans=(VersionSpan(2, 0, 1), VersionSpan(None, 1, 3)),
        engine="embedded-0",
        temperature=0.75,
        sampling='{"top_p": 0.9}',
        cached_tokens=4,
        started_us=10,
        finished_us=20,
        place=bytes(range(PLACE_BYTES)),
        experts=f"{'0f' * 32}:1234",
    ),
    ToolCalled(
        **BY,
        tool_call_id="t-1",
        call_id=1,
        name="bash",
        arguments=b'{"x": "\xff"}',
        result=b"\x00ok",
        started_us=30,
        stopped_us=40,
        status="error",
    ),
    RunStarted(**AT, run="demo", config="{}", software='{"headrace": "0.1.0"}'),
    StepPlanned(
        **AT,
        step=4,
        policy_version=3,
        groups=("g-1", "g-2"),
        digests=("d1", "d2"),
        micro_steps=(1, 2),
        set_name="main",
        seed=11,
        learning_rate=5e-4,
    ),
    StepCommitted(
        **AT,
        step=4,
        policy_version=4,
        digest="w4",
        checkpoint="checkpoints/4",
        loss=-0.125,
        gradient_norm=1.5,
        executions=14,
        tokens=800,
        targets=240,
        statistics='{"entropy": 1.0}',
    ),
    PolicyPublished(
        **AT,
        policy_version=4,
        boundary=2,
        weights="weights/v000004",
        digest="w4",
        transport="group",
        took_us=812_000,
        readback=0.00390625,
    ),
    CellEvent(**AT, cell="cell-0", session="s-1", change="started", detail="pid 7"),
    ScheduleDecided(**AT, decision="rebalance", number=5, numbers='{"waterlevel": 3}'),
)


def tool(group: str, number: int, result: bytes = b"", execution: str = "e") -> ToolCalled:
    """A tool event of a group, told apart by its number."""
    return ToolCalled(
        time_us=number,
        group_id=group,
        execution_id=execution,
        tool_call_id=str(number),
        call_id=None,
        name="tool",
        arguments=b"",
        result=result,
        started_us=0,
        stopped_us=0,
    )


def cell(session: str, number: int) -> CellEvent:
    """An event of a topic with one partition."""
    return CellEvent(time_us=number, cell="cell", session=session, change="heartbeat")
