"""BlkDriver: request framing, splits, results and what it finds out about a device."""

from __future__ import annotations

import os
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vringd.testing.blk import (
    SECTOR,
    BlkDriver,
    BlkError,
    BlkStatus,
    BlkType,
    pack_ranges,
)
from vringd.testing.chains import Split, cut
from vringd.testing.driver import DriverError, DriverQueue
from vringd.testing.memory import GuestRam, GuestRamError

from .blk_device import BlkDevice
from .model_device import Chain

FORMATS = pytest.mark.parametrize("packed", [False, True], ids=["split", "packed"])


@FORMATS
@pytest.mark.parametrize("event_idx", [False, True])
@pytest.mark.parametrize("in_order", [False, True])
@pytest.mark.parametrize("indirect", [False, True])
def test_every_request_type_works(
    ram: GuestRam, packed: bool, event_idx: bool, in_order: bool, indirect: bool
) -> None:
    with (
        DriverQueue(ram, 8, packed=packed, event_idx=event_idx, in_order=in_order) as q,
        BlkDevice(q) as device,
    ):
        blk = BlkDriver(q, indirect=indirect)
        blk.write(3, b"abc" * 512)
        assert blk.read(3, 1536) == b"abc" * 512
        blk.flush()
        blk.discard((3, 1))
        blk.write_zeroes((4, 1), (60, 2), unmap=True)
        assert blk.read(3, 1536) == bytes(1024) + device.disk[5 * SECTOR : 6 * SECTOR]
        assert blk.get_id() == "model disk"
        assert device.log[-2][0] == BlkType.IN
        assert device.log[4] == (BlkType.WRITE_ZEROES, struct.pack("<QIIQII", 4, 1, 1, 60, 2, 1))
        assert blk.in_flight == 0


def test_the_classic_cut_has_header_data_and_status_apart(ram: GuestRam) -> None:
    with DriverQueue(ram, 8) as q:
        blk = BlkDriver(q)
        for token, lengths in (
            (blk.submit_read(0, 1024), [16, 1024, 1]),
            (blk.submit_write(0, bytes(512)), [16, 512, 1]),
            (blk.submit(BlkType.FLUSH), [16, 1]),
        ):
            assert [q.read_desc(d)[1] for d in q.descriptors(token)] == lengths
        assert blk.in_flight == 3


def test_a_split_cuts_through_header_data_and_status(ram: GuestRam) -> None:
    with DriverQueue(ram, 16) as q, BlkDevice(q):
        blk = BlkDriver(q, split=Split(out=(1, 14, 3), in_=(100, 412)))
        token = blk.submit_write(0, b"x" * 512)
        assert blk.complete(token).check().written == 1
        assert blk.read(0, 512) == b"x" * 512
        assert blk.read(0, 512, split=Split(in_=())) == b"x" * 512
    with DriverQueue(ram, 16) as q:
        token = BlkDriver(q, split=Split(out=(1, 14, 3), in_=())).submit_write(0, b"x" * 512)
        assert [q.read_desc(d)[1] for d in q.descriptors(token)] == [1, 14, 3, 510, 1]


@given(st.integers(0, 5000), st.lists(st.integers(0, 900), max_size=8))
def test_pieces_add_up_and_follow_the_sizes(total: int, sizes: list[int]) -> None:
    pieces = cut(total, sizes)
    assert sum(pieces) == total
    for piece, size in zip(pieces[:-1], sizes, strict=False):
        assert piece == size


@settings(max_examples=40, deadline=None)
@given(
    packed=st.booleans(),
    indirect=st.booleans(),
    out=st.lists(st.integers(1, 300), max_size=5),
    in_=st.lists(st.integers(1, 300), max_size=5),
    data=st.binary(min_size=512, max_size=512),
)
def test_no_cut_changes_the_outcome(
    packed: bool, indirect: bool, out: list[int], in_: list[int], data: bytes
) -> None:
    with (
        GuestRam((1 << 18, 1 << 18)) as ram,
        DriverQueue(ram, 16, packed=packed) as q,
        BlkDevice(q),
    ):
        blk = BlkDriver(q, split=Split(out, in_), indirect=indirect)
        blk.write(9, data)
        assert blk.read(9, 512) == data
        ram.check()


def test_requests_in_flight_complete_in_any_order_asked_for(ram: GuestRam) -> None:
    with DriverQueue(ram, 32) as q, BlkDevice(q) as device:
        device.disk[:] = b"".join(bytes([i]) * SECTOR for i in range(64))
        blk = BlkDriver(q)
        tokens = [blk.submit_read(i, SECTOR) for i in range(6)]
        for i in (3, 0, 5):
            assert blk.complete(tokens[i]).data == bytes([i]) * SECTOR
        rest = {blk.complete().token for _ in range(3)}
        assert rest == {tokens[i] for i in (1, 2, 4)}
        with pytest.raises(LookupError, match="no request is in flight"):
            blk.complete()
        with pytest.raises(KeyError, match="no request with token"):
            blk.complete(tokens[0])


def test_a_request_held_back_goes_with_the_next(ram: GuestRam) -> None:
    with DriverQueue(ram, 32) as q, BlkDevice(q):
        blk = BlkDriver(q)
        held = blk.submit(BlkType.FLUSH, kick=False)
        with pytest.raises(TimeoutError, match=r"no answer within 0\.02 s"):
            blk.complete(held, timeout=0.02)
        blk.flush()
        assert blk.complete(held).status == BlkStatus.OK


def test_a_failed_request_raises_its_status(ram: GuestRam) -> None:
    with DriverQueue(ram, 8) as q, BlkDevice(q):
        blk = BlkDriver(q)
        with pytest.raises(BlkError, match="type 0 failed with status 1") as caught:
            blk.read(1000, 512)
        assert caught.value.status == BlkStatus.IOERR
        result = blk.complete(blk.submit(77, read_size=100))
        assert (result.status, result.data) == (BlkStatus.UNSUPP, b"")


def test_a_full_ring_gives_its_memory_back(ram: GuestRam) -> None:
    with DriverQueue(ram, 4) as q:
        blk = BlkDriver(q)
        blk.submit_read(0, 512)
        with pytest.raises(BufferError):
            blk.submit_read(0, 512)
        assert blk.in_flight == 1
        ram.check()


def test_a_device_that_writes_where_it_should_read_is_found(ram: GuestRam) -> None:
    class Scribbler(BlkDevice):
        def serve(self, chain: Chain) -> None:
            self.ram.write(chain.out[0][0] + 4, b"!")
            super().serve(chain)

    message = "wrote into device-readable memory"
    with DriverQueue(ram, 8) as q, Scribbler(q), pytest.raises(DriverError, match=message):
        BlkDriver(q).flush()


def test_a_missing_status_byte_is_found(ram: GuestRam) -> None:
    class Forgetful(BlkDevice):
        def reply(self, chain: Chain, data: bytes) -> None:
            super().reply(chain, data[:-1])

    message = "did not write the status byte"
    with DriverQueue(ram, 8) as q, Forgetful(q), pytest.raises(DriverError, match=message):
        BlkDriver(q).read(0, 512)


def test_a_used_length_that_covers_too_little_is_found_when_strict(ram: GuestRam) -> None:
    class Modest(BlkDevice):
        def push(self, chain: Chain, written: int) -> None:
            super().push(chain, written - 1)

    with DriverQueue(ram, 8) as q, Modest(q):
        with pytest.raises(DriverError, match="used length 512, but 513 bytes were due"):
            BlkDriver(q).read(0, 512)
        assert BlkDriver(q, strict=False).read(0, 512) == bytes(512)


def test_an_overrun_is_found() -> None:
    class Overrunner(BlkDevice):
        def reply(self, chain: Chain, data: bytes) -> None:
            addr, length = chain.in_[-1]
            self.ram.write(addr + length, b"!")
            super().reply(chain, data)

    with (
        GuestRam() as ram,
        DriverQueue(ram, 8) as q,
        Overrunner(q),
        pytest.raises(GuestRamError, match="wrote behind the 1 bytes"),
    ):
        BlkDriver(q).flush()


def test_ranges_are_sixteen_bytes_each() -> None:
    assert pack_ranges([(1, 2), (3, 4)], flags=1) == struct.pack("<QIIQII", 1, 2, 1, 3, 4, 1)


def test_a_lost_notification_surfaces_in_a_request(ram: GuestRam) -> None:
    class Silent(BlkDevice):
        def serve(self, chain: Chain) -> None:
            self._model.call_fd = self._hole
            super().serve(chain)

        _hole = os.eventfd(0)

    with DriverQueue(ram, 8) as q, Silent(q):
        blk = BlkDriver(q, timeout=0.3)
        token = blk.submit(BlkType.FLUSH, kick=False)
        assert not q.enable_callbacks()
        q.publish()
        q.kick()
        while not q.has_used:
            pass
        with pytest.raises(DriverError, match="lost notification"):
            q.wait(0.01, grace=0.01)
        assert blk.complete(token).status == BlkStatus.OK
    os.close(Silent._hole)
