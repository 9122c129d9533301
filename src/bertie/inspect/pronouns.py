"""English pronouns with their person, number and gender."""

from __future__ import annotations

from typing import Literal, NamedTuple

Gender = Literal["feminine", "masculine", "neuter"]


class Agreement(NamedTuple):
    """Properties that a pronoun shares with its antecedent. None: not known, so everything agrees."""

    person: int | None = None
    plural: bool | None = None
    gender: Gender | None = None

    def agrees(self, other: Agreement) -> bool:
        """Return whether no property contradicts."""
        return all(a is None or b is None or a == b for a, b in zip(self, other, strict=True))


PRONOUNS: dict[str, Agreement] = {
    word: agreement
    for words, agreement in (
        ("i me my mine myself", Agreement(1, False)),
        ("we us our ours ourselves", Agreement(1, True)),
        ("you your yours", Agreement(2)),
        ("yourself", Agreement(2, False)),
        ("yourselves", Agreement(2, True)),
        ("he him his himself", Agreement(3, False, "masculine")),
        ("she her hers herself", Agreement(3, False, "feminine")),
        ("it its itself", Agreement(3, False, "neuter")),
        ("they them their theirs themselves", Agreement(3, True)),
    )
    for word in words.split()
}
