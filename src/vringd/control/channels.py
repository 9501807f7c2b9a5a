"""The channels of one export: its own path to the disk for each IOThread that serves a queue."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from vringd.block.backend import BlockBackend
from vringd.control.threads import ManagedThread
from vringd.core.channel import Channel


class ChannelSet:
    """Channels by IOThread, opened when first asked for."""

    def __init__(self, backend: BlockBackend) -> None:
        self._backend = backend
        self._channels: dict[ManagedThread, Channel] = {}
        self._turn = asyncio.Lock()

    async def open(self, thread: ManagedThread) -> Channel:
        """The channel of that thread. Raises OSError or ValueError when it cannot be had."""
        async with self._turn:
            channel = self._channels.get(thread)
            if channel is None:
                channel = self._backend.open_channel(
                    io_uring=thread.uses_io_uring, workers=thread.workers
                )
                await thread.add_channel(channel)
                self._channels[thread] = channel
            return channel

    async def keep_only(self, used: Callable[[], set[ManagedThread]]) -> None:
        """Stop the channels of all other threads; no queue uses them any more."""
        async with self._turn:
            for thread in list(self._channels):
                if thread in used():
                    continue
                # A thread that ended by itself took the channel with it.
                with contextlib.suppress(OSError):
                    await thread.remove_channel(self._channels[thread])
                del self._channels[thread]
