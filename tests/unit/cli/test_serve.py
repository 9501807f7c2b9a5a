from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

import pytest

from vringd.cli.main import main
from vringd.control.schema import NullOptions


@pytest.fixture
def line(tmp_path: Path) -> list[str]:
    """A command line that serves one disk."""
    return [
        "serve",
        "--object",
        "iothread,id=t0",
        "--blockdev",
        "null-co,node-name=n0,size=1M",
        "--export",
        f"vhost-user-blk,id=e0,node-name=n0,addr.type=unix,addr.path={tmp_path}/e0.sock,"
        "iothread=t0",
    ]


def test_the_daemon_gets_what_was_typed(daemon: Any, line: list[str]) -> None:
    assert main(line) == 0
    assert daemon.calls == ["start", "run"]
    assert [thread.id for thread in daemon.options.iothreads] == ["t0"]
    assert daemon.options.blockdevs == (
        NullOptions(driver="null-co", node_name="n0", size=1 << 20),
    )
    assert [export.id for export in daemon.options.exports] == ["e0"]


def test_a_file_and_the_command_line_add_up(daemon: Any, line: list[str], tmp_path: Path) -> None:
    file = tmp_path / "v.toml"
    file.write_text('[[object]]\nqom-type = "iothread"\nid = "t1"\n')
    assert main([*line, "--config", str(file)]) == 0
    assert [thread.id for thread in daemon.options.iothreads] == ["t1", "t0"]


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        (
            ["--object", "iothread,id=t0"],
            "--object iothread,id=t0: the id is already used by --object iothread,id=t0;"
            " give each its own id",
        ),
        (["--monitor", "m0"], "--monitor m0: there is no QMP monitor; leave the option out"),
        (
            ["--chardev", "socket,id=m0"],
            "--chardev socket,id=m0: there are no character devices; leave the option out",
        ),
        (
            ["--nbd-server", "addr.type=inet"],
            "--nbd-server addr.type=inet: there are no NBD exports;"
            " use an export of type vhost-user-blk",
        ),
        (["--trace", "x"], "--trace x: there are no trace points; use --log-level debug"),
        (
            ["--config", "/nonexistent.toml"],
            "--config /nonexistent.toml: no such file or directory",
        ),
        (
            ["--pidfile", "/nonexistent/v.pid"],
            "--pidfile /nonexistent/v.pid: no such file or directory",
        ),
    ],
)
def test_faults_are_one_line_and_status_1_before_anything_is_served(
    daemon: Any,
    line: list[str],
    capsys: pytest.CaptureFixture[str],
    extra: list[str],
    message: str,
) -> None:
    assert main([*line, *extra]) == 1
    assert capsys.readouterr().err == f"vringd: error: {message}\n"
    assert daemon.calls == []


def test_nothing_to_serve(daemon: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve"]) == 1
    assert capsys.readouterr().err == (
        "vringd: error: nothing to serve: give at least one --export (see vringd serve --help)\n"
    )


@pytest.mark.parametrize("kind", ["object", "blockdev", "export"])
def test_help_on_definitions(daemon: Any, capsys: pytest.CaptureFixture[str], kind: str) -> None:
    assert main(["serve", f"--{kind}", "help"]) == 0
    assert capsys.readouterr().out.startswith(f"--{kind} ")
    assert daemon.calls == []


def test_a_daemon_that_cannot_start(
    daemon: Any, line: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    daemon.fails = True
    assert main([*line, "--pidfile", str(tmp_path / "v.pid")]) == 1
    assert capsys.readouterr().err == "vringd: error: --export id=e0: the socket is taken\n"
    assert daemon.calls == ["start"]
    assert list(tmp_path.iterdir()) == []


def test_the_pid_file_stands_while_the_daemon_serves(
    daemon: Any, line: list[str], tmp_path: Path
) -> None:
    path = tmp_path / "v.pid"
    seen = []
    daemon.inspect = lambda: seen.append(path.read_text())
    assert main([*line, "--pidfile", str(path)]) == 0
    assert seen == [f"{os.getpid()}\n"]
    assert not path.exists()


def test_the_command_line_overrides_the_files_settings(
    daemon: Any, line: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = tmp_path / "1.toml", tmp_path / "2.toml"
    first.write_text(f'pidfile = "{tmp_path}/1.pid"\nlog-level = "debug"\n')
    second.write_text(f'pidfile = "{tmp_path}/2.pid"\nlog-level = "error"\n')
    configs = ["--config", str(first), "--config", str(second)]
    levels: list[str] = []
    monkeypatch.setattr(
        "vringd.cli.serve.set_up_logging", lambda _program, level: levels.append(level)
    )
    seen: list[list[str]] = []
    daemon.inspect = lambda: seen.append(sorted(path.name for path in tmp_path.glob("*.pid")))
    assert main([*line, *configs]) == 0
    assert main([*line, *configs, "--log-level", "warning", "--pidfile", f"{tmp_path}/3.pid"]) == 0
    assert main(line) == 0
    assert levels == ["error", "warning", "info"]
    assert seen == [["2.pid"], ["3.pid"], []]


def test_the_service_manager_hears_when_it_is_ready(
    daemon: Any, line: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.setblocking(False)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        heard: list[bytes] = []
        daemon.inspect = lambda: heard.append(manager.recv(64))
        assert main(line) == 0
    assert heard == [b"READY=1"]


def test_a_daemon_that_cannot_have_its_pid_file_is_stopped(
    daemon: Any, line: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "v.pid"

    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr("vringd.control.pidfile.os.rename", refuse)
    assert main([*line, "--pidfile", str(path)]) == 1
    assert daemon.calls == ["start", "stop"]
    assert list(tmp_path.iterdir()) == []
