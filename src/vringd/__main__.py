"""`python -m vringd`: the program `vringd`."""

import sys

from vringd.cli.main import main

sys.exit(main())
