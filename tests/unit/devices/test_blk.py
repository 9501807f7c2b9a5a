"""virtio-blk through an IOThread: every request, however it is cut, and every invalid one."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from vringd.block.backend import BlockBackend
from vringd.block.file import FileBackend
from vringd.block.null import NullBackend
from vringd.devices import blk_config
from vringd.devices.blk import BlkDevice
from vringd.devices.blk_config import BlkSettings
from vringd.testing.blk import UNMAP, BlkDriver, BlkResult, BlkStatus, BlkType, pack_ranges
from vringd.testing.chains import Split
from vringd.testing.driver import DriverQueue
from vringd.testing.memory import GuestRam

from ..core.rig import LAYOUTS, Worker, make_queue

SECTORS = 64
SIZE = SECTORS * 512
RANGES = (BlkType.DISCARD, BlkType.WRITE_ZEROES, BlkType.SECURE_ERASE)
ALL_RANGES = (
    1 << blk_config.F_DISCARD | 1 << blk_config.F_WRITE_ZEROES | 1 << blk_config.F_SECURE_ERASE
)


@contextmanager
def served(
    disk: BlockBackend,
    device: BlkDevice | None = None,
    *,
    packed: bool = False,
    indirect: bool = False,
) -> Iterator[BlkDriver]:
    """A driver whose device is served by an IOThread, everything negotiated."""
    if device is None:
        device = BlkDevice(BlkSettings(disk.limits, serial=b"serial-1"), disk.size)
        device.set_driver_features(device.features)
    with (
        GuestRam((1 << 20,)) as ram,
        DriverQueue(ram, 64, packed=packed, max_indirect=64) as driver,
        Worker() as worker,
    ):
        worker.serve(make_queue(driver), disk, device)
        yield BlkDriver(driver, indirect=indirect)
        ram.check()


def run(blk: BlkDriver, kind: int, **request: object) -> BlkResult:
    return blk.complete(blk.submit(kind, **request))  # type: ignore[arg-type]


@pytest.fixture
def image(tmp_path: Path) -> Path:
    path = tmp_path / "disk"
    path.write_bytes(bytes(i * 7 % 251 for i in range(SIZE)))
    return path


def null_disk(**options: object) -> NullBackend:
    return NullBackend("null", size=SIZE, **options)  # type: ignore[arg-type]


# ---- good requests, any layout


@LAYOUTS
@pytest.mark.parametrize("indirect", [False, True])
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_header_data_and_status_may_be_cut_anywhere(
    image: Path, packed: bool, indirect: bool, data: st.DataObject
) -> None:
    cuts = st.lists(st.sampled_from([1, 3, 8, 15, 16, 17, 100, 512, 600]), max_size=12)
    model = bytearray(image.read_bytes())
    with served(FileBackend("f", str(image)), packed=packed, indirect=indirect) as blk:
        for _ in range(6):
            split = Split(out=data.draw(cuts), in_=data.draw(cuts))
            sector = data.draw(st.integers(0, SECTORS - 4))
            size = 512 * data.draw(st.integers(0, 4))
            at = 512 * sector
            if data.draw(st.booleans()):
                assert blk.read(sector, size, split=split) == model[at : at + size]
            else:
                fresh = bytes([data.draw(st.integers(1, 255))]) * size
                blk.write(sector, fresh, split=split)
                model[at : at + size] = fresh
            assert run(blk, BlkType.FLUSH, split=split).status == BlkStatus.OK
            assert run(blk, BlkType.GET_ID, read_size=20, split=split).data == b"serial-1".ljust(
                20, b"\0"
            )
            blk.write_zeroes((sector, 2), (0, 0), (sector + 3, 1), unmap=True, split=split)
            model[at : at + 1024] = bytes(1024)
            model[at + 1536 : at + 2048] = bytes(512)
        assert blk.read(0, SIZE) == model
    assert image.read_bytes() == model


@pytest.mark.parametrize(("size", "answer"), [(0, b""), (1, b"s"), (8, b"serial-1"), (30, None)])
def test_an_identifier_is_cut_to_the_buffer(size: int, answer: bytes | None) -> None:
    with served(null_disk()) as blk:
        blk.strict = size <= 20
        result = run(blk, BlkType.GET_ID, read_size=size)
        assert result.status == BlkStatus.OK
        assert result.written == min(size, 20) + 1
        if answer is None:
            assert result.data[:20] == b"serial-1".ljust(20, b"\0")
        else:
            assert result.data == answer


def test_a_long_serial_is_cut_to_20_bytes() -> None:
    disk = null_disk()
    device = BlkDevice(BlkSettings(disk.limits, serial=b"x" * 19 + b"yz"), SIZE)
    with served(disk, device) as blk:
        assert blk.get_id() == "x" * 19 + "y"


def test_used_lengths_count_the_status_byte() -> None:
    with served(null_disk(read_zeroes=True)) as blk:
        assert run(blk, BlkType.IN, read_size=1024).written == 1025
        assert run(blk, BlkType.OUT, data=bytes(1024)).written == 1
        assert run(blk, BlkType.FLUSH).written == 1
        assert run(blk, BlkType.DISCARD, data=pack_ranges([(0, 1)])).written == 1


@pytest.mark.parametrize("kind", RANGES)
@pytest.mark.parametrize("count", [1, 2, 32])
def test_requests_of_several_ranges(kind: BlkType, count: int) -> None:
    with served(null_disk()) as blk:
        ranges = [(i, 1) for i in range(count)]
        assert run(blk, kind, data=pack_ranges(ranges)).status == BlkStatus.OK
        assert run(blk, kind, data=pack_ranges([(SECTORS, 0)])).status == BlkStatus.OK


def test_a_secure_erase_of_a_file_is_refused(image: Path) -> None:
    disk = FileBackend("f", str(image))
    device = BlkDevice(BlkSettings(disk.limits), disk.size)
    assert not device.features >> blk_config.F_SECURE_ERASE & 1
    device.set_driver_features(device.features)
    with served(disk, device) as blk:
        result = run(blk, BlkType.SECURE_ERASE, data=pack_ranges([(0, 1)]))
        assert result.status == BlkStatus.UNSUPP
    assert image.read_bytes()[:512] != bytes(512)


# ---- invalid requests

BEYOND = [(SECTORS, 1), (SECTORS - 1, 2), (1 << 54, 1), ((1 << 64) - 1, 1), (1 << 55, 1)]


@pytest.mark.parametrize(("sector", "count"), [*BEYOND, ((1 << 64) - 1, 2), (0, SECTORS + 1)])
@pytest.mark.parametrize("kind", [BlkType.IN, BlkType.OUT])
def test_a_transfer_beyond_the_disk_is_an_error(kind: BlkType, sector: int, count: int) -> None:
    with served(null_disk()) as blk:
        size = 512 * count
        for _ in range(2):
            if kind == BlkType.IN:
                result = run(blk, kind, sector=sector, read_size=size)
            else:
                result = run(blk, kind, sector=sector, data=bytes(size))
            assert result.status == BlkStatus.IOERR
        blk.read(0, 512)


@pytest.mark.parametrize("size", [1, 511, 513])
def test_a_transfer_of_half_a_sector_is_an_error(size: int) -> None:
    with served(null_disk()) as blk:
        assert run(blk, BlkType.IN, read_size=size).status == BlkStatus.IOERR
        assert run(blk, BlkType.OUT, data=bytes(size)).status == BlkStatus.IOERR


def test_large_blocks_are_not_divided() -> None:
    disk = null_disk(block_size=4096)
    with served(disk) as blk:
        for sector, size in ((0, 512), (1, 4096), (7, 512)):
            assert run(blk, BlkType.IN, sector=sector, read_size=size).status == BlkStatus.IOERR
            assert run(blk, BlkType.OUT, sector=sector, data=bytes(size)).status == BlkStatus.IOERR
        for kind in RANGES:
            for one in ((1, 8), (0, 4)):
                assert run(blk, kind, data=pack_ranges([one])).status == BlkStatus.IOERR
            assert run(blk, kind, data=pack_ranges([(8, 8)])).status == BlkStatus.OK
        assert run(blk, BlkType.IN, sector=8, read_size=4096).status == BlkStatus.OK


@pytest.mark.parametrize("kind", [2, 3, 5, 6, 7, 9, 10, 12, 15, 99, 0x8000_0000, 0xFFFF_FFFF])
def test_an_unknown_request_type_is_unsupported(kind: int) -> None:
    with served(null_disk()) as blk:
        assert run(blk, kind, data=bytes(512)).status == BlkStatus.UNSUPP
        assert run(blk, kind, read_size=512).status == BlkStatus.UNSUPP


@pytest.mark.parametrize("kind", RANGES)
@pytest.mark.parametrize(
    "data",
    [
        b"",
        bytes(15),
        bytes(17),
        pack_ranges([(0, 1)] * 33),
        pack_ranges([(0, 1)]) + bytes(8),
        *[pack_ranges([one]) for one in BEYOND],
        pack_ranges([(0, (1 << 22) + 1)]),
        pack_ranges([(0, 0xFFFF_FFFF)]),
        pack_ranges([(0, 1), (SECTORS, 1)]),
    ],
    ids=lambda data: f"{len(data)}-{data[:12].hex()}",
)
def test_bad_ranges_are_an_error_and_none_of_them_is_done(
    image: Path, kind: BlkType, data: bytes
) -> None:
    disk = FileBackend("f", str(image), discard="unmap")
    disk.limits = replace(disk.limits, secure_erase=True)
    before = image.read_bytes()
    with served(disk) as blk:
        assert run(blk, kind, data=data).status == BlkStatus.IOERR
    assert image.read_bytes() == before


def test_unknown_flags_of_a_range_are_unsupported() -> None:
    with served(null_disk()) as blk:
        for kind in RANGES:
            for flags in (2, 0x8000_0000, UNMAP | 2):
                data = pack_ranges([(0, 1)], flags=flags)
                assert run(blk, kind, data=data).status == BlkStatus.UNSUPP
        for kind, status in (
            (BlkType.DISCARD, BlkStatus.UNSUPP),
            (BlkType.SECURE_ERASE, BlkStatus.UNSUPP),
            (BlkType.WRITE_ZEROES, BlkStatus.OK),
        ):
            data = pack_ranges([(0, 1)], flags=UNMAP)
            assert run(blk, kind, data=data).status == status


def test_ranges_that_were_not_negotiated_are_unsupported() -> None:
    disk = null_disk()
    device = BlkDevice(BlkSettings(disk.limits), SIZE)
    with served(disk, device) as blk:
        for kind in RANGES:
            device.set_driver_features(device.features & ~ALL_RANGES)
            assert run(blk, kind, data=pack_ranges([(0, 1)])).status == BlkStatus.UNSUPP
        device.set_driver_features(device.features)
        assert run(blk, BlkType.DISCARD, data=pack_ranges([(0, 1)])).status == BlkStatus.OK
        device.reset()
        assert run(blk, BlkType.DISCARD, data=pack_ranges([(0, 1)])).status == BlkStatus.UNSUPP


def test_a_read_only_disk_is_not_changed(image: Path) -> None:
    disk = FileBackend("f", str(image), read_only=True)
    before = image.read_bytes()
    device = BlkDevice(BlkSettings(disk.limits, writable=False), disk.size)
    assert device.features >> blk_config.F_RO & 1
    assert not device.features & ALL_RANGES
    with served(disk, device) as blk:
        for features in (device.features, device.features | ALL_RANGES):
            device.set_driver_features(features)
            assert run(blk, BlkType.OUT, data=bytes(512)).status == BlkStatus.IOERR
            for kind in RANGES:
                result = run(blk, kind, data=pack_ranges([(0, 1)]))
                assert result.status in (BlkStatus.IOERR, BlkStatus.UNSUPP)
        assert blk.read(0, 512) == before[:512]
        blk.flush()
    assert image.read_bytes() == before


@LAYOUTS
@settings(max_examples=150)
@given(data=st.data())
def test_no_request_whatever_it_says_does_harm(packed: bool, data: st.DataObject) -> None:
    """Any header, any data, any cut: an answer comes, and the next request is served."""
    integers = st.one_of(st.integers(0, 70), st.integers(0, (1 << 64) - 1))
    kinds = st.one_of(st.sampled_from(list(BlkType)), st.integers(0, 0xFFFF_FFFF))
    cuts = st.lists(st.integers(1, 40), max_size=5)
    with served(null_disk(), packed=packed) as blk:
        blk.strict = False
        for _ in range(5):
            body = data.draw(st.binary(max_size=100))
            if data.draw(st.booleans()):
                body = b"".join(
                    struct.pack("<QII", data.draw(integers), data.draw(st.integers(0, 70)), 0)
                    for _ in range(data.draw(st.integers(0, 3)))
                )
            result = run(
                blk,
                data.draw(kinds),
                sector=data.draw(integers),
                data=body,
                read_size=data.draw(st.sampled_from([0, 1, 20, 512, 1000])),
                ioprio=data.draw(st.integers(0, 0xFFFF_FFFF)),
                split=Split(out=data.draw(cuts), in_=data.draw(cuts)),
            )
            assert result.status in list(BlkStatus)


# ---- capacity and configuration space


def test_the_capacity_changes_while_requests_run() -> None:
    disk = null_disk()
    device = BlkDevice(BlkSettings(disk.limits), SIZE)
    with served(disk, device) as blk:
        last = SECTORS - 1
        assert run(blk, BlkType.IN, sector=last, read_size=512).status == BlkStatus.OK
        device.set_capacity(SIZE - 1)  # whole blocks count
        assert device.capacity == SIZE - 512
        assert run(blk, BlkType.IN, sector=last, read_size=512).status == BlkStatus.IOERR
        device.set_capacity(0)
        assert run(blk, BlkType.IN, read_size=512).status == BlkStatus.IOERR
        device.set_capacity(2 * SIZE)
        assert run(blk, BlkType.IN, sector=last + 1, read_size=512).status == BlkStatus.OK
        assert device.read_config(0, 8) == struct.pack("<Q", 2 * SECTORS)


# Offsets and sizes of struct virtio_blk_config in linux/virtio_blk.h (virtio 1.3, 5.2.4).
CONFIG = {
    "capacity": (0, 8),
    "size_max": (8, 4),
    "seg_max": (12, 4),
    "cylinders": (16, 2),
    "heads": (18, 1),
    "sectors": (19, 1),
    "blk_size": (20, 4),
    "physical_block_exp": (24, 1),
    "alignment_offset": (25, 1),
    "min_io_size": (26, 2),
    "opt_io_size": (28, 4),
    "wce": (32, 1),
    "unused": (33, 1),
    "num_queues": (34, 2),
    "max_discard_sectors": (36, 4),
    "max_discard_seg": (40, 4),
    "discard_sector_alignment": (44, 4),
    "max_write_zeroes_sectors": (48, 4),
    "max_write_zeroes_seg": (52, 4),
    "write_zeroes_may_unmap": (56, 1),
    "unused1": (57, 3),
    "max_secure_erase_sectors": (60, 4),
    "max_secure_erase_seg": (64, 4),
    "secure_erase_sector_alignment": (68, 4),
}


def config_of(device: BlkDevice) -> dict[str, int]:
    data = device.read_config(0, 72)
    return {
        name: int.from_bytes(data[at : at + size], "little") for name, (at, size) in CONFIG.items()
    }


def test_each_field_of_the_configuration_space_is_where_drivers_look() -> None:
    disk = null_disk(block_size=4096)
    limits = replace(disk.limits, physical_block_size=16384, optimal_io_size=65536)
    limits = replace(limits, discard_alignment=8192)
    device = BlkDevice(BlkSettings(limits, num_queues=5, seg_max=77), 4096 * 1000 + 999)
    device.set_driver_features(device.features)
    assert config_of(device) == {
        "capacity": 8000,
        "size_max": 0x7FFFF000,
        "seg_max": 77,
        "cylinders": 7,
        "heads": 16,
        "sectors": 63,
        "blk_size": 4096,
        "physical_block_exp": 2,
        "alignment_offset": 0,
        "min_io_size": 4,
        "opt_io_size": 16,
        "wce": 1,
        "unused": 0,
        "num_queues": 5,
        "max_discard_sectors": 1 << 22,
        "max_discard_seg": 32,
        "discard_sector_alignment": 16,
        "max_write_zeroes_sectors": 1 << 22,
        "max_write_zeroes_seg": 32,
        "write_zeroes_may_unmap": 1,
        "unused1": 0,
        "max_secure_erase_sectors": 1 << 22,
        "max_secure_erase_seg": 32,
        "secure_erase_sector_alignment": 16,
    }


def test_the_configuration_space_ends_with_zeros() -> None:
    device = BlkDevice(BlkSettings(null_disk().limits), SIZE)
    whole = device.read_config(0, 256)
    assert len(whole) == 256
    assert whole[72:] == bytes(184)
    assert device.read_config(255, 1) == b"\0"
    assert device.read_config(256, 0) == b""
    for offset, size in ((0, 257), (255, 2), (256, 1), (1 << 32, 1)):
        with pytest.raises(ValueError, match="configuration space has 256 bytes"):
            device.read_config(offset, size)


# ---- the write cache


def test_who_decides_about_the_write_cache() -> None:
    flush, wce = 1 << blk_config.F_FLUSH, 1 << blk_config.F_CONFIG_WCE
    limits = null_disk().limits
    for writethrough, features, expected in (
        (False, flush | wce, True),
        (False, flush, True),
        (False, wce, True),
        (False, 0, False),
        (True, flush | wce, False),
        (True, 0, False),
    ):
        device = BlkDevice(BlkSettings(limits, writethrough=writethrough), SIZE)
        device.set_driver_features(features | 1 << 32)
        assert device.writeback == expected
        assert device.read_config(32, 1) == bytes([expected])
        device.reset()
        assert device.read_config(32, 1) == bytes([not writethrough])


def test_only_the_write_cache_mode_can_be_written() -> None:
    device = BlkDevice(BlkSettings(null_disk().limits), SIZE)
    with pytest.raises(ValueError, match="not negotiated"):
        device.write_config(32, b"\0")
    device.set_driver_features(device.features)
    for value in (0, 1, 0):
        device.write_config(32, bytes([value]))
        assert device.writeback == bool(value)
        assert device.read_config(32, 1) == bytes([value])
    for offset, data, message in (
        (0, b"\0", "not writable"),
        (31, b"\0\0", "not writable"),
        (33, b"\0", "not writable"),
        (32, b"", "not writable"),
        (32, b"\2", "neither 0 nor 1"),
    ):
        with pytest.raises(ValueError, match=message):
            device.write_config(offset, data)
    assert not device.writeback
