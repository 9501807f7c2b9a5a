from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from vringd.control.errors import ResourceError
from vringd.control.host import check_host, show_cpus
from vringd.control.schema import ServeOptions

BuildLine = Callable[[str], ServeOptions]


def refusal(options: ServeOptions) -> str:
    with pytest.raises(ResourceError) as caught:
        check_host(options)
    return str(caught.value)


def line(folder: Path, blockdev: str = "", export: str = "") -> str:
    blockdev = blockdev or "null-co,node-name=d"
    export = export or f"addr.type=unix,addr.path={folder}/vm.sock"
    return f"--blockdev {blockdev} --export vhost-user-blk,id=e0,node-name=d,{export}"


def test_what_is_there_is_accepted(build_line: BuildLine, tmp_path: Path) -> None:
    (tmp_path / "vm.img").write_bytes(b"")
    cpu = min(os.sched_getaffinity(0))
    options = build_line(
        line(tmp_path, f"file,node-name=d,filename={tmp_path}/vm.img")
        + f",writable=on --object iothread,id=t0,cpu-affinity={cpu}"
    )
    check_host(options)


def test_a_stale_socket_is_accepted(build_line: BuildLine, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(tmp_path / "vm.sock"))
    check_host(build_line(line(tmp_path)))


def test_cpu_that_may_not_be_used(build_line: BuildLine) -> None:
    options = build_line("--object iothread,id=t0,cpu-affinity=8191")
    allowed = show_cpus(os.sched_getaffinity(0))
    assert refusal(options) == (
        "--object iothread,id=t0: cpu-affinity: CPU 8191 is not available;"
        f" this process may use {allowed}"
    )


def test_missing_disk(build_line: BuildLine, tmp_path: Path) -> None:
    options = build_line(f"--blockdev file,node-name=d,filename={tmp_path}/vm.img")
    assert refusal(options) == (
        f"--blockdev node-name=d: filename={tmp_path}/vm.img: no such file or directory"
    )


@pytest.mark.parametrize(
    ("driver", "make", "problem"),
    [
        ("file", Path.mkdir, "not a regular file; name a file"),
        ("host_device", Path.mkdir, "not a block device; name a device"),
        ("host_device", Path.touch, "not a block device; use driver=file"),
    ],
)
def test_wrong_kind_of_disk(
    build_line: BuildLine, tmp_path: Path, driver: str, make: Callable[[Path], None], problem: str
) -> None:
    disk = tmp_path / "disk"
    make(disk)
    options = build_line(f"--blockdev {driver},node-name=d,filename={disk}")
    assert refusal(options) == f"--blockdev node-name=d: filename={disk}: {problem}"


def test_one_file_behind_two_nodes(build_line: BuildLine, tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    (tmp_path / "b").symlink_to("a")
    options = build_line(
        f"--blockdev file,node-name=a,filename={tmp_path}/a "
        + line(tmp_path, f"file,node-name=d,filename={tmp_path}/b")
        + ",writable=on"
    )
    assert refusal(options) == (
        f"--blockdev node-name=d: filename={tmp_path}/b: --blockdev node-name=a is the same"
        " file; export one node instead of two"
    )


def test_socket_in_a_missing_folder(build_line: BuildLine, tmp_path: Path) -> None:
    assert refusal(build_line(line(tmp_path / "no"))) == (
        f"--export id=e0: addr.path={tmp_path}/no/vm.sock: there is no folder {tmp_path}/no;"
        " make it first"
    )


def test_socket_in_place_of_a_file(build_line: BuildLine, tmp_path: Path) -> None:
    (tmp_path / "vm.sock").touch()
    assert refusal(build_line(line(tmp_path))) == (
        f"--export id=e0: addr.path={tmp_path}/vm.sock: exists and is not a socket;"
        " name another path"
    )


def test_descriptor_that_is_closed(build_line: BuildLine, tmp_path: Path) -> None:
    options = build_line(line(tmp_path, export="addr.type=fd,addr.str=1000000"))
    assert refusal(options) == (
        "--export id=e0: addr.str=1000000: bad file descriptor;"
        " pass the socket down as that file descriptor"
    )


def test_descriptor_of_a_file(build_line: BuildLine, tmp_path: Path) -> None:
    with (tmp_path / "x").open("wb") as file:
        options = build_line(line(tmp_path, export=f"addr.type=fd,addr.str={file.fileno()}"))
        assert "socket operation on non-socket" in refusal(options)


def test_descriptor_of_another_kind_of_socket(build_line: BuildLine, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as handle:
        options = build_line(line(tmp_path, export=f"addr.type=fd,addr.str={handle.fileno()}"))
        assert refusal(options).endswith(": not a UNIX stream socket")


def test_descriptor_stays_open_and_is_accepted(build_line: BuildLine, tmp_path: Path) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        check_host(build_line(line(tmp_path, export=f"addr.type=fd,addr.str={ours.fileno()}")))
        theirs.send(b"x")
        assert ours.recv(1) == b"x"
