"""What has to be set before torch is loaded, because OpenMP reads it once."""

from __future__ import annotations

import os

# GNU's OpenMP lets threads spin for milliseconds where they wait for each other. Where another program takes one of two
# cores, a training step then takes 18 times as long, with a short spin twice (LOG.md). On cores of one's own, the
# short spin costs a tenth: OMP_WAIT_POLICY=active has the long one back.
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "5000")
