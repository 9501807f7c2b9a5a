"""Naming servers and disks, and what servers are told."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from vringd.bench.lab import servers
from vringd.bench.lab.errors import SampleError, UsageError
from vringd.bench.lab.families import Command, Spdk, Vringd, parse_server
from vringd.bench.lab.servers import Server
from vringd.bench.lab.setup import Disk, Place, Setup
from vringd.control.build import build, from_argument


def definitions(argv: list[str]) -> list[tuple[str, str]]:
    return [
        (word.removeprefix("--"), argv[i + 1])
        for i, word in enumerate(argv)
        if word in ("--object", "--blockdev", "--export")
    ]


def test_vringd_is_told_queues_threads_and_cpus(tmp_path: Path) -> None:
    family = parse_server("--peer", "vringd:poll-max-ns=0,export.event-idx=off", {})
    setup = Setup(Disk("null-co,size=1M"), 4, 2, (0, 1, 2), ((0, 2), (1,)))
    argv = family.argv(setup, Place(tmp_path))
    options = build(from_argument(kind, text) for kind, text in definitions(argv))  # type: ignore[arg-type]
    assert [thread.cpu_affinity for thread in options.iothreads] == [(0, 2), (1,)]
    assert [thread.poll_max_ns for thread in options.iothreads] == [0, 0]
    (export,) = options.exports
    assert export.num_queues == 4
    assert export.event_idx is False


def test_sizes_are_told_in_bytes_as_qemu_wants_them(tmp_path: Path) -> None:
    family = parse_server("--peer", "qemu-storage-daemon", {"qemu-storage-daemon": "true"})
    argv = family.argv(Setup(Disk("driver=null-co,size=1M")), Place(tmp_path))
    assert f"driver=null-co,size={1 << 20},node-name=d" in argv


def test_placeholders_of_a_command_are_filled(tmp_path: Path) -> None:
    family = parse_server("--peer", "mine=serve -s {socket} -q{queues} --cpus={cpus} {size}", {})
    setup = Setup(Disk("null-co,size=1M"), 3, server_cpus=(0, 2))
    assert family.argv(setup, Place(tmp_path)) == [
        *("serve", "-s", str(tmp_path / "device.sock"), "-q3", "--cpus=0,2", str(1 << 20))
    ]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("nosuch", "not one of vringd, qemu-storage-daemon, spdk"),
        ("mine=serve", "needs {socket}"),
        ("=serve {socket}", "no blank and no slash"),
        ("spdk:a=b", "no such options"),
        ("spdk", "--program no-such-program=PATH"),
    ],
)
def test_server_that_makes_no_sense_is_refused(text: str, words: str) -> None:
    with pytest.raises(UsageError, match=r"--peer") as caught:
        parse_server("--peer", text, {"spdk": "no-such-program" if text == "spdk" else "true"})
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("family", "setup", "words"),
    [
        (Spdk(), Setup(Disk("null-co,cpu-ns=5")), "cpu-ns"),
        (Spdk(), Setup(Disk("null-co"), threads=2), "one thread"),
        (Spdk(), Setup(Disk("file,filename=/x")), "O_DIRECT"),
        (Command("c", ("{socket}",)), Setup(Disk("file,filename=/x")), "a {file}"),
        (Command("c", ("{socket}", "{file}")), Setup(Disk("null-co")), "no {file}"),
        (Command("c", ("{socket}",)), Setup(Disk("null-co"), threads=2), "{threads}"),
    ],
)
def test_what_a_server_cannot_serve_has_a_reason(
    family: Spdk | Command, setup: Setup, words: str
) -> None:
    assert words in (family.why_not(setup) or "")


def test_spdk_opens_files_past_the_page_cache() -> None:
    assert Spdk().why_not(Setup(Disk("file,filename=/x,cache.direct=on"))) is None


@pytest.mark.parametrize("text", ["size=1G", "null-co,node-name=d", "null-co,,size"])
def test_disk_that_makes_no_sense_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--disk"):
        Disk(text)


def test_server_that_dies_is_told_with_its_last_words(tmp_path: Path) -> None:
    family = Command(
        "mine", (sys.executable, "-c", "print('no disk today'); raise SystemExit(3)", "{socket}")
    )
    with pytest.raises(SampleError, match=r"(?s)mine died \(exit status 3\).*no disk today"):
        Server(family, Setup(Disk()), Place(tmp_path)).__enter__()


def test_server_without_a_socket_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(servers, "_START_SECONDS", 0.3)
    family = Command("mine", (sys.executable, "-c", "import time; time.sleep(60)", "{socket}"))
    with pytest.raises(SampleError, match="made no socket within"):
        Server(family, Setup(Disk()), Place(tmp_path)).__enter__()


def test_folder_too_long_for_a_socket_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="too long"):
        Place(tmp_path / ("x" * 100))


def test_running_server_leaves_nothing_behind(tmp_path: Path) -> None:
    place = Place(tmp_path)
    with Server(Vringd(prefix=(sys.executable, "-m", "vringd")), Setup(Disk()), place) as server:
        assert place.socket.is_socket()
        assert Path(f"/proc/{server.pid}").exists()
    assert not place.socket.exists()
    assert not Path(f"/proc/{server.pid}").exists()
