"""virtio-scsi's command queues through an IOThread: whatever a driver may send."""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from vringd.block.null import NullBackend
from vringd.core.channel import Question
from vringd.core.memory import DirtyLog
from vringd.devices.scsi import ScsiDevice, ScsiPath, TaskQuestion
from vringd.devices.scsi_config import ScsiSettings, decode_lun, encode_lun
from vringd.scsi.settings import UnitSettings
from vringd.scsi.unit import ScsiNexus, ScsiUnit
from vringd.testing import scsi_cdb as cdb
from vringd.testing.chains import Split
from vringd.testing.driver import DriverQueue
from vringd.testing.memory import GuestRam
from vringd.testing.scsi import Response, ScsiDriver

from ..core.rig import LAYOUTS, Worker, make_queue

MIB = 1 << 20
RING = 128
LOG = MIB  # bytes of a dirty log: enough for 32 GiB


class Rig:
    """A disk of 1 MiB behind one command queue."""

    def __init__(self, ram: GuestRam, driver: DriverQueue, worker: Worker) -> None:
        self.ram = ram
        self.queue = driver
        self.worker = worker
        self.device = ScsiDevice(ScsiSettings())
        disk = NullBackend("n", size=MIB, read_zeroes=True)
        self.unit = ScsiUnit(UnitSettings(serial="s"), disk.limits, disk.size)
        self.nexus: ScsiNexus = self.unit.open_nexus("iqn.a")
        channel = worker.add_channel(disk.open_channel(io_uring=True))
        self.nexus.open_lane(0, channel)
        self.device.add_unit(0, 0, self.nexus)
        self.ring = make_queue(driver)
        worker.attach(self.ring, self.device, ScsiPath(0, [channel]))
        self.disk = ScsiDriver(driver)

    def quiesce(self) -> None:
        while self.disk.run(bytes(6)).status:
            pass


@contextmanager
def served(*, packed: bool = False) -> Iterator[Rig]:
    with (
        GuestRam((MIB,)) as ram,
        DriverQueue(ram, RING, packed=packed, max_indirect=RING) as driver,
        Worker() as worker,
    ):
        yield Rig(ram, driver, worker)
        ram.check()


@LAYOUTS
def test_reads_through_the_ring(packed: bool) -> None:
    with served(packed=packed) as rig:
        rig.quiesce()
        tokens = [
            rig.disk.submit(cdb.transfer(0x28, i, 1), data_in=512, kick=False) for i in range(30)
        ]
        rig.queue.publish()
        rig.queue.kick()
        for token in tokens:
            assert rig.disk.complete(token).check().data == bytes(512)


_sizes = st.lists(st.integers(1, 120), max_size=4)


@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow])
@given(
    command=st.binary(min_size=6, max_size=32),
    address=st.one_of(st.just(encode_lun(0, 0)), st.binary(min_size=8, max_size=8)),
    data_in=st.integers(0, 2048),
    data_out=st.binary(max_size=600),
    attribute=st.integers(0, 255),
    out=_sizes,
    in_=_sizes,
    packed=st.booleans(),
)
def test_every_command_gets_a_whole_response(
    command: bytes,
    address: bytes,
    data_in: int,
    data_out: bytes,
    attribute: int,
    out: list[int],
    in_: list[int],
    packed: bool,
) -> None:
    with served(packed=packed) as rig:
        token = rig.disk.submit(
            command,
            data_in=data_in,
            data_out=data_out,
            lun=address,
            attribute=attribute,
            split=Split(out, in_),
        )
        result = rig.disk.complete(token)  # checks what the response says of itself
        assert 108 <= result.written <= 108 + data_in
        assert result.residual <= max(data_in, len(data_out))
        if result.response != Response.OK:
            assert result.status == 0
        elif result.status == 2:
            assert result.sense is not None
        assert rig.ring.broken is None


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(readable=st.integers(0, 60), writable=st.integers(0, 120), packed=st.booleans())
def test_a_chain_that_is_too_short_breaks_the_ring(
    readable: int, writable: int, packed: bool
) -> None:
    with served(packed=packed) as rig:
        at = rig.ram.alloc(256)
        out = [(at, readable)] if readable else []
        in_ = [(at + 128, writable)] if writable else []
        if not out and not in_:
            return
        rig.queue.add(out, in_)
        rig.queue.publish()
        rig.queue.kick()
        if readable >= 51 and writable >= 108:
            assert rig.queue.wait(5.0)
            assert rig.ring.broken is None
        else:
            rig.worker.wait_broken(rig.ring)


@given(st.binary(min_size=8, max_size=8))
def test_control_plane_and_data_plane_read_the_same_address(address: bytes) -> None:
    place = decode_lun(address)
    if place is not None:
        target, lun = place
        assert target == address[1]
        if lun <= 16383:
            assert decode_lun(encode_lun(target, lun)) == place


def test_what_is_written_is_logged() -> None:
    log_fd = os.memfd_create("log")
    os.ftruncate(log_fd, LOG)
    with served() as rig:
        rig.quiesce()
        with DirtyLogged(rig, log_fd):
            for split in (Split(), Split(in_=(108 + 512,)), Split(in_=(50, 100, 300))):
                os.pwrite(log_fd, bytes(LOG), 0)
                token = rig.disk.submit(cdb.transfer(0x28, 0, 1), data_in=512, split=split)
                pages = {
                    page
                    for addr, size in rig.disk.writable(token)
                    for page in range(addr >> 12, (addr + size - 1 >> 12) + 1)
                }
                rig.disk.complete(token).check()
                bits = int.from_bytes(os.pread(log_fd, LOG, 0), "little")
                assert all(bits >> page & 1 for page in pages)
    os.close(log_fd)


class DirtyLogged:
    """Logging is on within the block."""

    def __init__(self, rig: Rig, fd: int) -> None:
        self.rig = rig
        self.log = DirtyLog(fd, LOG, 0)

    def __enter__(self) -> None:
        self.rig.worker.update(self.rig.ring, log=self.log)

    def __exit__(self, *error: object) -> None:
        self.rig.worker.update(self.rig.ring, log=None)


# ---- questions


def test_a_question_is_answered_after_what_came_before() -> None:
    with served() as rig:
        rig.quiesce()
        for _ in range(50):
            tokens = [
                rig.disk.submit(cdb.transfer(0x28, 0, 1), data_in=512, kick=False)
                for _ in range(40)
            ]
            rig.queue.publish()
            rig.worker.wait(rig.worker.thread.ask(Question()))
            assert rig.disk.poll() == len(tokens)
            for token in tokens:
                rig.disk.complete(token, 0.0).check()


def test_question_about_a_lane_that_is_not_open_finds_nothing() -> None:
    with served() as rig:
        question = TaskQuestion(rig.nexus, 5, None)
        rig.worker.wait(rig.worker.thread.ask(question))
        assert not question.found


def test_questions_do_not_keep_an_iothread_awake() -> None:
    with served() as rig:
        rig.worker.wait(rig.worker.thread.ask(Question()))
        before = rig.worker.thread.counters()["turns"]
        time.sleep(0.3)
        assert int(rig.worker.thread.counters()["turns"]) - int(before) < 50


# ---- configuration space


@pytest.mark.parametrize(
    ("offset", "value"),
    [(0, 1), (20, 253), (24, 5), (24, 256), (28, 0)],
)
def test_what_a_driver_may_not_write(offset: int, value: int) -> None:
    device = ScsiDevice(ScsiSettings())
    with pytest.raises(ValueError, match=r"is not between|not writable"):
        device.write_config(offset, struct.pack("<I", value))


def test_a_reset_brings_the_usual_sizes_back() -> None:
    device = ScsiDevice(ScsiSettings(num_queues=3))
    device.write_config(20, struct.pack("<I", 18))
    device.write_config(24, struct.pack("<I", 16))
    device.set_driver_features(device.features)
    device.reset()
    assert struct.unpack_from("<II", device.read_config(0, 36), 20) == (96, 32)
    assert device.driver_features == 0
    with pytest.raises(ValueError, match="configuration space has 256 bytes"):
        device.read_config(250, 8)
