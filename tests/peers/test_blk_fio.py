"""fio's libblkio engine on a vringd disk: several queues of one device, without a guest."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from vringd.testing.served_disk import ServedDisk, Vringd

MIB = 1 << 20
DISK_SIZE = 64 * MIB


def _fio_with_libblkio() -> list[str] | None:
    """The words of a command that runs such a fio: $VRINGD_FIO, or one on the PATH."""
    named = os.environ.get("VRINGD_FIO") or shutil.which("fio")
    if not named:
        return None
    command = shlex.split(named)
    try:
        engines = subprocess.run(
            [*command, "--enghelp"], capture_output=True, text=True, timeout=20, check=False
        )
    except OSError:
        return None
    return command if "libblkio" in engines.stdout.split() else None


FIO = _fio_with_libblkio()

pytestmark = pytest.mark.skipif(
    FIO is None,
    reason="no fio with the libblkio engine (Debian's has none): build fio with libblkio-dev"
    " installed and name it in VRINGD_FIO",
)


def fio(disk: ServedDisk, *arguments: str) -> list[dict[str, Any]]:
    """Runs fio on the disk and returns its jobs' results."""
    assert FIO is not None
    done = subprocess.run(
        [
            *(*FIO, "--name=job", "--ioengine=libblkio", "--thread=1", "--output-format=json"),
            *("--libblkio_driver=virtio-blk-vhost-user", f"--libblkio_path={disk.socket}"),
            *arguments,
        ],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    jobs: list[dict[str, Any]] = json.loads(done.stdout[done.stdout.index("{") :])["jobs"]
    assert [job["error"] for job in jobs] == [0] * len(jobs)
    return jobs


def serve(folder: Path, *, num_queues: int, **options: Any) -> tuple[ServedDisk, Vringd]:
    image = folder / "disk.img"
    image.touch()
    os.truncate(image, DISK_SIZE)
    disk = ServedDisk(folder, image, num_queues=num_queues, **options)
    return disk, Vringd(folder, [disk])


@pytest.mark.parametrize("jobs", [1, 4])
@pytest.mark.parametrize("wait", ["--libblkio_wait_mode=eventfd", "--hipri=1"])
def test_verifies_on_every_queue(folder: Path, jobs: int, wait: str) -> None:
    disk, daemon = serve(folder, num_queues=jobs, iothreads=min(jobs, 2))
    with daemon:
        results = fio(
            *(disk, wait, "--rw=randwrite", "--bsrange=512-64k", "--size=8m", "--iodepth=32"),
            *(f"--numjobs={jobs}", "--offset_increment=8m", "--verify=crc32c", "--do_verify=1"),
        )
    assert len(results) == jobs
    for result in results:
        assert result["write"]["io_bytes"] == 8 * MIB
        assert result["read"]["io_bytes"] == 8 * MIB


@pytest.mark.parametrize("node", [{"cache.direct": "on"}, {"aio": "threads"}])
def test_mixed_load_with_trims(folder: Path, node: dict[str, str]) -> None:
    disk, daemon = serve(folder, num_queues=2, iothreads=2, node=node)
    with daemon:
        results = fio(
            *(disk, "--rw=randtrimwrite", "--bs=4k", "--size=8m", "--iodepth=16"),
            *("--numjobs=2", "--offset_increment=16m", "--fsync=64"),
        )
    assert all(result["trim"]["total_ios"] > 0 for result in results)
    assert all(result["write"]["total_ios"] > 0 for result in results)


def test_fewer_jobs_than_queues_and_again(folder: Path) -> None:
    disk, daemon = serve(folder, num_queues=8, iothreads=2)
    with daemon:
        for jobs in (1, 3, 8):
            results = fio(
                *(disk, f"--numjobs={jobs}", "--rw=randread", "--bs=4k", "--iodepth=8"),
                "--number_ios=2000",
            )
            assert [result["read"]["total_ios"] for result in results] == [2000] * jobs
