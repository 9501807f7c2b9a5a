"""vringd: a storage daemon for virtual machines.

Import the parts by their own modules; this package itself holds only the version.
"""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("vringd")
except PackageNotFoundError:  # an uninstalled source tree
    __version__ = "unknown"
