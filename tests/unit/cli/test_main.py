from __future__ import annotations

import subprocess
import sys

import pytest

from vringd import __version__
from vringd.cli.main import main


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--version"])
    assert caught.value.code == 0
    assert capsys.readouterr().out == f"vringd {__version__}\n"


def test_help_lists_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--help"])
    assert caught.value.code == 0
    assert "serve disks to virtual machines" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "a command is missing; see vringd --help"),
        (["--frob"], "unrecognized arguments: --frob; see vringd --help"),
        (["serve", "--frob"], "unrecognized arguments: --frob; see vringd --help"),
        (["serve", "--expor", "x"], "unrecognized arguments: --expor x; see vringd --help"),
        (
            ["serve", "--export"],
            "argument --export: expected one argument; see vringd serve --help",
        ),
    ],
)
def test_a_wrong_command_line_is_one_line_and_status_1(
    capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 1
    assert capsys.readouterr().err == f"vringd: error: {message}\n"


def test_an_unknown_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["sreve"])
    assert caught.value.code == 1
    error = capsys.readouterr().err
    assert error.startswith("vringd: error: argument COMMAND: invalid choice: 'sreve'")
    assert error.count("\n") == 1


def test_a_command_that_is_not_typed_is_not_loaded() -> None:
    script = (
        "import sys\n"
        "from vringd.cli.main import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: pass\n"
        "sys.exit('vringd.cli.serve' in sys.modules)\n"
    )
    environment = {"PYTHONPATH": ":".join(sys.path)}
    result = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, timeout=60
    )
    assert result.returncode == 0, result.stderr.decode()
