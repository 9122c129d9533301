"""What fine-tuning predicts, one file each. A new task is a file here, a name in the union and a TOML of its kind."""

from __future__ import annotations

from bertie.tasks.choose import Choose
from bertie.tasks.classify import Classify
from bertie.tasks.embed import Embed
from bertie.tasks.regress import Regress
from bertie.tasks.span import Span
from bertie.tasks.tag import Tag
from bertie.tasks.task import Task

AnyTask = Classify | Regress | Span | Choose | Tag | Embed

__all__ = ["AnyTask", "Choose", "Classify", "Embed", "Regress", "Span", "Tag", "Task"]
