"""Lines that must be understood, most of them qemu-storage-daemon's own."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from vringd.control.schema import (
    CacheOptions,
    FdAddress,
    FileOptions,
    IOThreadOptions,
    NullOptions,
    QueueGroup,
    ScsiDeviceOptions,
    ServeOptions,
    UnixAddress,
    VhostUserBlkOptions,
    VhostUserScsiOptions,
)

BuildLine = Callable[[str], ServeOptions]

NULL = "--blockdev driver=null-co,node-name=n0 "
EXPORT = "--export type=vhost-user-blk,id=e0,node-name=n0,addr.type=unix,addr.path=/run/e0.sock"


def test_the_defaults_are_qemus(build_line: BuildLine) -> None:
    options = build_line(NULL + "--object iothread,id=t0 " + EXPORT)
    assert options == ServeOptions(
        iothreads=(IOThreadOptions(id="t0"),),
        blockdevs=(NullOptions(driver="null-co", node_name="n0"),),
        exports=(
            VhostUserBlkOptions(id="e0", node_name="n0", addr=UnixAddress(path="/run/e0.sock")),
        ),
    )
    (thread,) = options.iothreads
    assert (thread.poll_max_ns, thread.poll_grow, thread.poll_shrink) == (32768, 0, 0)
    assert (thread.aio_max_batch, thread.thread_pool_min, thread.thread_pool_max) == (0, 0, 64)
    (disk,) = options.blockdevs
    assert isinstance(disk, NullOptions)
    assert (disk.size, disk.latency_ns, disk.read_zeroes, disk.read_only) == (
        2**30,
        0,
        False,
        False,
    )
    assert (disk.discard, disk.detect_zeroes, disk.cache.direct) == ("ignore", "off", False)
    (export,) = options.exports
    assert (export.writable, export.writethrough, export.num_queues) == (False, False, 1)


def test_a_file_as_qemu_users_write_it(build_line: BuildLine) -> None:
    options = build_line(
        "--blockdev driver=file,node-name=disk,filename=vm,,1.img,cache.direct=on,aio=io_uring,"
        "cache.no-flush=off,discard=unmap,detect-zeroes=unmap,read-only=off,auto-read-only=on,"
        "locking=off,aio-max-batch=8"
    )
    assert options.blockdevs == (
        FileOptions(
            driver="file",
            node_name="disk",
            filename="vm,1.img",
            cache=CacheOptions(direct=True),
            aio="io_uring",
            discard="unmap",
            detect_zeroes="unmap",
            auto_read_only=True,
            locking="off",
            aio_max_batch=8,
        ),
    )


def test_an_iothread_with_everything(build_line: BuildLine) -> None:
    options = build_line(
        "--object iothread,id=t0,poll-max-ns=0x10,poll-grow=2,poll-shrink=3,aio-max-batch=4,"
        "thread-pool-min=1,thread-pool-max=8,cpu-affinity=0-3,,8"
    )
    assert options.iothreads == (
        IOThreadOptions(
            id="t0",
            poll_max_ns=16,
            poll_grow=2,
            poll_shrink=3,
            aio_max_batch=4,
            thread_pool_min=1,
            thread_pool_max=8,
            cpu_affinity=(0, 1, 2, 3, 8),
        ),
    )


@pytest.mark.parametrize(
    "line",
    [
        "--object qom-type=iothread,id=t0,cpu-affinity=1-2,,4",
        "--object id=t0,qom-type=iothread,cpu-affinity.0=4,cpu-affinity.1=1-2",
        """--object '{"qom-type": "iothread", "id": "t0", "cpu-affinity": "1-2,4"}'""",
        """--object '{"qom-type": "iothread", "id": "t0", "cpu-affinity": [1, 2, 4]}'""",
    ],
)
def test_one_thing_may_be_written_in_many_ways(build_line: BuildLine, line: str) -> None:
    assert build_line(line).iothreads == (IOThreadOptions(id="t0", cpu_affinity=(1, 2, 4)),)


def test_json_and_key_value_pairs_mean_the_same(build_line: BuildLine) -> None:
    pairs = (
        "--object iothread,id=t0 --object iothread,id=t1 "
        "--blockdev null-co,node-name=n0,size=1M,read-zeroes=on,latency-ns=1000 "
        + EXPORT
        + ",writable=on,num-queues=4,logical-block-size=4096,iothread-vq-mapping.0.iothread=t0,"
        "iothread-vq-mapping.0.vqs.0=0,iothread-vq-mapping.0.vqs.1=3,"
        "iothread-vq-mapping.1.iothread=t1,iothread-vq-mapping.1.vqs.0=1,"
        "iothread-vq-mapping.1.vqs.1=2"
    )
    json = """--object '{"qom-type": "iothread", "id": "t0"}'
        --object '{"qom-type": "iothread", "id": "t1"}'
        --blockdev '{"driver": "null-co", "node-name": "n0", "size": 1048576,
                     "read-zeroes": true, "latency-ns": 1000}'
        --export '{"type": "vhost-user-blk", "id": "e0", "node-name": "n0", "writable": true,
                   "addr": {"type": "unix", "path": "/run/e0.sock"}, "num-queues": 4,
                   "logical-block-size": 4096,
                   "iothread-vq-mapping": [{"iothread": "t0", "vqs": [0, 3]},
                                           {"iothread": "t1", "vqs": [1, 2]}]}'"""
    assert build_line(pairs) == build_line(json)
    assert build_line(pairs).exports[0].iothread_vq_mapping == (
        QueueGroup(iothread="t0", vqs=(0, 3)),
        QueueGroup(iothread="t1", vqs=(1, 2)),
    )


def test_order_does_not_matter(build_line: BuildLine) -> None:
    iothread = " --object iothread,id=t0 "
    assert build_line(NULL + iothread + EXPORT + ",iothread=t0") == build_line(
        EXPORT + ",iothread=t0 " + NULL + iothread
    )


@pytest.mark.parametrize(
    ("tail", "threads"),
    [
        (",iothread=t0", ("t0",)),
        (",iothread=t0,fixed-iothread=on", ("t0",)),
        (",iothread.0=t0,iothread.1=t1", ("t0", "t1")),
    ],
)
def test_iothread_is_a_name_or_a_list(
    build_line: BuildLine, tail: str, threads: tuple[str, ...]
) -> None:
    line = NULL + "--object iothread,id=t0 --object iothread,id=t1 " + EXPORT + tail
    assert build_line(line).exports[0].iothread == threads


def test_a_socket_may_be_handed_down(build_line: BuildLine) -> None:
    line = "--export vhost-user-blk,id=e0,node-name=n0,addr.type=fd,addr.str=7"
    assert build_line(NULL + line).exports[0].addr == FdAddress(fd=7)


def test_a_number_of_iothreads_or_one_per_queue(build_line: BuildLine) -> None:
    assert build_line(NULL + EXPORT + ",num-queues=2,iothreads=2").exports[0].iothreads == 2
    line = NULL + EXPORT + ",num-queues=2,iothreads=per-vq"
    assert build_line(line).exports[0].iothreads == "per-vq"


def test_raw_with_its_file_inside(build_line: BuildLine) -> None:
    options = build_line(
        "--blockdev driver=raw,node-name=disk,read-only=on,cache.direct=on,discard=unmap,"
        "file.driver=file,file.filename=vm.img,file.aio=native"
    )
    assert options.blockdevs == (
        FileOptions(
            driver="file",
            node_name="disk",
            filename="vm.img",
            aio="native",
            read_only=True,
            cache=CacheOptions(direct=True),
            discard="unmap",
        ),
    )


def test_raw_over_a_node(build_line: BuildLine) -> None:
    options = build_line(
        "--blockdev raw,node-name=disk,file=protocol,read-only=on,cache.no-flush=on"
        " --blockdev file,node-name=protocol,filename=vm.img,cache.direct=on,discard=unmap"
    )
    # A raw node that ignores discards keeps them from the node below, whatever that does.
    assert options.blockdevs == (
        FileOptions(
            driver="file",
            node_name="disk",
            filename="vm.img",
            read_only=True,
            cache=CacheOptions(direct=True, no_flush=True),
            discard="ignore",
        ),
    )


def test_raw_over_raw_over_a_device(build_line: BuildLine) -> None:
    options = build_line(
        '--blockdev \'{"driver": "raw", "node-name": "top", "file": {"driver": "raw",'
        ' "file": {"driver": "host_device", "filename": "/dev/vda"}}}\''
    )
    assert options.blockdevs == (
        FileOptions(driver="host_device", node_name="top", filename="/dev/vda"),
    )


def test_a_node_is_found_by_its_name(build_line: BuildLine) -> None:
    options = build_line(NULL + EXPORT)
    assert options.blockdev("n0") is options.blockdevs[0]
    with pytest.raises(KeyError):
        options.blockdev("n1")


def test_two_exports_may_read_one_node_while_one_writes(build_line: BuildLine) -> None:
    second = EXPORT.replace("e0", "e1") + ",writable=on"
    assert len(build_line(f"{NULL} {EXPORT} {second}").exports) == 2


def test_a_scsi_device_with_a_disk_and_two_drives(build_line: BuildLine) -> None:
    options = build_line(
        NULL + "--blockdev file,node-name=iso,filename=i.iso,read-only=on"
        " --export vhost-user-scsi,id=s0,addr.type=unix,addr.path=/run/s0.sock,num-queues=4,"
        "iothreads=2,devices.0.node-name=n0,devices.0.writable=on,devices.0.serial=S,"
        "devices.0.wwn=0x5000c50012345678,devices.1.node-name=iso,devices.1.cdrom=on,"
        "devices.1.target=7,devices.1.lun=3,devices.2.cdrom=on"
    )
    assert options.exports == (
        VhostUserScsiOptions(
            id="s0",
            addr=UnixAddress(path="/run/s0.sock"),
            num_queues=4,
            iothreads=2,
            devices=(
                ScsiDeviceOptions(
                    node_name="n0", writable=True, serial="S", wwn=0x5000C50012345678
                ),
                ScsiDeviceOptions(node_name="iso", cdrom=True, target=7, lun=3),
                ScsiDeviceOptions(cdrom=True),
            ),
        ),
    )
    assert options.written_nodes == {"n0"}
