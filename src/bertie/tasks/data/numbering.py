"""From which number the labels of multiple choice count the endings, 0 or 1: what the labels of all rows say together."""

from __future__ import annotations

from bertie import console
from bertie.errors import UserError


class Numbering:
    """Collects the numbers in labels.

    A label 0 says that they count from 0, and one that is as large as the number of its endings that they count from 1.
    """

    def __init__(self) -> None:
        self.zero, self.last, self.doubtful = "", "", ""  # the place of the first such label
        self.first, self.endings = 0, 0

    def add(self, number: int, endings: int, first: int, doubtful: bool, place: str) -> None:
        """Add a label.

        Args:
            number: The label.
            endings: How many endings its row has.
            first: The number of the first ending, as it is read.
            doubtful: Whether the columns of the endings are numbered from 1, so that the label could name one of them.
            place: Its file and line.
        """
        self.first = first
        if number == 0 and not self.zero:
            self.zero, self.endings = place, endings
        if number == endings and not self.last:
            self.last, self.endings = place, endings
        self.doubtful = self.doubtful or (place if doubtful else "")

    def require(self, where: str, usual: bool) -> None:
        """Raise a UserError if labels are read from another number than they count from, or if both are possible.

        Args:
            where: The file, for messages.
            usual: Whether labels certainly count from 0 in the training examples, for files that leave a doubt.
        """
        if self.first == 0 and self.last and not self.zero:
            expected = f"must be from 0 to {self.endings - 1}"
            problem = f"{where}: the correct endings are numbered from 1 to {self.endings}, and {expected}"
            raise UserError(f"{problem} ({self.last})", "If they are, add --task.labels-from 1")
        if self.first == 1 and self.zero and not self.last:
            problem = f"{where}: the correct endings are numbered from 0, and must be from 1 to {self.endings}"
            raise UserError(f"{problem} ({self.zero})", "If they are, add --task.labels-from 0")
        if self.first == 0 and self.doubtful and not self.zero:
            if not usual:
                problem = f"{self.doubtful}: the labels could count from 0, or name the columns of endings, from 1"
                raise UserError(problem, "Say --task.labels-from 0, or 1")
            console.info(f"{where}: labels count from 0, as in the training examples")
