"""The daemon: IOThreads, disks, exports and their sockets, from start to a clean end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import resource
import signal

from vringd.block.backend import BlockBackend, WorkerLimits
from vringd.control.blk_export import BlkExport
from vringd.control.disks import open_backend
from vringd.control.errors import OptionError, ResourceError, describe
from vringd.control.mapping import plan_iothreads
from vringd.control.schema import (
    ExportOptions,
    IOThreadOptions,
    ServeOptions,
    UnixAddress,
    VhostUserScsiOptions,
)
from vringd.control.scsi_export import ScsiExport
from vringd.control.scsi_units import ScsiUnits
from vringd.control.threads import ManagedThread
from vringd.core.iothread import IOThread
from vringd.vhost_user.errors import SocketError
from vringd.vhost_user.server import VhostUserServer

MAX_WORKERS = 1024  # of one channel, whatever the options say

Export = BlkExport | ScsiExport

logger = logging.getLogger("vringd.daemon")


def _raise_descriptor_limit() -> None:
    """Allow as many descriptors as we may: a queue takes about six, an IOThread a dozen."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


class Daemon:
    """Everything that `vringd serve` runs. Methods belong to one event loop."""

    def __init__(self, options: ServeOptions) -> None:
        self.options = options
        self.threads: dict[str, ManagedThread] = {}
        self.backends: dict[str, BlockBackend] = {}
        self.units = ScsiUnits()
        self.exports: dict[str, Export] = {}
        self.servers: dict[str, VhostUserServer] = {}
        self._end = asyncio.Event()
        self._signals: list[signal.Signals] = []

    async def start(self) -> None:
        """Threads, disks, then sockets. Raises VringdError, and leaves nothing behind then."""
        _raise_descriptor_limit()
        self._catch_signals()
        try:
            await self._start()
        except BaseException:
            await self.stop()
            raise

    async def _start(self) -> None:
        plan = plan_iothreads(self.options.iothreads, self.options.exports)
        for thread_options in plan.iothreads:
            self.add_iothread(thread_options)
        for node in self.options.blockdevs:
            self.backends[node.node_name] = open_backend(node)
        for export_options in self.options.exports:
            await self._open_export(export_options, plan.queues[export_options.id])
        # Sockets last: whoever sees one can connect to a daemon that is ready.
        for export_options in self.options.exports:
            self._listen(export_options)
        for server in self.servers.values():
            server.start()

    def add_iothread(self, options: IOThreadOptions) -> None:
        """Start one more IOThread. Raises OptionError for a name in use, ResourceError."""
        if options.id in self.threads:
            raise OptionError(f"{options.origin}: id={options.id} is in use; choose another")
        try:
            thread = ManagedThread(
                IOThread(
                    options.id,
                    cpu_affinity=options.cpu_affinity,
                    poll_max_ns=options.poll_max_ns,
                    poll_grow=options.poll_grow,
                    poll_shrink=options.poll_shrink,
                    aio_max_batch=options.aio_max_batch,
                ),
                workers=WorkerLimits(
                    min(options.thread_pool_min, MAX_WORKERS),
                    min(options.thread_pool_max, MAX_WORKERS),
                ),
            )
            thread.start()
        except OSError as error:
            raise ResourceError(
                f"{options.origin or f'IOThread {options.id}'}: {describe(error)}"
            ) from error
        self.threads[options.id] = thread

    async def remove_iothread(self, name: str) -> None:
        """End an IOThread that serves no queue. Raises OptionError for any other name."""
        thread = self.threads.get(name)
        if thread is None:
            raise OptionError(f"there is no IOThread {name!r}")
        for export in self.exports.values():
            if thread in export.used_threads():
                raise OptionError(
                    f"IOThread {name!r} serves queues of export {export.name!r}; move them first"
                )
        del self.threads[name]
        await thread.stop()

    async def _open_export(self, options: ExportOptions, queues: tuple[str, ...]) -> None:
        threads = [self.threads[name] for name in queues]
        export: Export
        if isinstance(options, VhostUserScsiOptions):
            export = ScsiExport(options, self.units, self.backends, threads)
        else:
            export = BlkExport(options, self.backends[options.node_name], threads)
        self.exports[options.id] = export
        try:
            await export.open()
        except (OptionError, ValueError) as error:
            raise OptionError(f"{options.origin}: {error}") from error
        except ResourceError as error:
            raise ResourceError(f"{options.origin}: {error}") from error
        except OSError as error:
            raise ResourceError(f"{options.origin}: {describe(error)}") from error

    def _listen(self, options: ExportOptions) -> None:
        export = self.exports[options.id]
        try:
            if isinstance(options.addr, UnixAddress):
                server = VhostUserServer(export, path=options.addr.path)
            else:
                server = VhostUserServer(export, fd=options.addr.fd)
        except SocketError as error:
            raise ResourceError(f"{options.origin}: {error}") from error
        self.servers[options.id] = server

    # ---- signals -----------------------------------------------------------------------------

    def _catch_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._end.set)
            self._signals.append(number)
        loop.add_signal_handler(signal.SIGHUP, self.refresh_sizes)
        self._signals.append(signal.SIGHUP)

    def refresh_sizes(self) -> None:
        """Look at every disk's size again (SIGHUP): guests learn of what has grown."""
        for export in self.exports.values():
            try:
                export.refresh_size()
            except OSError as error:
                logger.error("export %s: cannot read the size: %s", export.name, error)

    async def run_until_signal(self) -> None:
        """Serve until SIGTERM or SIGINT, or until all connected sockets handed over have ended."""
        waits: set[asyncio.Task[object]] = {asyncio.create_task(self._end.wait())}
        if self.servers:
            waits.add(asyncio.create_task(self._all_served()))
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in waits:
                task.cancel()
            await self.stop()

    async def _all_served(self) -> None:
        for server in self.servers.values():
            await server.wait()

    async def stop(self) -> None:
        """Drain all queues, remove the sockets, end the threads. Again does nothing."""
        for server in self.servers.values():
            await server.close()
        self.servers.clear()
        for export in self.exports.values():
            await export.close()
        self.exports.clear()
        self.units.close()
        for backend in self.backends.values():
            backend.close()
        self.backends.clear()
        for thread in self.threads.values():
            await thread.stop()
        self.threads.clear()
        loop = asyncio.get_running_loop()
        for number in self._signals:
            loop.remove_signal_handler(number)
        self._signals.clear()
