"""Servers and daemons stop under load: at once, with everything drained."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from vringd.testing.blk import BlkDriver
from vringd.testing.driver import DriverQueue
from vringd.testing.frontend import Disconnected, Frontend

from .engine import DISK_BYTES, Engine, open_disk
from .machine import PACKED
from .traffic import guest_ram

QUEUES = 4
DEPTH = 16
STOP_SECONDS = 5.0  # without load it takes some milliseconds


def test_a_server_that_closes_has_answered_whatever_it_took(
    engine: Engine, folder: Path, seconds: float
) -> None:
    device = engine.add_device(
        "e0", open_disk("null", folder, latency_ns=20_000_000), num_queues=QUEUES
    )
    with ExitStack() as stack:
        rams = [stack.enter_context(guest_ram(i)) for i in range(QUEUES)]
        queues = [stack.enter_context(DriverQueue(ram, 64)) for ram in rams]
        drivers = [BlkDriver(queue) for queue in queues]
        for life in range(max(3, int(4 * seconds))):
            server = engine.serve(device, folder / f"{life}.sock")
            with Frontend.connect(folder / f"{life}.sock") as frontend:
                frontend.negotiate(features=~PACKED)
                for i, queue in enumerate(queues):
                    frontend.add_ram(rams[i])
                    # Drained: what was taken has been used, so used.idx is where to go on.
                    frontend.attach(i, queue, base=queue.used_idx)
                for driver in drivers:
                    for n in range(DEPTH - driver.in_flight):
                        driver.submit_read(8 * n, 4096)
                begin = time.monotonic()
                engine.run(server.close())
                assert time.monotonic() - begin < STOP_SECONDS
                with pytest.raises(Disconnected):
                    frontend.get_features()
            for driver in drivers:
                driver.poll()
        # What the last server did not take is done by the next one: nothing was lost.
        engine.serve(device, folder / "last.sock")
        with Frontend.connect(folder / "last.sock") as frontend:
            frontend.negotiate(features=~PACKED)
            for i, queue in enumerate(queues):
                frontend.add_ram(rams[i])
                frontend.attach(i, queue, base=queue.used_idx)
            for driver in drivers:
                while driver.in_flight:
                    assert driver.complete().check().data == bytes(4096)


@contextmanager
def daemon(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """`vringd serve` with two disks, each with four queues on two IOThreads."""
    program = "import sys; from vringd.cli.main import main; sys.exit(main())"
    command = [sys.executable, "-c", program, "serve"]
    for i in range(2):
        image = folder / f"{i}.img"
        with image.open("wb") as file:
            file.truncate(DISK_BYTES)
        command += [
            "--object",
            f"iothread,id=t{i}",
            "--blockdev",
            f"file,node-name=n{i},filename={image}",
            "--export",
            f"vhost-user-blk,id=e{i},node-name=n{i},writable=on,num-queues={QUEUES},"
            f"addr.type=unix,addr.path={folder}/{i}.sock,iothread.0=t0,iothread.1=t1",
        ]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        deadline = time.monotonic() + 30
        while not (folder / "1.sock").exists():
            assert process.poll() is None, process.stderr and process.stderr.read()
            assert time.monotonic() < deadline, "the daemon does not start"
            time.sleep(0.01)
        yield process
    finally:
        process.kill()
        process.wait()
        if process.stderr is not None:
            process.stderr.close()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_daemon_that_is_told_to_stop_drains_and_leaves(
    folder: Path, number: signal.Signals
) -> None:
    with ExitStack() as stack:
        process = stack.enter_context(daemon(folder))
        drivers = []
        for i in range(2):
            frontend = stack.enter_context(Frontend.connect(folder / f"{i}.sock"))
            frontend.negotiate(features=~PACKED)
            for n in range(QUEUES):
                ram = stack.enter_context(guest_ram(QUEUES * i + n))
                frontend.add_ram(ram)
                queue = stack.enter_context(DriverQueue(ram, 64))
                frontend.attach(n, queue)
                drivers.append(BlkDriver(queue))
        ending = time.monotonic() + 0.5
        told = False
        while process.poll() is None:
            for driver in drivers:
                driver.poll()
                while driver.in_flight < DEPTH:
                    driver.submit_write(8 * driver.in_flight, bytes(4096))
            if not told and time.monotonic() > ending:
                process.send_signal(number)
                told = True
            assert time.monotonic() < ending + STOP_SECONDS, "the daemon does not stop"
        assert process.returncode == 0
        assert not list(folder.glob("*.sock"))
        assert process.stderr is not None
        assert "Traceback" not in process.stderr.read()
        for driver in drivers:
            # Whatever was taken has an answer, and the answers are right.
            driver.poll()
            assert driver.queue.last_used_idx == driver.queue.used_idx
            driver.ram.check()
