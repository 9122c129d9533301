"""bertie serve"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from bertie.base import console
from bertie.base.errors import UsageError, install
from bertie.base.threads import use_one_tokenizer_thread
from bertie.commands.common import selected
from bertie.commands.flags import Flat, JsonResult, Positional
from bertie.model.pooling import Pooling
from bertie.predict.engines.files import EngineName
from bertie.predict.load import load
from bertie.retrieval.index import index_facts, is_index, open_index
from bertie.serve.limits import DialectName, Front, Limits

# As browsers write it. Any other would match no page.
ORIGIN = re.compile(r"(http(?!.*:80$)|https(?!.*:443$))://([a-z0-9._-]+|\[[0-9a-f:.]+\])(:[1-9]\d*)?|\*")


@dataclass(frozen=True)
class Args:
    """Serve models over HTTP: vectors, similarities, reranking, search, predictions, masked words and attention.

    The API is JSON, with the embeddings of OpenAI's API among its endpoints. A page tries the models in a browser. TLS is
    left to a proxy.
    """

    runs: Positional[list[str]]
    """Models: runs, checkpoint folders, hub ids, or indexes, with their models. NAME=RUN sets the name in requests, which is by
    default the last part of the path. The name may have a slash, such as org/mini."""
    host: str = "127.0.0.1"
    """Address to listen on. 0.0.0.0: all IPv4 addresses of the machine; "::": all of IPv4 and IPv6."""
    port: int = 8000
    """Port to listen on. 0: any free port, which the event `started` in the log names."""
    threads: int = 0
    """Processor threads; 0: all that this process may use, by its affinity and its cgroup."""
    engine: EngineName | None = None
    """Engine that computes the encoders; by default the engine that a converted model was made for, or else plain."""
    api_keys: Path | None = None
    """File with the keys that may use the server, one per line. Without it, anyone who can connect may use it."""
    cors: tuple[str, ...] = ()
    """Origins of web pages whose scripts may use the server, such as https://example.org."""
    no_page: bool = False
    """Serve the API alone, without the page at / that tries the models in a browser."""
    dialect: DialectName | None = None
    """Dialect that answers on paths that several dialects share, such as POST /; by default, none. Below its base, such
    as /tei, each dialect has all its paths."""
    root_path: str = ""
    """Path under which a proxy serves this server, such as /bert. The proxy may strip it or keep it."""
    dimensions: tuple[int, ...] = ()
    """Smaller widths of vectors that requests may also ask for, such as 64 128, for models that were trained for them.
    By default, the matryoshka_dimensions in the config.json of each model."""
    pooling: Pooling | None = None
    """Pooling of the token vectors into the vector of a text, for models whose files name none. By default, a pooling
    that suits the encoder, usually the mean."""
    no_access_log: bool = False
    """Don't log requests, only events of the server."""
    limits: Flat[Limits] = Limits()


def run(args: Args) -> JsonResult:
    try:
        from bertie.serve.keys import ApiKeys
        from bertie.serve.logs import JsonLog
        from bertie.serve.operations import ServedModel, serve_model
        from bertie.serve.server import announce, listen, serve
        from bertie.serve.service import Service
        from bertie.serve.vectors import shorter_widths
    except ImportError as error:
        raise UsageError(f"bertie serve needs {error.name}: {install('serve')}") from error
    if not 0 <= args.port <= 65_535:
        raise UsageError(f"--port {args.port}: give at most 65535")
    keys = ApiKeys.read(args.api_keys) if args.api_keys else ApiKeys()
    use_one_tokenizer_thread()  # the processors are for the model
    sources = _names(args.runs)
    if args.root_path and not re.fullmatch(r"(/[\w.~-]+)+/?", args.root_path):
        raise UsageError(f"--root-path {args.root_path}: give a path such as /bert")
    for origin in args.cors:
        if not ORIGIN.fullmatch(origin):
            raise UsageError(f"--cors {origin}: give an origin as browsers send it, such as https://example.org:8443")
    with listen(args.host, args.port) as listener:  # before models are loaded, which can take long
        options = selected(args, "threads", "engine", "pooling")
        models: dict[str, ServedModel] = {}
        for name, source in sources.items():
            searched = open_index(source, load(index_facts(source)["model"], **options)) if is_index(source) else None
            model = searched.dense.model if searched else load(source, **options)
            widths = shorter_widths(model, args.dimensions)
            models[name] = serve_model(name, model, args.limits.queue_tokens, widths, searched)
        service = Service(models, args.limits, JsonLog(not args.no_access_log), keys)
        if not keys.digests and args.host not in ("127.0.0.1", "localhost", "::1"):
            console.warn(f"anyone who can connect to {args.host} may use the server: set --api-keys")
        front = Front(args.cors, not args.no_page, args.dialect, args.root_path.rstrip("/"))
        announce(service, args.host, listener.getsockname()[1], front)
        serve(service, listener, front)
    return {"models": list(models)}


def _names(runs: list[str]) -> dict[str, str]:
    """Return the source of each model by its name. Raises UsageError."""
    if not runs:
        raise UsageError("bertie serve needs RUN as its first argument: give a run, a model folder or a hub id")
    sources: dict[str, str] = {}
    for run in runs:
        named = None if Path(run).exists() else re.fullmatch(r"([\w.\-]+(?:/[\w.\-]+)*)=(.+)", run)
        name, source = named.groups() if named else (Path(run).absolute().name or run, run)
        if name in sources:
            raise UsageError(
                f"two models have the name {name!r}: give one of them another name, as in {name}-2={source}"
            )
        sources[name] = source
    return sources
