"""The executions that a proxy has: whose request it is, and the state that it is answered from.

State is made at an execution's first request, out of the log where the log has calls of it: a proxy that
is started again goes on with every execution that is live.  Where all states together grow over
`Limits.state_bytes_max`, those that were used longest ago and do nothing now are let go, to be made again
the same way when they are asked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from starlette.types import Scope

from ingest.identity import BadToken, Identity, verify
from ingest.matching import MatchingError
from ingest.proxy.calls import Caller, Limits
from ingest.proxy.execution import Execution, Recall
from ingest.proxy.neutral import Rejected
from ingest.proxy.recall import Known, Since, known, recall
from ingest.proxy.rendering import Renderer
from lake.log import Log, LogError


@dataclass(eq=False)
class Executions:
    """Everything by execution id."""

    log: Log
    renderer: Renderer
    secret: bytes
    limits: Limits
    clock: Callable[[], int]
    caller: Caller
    engine_name: str
    known: Known = field(init=False)
    open: dict[str, Execution] = field(default_factory=dict)
    closed: dict[str, int] = field(default_factory=dict)
    _wanted: dict[str, tuple[Identity, asyncio.Future[Execution]]] = field(default_factory=dict)
    _recalling: asyncio.Task[None] | None = None
    _bytes: dict[str, int] = field(default_factory=dict)
    _bytes_all: int = 0

    def __post_init__(self) -> None:
        self.known = known(self.log)

    # ---------------------------------------------------------------------------------- whose
    def identity(self, scope: Scope) -> Identity:
        """Whose request it is.  Raises Rejected: 401 without a good key, 403 with another's."""
        token = ""
        for name, value in scope["headers"]:
            if name == b"x-api-key":
                token = value.decode("latin-1").strip()
            elif name == b"authorization" and value[:7].lower() == b"bearer ":
                token = value[7:].decode("latin-1").strip()
                break
        try:
            identity = verify(self.secret, token)
        except BadToken as error:
            raise Rejected(401, "bad_token", f"{error}; give the execution's token as the API key") from error
        wanted = scope["path_params"]["execution"]
        if identity.execution_id != wanted:
            raise Rejected(
                403,
                "other_execution",
                f"the API key is of execution {identity.execution_id}, the URL of {wanted}",
            )
        return identity

    # ------------------------------------------------------------------------------- the state
    async def get(self, identity: Identity) -> Execution:
        """The execution's state.  Raises Rejected (409, 429, 503)."""
        name = identity.execution_id
        if name in self.closed or name in self.known.finished:
            raise Rejected(409, "execution_closed", f"execution {name} is closed; it takes no more calls")
        execution = await self._state(identity)
        if execution.failed:
            raise Rejected(503, "log_unavailable", execution.failed)
        if execution.closing:
            raise Rejected(
                409, "execution_closed", f"execution {name} is being closed; it takes no more calls"
            )
        execution.used_us = self.clock()
        return execution

    async def _state(self, identity: Identity) -> Execution:
        """The one state: where several waited for it, it may have been let go of before the last goes on."""
        name = identity.execution_id
        return self.open.get(name) or self.open.setdefault(name, await self._opened(identity))

    async def _opened(self, identity: Identity) -> Execution:
        name = identity.execution_id
        if name not in self._wanted and len(self.open) + len(self._wanted) >= self.limits.executions_max:
            raise Rejected(
                429, "too_many_executions", f"{len(self.open)} executions are open, which is the most"
            )
        if name not in self.known.live:  # all that it has asked, it has asked this process
            execution = self._new(identity)
            self.open[name] = execution
            self.known.live[name] = Since(identity.group_id, execution.started_us)
            return execution
        if name not in self._wanted:
            self._wanted[name] = identity, asyncio.get_running_loop().create_future()
        wanted = self._wanted[name][1]
        if self._recalling is None or self._recalling.done():
            self._recalling = asyncio.create_task(self._recall_all())
        return await asyncio.shield(wanted)

    def _new(self, identity: Identity) -> Execution:
        now_us = self.clock()
        return Execution(identity, self.renderer, self.engine_name, now_us, used_us=now_us)

    async def _recall_all(self) -> None:
        """All that are wanted, in one look at the log, and then those that came to be wanted meanwhile."""
        while self._wanted:
            wanted = dict(self._wanted)
            try:
                found = await asyncio.to_thread(recall, self.log, {n: self.known.live[n] for n in wanted})
                for name, (identity, future) in wanted.items():
                    execution = self._new(identity)
                    await asyncio.to_thread(_recalled, execution, found.pop(name))
                    self.open.setdefault(name, execution)  # when it is whole, and not before
                    self._weigh(execution)
                    future.set_result(self.open[name])
            except Exception as error:
                sentence = f"the log does not give what it holds of the execution: {error}"
                for _, future in wanted.values():
                    if not future.done():
                        future.set_exception(Rejected(503, "log_unavailable", sentence))
                        future.exception()  # whoever waited may have hung up
                if not isinstance(error, LogError):
                    raise
            finally:
                for name in wanted:
                    del self._wanted[name]

    def grown(self, execution: Execution) -> None:
        """A call of it ended: where all together are too large, let go of what is idle the longest."""
        self._weigh(execution)
        if self._bytes_all <= self.limits.state_bytes_max:
            return
        for other in sorted(self.open.values(), key=lambda e: e.used_us):
            if self._bytes_all <= self.limits.state_bytes_max:
                return
            if other.idle:
                self._forget(other.identity.execution_id)

    def _weigh(self, execution: Execution) -> None:
        name, nbytes = execution.identity.execution_id, execution.nbytes
        if self.open.get(name) is execution:
            self._bytes_all += nbytes - self._bytes.get(name, 0)
            self._bytes[name] = nbytes

    def _forget(self, name: str) -> None:
        self.open.pop(name, None)
        self._bytes_all -= self._bytes.pop(name, 0)

    async def close(self, identity: Identity) -> int:
        """See `Caller.close`; asked again, it answers the same."""
        name = identity.execution_id
        if name in self.closed:
            return self.closed[name]
        if name in self.known.finished:
            raise Rejected(409, "execution_closed", f"execution {name} was finished before")
        calls = 0
        if name in self.open or name in self.known.live:
            calls = await self.caller.close(await self._state(identity))
        self.closed[name] = calls
        self._forget(name)
        self.known.live.pop(name, None)
        return calls


def _recalled(execution: Execution, found: Recall) -> None:
    try:
        execution.recall(found)
    except MatchingError as error:
        execution.failed = f"the log does not hold all calls of the execution: {error}"
