"""The page of `bertie serve` in a real browser: every task, errors, keys, copied programs, and nothing from outside."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from tests.system.conftest import visited
from tests.system.test_serve import process
from tests.unit.predict.small_models import model_of

import bertie
from bertie.checkpoints import sentence_transformers_format
from bertie.checkpoints.folder import write_model
from bertie.checkpoints.sentence_transformers_format import SentenceEmbedding
from bertie.model.config import TransformerConfig
from bertie.predict.predictor import Predictor
from bertie.tasks import AnyTask, Choose, Classify, MultiLabel, Regress, Relate, Span, Tag
from bertie.tokenizers.added_tokens import with_tokens
from bertie.tokenizers.tokenizer import Tokenizer

if TYPE_CHECKING:
    from playwright.sync_api import Page

EVIL = "<img src=x onerror=\"document.title='evil'\">"
KEY = "sk-of-the-page"
TASKS: dict[str, AnyTask] = {
    "classifier": Classify(labels=("bad", EVIL, "good"), paired=False),
    "pairs": Classify(labels=("different", "equivalent"), paired=True),
    "labels": MultiLabel(labels=("rude", EVIL, "kind"), paired=False),
    "regression": Regress(paired=True),
    "span": Span(),
    "tagger": Tag(labels=("O", "B-PER", "I-PER", f"B-{EVIL}")),
    "pos": Tag(labels=("NOUN", "VERB", "DET", "ADP")),
    "choice": Choose(),
    "relation": Relate(labels=("X(e1,e2)", EVIL), markers={name: f"[{name}]" for name in ("E1", "/E1", "E2", "/E2")}),
}

PASSAGES = [f"😀 the gat go the {'fatun ' * (number % 5)}bobin {number} in the ban" for number in range(9)]

pytestmark = pytest.mark.usefixtures("window")  # which skips them where Chromium is missing


@pytest.fixture(scope="module")
def models(
    pretrained: Path,
    tiny_config: TransformerConfig,
    small_tokenizer: Tokenizer,
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[str, Path]:
    """A model for each task, by the name that the server gives it."""
    folder = tmp_path_factory.mktemp("served")
    for number, (name, task) in enumerate(TASKS.items()):
        tokenizer = with_tokens(small_tokenizer, task.added_tokens if isinstance(task, Relate) else ())
        model = model_of(replace(tiny_config, vocab_size=tokenizer.size), task, seed=number)
        settings: dict[str, Any] = {"labels": list(task.labels)} if task.labels else {}
        settings |= {"paired": task.paired} if isinstance(task, Classify | MultiLabel | Regress) else {}
        settings |= {"threshold": 0.0} if isinstance(task, Span) else {}
        settings |= {"markers": task.markers} if isinstance(task, Relate) else {}
        (folder / name).mkdir()
        write_model(folder / name, model, tokenizer, {"kind": task.kind, "max_length": 64, **settings})
        if isinstance(task, Span):  # a threshold at which about half of the passages have an answer
            found = bertie.load(folder / name, threads=1).predict([["the", passage] for passage in PASSAGES])
            settings["threshold"] = float(np.median([each.null_score for each in found]))
            write_model(folder / name, model, small_tokenizer, {"kind": task.kind, "max_length": 64, **settings})
    shutil.copytree(pretrained, folder / "embedder")
    sentence_transformers_format.write(folder / "embedder", tiny_config, SentenceEmbedding(), 64)
    return {"masked": pretrained, **{name: folder / name for name in (*TASKS, "embedder")}}


@pytest.fixture(scope="module")
def predictors(models: dict[str, Path]) -> dict[str, Predictor]:
    return {name: bertie.load(path, threads=1) for name, path in models.items()}


@pytest.fixture(scope="module")
def address(models: dict[str, Path]) -> Iterator[str]:
    with process(*(f"{name}={path}" for name, path in models.items())) as server:
        yield f"http://127.0.0.1:{server.port}/"


@contextmanager
def opened(window: Page, address: str, refused: bool = False) -> Iterator[Page]:
    """Load the page of a server. `refused` is as in `visited`."""
    with visited(window, address, address, "blob:", refused=refused) as page:
        yield page
        assert page.evaluate("document.title").endswith("bertie")


@pytest.fixture
def page(window: Page, address: str) -> Iterator[Page]:
    with opened(window, address) as page:
        page.wait_for_selector("[role=tab]")  # the list of models arrives after the page
        yield page


def show(page: Page, model: str, task: str) -> None:
    """Choose a model and a task, as a person does."""
    page.select_option("#model", model)
    page.get_by_role("tab", name=task).click()


def run(page: Page, **fields: str) -> str:
    """Fill fields by their labels, send the request, and return the text of the result."""
    for label, text in fields.items():
        page.get_by_label(label.replace("_", " "), exact=True).fill(text)
    page.evaluate("document.querySelector('.result').replaceChildren()")
    page.get_by_role("button", name="Run").click()
    page.wait_for_selector(".result .timing, .result .problem")
    return page.locator(".result").inner_text()


def bars(page: Page) -> dict[str, float]:
    """The labels of the bars that are shown, with their values."""
    rows = page.locator(".bars li")
    found = {}
    for i in range(rows.count()):
        value = rows.nth(i).locator(".amount").inner_text().replace("−", "-")
        found[rows.nth(i).locator(".name").inner_text()] = float(value.removesuffix(" %").removeprefix("< "))
    return found


def test_masks_are_filled_with_a_click(page: Page, predictors: dict[str, Predictor]) -> None:
    show(page, "masked", "Fill masks")
    shown = run(page, Text="the [MASK] gat [MASK]", Candidates_per_mask="3")
    first, second = predictors["masked"].fill_mask("the [MASK] gat [MASK]", 3)
    groups = page.locator(".groups section")
    for number, guesses in enumerate((first, second)):
        names = groups.nth(number).locator(".name").all_inner_texts()
        assert names == [guess.token.removeprefix("##") for guess in guesses]
        amount = groups.nth(number).locator(".amount").first.inner_text()
        assert float(amount.removesuffix(" %")) == pytest.approx(100 * guesses[0].probability, abs=0.06)
    assert "compute" in shown
    assert "round trip" in shown
    groups.nth(1).locator(".name").nth(2).click()
    text = page.get_by_label("Text", exact=True)
    token = second[2].token
    glued = token[2:] if token.startswith("##") else f" {token}"
    assert text.input_value() == f"the [MASK] gat{glued}"
    page.locator(".groups section").nth(1).wait_for(state="detached")  # the other mask is predicted again
    page.locator(".groups .name").first.click()
    assert "[MASK]" not in text.input_value()
    assert page.locator(".result .text").inner_text() == text.input_value()
    text.fill("the ")
    page.get_by_role("button", name="Insert [MASK]").click()
    assert text.input_value() == "the [MASK]"


def test_classes_have_bars(page: Page, predictors: dict[str, Predictor]) -> None:
    show(page, "classifier", "Classify")
    run(page, Text="the gat")
    [expected] = predictors["classifier"].predict(["the gat"])
    assert page.locator(".result .answer").inner_text() == expected.label
    found = bars(page)
    assert list(found) == sorted(expected.probabilities, key=lambda label: -expected.probabilities[label])
    assert EVIL in found
    for label, share in expected.probabilities.items():
        assert found[label] == pytest.approx(100 * share, abs=0.06)
    width = page.locator(".bars i").first.evaluate("bar => bar.offsetWidth / bar.parentElement.offsetWidth")
    assert width == pytest.approx(max(expected.probabilities.values()), abs=0.02)


def test_several_labels(page: Page, predictors: dict[str, Predictor]) -> None:
    show(page, "labels", "Label")
    run(page, Text="the gat go")
    [found] = predictors["labels"].predict(["the gat go"])
    assert page.locator(".result .answer").inner_text() == (", ".join(found.labels) or "No label")
    for group, predicted in (("found", True), ("others", False)):
        names = page.locator(f".result .{group} .bars .name").all_inner_texts()
        shown = {name.removeprefix("✓ ") for name in names if name.startswith("✓") == predicted}
        assert shown == {label for label in found.probabilities if (label in found.labels) == predicted}
    amounts = page.locator(".result .amount").all_inner_texts()  # numbers by themselves, not shares of a whole
    assert sorted(map(float, amounts)) == pytest.approx(sorted(found.probabilities.values()), abs=0.006)


def test_pairs_and_numbers(page: Page, predictors: dict[str, Predictor]) -> None:
    show(page, "pairs", "Classify")
    run(page, First_text="the gat", Second_text="go")
    assert page.locator(".result .answer").inner_text() == predictors["pairs"].predict([["the gat", "go"]])[0].label
    show(page, "regression", "Predict a number")
    run(page, First_text="the gat", Second_text="go")
    shown = float(page.locator(".result .answer").inner_text().replace("−", "-"))
    assert shown == pytest.approx(predictors["regression"].predict([["the gat", "go"]])[0].score, abs=0.001)


def test_the_answer_is_marked_in_the_passage(page: Page, predictors: dict[str, Predictor]) -> None:
    """Positions count characters, also after one that JavaScript counts as two."""
    show(page, "span", "Answer a question")
    answered: dict[bool, str] = {}
    for passage in PASSAGES:
        [found] = predictors["span"].predict([["the", passage]])
        answered.setdefault(bool(found.answer), passage)
    assert set(answered) == {True, False}, "the model answers all questions, or none"
    for has_answer, passage in answered.items():
        run(page, Question="the", Passage=passage)
        [found] = predictors["span"].predict([["the", passage]])
        marked = page.locator(".result mark")
        assert page.locator(".result .answer").inner_text() == (found.answer or "No answer in the passage")
        assert marked.all_inner_texts() == ([found.answer] if has_answer else [])
        assert page.locator(".result .text").inner_text() == passage
        other = next(i for i, guess in enumerate(found.guesses[:5]) if guess.text not in ("", found.answer))
        page.locator(".bars .name").nth(other).click()
        assert marked.inner_text() == found.guesses[other].text
        assert page.evaluate("document.activeElement.getAttribute('aria-pressed')") == "true"


def test_entities_are_marked_in_the_text(page: Page, predictors: dict[str, Predictor], small_texts: list[str]) -> None:
    predictor = predictors["tagger"]
    texts = [f"\U0001f600 {' '.join(each.split()[:20])}, \u00abban\u00bb!" for each in small_texts[:40]]
    text = next((each for each in texts if predictor.predict([each])[0].entities), "")
    assert text, "the model tags nothing"
    show(page, "tagger", "Tag words")
    marks = page.locator(".tagged mark")
    without = "const copy = mark.cloneNode(true); copy.querySelector('.tag').remove(); return copy.textContent"
    for strategy in ("first", "none"):
        page.get_by_label("Aggregation strategy").select_option(strategy)
        run(page, Text=text)
        [expected] = predictor.predict([text], aggregation_strategy=strategy)
        assert marks.locator(".tag").all_inner_texts() == [each.label for each in expected.entities]
        shown = marks.evaluate_all(f"marks => marks.map(mark => {{ {without} }})")
        assert [each.strip() for each in shown] == [each.text for each in expected.entities]
        unsure = sum(each.score < 0.5 for each in expected.entities)
        assert page.locator(".tagged mark.unsure").count() == unsure
    page.get_by_text("All words", exact=True).click()
    rows = page.locator(".result tbody tr")
    assert [rows.nth(i).locator("td").nth(1).inner_text() for i in range(rows.count())] == expected.tags
    assert [rows.nth(i).locator("td").nth(0).inner_text() for i in range(rows.count())] == expected.tokens


@pytest.mark.parametrize("width", [390, 1280])
def test_tags_of_all_words_stand_below_them(page: Page, predictors: dict[str, Predictor], width: int) -> None:
    page.set_viewport_size({"width": width, "height": 844})
    show(page, "pos", "Tag words")
    run(page, Text="the gat go in the ban")
    [expected] = predictors["pos"].predict(["the gat go in the ban"])
    marks = page.locator(".tagged mark")
    assert marks.locator(".tag").all_inner_texts() == expected.tags
    lower = "mark => mark.lastChild.getBoundingClientRect().top - mark.getBoundingClientRect().top"
    assert all(marks.nth(i).evaluate(lower) > 12 for i in range(len(expected.tags)))
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_an_ending_is_chosen(page: Page, predictors: dict[str, Predictor]) -> None:
    show(page, "choice", "Choose an ending")
    run(page, Beginning="the gat", Endings="go\n\nban the\nfatun")
    [expected] = predictors["choice"].predict([{"context": "the gat", "endings": ["go", "ban the", "fatun"]}])
    assert page.locator(".result mark").inner_text() == ["go", "ban the", "fatun"][expected.choice]
    np.testing.assert_allclose([*bars(page).values()], 100 * np.array(expected.probabilities), atol=0.06)


def test_a_relation_is_predicted(page: Page, predictors: dict[str, Predictor]) -> None:
    show(page, "relation", "Relate two spans")
    text = f"<e1>the gat</e1> go {EVIL} in <e2>ban</e2> the"
    run(page, Text=text)
    [expected] = predictors["relation"].predict([text])
    assert page.locator(".result .answer").inner_text() == expected.label
    assert page.locator(".result mark").all_inner_texts() == ["the gat e1", "ban e2"]
    values = sorted(expected.probabilities.values(), reverse=True)
    np.testing.assert_allclose([*bars(page).values()], 100 * np.array(values), atol=0.06)


def test_sentences_are_compared_in_a_heat_map(page: Page, predictors: dict[str, Predictor]) -> None:
    texts = ["the gat go", EVIL, "fatun in the ban"]
    show(page, "masked", "Compare sentences")
    run(page, Sentences="\n".join(texts))
    rows = page.locator(".matrix tbody tr")
    shown = [[float(cell.replace("−", "-")) for cell in rows.nth(i).locator("td").all_inner_texts()] for i in range(3)]
    np.testing.assert_allclose(shown, predictors["masked"].similarity(texts), atol=0.006)
    assert EVIL in rows.nth(1).locator("th").inner_text()
    assert not page.locator(".sideways").is_visible()  # all columns are in the window


@pytest.mark.parametrize("model", ["masked", "pairs", "regression"])
def test_documents_are_sorted(page: Page, predictors: dict[str, Predictor], model: str) -> None:
    documents = ["the gat go", "go", "fatun in the ban"]
    show(page, model, "Rerank documents")
    if model == "pairs":
        page.get_by_label("Class that means").select_option("equivalent")
    run(page, Query="the gat", Documents="\n".join(documents))
    scores = predictors[model].rerank("the gat", documents, "equivalent" if model == "pairs" else "")
    found = bars(page)
    assert list(found) == [documents[i] for i in np.argsort(-scores)]
    np.testing.assert_allclose(list(found.values()), np.sort(scores)[::-1], atol=0.001)


def test_attention_is_drawn(page: Page, tmp_path: Path) -> None:
    show(page, "masked", "Look at attention")
    run(page, Text="the gat go in the ban", Second_text="")
    body = {"model": "masked", "text": "the gat go in the ban"}
    script = """body => fetch('v1/attention', {method: 'POST', headers: {'Content-Type': 'application/json'}, body})
        .then((response) => response.json())"""
    answer = page.evaluate(script, json.dumps(body))
    assert page.locator(".heads .cell").count() == 8
    page.locator(".heads .cell").nth(6).click()
    assert page.locator(".heads .selected").get_attribute("aria-label") == "head 2.3"
    assert page.locator(".heads .row").count() == len(answer["tokens"])
    weights = np.rint(255 * np.array(answer["attention"][1][2])) / 255
    opacities = page.locator(".heads .ray").evaluate_all("lines => lines.map((line) => Number(line.style.opacity))")
    np.testing.assert_allclose(sorted(opacities), sorted(weights[weights >= 0.02]), atol=0.006)
    page.get_by_label("attention to special tokens").uncheck()
    assert page.locator(".heads .ray").count() < len(opacities)
    page.get_by_label("Head", exact=True).select_option("1.4")
    assert page.locator(".heads .selected").get_attribute("aria-label") == "head 1.4"
    page.get_by_label("Lines from").select_option(index=3)  # the first one is that of all tokens
    assert page.locator(".heads .row.chosen").get_attribute("aria-label") == f"attention from {answer['tokens'][2]}"
    for number, suffix in enumerate((".svg", ".png", ".svg", ".png", ".csv")):
        with page.expect_download() as waiting:
            page.locator(".heads .export button").nth(number).click()
        assert waiting.value.suggested_filename.endswith(suffix)
        waiting.value.save_as(tmp_path / "file")
        assert (tmp_path / "file").stat().st_size > 100


def test_every_example_of_every_task_runs(page: Page) -> None:
    """Long examples have more tokens than these small models read, so some are truncated or refused."""
    tried = set()
    for model in page.locator("#model option").all_inner_texts():
        page.select_option("#model", model)
        for number in range(page.get_by_role("tab").count()):
            tab = page.get_by_role("tab").nth(number)
            name = tab.inner_text()
            if name in tried:
                continue
            tried.add(name)
            tab.click()
            examples = page.locator(".tries button")
            assert examples.count() >= 2
            for i in range(examples.count()):
                page.evaluate("document.querySelector('.result').replaceChildren()")
                examples.nth(i).click()
                page.wait_for_selector(".result .timing")
    assert len(tried) == 11


def test_the_page_works_by_keyboard(page: Page) -> None:
    focused: Callable[[], Any] = lambda: page.evaluate("document.activeElement.textContent.trim().slice(0, 20)")  # noqa: E731
    page.locator("#model").focus()
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    assert focused() == "Fill masks"
    page.keyboard.press("ArrowRight")
    assert focused() == "Compare sentences"
    assert page.locator("[role=tab]:focus").evaluate("tab => getComputedStyle(tab).outlineStyle") == "solid"
    page.keyboard.press("Enter")
    assert page.get_by_role("tab", selected=True).inner_text() == "Compare sentences"
    assert page.locator("[role=tab][tabindex='0']").count() == 1
    while page.evaluate("document.activeElement.tagName") != "TEXTAREA":
        page.keyboard.press("Tab")
    page.keyboard.press("Control+a")
    page.keyboard.type("the gat\ngo")
    page.keyboard.press("Control+Enter")
    page.wait_for_selector(".result .matrix")
    assert page.evaluate("document.activeElement.tagName") == "TEXTAREA"
    assert "compared 2 sentences" in page.locator("[role=status]").first.inner_text()
    page.keyboard.press("Tab")
    assert focused() == "Run"
    page.keyboard.press("Enter")
    page.wait_for_selector(".output[aria-busy=false]")
    assert focused() == "Run"  # a button that waits keeps the focus


def test_every_control_has_a_name(page: Page, models: dict[str, Path]) -> None:
    script = """() => [...document.querySelectorAll('input, textarea, select, button')].filter((each) => each.checkVisibility()
        && !each.labels?.length && !each.textContent.trim() && !each.getAttribute('aria-label')).map((each) => each.outerHTML)"""
    seen = set()
    for model in models:
        page.select_option("#model", model)
        for number, name in enumerate(page.get_by_role("tab").all_inner_texts()):
            if name == "Rerank documents" or name not in seen:  # which asks for a class, if the model has classes
                page.get_by_role("tab").nth(number).click()
                assert page.evaluate(script) == []
            seen.add(name)


def boxes(page: Page, selector: str) -> list[tuple[str, dict[str, float]]]:
    """The visible elements that a selector finds: their markup and their rectangles in the window."""
    script = """found => found.filter((each) => each.checkVisibility()).map((each) =>
        [each.outerHTML.slice(0, 100), each.getBoundingClientRect().toJSON()])"""
    return page.locator(selector).evaluate_all(script)


def test_a_narrow_window_has_room_for_fingers(page: Page, models: dict[str, Path]) -> None:
    """Controls are 44 pixels wide and tall. Those in a drawing have lists beside it that choose the same."""
    page.set_viewport_size({"width": 400, "height": 844})
    controls = "button, select, input:not([type=checkbox]), textarea, summary, label.check, a[href]"
    seen = set()
    for model in models:
        page.select_option("#model", model)
        for number, name in enumerate(page.get_by_role("tab").all_inner_texts()):
            if name in seen:
                continue
            seen.add(name)
            page.get_by_role("tab").nth(number).click()
            page.locator(".tries button").last.click()
            page.wait_for_selector(".result .timing")
            found = boxes(page, controls)
            assert len(found) > 8
            assert [markup for markup, box in found if min(box["width"], box["height"]) < 44] == [], name
            [(_, title)] = boxes(page, ".code-head h3")
            [(_, copying)] = boxes(page, ".code-head button.plain")
            assert copying["top"] < title["bottom"], "the button to copy is below its title"
            assert copying["bottom"] > title["top"]
            assert copying["right"] <= 400
    assert page.locator(".keys").evaluate_all("keys => keys.some((each) => each.checkVisibility())") is False
    page.set_viewport_size({"width": 1280, "height": 844})
    assert page.locator(".keys").is_visible()


def test_a_wide_heat_map_says_that_it_scrolls(page: Page) -> None:
    page.set_viewport_size({"width": 400, "height": 844})
    show(page, "masked", "Compare sentences")
    run(page, Sentences="\n".join(["the gat go in the ban, and fatun go in the ban"] * 12))
    page.get_by_text("Scroll sideways").wait_for()
    numbers, texts = boxes(page, ".numbered b"), boxes(page, ".numbered span")
    assert len(numbers) == len(texts) == 12
    for (_, number), (_, text) in zip(numbers, texts, strict=True):
        assert text["height"] > 30, "the sentence should need several lines"
        assert abs(number["top"] - text["top"]) < 8
        assert number["right"] <= text["left"]
    page.locator(".matrix").evaluate("table => table.parentElement.scrollTo(10_000, 0)")
    [(_, head), *_] = boxes(page, ".matrix tbody th")
    assert 0 <= head["left"] < 40, "the sentences do not stay in the window"


def test_the_facts_say_what_a_model_was_trained_for(page: Page) -> None:
    expectations = {"masked": "pre-trained", "embedder": "vectors of sentences", "labels": "fine-tuned: multi label"}
    for model, expected in expectations.items():
        page.select_option("#model", model)
        assert page.locator("#facts").inner_text().split(" · ")[0] == expected


@pytest.mark.parametrize(("width", "scheme"), [(390, "light"), (800, "light"), (1280, "dark")])
def test_the_page_fits_its_window(page: Page, models: dict[str, Path], width: int, scheme: Any) -> None:
    page.emulate_media(color_scheme=scheme)
    page.set_viewport_size({"width": width, "height": 844})
    for model in models:
        page.select_option("#model", model)
        page.locator(".tries button").last.click()
        page.wait_for_selector(".result .timing")
        assert page.evaluate("document.documentElement.scrollWidth") <= width, model
    show(page, "masked", "Look at attention")
    run(page, Text="a" * 40, Second_text="the gat")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    light = sum(map(int, ground.removeprefix("rgb(").removesuffix(")").split(","))) > 3 * 128
    assert light == (scheme == "light")


def program(page: Page, language: str) -> str:
    """Copy the program in a language."""
    page.get_by_role("button", name=language, exact=True).click()
    page.get_by_role("button", name="Copy").click()
    page.get_by_text("Copied.").wait_for()
    return page.evaluate("navigator.clipboard.readText()")


def executed(*command: str, key: str = "") -> str:
    environment = {**os.environ, "API_KEY": key}
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=600, env=environment).stdout


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
def test_copied_programs_send_the_request_of_the_page(page: Page) -> None:
    difficult = 'it\'s "quoted" $HOME `x` \\n !1 😀 é'
    for model, task, fields, field in (
        ("classifier", "Classify", {"Text": difficult}, "predictions"),
        ("choice", "Choose an ending", {"Beginning": difficult, "Endings": f"{difficult}\ngo"}, "predictions"),
        ("masked", "Compare sentences", {"Sentences": f"{difficult}\nthe gat"}, "similarities"),
        ("masked", "Look at attention", {"Text": difficult, "Second text": "go"}, "attention"),
    ):
        show(page, model, task)
        with page.expect_response("**/v1/*") as waiting:
            run(page, **fields)
        shown = waiting.value.json()
        by_curl = json.loads(executed("bash", "-c", program(page, "curl") + " --silent"))
        by_python = executed(sys.executable, "-c", program(page, "Python"))
        assert repr(by_curl) == by_python.strip()
        if field == "attention":  # the page asks for base64
            assert by_curl["tokens"] == shown["tokens"]
        else:
            assert by_curl[field] == shown[field]


def test_the_copied_openai_client_prints_the_cosines(page: Page) -> None:
    show(page, "masked", "Compare sentences")
    with page.expect_response("**/v1/similarity") as waiting:
        run(page, Sentences="the gat\ngo\nfatun ban")
    printed = executed(sys.executable, "-c", program(page, "OpenAI client"))
    found = [[float(number) for number in line.split()] for line in printed.splitlines()]
    np.testing.assert_allclose(found, waiting.value.json()["similarities"], atol=0.001)


def test_errors_are_the_sentences_of_the_server(window: Page, address: str) -> None:
    with opened(window, address, refused=True) as page:
        show(page, "masked", "Fill masks")
        shown = run(page, Text=f"no mask {EVIL}")
        assert shown.startswith("Status 422")
        assert "there is no [MASK] in the text: write [MASK] for each token to predict" in shown
        show(page, "masked", "Look at attention")
        assert "at most 64" in run(page, Text="the " * 100)
        assert page.get_by_role("alert").last.is_visible()
        show(page, "classifier", "Classify")
        assert "truncated" in run(page, Text="the gat " * 60)
        page.route("**/v1/attention", lambda route: route.abort())
        show(page, "masked", "Look at attention")
        assert "the server does not answer" in run(page, Text="go")
        page.unroute("**/v1/attention")
        assert "round trip" in run(page, Text="go")


def test_a_new_request_cancels_the_old_one(window: Page, address: str) -> None:
    with opened(window, address) as page:
        show(page, "classifier", "Classify")
        cancelled: list[str] = []
        page.on("requestfailed", lambda request: cancelled.append(request.post_data or ""))

        def hold(route: Any) -> None:
            if "first" not in route.request.post_data:  # which is never answered
                route.continue_()

        page.route("**/v1/predict", hold)
        page.get_by_label("Text", exact=True).fill("first")
        page.get_by_role("button", name="Run").click()
        page.wait_for_selector(".output[aria-busy=true]")
        button = page.locator(".run:visible")
        assert button.inner_text() == "Running …"
        assert button.get_attribute("aria-disabled") == "true"
        page.get_by_label("Text", exact=True).fill("second")
        page.keyboard.press("Control+Enter")
        page.wait_for_selector(".result .timing")
        assert button.inner_text() == "Run"
        assert [json.loads(body)["inputs"] for body in cancelled] == [["first"]]


def test_a_server_with_keys(window: Page, models: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "keys").write_text(f"{KEY}\n")
    options = ("--api-keys", str(tmp_path / "keys"))
    with process(f"masked={models['masked']}", *options) as server:
        address = f"http://127.0.0.1:{server.port}/"
        with opened(window, address, refused=True) as page:
            assert page.get_by_role("tab").count() == 0
            assert not page.locator("#model").is_visible()
            assert not page.get_by_role("alert").is_visible()
            for wrong in ("wrong", "ключ", "two words"):  # a header can hold none of the last two
                page.get_by_label("API key").fill(wrong)
                page.get_by_role("button", name="Use the key").click()
                page.get_by_text("does not accept this key").wait_for()
                assert page.get_by_label("API key").get_attribute("aria-invalid") == "true"
                page.evaluate("document.querySelector('#key-problem').hidden = true")
            page.get_by_label("API key").fill(KEY)
            page.get_by_role("button", name="Use the key").click()
            page.get_by_role("tab", name="Compare sentences").click()
            run(page, Sentences="the gat\ngo")
            assert not page.get_by_label("API key").is_visible()
            assert page.locator("#model").is_visible()
            assert KEY not in page.url
            assert page.evaluate("[localStorage.length, sessionStorage.length, document.cookie]") == [0, 0, ""]
            by_curl = json.loads(executed("bash", "-c", program(page, "curl") + " --silent", key=KEY))
            assert len(by_curl["similarities"]) == 2
            assert "similarities" in executed(sys.executable, "-c", program(page, "Python"), key=KEY)
            for language in ("curl", "Python", "OpenAI client"):
                assert KEY not in program(page, language)
            page.reload()
            page.get_by_label("API key").wait_for()
            assert page.get_by_label("API key").input_value() == ""


def wait_for_model(page: Page, model: str) -> None:
    """Wait for the list of models, which arrives after the page, and for the chosen one."""
    page.wait_for_function("model => document.querySelector('#model').value === model", arg=model)


def test_the_address_keeps_model_and_task(page: Page, address: str) -> None:
    show(page, "pairs", "Rerank documents")
    assert page.url == f"{address}#model=pairs&task=rerank"
    page.reload()
    wait_for_model(page, "pairs")
    assert page.get_by_role("tab", selected=True).inner_text() == "Rerank documents"
    page.goto(f"{address}#model={EVIL}&task={EVIL}")
    page.reload()
    wait_for_model(page, "masked")
