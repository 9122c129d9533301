"""The prompt of a model for a kind of input, as the clients of several services name it."""

from __future__ import annotations

from bertie.errors import shorten
from bertie.serve.limits import Refused
from bertie.serve.operations import ServedModel

SEARCH = {
    **dict.fromkeys(("query", "search_query"), ("query", "search_query")),
    **dict.fromkeys(("document", "passage", "search_document"), ("document", "passage", "corpus", "search_document")),
}
"""Names of prompts for queries and for documents, in the order in which sentence-transformers looks for them."""
OTHERS = ("classification", "clustering")


def prompt_name(model: ServedModel, name: str | None, input_type: str | None, param: str = "input_type") -> str | None:
    """Return the name of the prompt that is put before each text; None: the model's default.

    Args:
        model: The model.
        name: The name that a request gives.
        input_type: The kind of input that a request gives instead: "query", "search_document", "clustering", or the name of
            a prompt.
        param: The field of the kind of input.

    Raises:
        Refused: Both are given, or the model has no prompt for this kind of input, and others for other kinds.
    """
    if name is not None and input_type is not None:
        raise Refused(422, "input", f"{param} and prompt_name both choose the prompt: give one of them", param)
    if input_type is None:
        return name
    prompts = model.predictor.text_embedding.prompts
    used = [known for known, text in prompts.items() if text]
    named = [each for each in (input_type, *SEARCH.get(input_type, ())) if each in used]
    if named or input_type in prompts:
        return named[0] if named else input_type
    if input_type in SEARCH:
        return SEARCH[input_type][0]
    if input_type in OTHERS and not used:
        return None
    known = (
        f"the prompts of the model are {', '.join(used)}" if used else f"give one of {', '.join((*SEARCH, *OTHERS))}"
    )
    raise Refused(422, "input", f"{param} is {shorten(input_type)!r}, and there is no such prompt: {known}", param)
