"""One execution from its harness's start to its events: run, close, assess.

Three clocks: the harness's, the evaluator's, and one over both together.  Whose time is over when the first
ends, is scored as it stands; when the last ends, the score is missing, whatever was under way.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Sequence

import aiohttp
import msgspec

from ingest.identity import sign
from ingest.rollouts.harnesses import Assignment, Execution, Harness, HarnessCrashed, ProxyLost, Unscored
from ingest.rollouts.launching import Launch
from lake.config import Rollout
from lake.events import Event, ExecutionFinished, ExecutionScored
from lake.log import now_us

logger = logging.getLogger("headrace.runner")

CLOSE_WAIT_S = 120.0  # longer than the proxy waits for the calls that it aborts and for the log (90 s)
PROXY_BACK_S, PROXY_PAUSE_S = 20.0, 0.25  # one that died is started again at the same port within seconds
DETAIL_CHARACTERS_MAX = 2000
ASSESSMENT_CHARACTERS_MAX = 1 << 16


class Closed(msgspec.Struct, frozen=True):
    """The proxy's answer to `close`: the calls it captured."""

    calls: int


def describe(error: BaseException) -> str:
    """An error in a line, for the `detail` of an event."""
    return f"{type(error).__name__}: {error}"[:DETAIL_CHARACTERS_MAX]


class Budget:
    """The clocks of one execution, from now on; `over` once the one over all has ended it."""

    def __init__(self, rollout: Rollout) -> None:
        self._rollout = rollout
        overall_s = rollout.overall_timeout_s or math.inf
        self._until = asyncio.get_running_loop().time() + overall_s
        self.over = False

    def _limit(self, name: str) -> tuple[float, str]:
        """Seconds that there are, and the setting that says so."""
        own_s, left_s = getattr(self._rollout, name), self._until - asyncio.get_running_loop().time()
        overall = f"overall_timeout_s = {self._rollout.overall_timeout_s:g} s"
        return min((own_s, f"rollout.{name} = {own_s:g} s"), (max(0.0, left_s), f"rollout.{overall}"))

    def _ended(self) -> bool:
        self.over = asyncio.get_running_loop().time() >= self._until
        return self.over

    async def run(self, execution: Execution) -> tuple[str, str]:
        """Status and detail.  Raises what the harness raises."""
        limit_s, said = self._limit("harness_timeout_s")
        try:
            async with asyncio.timeout(limit_s) as clock:
                return await execution.run(), ""
        except TimeoutError:
            if not clock.expired():
                raise
            return ("overall_timeout" if self._ended() else "harness_timeout"), f"stopped after {said}"

    async def assess(self, execution: Execution, status: str) -> tuple[str, float | None, str]:
        """Assessment, value and detail.  An evaluator that crashes or hangs leaves the score missing."""
        limit_s, said = self._limit("scorer_timeout_s")
        try:
            async with asyncio.timeout(limit_s) as clock:
                assessed = await execution.assess()
            if not math.isfinite(assessed.value):
                raise ValueError(f"the evaluator gave {assessed.value}, a finite number is needed")
        except Unscored as error:
            return "missing", None, f"unscored: {error}"
        except Exception as error:
            if not (isinstance(error, TimeoutError) and clock.expired()):
                return "missing", None, describe(error)
            self._ended()
            return "missing", None, f"the evaluator was stopped after {said}"
        detail = assessed.detail[:ASSESSMENT_CHARACTERS_MAX]
        return ("scored" if status == "completed" else "partial"), assessed.value, detail


class Executor:
    """Carries out launches with one harness against one proxy."""

    def __init__(
        self, *, harness: Harness, http: aiohttp.ClientSession, proxy: str, secret: bytes, rollout: Rollout
    ) -> None:
        self._harness, self._http, self._proxy = harness, http, proxy.rstrip("/")
        self._secret, self._rollout = secret, rollout

    async def execute(self, launch: Launch) -> Sequence[Event]:
        """The events of an execution that the harness ended.  Raises ProxyLost."""
        base_url = f"{self._proxy}/x/{launch.execution_id}"
        api_key = sign(self._secret, launch.group_id, launch.execution_id)
        execution: Execution | None = None
        budget = Budget(self._rollout)
        try:
            execution = self._harness.prepare(
                Assignment(
                    group_id=launch.group_id,
                    execution_id=launch.execution_id,
                    index=launch.index,
                    attempt=launch.attempt,
                    task=launch.task,
                    base_url=base_url,
                    api_key=api_key,
                )
            )
            status, detail = await budget.run(execution)
        except ProxyLost:
            raise
        except Exception as error:
            status, detail = "crashed", describe(error)
            ours = None if isinstance(error, HarnessCrashed) else error
            logger.warning("%s: the harness crashed: %s", launch.execution_id, detail, exc_info=ours)
        calls = await self._close(base_url, api_key)
        assessment, value, said = "missing", None, f"not assessed: the harness {status}"
        if execution is not None and status in {"completed", "harness_timeout"}:
            assessment, value, said = await budget.assess(execution, status)
            if budget.over:
                status, detail = "overall_timeout", said
        return (
            ExecutionFinished(
                time_us=now_us(),
                group_id=launch.group_id,
                execution_id=launch.execution_id,
                status=status,
                calls=calls,
                detail=detail,
            ),
            ExecutionScored(
                time_us=now_us(),
                group_id=launch.group_id,
                execution_id=launch.execution_id,
                assessment=assessment,
                value=value,
                evaluator=self._harness.evaluator,
                detail=said,
            ),
        )

    async def _close(self, base_url: str, api_key: str) -> int:
        """Tell the proxy that no more calls come; the calls it captured.  Raises ProxyLost."""
        url, headers = f"{base_url}/close", {"Authorization": f"Bearer {api_key}"}
        limit = aiohttp.ClientTimeout(total=CLOSE_WAIT_S)
        loop = asyncio.get_running_loop()
        until = loop.time() + PROXY_BACK_S
        while True:
            try:
                async with self._http.post(url, headers=headers, timeout=limit) as response:
                    if response.status == 200:
                        return msgspec.json.decode(await response.read(), type=Closed).calls
                    raise ProxyLost(f"{url}: {response.status}: {(await response.text())[:500]}")
            except aiohttp.ClientConnectionError as error:  # closing twice is closing once
                if loop.time() > until:
                    raise ProxyLost(f"{url}: {describe(error)}") from error
                await asyncio.sleep(PROXY_PAUSE_S)
            except (aiohttp.ClientError, TimeoutError, msgspec.MsgspecError) as error:
                raise ProxyLost(f"{url}: {describe(error)}") from error
