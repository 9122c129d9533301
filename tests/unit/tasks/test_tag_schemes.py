from __future__ import annotations

import pytest

from bertie.base.errors import UsageError, UserError
from bertie.examples.tag_form import Scheme, TagForm
from bertie.examples.tagged import TaggedSentence
from bertie.tasks.entities import entities
from bertie.tasks.example_sums import scores, tag_sums
from bertie.tasks.predictions import TagPrediction
from bertie.tasks.tag import Tag
from bertie.tasks.tag_schemes import TagCounts, find_form, form_of
from bertie.tasks.task_json import task_from_json, to_task_json


def sentences(text: str) -> list[TaggedSentence]:
    """Sentences of a CoNLL file, from their tags: "|" ends one."""
    found, line = [], 1
    for tags in (part.split() for part in text.split("|")):
        lines = range(line, line + len(tags))
        found.append(TaggedSentence(("w",) * len(tags), tuple(tags), f"a.conll:{line}", lines=lines))
        line += len(tags) + 1
    return found


@pytest.mark.parametrize(
    ("scheme", "tags", "found"),
    [
        ("bio", "B-P I-P O B-L", [("P", 0, 2), ("L", 3, 4)]),
        ("iob1", "I-P I-P O I-L I-L", [("P", 0, 2), ("L", 3, 5)]),
        ("iob1", "I-P B-P I-P", [("P", 0, 1), ("P", 1, 3)]),
        ("bio", "B-P I-L", [("P", 0, 1), ("L", 1, 2)]),
        ("bio", "B-P B-P", [("P", 0, 1), ("P", 1, 2)]),
        ("io", "I-P I-P I-L O", [("P", 0, 2), ("L", 2, 3)]),
        ("iobes", "B-P E-P S-L B-P I-P E-P", [("P", 0, 2), ("L", 2, 3), ("P", 3, 6)]),
        ("iobes", "B-P E-L B-P I-P I-P E-P B-P", [("P", 2, 6)]),
        ("bilou", "U-P L-P B-P L-P I-P", [("P", 0, 1), ("P", 2, 4)]),
        ("bmes", "B-P M-P E-P S-P S-P", [("P", 0, 3), ("P", 3, 4), ("P", 4, 5)]),
        ("biewo", "W-P B-P I-P E-P", [("P", 0, 1), ("P", 1, 4)]),
        ("bmewo", "W-P B-P M-P E-P S-P", [("P", 0, 1), ("P", 1, 4)]),
        ("bio", "O O", []),
        ("bilou", "", []),
    ],
)
def test_entities(scheme: Scheme, tags: str, found: list[tuple[str, int, int]]) -> None:
    assert list(entities(tags.split(), TagForm(scheme))) == found


@pytest.mark.parametrize(
    ("scheme", "gold", "predicted", "expected"),
    [
        (
            "bio",
            "B-PER I-PER O B-LOC I-PER|O I-LOC I-LOC O B-PER B-PER",
            "B-PER I-PER I-PER B-LOC I-PER|O B-LOC I-LOC O B-PER I-PER",
            (6 / 11, 0.6, 0.5),
        ),
        (
            "iob1",
            "I-PER I-PER O I-LOC I-PER|O I-LOC B-LOC O I-PER I-PER",
            "I-PER I-PER O I-LOC B-LOC|O I-LOC I-LOC O I-PER I-PER",
            (6 / 11, 0.6, 0.5),
        ),
        (
            "iobes",
            "B-PER E-PER O S-LOC S-PER|B-LOC I-LOC E-LOC O S-PER B-PER",
            "B-PER E-PER S-PER S-LOC E-PER|B-LOC I-PER E-LOC O S-PER I-PER",
            (2 / 3, 0.75, 0.6),
        ),
        (
            "bilou",
            "B-PER L-PER O U-LOC U-PER|B-LOC I-LOC L-LOC O U-PER O",
            "B-PER L-PER U-PER U-LOC L-PER|B-LOC I-LOC L-LOC O B-PER L-LOC",
            (2 / 3, 0.75, 0.6),
        ),
    ],
)
def test_scores_are_those_of_seqeval(
    scheme: Scheme, gold: str, predicted: str, expected: tuple[float, float, float]
) -> None:
    """Computed with seqeval 1.2.2: by default for bio and iob1, in strict mode with its scheme for the others."""
    sides = [[list(each.tags or ()) for each in sentences(text)] for text in (gold, predicted)]
    found = scores(tag_sums(sides[0], sides[1], TagForm(scheme)))
    assert (found["f1"], found["precision"], found["recall"]) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("tags", "form"),
    [
        ("B-PER I-PER O|B-LOC O", TagForm("bio")),
        ("I-PER I-PER O|I-LOC B-LOC O", TagForm("iob1")),
        ("B-PER E-PER O S-LOC", TagForm("iobes")),
        ("B-PER I-PER L-PER O U-LOC", TagForm("bilou")),
        ("B-PER I-PER E-PER O W-LOC", TagForm("biewo")),
        ("B-PER M-PER E-PER O W-LOC", TagForm("bmewo")),
        ("B-PER M-PER E-PER S-LOC", TagForm("bmes")),
        ("B I O|B O", TagForm("bio", "")),
        ("B M E S|S B E", TagForm("bmes", "")),
        ("PER-B PER-I O LOC-B", TagForm("bio", "-", suffix=True)),
        ("b_per i_per o b_loc", TagForm("bio", "_", lower=True, outside="o")),
        ("B-PER I-PER o B-LOC", TagForm("bio", outside="o")),
        ("S/PER B/LOC E/LOC O", TagForm("iobes", "/")),
        ("NN VB DT|" * 20 + "S-NOM NN", None),
        ("B-PER-PART I-PER-PART O", TagForm("bio")),
        ("N V S ^ E L N N V V", None),  # letters that are parts of speech
        ("c c i c", None),
    ],
)
def test_the_scheme_is_found(tags: str, form: TagForm | None, capsys: pytest.CaptureFixture[str]) -> None:
    assert find_form(TagCounts(sentences(tags)), "") == form
    said = capsys.readouterr().err
    assert ("tags: they mark no entities, so the metric is the accuracy" in said) == (form is None)
    assert "warning" not in said


@pytest.mark.parametrize("typo", ["I_PER", "PER", "E-PER"])
def test_one_typo_in_many_lines_is_named(typo: str) -> None:
    tags = "B-PER I-PER O|" * 2000
    with pytest.raises(UserError, match=r"a\.conll:8002: the tag .* does not fit BIO") as raised:
        Tag().fit(sentences(f"{tags}B-PER {typo}"))
    assert "--task.scheme" in raised.value.remedy
    kept = Tag(scheme="none").fit(sentences(f"{tags}B-PER {typo}"))
    assert (kept.scheme, kept.metric) == ("none", "accuracy")


def test_tags_of_which_some_have_letters_are_asked_about() -> None:
    message = r"a\.conll:3: the tag 'B_X' looks like BIO, but most tags do not, such as 'N_PL'"
    with pytest.raises(UsageError, match=message) as raised:
        find_form(TagCounts(sentences("N_PL V_SG B_X O|" * 20)), "")
    assert "--task.scheme" in raised.value.remedy
    assert find_form(TagCounts(sentences("N_PL V_SG B_X O|" * 20)), "none") is None


@pytest.mark.parametrize(
    ("scheme", "tags", "message"),
    [
        ("bilou", "B-P L-P O U-P|" * 9 + "O B-P O", "count as none: 1 place, first a.conll:48, 'O' after 'B-P'"),
        (
            "bio",
            "B-P I-P O|" * 9 + "O I-P B-L",
            "begins an entity, as in conlleval: 1 place, first a.conll:38, 'I-P' after 'O'",
        ),
    ],
)
def test_tags_in_an_impossible_order_are_named(
    scheme: Scheme, tags: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert find_form(TagCounts(sentences(tags)), "") == TagForm(scheme)
    assert message in capsys.readouterr().err


def test_the_order_of_another_scheme_is_refused() -> None:
    with pytest.raises(UsageError, match=r"the order of the tags does not fit IOBES: a\.conll:1, 'I-P' at the start"):
        find_form(TagCounts(sentences("I-P E-P|I-P I-P E-P")), "")  # IOE2


@pytest.mark.parametrize(
    ("scheme", "tags", "message"),
    [
        ("iob1", "B-P I-P O", r'task\.scheme is "iob1", but the tags are BIO \(IOB2\): a\.conll:1'),
        ("bio", "I-P I-P O", r'task\.scheme is "bio", but the tags are IOB1: a\.conll:1'),
        ("iobes", "B-P I-P O", "does not fit IOBES"),
        ("bilou", "NOUN VERB", "no tag has its letters: NOUN, VERB"),
        ("io", "B-P I-P O", "the tags are BIO"),
    ],
)
def test_a_scheme_that_the_tags_contradict_is_refused(scheme: Scheme, tags: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        find_form(TagCounts(sentences(tags)), scheme)


def test_kinds_without_letters_are_entities_on_request() -> None:
    examples = sentences("PER PER O LOC|O PER")
    assert Tag().fit(examples).metric == "accuracy"
    task = Tag(scheme="io").fit(examples)
    assert (task.metric, task.form) == ("f1", TagForm("io", "", whole=True))
    found = task.score([TagPrediction([], list(each.tags or ()), []) for each in examples], examples)
    assert found == {"accuracy": 1.0, "f1": 1.0, "precision": 1.0, "recall": 1.0}


def test_the_scheme_is_part_of_task_json() -> None:
    for task in (Tag().fit(sentences("B-P L-P O U-P")), Tag(scheme="none").fit(sentences("B-P I-P O"))):
        assert task_from_json(to_task_json(task, 16, "last", 0), "task.json") == task
        asked = Tag(labels=task.labels).as_trained(task)
        assert (asked.scheme, asked.sorted_labels, asked.metric) == (task.scheme, True, task.metric)


def test_other_models_may_have_labels_beside_those_of_the_scheme() -> None:
    assert form_of(("O", "B-PER", "I-PER", "X", "[CLS]")) == TagForm("bio")
    assert form_of(("LABEL_0", "LABEL_1")) is None
    assert form_of(("O",)) is None


def test_numbers_are_tags_only_by_name() -> None:
    numbers = [TaggedSentence(("a", "b"), ("0", "1"), "a.jsonl:1")]
    with pytest.raises(UsageError, match=r"the tags are numbers \(0, 1\): name them .* --task\.labels"):
        Tag().fit(numbers)
    assert Tag(labels=("0", "1")).fit(numbers).labels == ("0", "1")
    task = Tag(labels=("O", "B-X", "I-X"))
    [named] = task.reader.values([{"tokens": ["a", "b"], "ner_tags": [1, 0]}], labeled=True)
    assert named.tags == ("B-X", "O")
    with pytest.raises(UserError, match=r"example 1: the tag is 7, but task\.labels has 3 names"):
        list(task.reader.values([{"tokens": ["a"], "ner_tags": [7]}], labeled=True))
    found = Tag().fit(sentences("B-X O"))  # its labels have no numbers
    [other] = found.reader.values([{"tokens": ["a", "b"], "ner_tags": [1, 0]}], labeled=True)
    assert other.tags == ("1", "0")
    with pytest.raises(UserError, match="none of the tags 0, 1 is known"):
        found.validate([other])


def test_dev_data_and_predictions_are_held_to_the_scheme() -> None:
    task = Tag().fit(sentences("B-P I-P O"))
    with pytest.raises(UserError, match=r"a\.conll:2: the tag 'I_P' does not fit the scheme bio"):
        task.validate(sentences("B-P I_P"))
    other = Tag().fit(sentences("B-P L-P O U-P"))
    with pytest.raises(UsageError, match=r"does not fit BILOU: a\.conll:2, 'B-P' at the end of the sentence"):
        other.validate(sentences("O B-P|B-P I-P"))
    with pytest.raises(UserError, match=r"here: the predicted tag 'I_P' does not fit the scheme bio"):
        task.read_prediction({"tags": ["B-P", "I_P"]}, sentences("B-P I-P")[0], "here")
