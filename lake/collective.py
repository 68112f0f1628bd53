"""One process group beside whatever else a process has: a store at rank 0, and the group over it.

It is laid out as SGLang lays out its `weight_update_group` (`init_custom_process_group` of 0.5.23), so either
side may be SGLang: the group's name twice, then the device, in front of every key of the store.  torch's
`init_process_group` makes the one group of a process, and `new_group` only parts of that one; a trainer
that has groups of its own (Megatron) and engines that have theirs meet in neither.

gloo carries tensors of the CPU, NCCL those of a GPU.
"""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

BACKENDS = {"cpu": "gloo", "cuda": "nccl"}


def open_store(address: str, timeout_s: float) -> Any:
    """The meeting place of a group, held by rank 0; its `port` is free to choose, and chosen here."""
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    return TCPStore(address, 0, None, True, timeout=timedelta(seconds=timeout_s), wait_for_workers=False)


def join_store(address: str, port: int, timeout_s: float) -> Any:
    """The store of somebody else.  Raises RuntimeError where it is not reached within `timeout_s`."""
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    return TCPStore(address, port, None, False, timeout=timedelta(seconds=timeout_s))


class Collective:
    """A group of `size` processes, of which this is `rank`; it lives until `close`.

    Making one returns when all have come.  Raises RuntimeError (torch's own) where they do not within
    `timeout_s`, here and in `broadcast`; a group in which that happened is of no further use.
    """

    def __init__(
        self, store: Any, name: str, *, rank: int, size: int, device: str = "cpu", timeout_s: float
    ) -> None:
        import torch.distributed.distributed_c10d as dist

        self.device, self._store, self._dist = device, store, dist
        within = timedelta(seconds=timeout_s)
        for prefix in (name, f"{name}/", f"{device}/"):
            store = dist.PrefixStore(prefix, store)
        self._group: Any
        if BACKENDS[device] == "gloo":
            self._group = dist.ProcessGroupGloo(store, rank, size, within)
        else:
            options = dist.ProcessGroupNCCL.Options()
            options._timeout = within
            self._group = dist.ProcessGroupNCCL(store, rank, size, options)
        self._within = within

    def broadcast(self, tensors: list[torch.Tensor]) -> None:
        """Rank 0's values into everybody's tensors, in this order; returns when they are there."""
        options = self._dist.BroadcastOptions()
        options.rootRank, options.rootTensor = 0, 0
        works = [self._group.broadcast([t], options) for t in tensors]
        for work in works:
            work.wait(self._within)
        if self.device == "cuda":
            import torch

            torch.cuda.synchronize()  # NCCL's wait only puts the next kernel behind it

    def close(self) -> None:
        """Leave: the others' next use of the group fails, and one that waits for us ends."""
        with suppress(AttributeError, RuntimeError):  # not every backend can
            self._group.abort()
        self._group = self._store = None
