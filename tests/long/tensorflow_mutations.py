"""Mutate TensorFlow checkpoints, and check that each is refused in one line or read as the file says. Not run by pytest.

    python tests/long/tensorflow_mutations.py 100000 [PREFIX …]

The checkpoints are those of the unit tests. PREFIX names more, of which copies are mutated. Memory is limited to 1 GB more
than at the start, and a case to a minute on average. Prints the escapes; if there are any, the exit code is 1.
"""

from __future__ import annotations

import argparse
import resource
import signal
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "unit" / "checkpoints" / "tensorflow"))

from bundle_mutations import copied, fuzz, originals

PART = 1000  # cases between two lines of output


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("cases", type=int)
    parser.add_argument("prefixes", type=Path, nargs="*")
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    started, escapes = time.monotonic(), []
    with tempfile.TemporaryDirectory() as folder:
        found = originals(Path(folder))
        found += [copied(prefix, Path(folder, f"given-{n}")) for n, prefix in enumerate(asked.prefixes)]
        for original in found:
            original.read(original.prefix)  # imports what it needs before memory is limited
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 30), resource.RLIM_INFINITY))
        for start in range(0, asked.cases, PART):
            signal.alarm(60 * PART)  # kills the process if cases hang
            escapes += fuzz(found, range(start, min(start + PART, asked.cases)), asked.seed)
            print(f"{start + PART:,} cases, {len(escapes)} escapes, {time.monotonic() - started:.0f} s", flush=True)
    print("\n".join(escapes))
    return 1 if escapes else 0


if __name__ == "__main__":
    sys.exit(main())
