"""The one place that knows where the real data lies."""

from __future__ import annotations

from pathlib import Path

import pytest

SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"


@pytest.fixture
def shared_data() -> Path:
    """The folder of real data beside the checkout; the test skips where there is none."""
    if not SHARED.is_dir():
        pytest.skip(f"real data not found: {SHARED}")
    return SHARED
