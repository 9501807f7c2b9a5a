from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from vringd.control.errors import ResourceError
from vringd.control.pidfile import PidFile

HOLDER = """
import sys
from vringd.control.pidfile import PidFile
with PidFile(sys.argv[1]) as pid:
    pid.publish()
    print(flush=True)
    sys.stdin.read()
"""


def test_the_file_appears_whole_and_disappears(tmp_path: Path) -> None:
    path = tmp_path / "v.pid"
    with PidFile(str(path)) as pid:
        assert not path.exists()
        pid.publish()
        assert path.read_text() == f"{os.getpid()}\n"
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_left_of_a_daemon_that_did_not_start(tmp_path: Path) -> None:
    with PidFile(str(tmp_path / "v.pid")):
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_stale_file_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "v.pid"
    path.write_text("1\n")
    with PidFile(str(path)) as pid:
        assert path.read_text() == "1\n"
        pid.publish()
        assert path.read_text() == f"{os.getpid()}\n"


def test_a_living_daemon_keeps_its_file(tmp_path: Path) -> None:
    path = tmp_path / "v.pid"
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    with holder:
        assert holder.stdin is not None
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"\n"
        with pytest.raises(ResourceError) as caught, PidFile(str(path)):
            pass
        holder.stdin.close()
        assert holder.wait(20) == 0
    assert str(caught.value) == (
        f"--pidfile {path}: in use by the process {holder.pid}; end that one or name another file"
    )
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    path = tmp_path / "no" / "v.pid"
    with pytest.raises(ResourceError) as caught, PidFile(str(path)):
        pass
    assert str(caught.value) == f"--pidfile {path}: no such file or directory"
