"""What fine-tuning predicts, one file each. A new task is a file here, a name in the union and a TOML of its kind."""

from __future__ import annotations

from bertie.tasks.classify import Classify

Task = Classify  # | Regress | …

__all__ = ["Classify", "Task"]
