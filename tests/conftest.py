"""Settings and fixtures for all tests."""

from __future__ import annotations

import os
import resource
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("default", deadline=None)
# Instrumented code is ten times slower: fewer examples, and no complaint about their speed.
settings.register_profile(
    "sanitizers", deadline=None, max_examples=25, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))

# Tests with many rings have both ends' descriptors in one process.
_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
if hard != resource.RLIM_INFINITY:
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with a name short enough for Unix sockets (at most 107 bytes)."""
    with tempfile.TemporaryDirectory(prefix="vringd-test-", ignore_cleanup_errors=True) as name:
        yield Path(name)
