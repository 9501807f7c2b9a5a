"""Raw files through the whole device, by every engine, compared with a bytearray."""

from __future__ import annotations

import os
import random
import shutil
import struct
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from vringd.block.file import FileBackend
from vringd.block.locking import InUseError
from vringd.core.poller import io_uring_available
from vringd.devices.blk import BlkDevice
from vringd.devices.blk_config import BlkSettings
from vringd.testing.blk import BlkDriver, BlkStatus, BlkType, pack_ranges
from vringd.testing.chains import Split
from vringd.testing.driver import DriverQueue
from vringd.testing.memory import GuestRam

from ..core.rig import Worker, make_queue

ENGINES = [
    pytest.param("io_uring", False, id="io_uring"),
    pytest.param("io_uring", True, id="io_uring-direct"),
    pytest.param("native", True, id="native-direct"),
    pytest.param("threads", False, id="threads"),
    pytest.param("threads", True, id="threads-direct"),
]
EVERY_ENGINE = pytest.mark.parametrize(("aio", "direct"), ENGINES)
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root for mount(8) or losetup(8)")


@contextmanager
def served(
    disk: FileBackend,
    *,
    writeback: bool = True,
    queue_size: int = 64,
    ram_size: int = 1 << 20,
    max_indirect: int = 16,
) -> Iterator[BlkDriver]:
    device = BlkDevice(BlkSettings(disk.limits, writethrough=not writeback), disk.size)
    device.set_driver_features(device.features)
    with (
        GuestRam((ram_size,)) as ram,
        DriverQueue(ram, queue_size, max_indirect=max_indirect) as driver,
        Worker(io_uring=io_uring_available()) as worker,
    ):
        worker.serve(make_queue(driver), disk, device)
        yield BlkDriver(driver)
        ram.check()


def open_disk(path: Path, aio: str, direct: bool, **options: object) -> FileBackend:
    if aio == "io_uring" and not io_uring_available():
        pytest.skip("io_uring is forbidden here (seccomp or kernel.io_uring_disabled)")
    try:
        return FileBackend("f", str(path), aio=aio, cache_direct=direct, **options)  # type: ignore[arg-type]
    except OSError as error:
        if direct and error.errno == 22:
            pytest.skip(f"no O_DIRECT in {path.parent}: set --basetemp to a disk file system")
        raise


def pattern(size: int, seed: int = 1) -> bytes:
    return random.Random(seed).randbytes(size)


# ---- the model


@EVERY_ENGINE
@pytest.mark.parametrize("detect", ["off", "unmap"])
@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_sequence_leaves_the_bytes_it_should(
    tmp_path: Path, aio: str, direct: bool, detect: str, data: st.DataObject
) -> None:
    blocks = 40
    path = tmp_path / "disk"
    model = bytearray(pattern(blocks * 4096))
    path.write_bytes(model)
    disk = open_disk(path, aio, direct, discard="unmap", detect_zeroes=detect)
    unit = disk.limits.block_size
    units = len(model) // unit
    cuts = st.one_of(
        st.none(), st.lists(st.sampled_from([1, 16, 100, 512, 4096, 4097]), max_size=6)
    )
    with served(disk) as blk:
        for _ in range(data.draw(st.integers(1, 15))):
            first = data.draw(st.integers(0, units - 1))
            count = data.draw(st.integers(1, min(20, units - first)))
            at, size, sector = first * unit, count * unit, first * unit // 512
            split = Split(out=data.draw(cuts), in_=data.draw(cuts))
            kind = data.draw(st.sampled_from(["read", "write", "zeros", "flush", "wz", "discard"]))
            if kind == "read":
                assert blk.read(sector, size, split=split) == model[at : at + size]
            elif kind == "write":
                fresh = pattern(size, data.draw(st.integers(0, 9)))
                blk.write(sector, fresh, split=split)
                model[at : at + size] = fresh
            elif kind == "zeros":
                blk.write(sector, bytes(size), split=split)
                model[at : at + size] = bytes(size)
            elif kind == "flush":
                blk.flush()
            elif kind == "wz":
                blk.write_zeroes((sector, size // 512), unmap=data.draw(st.booleans()))
                model[at : at + size] = bytes(size)
            else:
                blk.discard((sector, size // 512))
                # What is discarded reads as anything; here holes are punched.
                model[at : at + size] = bytes(size)
        assert blk.read(0, len(model)) == model
    disk.close()
    assert path.read_bytes() == model


@EVERY_ENGINE
def test_more_requests_than_any_queue_below_holds(tmp_path: Path, aio: str, direct: bool) -> None:
    """1024 at once, three segments each, completing in any order."""
    path = tmp_path / "disk"
    content = pattern(1024 * 4096)
    path.write_bytes(content)
    disk = open_disk(path, aio, direct)
    with served(disk, queue_size=1024, ram_size=16 << 20) as blk:
        blk.indirect = True
        order = list(range(1024))
        random.Random(3).shuffle(order)
        tokens = {blk.submit(BlkType.IN, 8 * n, read_size=4096, kick=False): n for n in order}
        blk.queue.publish()
        blk.queue.kick()
        while tokens:
            result = blk.complete()
            n = tokens.pop(result.token)
            assert result.check().data == content[4096 * n : 4096 * (n + 1)]


@EVERY_ENGINE
@pytest.mark.parametrize("merged", [False, True], ids=["apart", "merged"])
def test_as_many_segments_as_a_chain_may_have(
    tmp_path: Path, aio: str, direct: bool, merged: bool
) -> None:
    """1025 data segments when header or status share one with data: more than IOV_MAX."""
    path = tmp_path / "disk"
    total = 1026 * 512
    content = pattern(total)
    path.write_bytes(content)
    disk = open_disk(path, aio, direct)
    if disk.limits.block_size > 512:
        pytest.skip(f"the file system's blocks have {disk.limits.block_size} bytes: 512 needed")
    for extra in (0, 1):  # buffers that O_DIRECT takes as they are, and others
        with served(disk, queue_size=4, ram_size=4 << 20, max_indirect=1100) as blk:
            blk.indirect = True
            if merged:
                fresh = pattern(1025 * 512, 2 + extra)
                out = [16 + 512 + extra] + [512] * 1023
                blk.write(0, fresh, split=Split(out=out))
                assert path.read_bytes()[: 1025 * 512] == fresh
                split = Split(in_=[512 - extra] + [512] * 1023)
                assert blk.read(0, 1025 * 512, split=split) == fresh
            else:
                fresh = pattern(1024 * 512, 4 + extra)
                blk.write(0, fresh, split=Split(out=[16] + [512] * 1024))
                assert blk.read(0, 1024 * 512, split=Split(in_=[512] * 1024)) == fresh
    disk.close()


# ---- files that are not what they were


@EVERY_ENGINE
@pytest.mark.parametrize("end", [0, 4096, 20480])
def test_a_file_truncated_while_served_reads_as_zeros_beyond(
    tmp_path: Path, aio: str, direct: bool, end: int
) -> None:
    path = tmp_path / "disk"
    content = pattern(65536)
    path.write_bytes(content)
    with served(open_disk(path, aio, direct)) as blk:
        os.truncate(path, end)
        assert blk.read(0, 65536) == content[:end] + bytes(65536 - end)
        assert blk.read(64, 4096, split=Split(in_=[100, 1000])) == bytes(4096)
        blk.write(120, b"x" * 4096)
        assert blk.read(120, 4096) == b"x" * 4096


@EVERY_ENGINE
def test_a_file_truncated_within_a_block_does_no_harm(
    tmp_path: Path, aio: str, direct: bool
) -> None:
    path = tmp_path / "disk"
    content = pattern(65536)
    path.write_bytes(content)
    with served(open_disk(path, aio, direct)) as blk:
        os.truncate(path, 5000)
        assert blk.read(0, 65536) == content[:5000] + bytes(65536 - 5000)


@needs_root
@pytest.mark.parametrize(("aio", "direct"), [("io_uring", False), ("threads", False)])
def test_a_full_file_system_fails_the_write_alone(tmp_path: Path, aio: str, direct: bool) -> None:
    mounted = tmp_path / "small"
    mounted.mkdir()
    options = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(mounted)]
    done = subprocess.run(options, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"a tmpfs cannot be mounted here: {done.stderr.strip()}")
    try:
        path = mounted / "disk"
        path.touch()
        os.truncate(path, 8 << 20)
        disk = open_disk(path, aio, direct)
        with served(disk, ram_size=4 << 20) as blk:
            statuses = {
                blk.complete(blk.submit_write(n * 1024, b"d" * (512 << 10))).status
                for n in range(8)
            }
            assert statuses == {BlkStatus.OK, BlkStatus.IOERR}
            assert blk.read(0, 4096) == b"d" * 4096
            token = blk.submit(BlkType.WRITE_ZEROES, data=pack_ranges([(8192, 8192)]))
            assert blk.complete(token).status == BlkStatus.IOERR
            blk.flush()
        disk.close()
    finally:
        subprocess.run(["umount", "--lazy", str(mounted)], check=True)


# ---- holes


def allocated(path: Path) -> int:
    return path.stat().st_blocks * 512


@EVERY_ENGINE
@pytest.mark.parametrize("discard", ["unmap", "ignore"])
def test_a_discard_frees_blocks_if_it_may(
    tmp_path: Path, aio: str, direct: bool, discard: str
) -> None:
    path = tmp_path / "disk"
    path.write_bytes(pattern(1 << 20))
    before = allocated(path)
    disk = open_disk(path, aio, direct, discard=discard)
    device_discards = disk.limits.discard
    assert device_discards == (discard == "unmap")
    with served(disk) as blk:
        token = blk.submit(BlkType.DISCARD, data=pack_ranges([(0, 512), (1024, 512)]))
        status = blk.complete(token).status
        if discard == "unmap":
            assert status == BlkStatus.OK
            assert allocated(path) <= before - (500 << 10)
        else:
            assert status == BlkStatus.UNSUPP
            assert allocated(path) == before
    assert path.stat().st_size == 1 << 20


@EVERY_ENGINE
@pytest.mark.parametrize(
    ("detect", "discard", "frees"),
    [("off", "unmap", False), ("on", "unmap", False), ("unmap", "unmap", True)],
)
def test_zeros_that_are_written_are_noticed(
    tmp_path: Path, aio: str, direct: bool, detect: str, discard: str, frees: bool
) -> None:
    path = tmp_path / "disk"
    path.write_bytes(pattern(1 << 20))
    before = allocated(path)
    with served(open_disk(path, aio, direct, discard=discard, detect_zeroes=detect)) as blk:
        blk.write(0, bytes(256 << 10))
        blk.write(1024, bytes(4095) + b"1")
        assert blk.read(0, 256 << 10) == bytes(256 << 10)
        assert blk.read(1024, 4096) == bytes(4095) + b"1"
        if frees:
            assert allocated(path) <= before - (250 << 10)
        else:
            assert allocated(path) >= before


@EVERY_ENGINE
def test_write_zeroes_deallocates_only_when_asked(tmp_path: Path, aio: str, direct: bool) -> None:
    path = tmp_path / "disk"
    path.write_bytes(pattern(1 << 20))
    before = allocated(path)
    with served(open_disk(path, aio, direct, discard="unmap")) as blk:
        blk.write_zeroes((0, 512))
        assert allocated(path) >= before
        blk.write_zeroes((512, 512), unmap=True)
        assert allocated(path) <= before - (250 << 10)
        assert blk.read(0, 512 << 10) == bytes(512 << 10)


# ---- durability


@contextmanager
def loop_device(tmp_path: Path) -> Iterator[Path]:
    backing = tmp_path / "backing"
    backing.touch()
    os.truncate(backing, 1 << 20)
    options = ["losetup", "--find", "--show", str(backing)]
    done = subprocess.run(options, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"no loop device can be had here: {done.stderr.strip()}")
    device = Path(done.stdout.strip())
    try:
        yield device
    finally:
        subprocess.run(["losetup", "--detach", str(device)], check=True)


def flushes(device: Path) -> int:
    """Flush requests that the block device has served (Documentation/block/stat)."""
    return int(Path(f"/sys/block/{device.name}/stat").read_text().split()[15])


@needs_root
@EVERY_ENGINE
def test_without_a_write_cache_each_write_is_durable(
    tmp_path: Path, aio: str, direct: bool
) -> None:
    with loop_device(tmp_path) as device:
        disk = open_disk(device, aio, direct, driver="host_device", detect_zeroes="on")
        with served(disk, writeback=True) as blk:
            before = flushes(device)
            blk.write(0, b"a" * 4096)
            assert flushes(device) == before
            blk.flush()
            assert flushes(device) == before + 1
        with served(disk, writeback=False) as blk:
            before = flushes(device)
            blk.write(8, b"b" * 4096)
            after_write = flushes(device)
            blk.write(16, bytes(4096))  # noticed to be zeros
            after_zeros = flushes(device)
            blk.write_zeroes((24, 8))
            after_write_zeroes = flushes(device)
            blk.write(32, b"c" * 4096, split=Split(out=[16, 3]))
            assert before < after_write < after_zeros < after_write_zeroes < flushes(device)
        disk.close()


@needs_root
@pytest.mark.parametrize(("aio", "direct"), ENGINES[:2])
def test_flushes_can_be_switched_off(tmp_path: Path, aio: str, direct: bool) -> None:
    with loop_device(tmp_path) as device:
        disk = open_disk(device, aio, direct, driver="host_device", cache_no_flush=True)
        with served(disk) as blk:
            before = flushes(device)
            blk.write(0, b"a" * 4096)
            blk.flush()
            assert flushes(device) == before
        disk.close()


# ---- opening and locking


def test_a_device_is_no_file_and_a_file_no_device(tmp_path: Path) -> None:
    path = tmp_path / "disk"
    path.write_bytes(bytes(4096))
    with pytest.raises(ValueError, match="is not a block device; use driver=file"):
        FileBackend("f", str(path), driver="host_device")
    for other in ("/dev/null", str(tmp_path)):
        with pytest.raises((ValueError, OSError)):
            FileBackend("f", other)
    with pytest.raises(ValueError, match=r"aio=native needs cache.direct=on"):
        FileBackend("f", str(path), aio="native")


def test_a_size_that_changed_is_seen_when_asked(tmp_path: Path) -> None:
    path = tmp_path / "disk"
    path.write_bytes(bytes(4096))
    disk = FileBackend("f", str(path))
    os.truncate(path, 8192)
    assert disk.size == 4096
    assert disk.refresh_size() == disk.size == 8192
    disk.close()


def test_a_writer_shares_with_nobody_and_readers_with_each_other(tmp_path: Path) -> None:
    path = str(tmp_path / "disk")
    Path(path).write_bytes(bytes(4096))
    writer = FileBackend("w", path)
    writer.open_channel(io_uring=False)
    for read_only in (False, True):
        with pytest.raises(InUseError):
            FileBackend("x", path, read_only=read_only)
    FileBackend("unlocked", path, locking_mode="off").close()
    with pytest.raises(InUseError):  # the one without locks did not take the writer's away
        FileBackend("x", path)
    writer.close()
    readers = [FileBackend("r", path, read_only=True) for _ in range(2)]
    with pytest.raises(InUseError):
        FileBackend("x", path)
    for reader in readers:
        reader.close()
    FileBackend("w", path).close()


def test_qemu_and_we_refuse_each_others_images(tmp_path: Path) -> None:
    qemu_io = shutil.which("qemu-io")
    if qemu_io is None:
        pytest.skip("qemu-io is missing: apt-get install qemu-utils")
    path = str(tmp_path / "disk")
    Path(path).write_bytes(bytes(1 << 20))
    disk = FileBackend("w", path)
    command = [qemu_io, "-f", "raw", "-c", "write 0 4k", path]
    # A sanitizer's runtime, loaded for our sake, knows nothing of QEMU's coroutines.
    env = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    refused = subprocess.run(
        command, capture_output=True, text=True, timeout=20, check=False, env=env
    )
    assert refused.returncode != 0
    assert "lock" in refused.stderr
    disk.close()
    with subprocess.Popen(
        [qemu_io, "-f", "raw", path],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=env,
    ) as qemu:
        assert qemu.stdin is not None
        assert qemu.stdout is not None
        qemu.stdin.write("length\n")
        qemu.stdin.flush()
        qemu.stdout.readline()  # it has the image open
        with pytest.raises(InUseError):
            FileBackend("w", path)
        qemu.stdin.write("quit\n")
    FileBackend("w", path).close()


def test_a_header_in_front_of_the_data_leaves_buffers_unaligned(tmp_path: Path) -> None:
    """O_DIRECT with buffers at every address: they go through one of the daemon's own."""
    path = tmp_path / "disk"
    content = pattern(1 << 16)
    path.write_bytes(content)
    with served(open_disk(path, "threads", True)) as blk:
        ram = blk.ram
        for shift in (0, 1, 2, 3, 4, 8, 511):
            place = ram.alloc(8192 + 512, 4096)
            header, status = ram.alloc(16), ram.alloc(1)
            ram.write(header, struct.pack("<IIQ", BlkType.IN, 0, 8))
            token = blk.queue.add([(header, 16)], [(place + shift, 8192), (status, 1)])
            blk.queue.publish()
            blk.queue.kick()
            assert blk.queue.wait()
            assert blk.queue.pop_used() == (token, 8193)
            assert ram.read(place + shift, 8192) == content[4096:12288]
