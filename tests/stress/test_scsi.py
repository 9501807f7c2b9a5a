"""virtio-scsi under load: queues move, tasks are aborted, the server is killed."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from vringd.block.file import FileBackend
from vringd.block.null import NullBackend
from vringd.control.schema import ScsiDeviceOptions
from vringd.devices.scsi_control import Function
from vringd.testing import scsi_cdb as cdb
from vringd.testing.driver import DriverQueue
from vringd.testing.fault_backend import FaultBackend
from vringd.testing.frontend import Frontend
from vringd.testing.memory import GuestRam
from vringd.testing.scsi import Response, ScsiDriver
from vringd.testing.served_disk import Vringd

from ..scsi_rig import ScsiGuest, ScsiHost

READ, WRITE = 0x28, 0x2A
MIB = 1 << 20
QUEUES = 4
US = 1000


@pytest.fixture
def disk(folder: Path) -> FaultBackend:
    image = folder / "disk.img"
    image.write_bytes(bytes(MIB))
    return FaultBackend(FileBackend("disk", str(image)))


@pytest.fixture
def host(folder: Path, disk: FaultBackend) -> Iterator[ScsiHost]:
    with ScsiHost(folder, [disk], threads=3) as host:
        yield host


@pytest.mark.parametrize("packed", [False, True], ids=["split", "packed"])
def test_tmf_storm_on_moving_queues(
    host: ScsiHost, disk: FaultBackend, seconds: float, packed: bool
) -> None:
    """Every function that ends tasks is answered after all they concern are returned, and none is
    lost, whatever moves meanwhile."""
    pick = random.Random(f"storm {packed}")
    export = host.serve(
        [ScsiDeviceOptions(node_name="disk", writable=True)], num_queues=QUEUES, queue_size=128
    )
    disk.rules.set(["read", "write"], delay_ns=5000 * US)
    end = threading.Event()

    def shuffle() -> None:
        while not end.is_set():
            host.run(export.move_queue(pick.randrange(QUEUES), pick.choice(host.threads)))

    ended: dict[Response, int] = {}
    with ScsiGuest(host.folder, num_queues=QUEUES, packed=packed) as guest:
        guest.quiesce()
        mover = threading.Thread(target=shuffle)
        mover.start()
        try:
            deadline = time.monotonic() + seconds
            functions = 0
            # On a slow machine tasks may be over before a function reaches them.
            while time.monotonic() < deadline or (
                functions < 300 and not {Response.ABORTED, Response.RESET} <= set(ended)
            ):
                tokens = [
                    (driver, driver.submit(cdb.transfer(READ, i, 1), data_in=512, tag=i))
                    for driver in guest.disks
                    for i in range(12)
                ]
                function = pick.choice(
                    (
                        Function.ABORT_TASK,
                        Function.ABORT_TASK_SET,
                        Function.CLEAR_TASK_SET,
                        Function.LOGICAL_UNIT_RESET,
                        Function.I_T_NEXUS_RESET,
                        Function.QUERY_TASK_SET,
                    )
                )
                tag = pick.randrange(12)
                answer = guest.control.manage(function, tag=tag)
                assert answer in (Response.FUNCTION_COMPLETE, Response.FUNCTION_SUCCEEDED)
                functions += 1
                for number, (driver, token) in enumerate(tokens):
                    concerned = function != Function.ABORT_TASK or number % 12 == tag
                    if concerned and function != Function.QUERY_TASK_SET:
                        driver.poll()
                        result = driver.complete(token, 0.0)
                    else:
                        result = driver.complete(token)
                    ended[result.response] = ended.get(result.response, 0) + 1
                guest.quiesce()
        finally:
            end.set()
            mover.join()
        guest.check_ram()
    assert {Response.OK, Response.ABORTED, Response.RESET} <= set(ended)


def test_units_come_and_go_under_load(host: ScsiHost, seconds: float) -> None:
    host.disks["more"] = NullBackend("more", size=MIB)
    export = host.serve([ScsiDeviceOptions(node_name="disk")], num_queues=2)
    more = ScsiDeviceOptions(node_name="more", target=0, lun=1)
    responses: set[tuple[Response, int]] = set()
    with ScsiGuest(host.folder) as guest:
        guest.quiesce()
        end = threading.Event()

        def plug() -> None:
            while not end.is_set():
                host.run(export.add_device(more))
                time.sleep(0.002)
                host.run(export.remove_device(0, 1))

        plugger = threading.Thread(target=plug)
        plugger.start()
        try:
            deadline = time.monotonic() + seconds
            address = bytes((1, 0, 0x40, 1, 0, 0, 0, 0))
            while time.monotonic() < deadline:
                tokens = [
                    (driver, driver.submit(cdb.transfer(READ, 0, 1), data_in=512, lun=lun))
                    for driver in guest.disks
                    for lun in (None, address)
                    for _ in range(8)
                ]
                functions = [
                    guest.control.start(function, 0, 1, tag=3)
                    for function in (Function.ABORT_TASK, Function.QUERY_TASK_SET)
                ]
                for driver, token in tokens:
                    result = driver.complete(token)
                    responses.add((result.response, result.status))
                for function in functions:
                    guest.control.result(function)
        finally:
            end.set()
            plugger.join()
    assert (Response.OK, 0) in responses
    assert responses <= {(Response.OK, 0), (Response.OK, 2), (Response.RESET, 0)}


@dataclass(frozen=True)
class _Served:
    """What `Vringd` needs to know."""

    socket: Path
    arguments: Sequence[str]


@pytest.mark.parametrize("packed", [False, True], ids=["split", "packed"])
def test_commands_in_flight_survive_a_killed_server(folder: Path, packed: bool) -> None:
    socket = folder / "s.sock"
    served = _Served(
        socket,
        [
            *("--blockdev", "null-co,node-name=n,size=1M,latency-ns=150000000,read-zeroes=on"),
            "--export",
            "vhost-user-scsi,id=s,devices.0.node-name=n,num-queues=2,iothreads=2,"
            f"addr.type=unix,addr.path={socket}",
        ],
    )
    with ExitStack() as stack:
        vringd = stack.enter_context(Vringd(folder, [served]))  # type: ignore[list-item]
        ram = stack.enter_context(GuestRam([4 * MIB]))
        queues = [stack.enter_context(DriverQueue(ram, 64, packed=packed)) for _ in range(4)]
        features = ~0 if packed else ~(1 << 34)
        frontend = Frontend.connect(socket)
        frontend.negotiate(features=features)
        frontend.add_ram(ram)
        area = frontend.get_inflight(4, 64)
        frontend.set_inflight(area)
        for index, queue in enumerate(queues):
            frontend.attach(index, queue)
        drivers = [ScsiDriver(queue) for queue in queues[2:]]
        while drivers[0].run(bytes(6)).status:
            pass
        tokens = [
            (driver, driver.submit(cdb.transfer(READ, i, 1), data_in=512))
            for i in range(10)
            for driver in drivers
        ]
        time.sleep(0.05)
        bases = [queue.base for queue in queues]
        vringd.kill()
        frontend.close()
        vringd.start()
        frontend = Frontend.connect(socket)
        stack.callback(frontend.close)
        frontend.negotiate(features=features)
        frontend.add_ram(ram)
        frontend.set_inflight(area)
        for index, queue in enumerate(queues):
            frontend.attach(index, queue, base=bases[index])
        results = [driver.complete(token) for driver, token in tokens]
        # The new daemon knows nothing of this initiator: one command is told so (SAM-6, 5.14).
        told = [result for result in results if result.status]
        assert [result.sense for result in told] == [(6, 0x29, 0)]
        assert all(r.data == bytes(512) for r in results if not r.status)
        area.close()
        ram.check()
