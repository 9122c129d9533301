"""Entry point of `python -m bertie` and `torchrun … -m bertie`."""

import sys

from bertie.cli import main

sys.exit(main())
