"""`vringd demo`: a Linux guest under QEMU on a served disk, with four queues on two IOThreads.

The daemon runs in this process, exactly as `vringd serve` would run it. It is a front for
`demo_disk` (what is served), `demo_steps` (what the guest does) and `demo_report` (what is
shown).
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import signal
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from vringd.cli.arguments import ArgumentParser
from vringd.cli.demo_disk import NUM_QUEUES, DemoDisk
from vringd.cli.demo_report import Progress, queue_table
from vringd.cli.demo_steps import DemoFailedError, GuestSteps
from vringd.cli.logs import set_up_logging
from vringd.control.blk_export import BlkExport
from vringd.control.daemon import Daemon
from vringd.testing.guest import Guest, GuestError
from vringd.testing.guest_devices import VhostUserBlk
from vringd.testing.guest_machine import guest_missing_reason
from vringd.testing.peers import INSTALL_HINT, PeerMissingError

HELP = "boot a small virtual machine from a served disk"

_CPUS = 4

T = TypeVar("T")


def add_parser(subparsers: argparse._SubParsersAction[ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "demo",
        help=HELP,
        description="Boots a Linux guest under QEMU (no KVM needed) on a disk that vringd serves\n"
        "with four queues on two IOThreads, uses the disk in every way, and shows what\n"
        "each queue has done. Takes about half a minute and leaves nothing behind.",
    )
    parser.add_argument(
        "--verbose",
        action="store_true",
        help="also show the commands in the guest, what they print, and the guest's console",
    )


def run(args: argparse.Namespace) -> int:
    """Shows it all. Raises VringdError: what could not be done, or which check failed."""
    reason = guest_missing_reason()
    if reason is not None:
        raise _missing(reason)
    set_up_logging("vringd", "info" if args.verbose else "warning")
    with tempfile.TemporaryDirectory(prefix="vringd-demo-") as folder:
        disk = DemoDisk(Path(folder))
        disk.create()
        print(f"This is what is served (the disk is empty, {disk.size >> 20} MiB):\n")
        print(f"{disk.command_line()}\n")
        try:
            asyncio.run(_serve_and_show(disk, Progress(verbose=args.verbose)))
        except PeerMissingError as error:
            raise _missing(str(error)) from error
        except GuestError as error:
            raise DemoFailedError(f"the guest: {error}") from error
    return 0


def _missing(reason: str) -> DemoFailedError:
    return DemoFailedError(reason.replace(INSTALL_HINT, "run `make peers`"))


async def _serve_and_show(disk: DemoDisk, progress: Progress) -> None:
    daemon = Daemon(disk.options())
    with progress.step("vringd serves the disk") as step:
        await daemon.start()
        step.result = f"{NUM_QUEUES} queues on IOThreads {' and '.join(daemon.threads)}"
    serving = asyncio.create_task(daemon.run_until_signal())
    guest = Guest([VhostUserBlk("disk", disk.socket, num_queues=NUM_QUEUES)], cpus=_CPUS)
    showing = asyncio.create_task(_show(disk, daemon, guest, progress))
    try:
        await asyncio.wait({serving, showing}, return_when=asyncio.FIRST_COMPLETED)
        while not showing.done():  # a signal has ended the daemon
            _kill(guest)
            await asyncio.wait({showing}, timeout=0.2)
        if serving.done():
            showing.exception()
            raise DemoFailedError("interrupted")
        await showing
    finally:
        serving.cancel()  # a clean end, as by SIGTERM
        with contextlib.suppress(asyncio.CancelledError):
            await serving


async def _show(disk: DemoDisk, daemon: Daemon, guest: Guest, progress: Progress) -> None:
    loop = asyncio.get_running_loop()
    # QEMU is killed when the thread that has started it ends, so everything that is done with
    # the guest is done by one thread that lives until the end.
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="guest") as thread:

        async def do(action: Callable[[], T]) -> T:
            return await loop.run_in_executor(thread, action)

        steps = GuestSteps(guest, disk, progress)
        try:
            await do(steps.boot)
            await do(steps.verify)
            await do(steps.make_file_system)
            await do(steps.discard)
            with progress.step("the disk grows while the guest runs") as step:
                disk.grow()
                daemon.refresh_sizes()  # what SIGHUP does to `vringd serve`
                step.result = await do(steps.new_size)
            await do(steps.power_off)
        finally:
            await do(guest.close)
    export = daemon.exports[disk.export_id]
    assert isinstance(export, BlkExport)
    print(f"\n{queue_table(export)}")
    idle = [queue for queue, stats in enumerate(export.stats) if not stats.snapshot()["batches"]]
    if idle:
        raise DemoFailedError(f"these queues had no request: {', '.join(map(str, idle))}")


def _kill(guest: Guest) -> None:
    """Ends QEMU, which makes the guest's thread fail whatever it waits for."""
    with contextlib.suppress(GuestError, ProcessLookupError):
        os.kill(guest.pid, signal.SIGKILL)
