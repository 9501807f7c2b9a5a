from __future__ import annotations

import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from vringd.control import config
from vringd.control.build import build
from vringd.control.errors import OptionError, ResourceError
from vringd.control.schema import ServeOptions

EXAMPLE = Path(__file__).parents[3] / "examples" / "vringd.toml"


def test_a_file_means_the_same_as_a_command_line(
    build_line: Callable[[str], ServeOptions],
) -> None:
    loaded = config.load(str(EXAMPLE))
    assert loaded.log_level == "info"
    assert loaded.pidfile is None
    assert build(loaded.definitions()) == build_line(
        "--object iothread,id=t0,cpu-affinity=0 --object iothread,id=t1,cpu-affinity=1 "
        "--blockdev file,node-name=disk,filename=/var/lib/vringd/vm.img,cache.direct=on,"
        "discard=unmap --export vhost-user-blk,id=e0,node-name=disk,writable=on,num-queues=4,"
        "addr.type=unix,addr.path=/run/vringd/vm.sock,iothread-vq-mapping.0.iothread=t0,"
        "iothread-vq-mapping.0.vqs.0=0,iothread-vq-mapping.0.vqs.1=2,"
        "iothread-vq-mapping.1.iothread=t1,iothread-vq-mapping.1.vqs.0=1,"
        "iothread-vq-mapping.1.vqs.1=3"
    )


def test_settings_of_the_daemon() -> None:
    parsed = config.parse({"pidfile": "/run/v.pid", "log-level": "debug"}, "v.toml")
    assert (parsed.pidfile, parsed.log_level) == ("/run/v.pid", "debug")
    assert list(parsed.definitions()) == []


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            '[[exports]]\nid = "e0"',
            "v.toml: unknown option 'exports'; did you mean 'export'?",
        ),
        (
            "verbose = true",
            "v.toml: unknown option 'verbose'; known: blockdev, export, log-level, object, pidfile",
        ),
        (
            '[export]\nid = "e0"',
            "v.toml: export={…}: expected a table for each one, with its name in double brackets",
        ),
        (
            'log-level = "loud"',
            "v.toml: log-level=loud: expected error, warning, info or debug",
        ),
        (
            '[[object]]\nqom-type = "iothread"\nid = "t0"\npoll-max-ns = 1.5',
            "v.toml: [[object]] iothread,id=t0: poll-max-ns=1.5:"
            " expected a whole number, 0 or more",
        ),
        (
            '[[blockdev]]\ndriver = "null-co"\nnode-name = "n0"\nread-only = 2026-01-01',
            "v.toml: [[blockdev]] node-name=n0: read-only=2026-01-01: expected on or off",
        ),
        (
            '[[object]]\nqom-type = "iothread"\nid = "t0"\n'
            '[[object]]\nqom-type = "iothread"\nid = "t0"',
            "v.toml: [[object]] iothread,id=t0: the id is already used by"
            " v.toml: [[object]] iothread,id=t0; give each its own id",
        ),
    ],
)
def test_faults_name_the_file_and_the_table(content: str, message: str) -> None:
    with pytest.raises(OptionError) as caught:
        build(config.parse(tomllib.loads(content), "v.toml").definitions())
    assert str(caught.value) == message


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    path = tmp_path / "v.toml"
    with pytest.raises(ResourceError) as caught:
        config.load(str(path))
    assert str(caught.value) == f"--config {path}: no such file or directory"


@pytest.mark.parametrize("content", [b"a = ", b"\xff"])
def test_a_file_that_is_not_toml(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "v.toml"
    path.write_bytes(content)
    with pytest.raises(OptionError, match=rf"^--config {path}: "):
        config.load(str(path))
