"""`vringd bench` against real servers: vringd and QEMU's storage daemon."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from vringd.testing.peers import missing_reason, run_peer
from vringd.testing.served_disk import ServedDisk, ServedScsi, Vringd, run_vringd
from vringd.testing.storage_daemon import StorageDaemon

MIB = 1 << 20


@pytest.fixture
def image(folder: Path) -> Path:
    image = folder / "disk.img"
    with image.open("wb") as file:
        file.truncate(64 * MIB)
    return image


@contextmanager
def serve(kind: str, folder: Path, image: Path, num_queues: int = 2) -> Iterator[Path]:
    """The socket of a server of `image`; a virtio-scsi device's is scsi.sock."""
    if kind.startswith("vringd"):
        disk: ServedDisk | ServedScsi = ServedDisk(
            folder, image, num_queues=num_queues, iothreads=2
        )
        if kind == "vringd-scsi":
            disk = ServedScsi(folder, [image], num_queues=num_queues, iothreads=2)
        with Vringd(folder, [disk]):
            yield disk.socket
        return
    if reason := missing_reason("qemu-storage-daemon"):
        pytest.skip(reason)
    with StorageDaemon(folder, image=image, num_queues=num_queues) as daemon:
        yield daemon.socket


@pytest.fixture(params=["vringd", "vringd-scsi", "qemu-storage-daemon"])
def socket(request: pytest.FixtureRequest, folder: Path, image: Path) -> Iterator[Path]:
    with serve(request.param, folder, image) as socket:
        yield socket


def bench(socket: Path, *words: str) -> subprocess.CompletedProcess[str]:
    kind = "scsi" if socket.name == "scsi.sock" else "blk"
    return run_vringd("bench", "--device", kind, "--socket", str(socket), *words, timeout=60)


def bench_json(socket: Path, *words: str) -> list[dict]:  # type: ignore[type-arg]
    done = bench(socket, "--output-format=json", *words)
    assert done.returncode == 0, done.stderr
    jobs: list[dict] = json.loads(done.stdout)["jobs"]  # type: ignore[type-arg]
    return jobs


def test_number_of_requests_is_kept(socket: Path) -> None:
    (job,) = bench_json(socket, "--rw=randread", "--iodepth=8", "--number_ios=1000")
    assert job["read"]["total_ios"] == 1000
    assert job["read"]["io_bytes"] == 1000 * 4096
    assert job["read"]["clat_ns"]["N"] == 1000


@pytest.mark.parametrize("wait", ["eventfd", "polling"])
def test_every_job_and_queue_is_at_work(socket: Path, wait: str) -> None:
    jobs = bench_json(
        socket,
        *("--queues", "2", "--wait", wait, "--rw=randrw", "--iodepth=16", "--numjobs=4"),
        *("--runtime=500ms", "--time_based", "--iodepth_batch_submit=8"),
        "--iodepth_batch_complete_min=4",
    )
    assert [job["queues"] for job in jobs] == [[0], [0], [1], [1]]
    for job in jobs:
        assert job["read"]["total_ios"] > 0
        assert job["write"]["total_ios"] > 0


def test_sequential_pass_transfers_the_size_once(socket: Path) -> None:
    (job,) = bench_json(socket, "--rw=write", "--bs=64k", "--size=8m", "--iodepth=4")
    assert job["write"]["io_bytes"] == 8 * MIB


@pytest.mark.parametrize(
    "words",
    [
        ["--rw=randwrite", "--bs=4k"],
        ["--rw=write", "--bs=64k"],
        ["--rw=randrw", "--bssplit=4k/50:16k/50"],
    ],
)
def test_written_data_verify(socket: Path, words: list[str]) -> None:
    done = bench(socket, *words, "--size=8m", "--iodepth=16", "--verify=crc32c")
    assert done.returncode == 0, done.stderr


def test_trimmed_blocks_are_counted_and_read_as_zeros(socket: Path, image: Path) -> None:
    written = bench(socket, "--rw=write", "--bs=64k", "--size=4m", "--iodepth=8")
    assert written.returncode == 0, written.stderr
    (job,) = bench_json(socket, "--rw=trim", "--bs=64k", "--size=4m", "--iodepth=8")
    assert job["trim"]["total_ios"] == 64
    assert image.read_bytes()[: 4 * MIB] == bytes(4 * MIB)


def test_two_jobs_that_share_a_queue_verify(socket: Path) -> None:
    done = bench(
        socket,
        *("--queues", "1", "--rw=randwrite", "--numjobs=2", "--size=8m"),
        *("--offset_increment=8m", "--iodepth=32", "--verify=crc32c", "--group_reporting"),
    )
    assert done.returncode == 0, done.stderr
    assert "jobs=2" in done.stdout


def test_rate_is_kept(socket: Path) -> None:
    (job,) = bench_json(
        socket, "--rw=randread", "--rate_iops=2000", "--iodepth=4", "--runtime=1", "--time_based"
    )
    assert 0 < job["read"]["total_ios"] <= 2100


def test_damaged_block_is_named(folder: Path, image: Path) -> None:
    with serve("vringd", folder, image) as socket:
        words = ("--bs=4k", "--size=1m", "--verify=crc32c", "--iodepth=4")
        assert bench(socket, "--rw=write", "--do_verify=0", *words).returncode == 0
        assert bench(socket, "--rw=read", *words).returncode == 0
        with image.open("r+b") as file:
            file.seek(5 * 4096 + 1000)
            byte = file.read(1)
            file.seek(-1, os.SEEK_CUR)
            file.write(bytes([byte[0] ^ 1]))
        done = bench(socket, "--rw=read", *words)
        assert done.returncode == 1
        assert "verify: the block at offset 20480 is damaged" in done.stderr
        with image.open("r+b") as file:
            file.seek(8 * 4096)
            other = file.read(4096)
            file.seek(5 * 4096)
            file.write(other)
        done = bench(socket, "--rw=read", *words)
        assert "offset 20480 holds the block that was written to offset 32768" in done.stderr


def test_disk_that_no_job_wrote_does_not_verify(folder: Path, image: Path) -> None:
    with serve("vringd", folder, image) as socket:
        done = bench(socket, "--rw=read", "--size=1m", "--verify=crc32c")
        assert done.returncode == 1
        assert "the block at offset 0 was never written by a job" in done.stderr


def in_a_while(action: int, pid: int) -> threading.Thread:
    def act() -> None:
        time.sleep(1)
        os.kill(pid, action)

    thread = threading.Thread(target=act)
    thread.start()
    return thread


@pytest.mark.parametrize(
    ("action", "message"),
    [(signal.SIGKILL, "the server closed the connection"), (signal.SIGSTOP, "the server stalls")],
)
def test_server_that_dies_or_stalls_ends_the_run(
    folder: Path, image: Path, action: signal.Signals, message: str
) -> None:
    disk = ServedDisk(folder, image)
    with Vringd(folder, [disk]) as server:
        thread = in_a_while(action, server.process.pid)
        done = bench(
            disk.socket,
            *("--watchdog", "1", "--rw=randread", "--iodepth=4", "--runtime=30", "--time_based"),
        )
        thread.join()
    assert done.returncode == 1
    assert message in done.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--queues", "9", "--rw=read"], "--queues 9: the device has 2; give it more"),
        (["--rw=read", "--size=1g", "--offset=64m"], "no room for a block of 4096 bytes"),
        (["--rw=read", "--iodepth=300"], "does not fit --queue-size 256; raise that"),
        (["--packed", "--rw=read", "--bs=4k", "--offset=100"], "no multiple of the disk's block"),
        ([], "no job: name a job file"),
    ],
)
def test_what_cannot_be_is_refused(
    folder: Path, image: Path, words: list[str], message: str
) -> None:
    with serve("vringd", folder, image) as socket:
        done = bench(socket, *words)
    assert done.returncode == 1
    assert message in done.stderr
    assert done.stderr.count("\n") == 1


def test_job_file_with_every_option(folder: Path, image: Path) -> None:
    path = folder / "all.fio"
    path.write_text(
        "[global]\nioengine=libaio\ndirect=1\nfilename=/dev/vda\nfadvise_hint=0\n"
        "size=16m\nrandseed=5\ngroup_reporting=1\n"
        "[mixed]\nrw=randrw:2\nbssplit=512/20:1k/16:2k/9:4k/12:8k/19:16k/10:32k/8:64k/6\n"
        "iodepth=64\niodepth_batch_submit=64\niodepth_batch_complete=64\nnumjobs=2\n"
        "gtod_reduce=1\ntime_based=1\nruntime=300ms\nramp_time=100ms\nrwmixread=70\n"
        "[ranged]\nstonewall\nrw=read:4k\nbsrange=4k-16k\niodepth=4\n"
        "iodepth_batch_complete_min=1\niodepth_batch_complete_max=4\noffset=1m\n"
        "cpus_allowed=0\ncpus_allowed_policy=split\n"
        "[zipf]\nstonewall\nrw=randread\nrandom_distribution=zipf:1.2\nnumber_ios=500\n"
        "thinktime=100\nthinktime_blocks=50\nnorandommap\n"
        "[checked]\nstonewall\nrw=randwrite\nbs=8k\niodepth=8\nsize=2m\nverify=crc32c\n"
        "offset_increment=2m\nnumjobs=2\nrate_iops=50000\n"
        "[trimmed]\nstonewall\nrw=trim\nbs=64k\nsize=1m\n"
    )
    with serve("vringd", folder, image) as socket:
        done = bench(socket, "--queues", "2", str(path), "--output-format=normal,json")
    assert done.returncode == 0, done.stderr
    assert "without effect here: direct, fadvise_hint, filename, ioengine" in done.stderr
    jobs = json.loads(done.stdout[done.stdout.index("{\n") :])["jobs"]
    assert [job["jobname"] for job in jobs] == ["mixed", "ranged", "zipf", "checked", "trimmed"]
    assert [job["groupid"] for job in jobs] == [0, 1, 2, 3, 4]
    mixed, ranged, zipf, checked, trimmed = jobs
    whole = mixed["read"]["total_ios"] + mixed["write"]["total_ios"]
    assert mixed["read"]["total_ios"] / whole == pytest.approx(0.7, abs=0.1)
    assert "percentile" not in mixed["read"]["clat_ns"]
    assert ranged["read"]["io_bytes"] >= 8 * MIB
    assert zipf["read"]["total_ios"] == 500
    assert checked["write"]["io_bytes"] == 4 * MIB
    assert trimmed["trim"]["total_ios"] == 16


def test_json_has_the_keys_of_fio(folder: Path, image: Path) -> None:
    if reason := missing_reason("fio"):
        pytest.skip(reason)
    words = ["--name=a", "--rw=randread", "--bs=4k", "--number_ios=100", "--output-format=json"]
    theirs = json.loads(
        run_peer("fio", "--ioengine=psync", f"--filename={image}", *words, share=[folder]).stdout
    )
    with serve("vringd", folder, image) as socket:
        ours = json.loads(bench(socket, *words).stdout)
    wanted = ("jobname", "groupid", "error", "eta", "elapsed", "job options", "read", "write",
              "trim", "job_runtime", "usr_cpu", "sys_cpu", "ctx", "iodepth_level", "latency_ns",
              "latency_us", "latency_ms", "latency_depth")  # fmt: skip
    their_job, our_job = theirs["jobs"][0], ours["jobs"][0]
    for key in wanted:
        assert key in their_job
        assert key in our_job
    assert our_job["read"].keys() <= their_job["read"].keys()
    assert our_job["read"]["clat_ns"].keys() == their_job["read"]["clat_ns"].keys()
    percentiles = our_job["read"]["clat_ns"]["percentile"].keys()
    assert percentiles == their_job["read"]["clat_ns"]["percentile"].keys()
    for key in ("iodepth_level", "latency_us", "latency_ms", "latency_ns"):
        assert our_job[key].keys() == their_job[key].keys()
