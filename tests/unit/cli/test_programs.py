from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from vringd.cli.programs import BLK_CAPABILITIES, SCSI_CAPABILITIES, blk_main, scsi_main
from vringd.control.schema import (
    CacheOptions,
    FdAddress,
    FileOptions,
    ScsiDeviceOptions,
    ServeOptions,
    UnixAddress,
    VhostUserBlkOptions,
    VhostUserScsiOptions,
)

EXAMPLES = Path(__file__).parents[3] / "examples"


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    path = tmp_path / "vm.img"
    path.write_bytes(bytes(4096))
    return path


def test_capabilities_are_what_the_conventions_ask_for(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert blk_main(["--print-capabilities"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "type": "block",
        "features": ["read-only", "blk-file"],
    }
    assert scsi_main(["--print-capabilities"]) == 0
    assert json.loads(capsys.readouterr().out) == {"type": "scsi", "features": []}


@pytest.mark.parametrize(
    ("program", "capabilities"),
    [("vringd-blk", BLK_CAPABILITIES), ("vringd-scsi", SCSI_CAPABILITIES)],
)
def test_the_description_fits_the_program(program: str, capabilities: dict[str, Any]) -> None:
    description = json.loads((EXAMPLES / f"50-{program}.json").read_text())
    assert description["type"] == capabilities["type"]
    assert set(description) == {"description", "type", "binary"}
    assert description["binary"].endswith(f"/{program}")


def test_a_disk_at_a_path(daemon: Any, disk: Path) -> None:
    socket = disk.with_name("vm.sock")
    line = [f"--socket-path={socket}", f"--blk-file={disk}", "--num-queues=4"]
    assert blk_main(line) == 0
    assert daemon.calls == ["start", "run"]
    assert daemon.options == ServeOptions(
        blockdevs=(
            FileOptions(driver="file", node_name="disk", filename=str(disk), discard="unmap"),
        ),
        exports=(
            VhostUserBlkOptions(
                id="blk",
                node_name="disk",
                addr=UnixAddress(path=str(socket)),
                writable=True,
                num_queues=4,
                iothreads=1,
            ),
        ),
    )


def test_every_option(daemon: Any, disk: Path) -> None:
    import socket

    ours, theirs = socket.socketpair()
    with ours, theirs:
        line = f"--fd={ours.fileno()} --blk-file={disk} --read-only --num-queues=3"
        extra = "--iothreads=per-vq --cache=direct --aio=native --log-level=error"
        assert blk_main([*line.split(), *extra.split()]) == 0
        assert daemon.options.blockdevs == (
            FileOptions(
                driver="file",
                node_name="disk",
                filename=str(disk),
                read_only=True,
                cache=CacheOptions(direct=True),
                aio="native",
            ),
        )
        (export,) = daemon.options.exports
        assert export.addr == FdAddress(fd=ours.fileno())
        assert (export.writable, export.num_queues, export.iothreads) == (False, 3, "per-vq")


def test_scsi_units_are_targets_in_the_order_of_the_line(daemon: Any, disk: Path) -> None:
    socket = disk.with_name("vm.sock")
    iso = disk.with_name("iso")
    iso.write_bytes(bytes(4096))
    line = [f"--cdrom={iso}", f"--socket-path={socket}", f"--disk={disk}", "--num-queues=2"]
    assert scsi_main(line) == 0
    assert daemon.options == ServeOptions(
        blockdevs=(
            FileOptions(driver="file", node_name="disk0", filename=str(iso), read_only=True),
            FileOptions(driver="file", node_name="disk1", filename=str(disk), discard="unmap"),
        ),
        exports=(
            VhostUserScsiOptions(
                id="scsi",
                addr=UnixAddress(path=str(socket)),
                devices=(
                    ScsiDeviceOptions(node_name="disk0", cdrom=True),
                    ScsiDeviceOptions(node_name="disk1", writable=True),
                ),
                num_queues=2,
                iothreads=1,
            ),
        ),
    )


def test_scsi_without_a_disk_is_one_line_and_status_1(
    daemon: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert scsi_main(["--socket-path=/s"]) == 1
    message = "a disk is missing: give --disk=PATH or --cdrom=PATH"
    assert capsys.readouterr().err == f"vringd-scsi: error: {message}\n"
    assert daemon.calls == []


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("--blk-file=DISK", "a socket is missing: give --socket-path=PATH or --fd=NUMBER"),
        (
            "--blk-file=DISK --socket-path=/s --fd=3",
            "--socket-path and --fd exclude each other; give one of the two",
        ),
        ("--socket-path=/s", "a disk is missing: give --blk-file=PATH"),
        (
            "--socket-path=/s --blk-file=/nonexistent",
            "--blk-file: filename=/nonexistent: no such file or directory",
        ),
        (
            "--socket-path=/nonexistent/s --blk-file=DISK",
            "--socket-path: addr.path=/nonexistent/s: there is no folder /nonexistent;"
            " make it first",
        ),
        (
            "--socket-path=/s --blk-file=DISK --iothreads=9 --num-queues=2",
            "--socket-path: iothreads=9 is more than num-queues=2; a queue is served by one"
            " IOThread, so raise num-queues or lower iothreads",
        ),
        (
            "--socket-path=/s --blk-file=DISK --aio=native",
            "--blk-file: aio=native needs cache.direct=on (or use aio=io_uring or threads)",
        ),
    ],
)
def test_a_contradiction_is_one_line_and_status_1(
    daemon: Any, disk: Path, capsys: pytest.CaptureFixture[str], line: str, message: str
) -> None:
    assert blk_main(line.replace("DISK", str(disk)).split()) == 1
    assert capsys.readouterr().err == f"vringd-blk: error: {message}\n"
    assert daemon.calls == []


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("--num-queues=0", "argument --num-queues: 0: expected a whole number from 1 to 256"),
        ("--iothreads=x", "argument --iothreads: x: expected a number from 1 to 256, or per-vq"),
        ("--fd=x", "argument --fd: x: expected a whole number from 0 to 2147483647"),
        ("--frob", "unrecognized arguments: --frob"),
    ],
)
def test_a_malformed_option_is_one_line_and_status_1(
    capsys: pytest.CaptureFixture[str], line: str, message: str
) -> None:
    with pytest.raises(SystemExit) as caught:
        blk_main([line])
    assert caught.value.code == 1
    assert capsys.readouterr().err == f"vringd-blk: error: {message}; see vringd-blk --help\n"
