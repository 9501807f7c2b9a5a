"""`vringd demo` from end to end, with a real daemon and disk but a fake guest."""

from __future__ import annotations

import os
import signal
import tempfile
from pathlib import Path

import pytest

from vringd.cli.main import main
from vringd.testing.guest import GuestError
from vringd.testing.guest_machine import this_machine
from vringd.testing.peers import PeerMissingError

from .fake_guest import WRITES, FakeGuest, raising, returning

STEPS = [
    "vringd serves the disk",
    "a Linux guest boots under QEMU",
    "fio writes at random and verifies",
    "mkfs.ext4, mount, copy, umount, fsck",
    "blkdiscard frees space on the host",
    "the disk grows while the guest runs",
    "the guest powers off",
]


@pytest.fixture
def files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Where the demonstration has its files while it runs."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@pytest.fixture
def guest(monkeypatch: pytest.MonkeyPatch, files: Path) -> FakeGuest:
    guest = FakeGuest()
    monkeypatch.setattr("vringd.cli.demo.Guest", guest)
    monkeypatch.setattr("vringd.cli.demo.guest_missing_reason", lambda: None)
    monkeypatch.setattr("vringd.cli.demo.set_up_logging", lambda *_: None)
    return guest


def begun_steps(out: str) -> list[str]:
    """The steps whose lines are in the output, in their order."""
    return [step for line in out.splitlines() for step in STEPS if line.startswith(step)]


def test_every_step_has_a_line_and_every_queue_a_row(
    guest: FakeGuest, files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["demo"]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    assert begun_steps(captured.out) == STEPS
    assert "the disk is empty, 256 MiB" in captured.out
    assert "vringd serve \\\n" in captured.out
    for result in (
        "4 queues on IOThreads t0 and t1",
        "/dev/vda: 4 queues, serial vringd-demo",
        "4 jobs on 4 vCPUs, IOPS: 456 w, 12.3k r",
        "17 files read back the same",
        "4 MiB -> 0 MiB",
        "the guest sees 320 MiB",
    ):
        assert f" s  {result}\n" in captured.out
    rows = [line.split() for line in captured.out.splitlines()[-4:]]
    assert [row[:2] for row in rows] == [["0", "t0"], ["1", "t1"], ["2", "t0"], ["3", "t1"]]
    assert "|" not in captured.out  # the details
    assert guest.closed
    assert list(files.iterdir()) == []


def test_verbose_shows_commands_and_console(
    guest: FakeGuest, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["demo", "--verbose"]) == 0
    out = capsys.readouterr().out
    assert out.count("    | Linux says hello\n") == 1
    assert "    | # cat /sys/block/vda/serial\n    | vringd-demo\n" in out


@pytest.mark.parametrize(
    ("command", "answer", "step", "message"),
    [
        ("ls /sys/block/vda/mq", "0  1", 1, "the guest uses 2 queues, not 4"),
        (
            "cat /sys/block/vda/serial",
            "x",
            1,
            "the disk's serial number is 'x', not 'vringd-demo'",
        ),
        ("cd /mnt/copy", "another sum", 3, "a copied file is not the same"),
        ("fio", "", 4, "the image occupies 0 bytes, before 0"),
    ],
)
def test_a_failing_check_is_one_line_and_its_step_has_failed(
    guest: FakeGuest,
    files: Path,
    capsys: pytest.CaptureFixture[str],
    command: str,
    answer: str,
    step: int,
    message: str,
) -> None:
    guest.others = {command: returning(answer)}
    assert main(["demo"]) == 1
    captured = capsys.readouterr()
    assert captured.err == f"vringd: error: {message}\n"
    assert begun_steps(captured.out) == STEPS[: step + 1]
    assert captured.out.endswith(" s  FAILED\n")
    assert guest.closed
    assert list(files.iterdir()) == []


def test_a_failing_command_is_told_with_what_it_printed(
    guest: FakeGuest, capsys: pytest.CaptureFixture[str]
) -> None:
    guest.others = {"mkfs.ext4": raising(GuestError("status 1 from: mkfs.ext4\nno space"))}
    assert main(["demo"]) == 1
    captured = capsys.readouterr()
    assert captured.err == "vringd: error: the guest: status 1 from: mkfs.ext4\nno space\n"
    assert begun_steps(captured.out) == STEPS[:4]
    assert captured.out.endswith(" s  FAILED\n")


def test_queues_without_a_request_are_a_fault(
    guest: FakeGuest, capsys: pytest.CaptureFixture[str]
) -> None:
    guest.others = {"fio ": lambda: guest.run(WRITES)}
    assert main(["demo"]) == 1
    captured = capsys.readouterr()
    assert captured.err == "vringd: error: these queues had no request: 1, 2, 3\n"
    assert begun_steps(captured.out) == STEPS


def test_a_missing_program_is_one_line_that_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("vringd.testing.peers.find", lambda _program: None)
    assert main(["demo"]) == 1
    captured = capsys.readouterr()
    program = this_machine().program
    assert captured.err == f"vringd: error: {program} is not installed: run `make peers`\n"
    assert captured.out == ""
    assert list(files.iterdir()) == []


def test_a_program_found_missing_while_the_guest_starts_is_told_the_same_way(
    guest: FakeGuest, files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = PeerMissingError("busybox is not installed: run tools/setup-peers")
    guest.others = {"start": raising(missing)}
    assert main(["demo"]) == 1
    captured = capsys.readouterr()
    assert captured.err == "vringd: error: busybox is not installed: run `make peers`\n"
    assert begun_steps(captured.out) == STEPS[:2]
    assert list(files.iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_guest_and_daemon(
    guest: FakeGuest, files: Path, capsys: pytest.CaptureFixture[str], number: signal.Signals
) -> None:
    def interrupted() -> str:
        os.kill(os.getpid(), number)
        return guest.wait_for_end()

    guest.others = {"mkfs.ext4": interrupted}
    assert main(["demo"]) == 1
    captured = capsys.readouterr()
    assert captured.err == "vringd: error: interrupted\n"
    assert begun_steps(captured.out) == STEPS[:4]
    assert guest.closed
    assert list(files.iterdir()) == []
