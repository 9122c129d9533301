"""The dialects of the server, one file for each: its messages, the way from its requests to an `Ask` and from what a model
found to its answers, and the form of its errors.

`dialect.py` says what a dialect is. `v1.py` has bertie's own API, which is that of OpenAI where that has the same, with the
messages of `v1_messages.py`. Every other dialect answers below its base, such as /tei, and without the base where no other
dialect claims the path, or --dialect chooses it:

- `tei.py`: text-embeddings-inference;
- `infinity.py`: infinity, with `coded_errors.py`, which vLLM has, too;
- `vllm.py`: vLLM;
- `hf.py`: Hugging Face's inference API, with the tasks of `hf_tasks.py` and the messages of `hf_messages.py`;
- `cohere.py`: Cohere's API;
- `ollama.py`: Ollama's API.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from bertie.serve.dialects.cohere import COHERE
from bertie.serve.dialects.hf import HF
from bertie.serve.dialects.infinity import INFINITY
from bertie.serve.dialects.ollama import OLLAMA
from bertie.serve.dialects.tei import TEI
from bertie.serve.dialects.v1 import V1
from bertie.serve.dialects.vllm import VLLM
from bertie.serve.exchange import Dialect, Endpoint

DIALECTS: tuple[Dialect, ...] = (V1, TEI, INFINITY, VLLM, HF, COHERE, OLLAMA)


def routes(chosen: str | None = None) -> Iterator[tuple[str, Dialect, Endpoint]]:
    """Yield every path with its dialect and endpoint.

    Args:
        chosen: Name of the dialect whose paths are also served without its base where others claim them, too.
    """
    claims = Counter((each.method, each.path) for dialect in DIALECTS for each in dialect.endpoints)
    own = {(each.method, each.path) for each in V1.endpoints}
    for dialect in DIALECTS:
        for each in dialect.endpoints:
            yield (dialect.base + each.path).rstrip("/"), dialect, each
            claim = (each.method, each.path)
            if dialect.base and each.bare and claim not in own and (claims[claim] == 1 or dialect.name == chosen):
                yield each.path, dialect, each


def claimants(method: str, path: str) -> list[Dialect]:
    """Return the dialects that claim a path without their base."""
    claim = (method, path)
    return [each for each in DIALECTS if each.base and claim in {(one.method, one.path) for one in each.endpoints}]
