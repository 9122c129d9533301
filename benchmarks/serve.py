"""Measure `bertie serve`: throughput beside the model's own, latency under open-loop load, and hours of operation.

python benchmarks/serve.py saturation MODEL     texts per second over HTTP, and of the same model without a server
python benchmarks/serve.py poisson MODEL        latency percentiles, with requests at random times, at a share of capacity
python benchmarks/serve.py soak MODEL           requests of all kinds, and overload, for a long time: answers and memory

Every answer is compared with what the model computes offline. `--url` measures another server with OpenAI's embeddings, such
as infinity, in place of starting one. Client and server share the processors, so the client's time is reported too.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import importlib.metadata
import json
import pydoc_data.topics
import re
import resource
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np

import bertie
from bertie.base import runtime

CONNECTIONS = 900  # the server accepts 1,024
TOLERANCE = 1e-4  # between an answer and the offline vector: batches are summed in another order


def texts_of(path: Path | None, count: int) -> list[str]:
    """Return the lines of a file, or sentences of Python's documentation."""
    if path is None:
        text = " ".join(pydoc_data.topics.topics[name] for name in sorted(pydoc_data.topics.topics))
        found = re.split(r"(?<=[.:])\s+", " ".join(text.split()))
    else:
        found = path.read_text(encoding="utf-8").splitlines()
    return [found[i % len(found)] for i in np.random.default_rng(0).permutation(max(count, len(found)))[:count]]


@dataclass
class Outcome:
    """What the clients saw."""

    seconds: list[float] = field(default_factory=list)
    """From the time at which a request was due to its answer; of good answers only."""
    statuses: Counter[int] = field(default_factory=Counter)
    worst: float = 0.0
    """Largest difference from a number of the offline answer."""
    texts: int = 0
    elapsed: float = 0.0
    """Until the last answer."""

    def percentiles(self) -> str:
        values = np.array(self.seconds or [0.0]) * 1000
        return ", ".join(f"p{p:g} {np.percentile(values, p):.1f}" for p in (50, 90, 99, 99.9)) + " ms"


@dataclass(frozen=True, eq=False)
class Question:
    """A request, and how far the numbers of its answer are from those of the offline answer."""

    path: str
    message: dict[str, Any]
    difference: Callable[[Any], float]
    texts: int

    @cached_property
    def body(self) -> bytes:
        return json.dumps(self.message).encode()


class Client:
    """A connection that stays open."""

    def __init__(self, url: str):
        parts = urlsplit(url)
        self.host, self.port, self.prefix = parts.hostname, parts.port, parts.path
        self.reader: asyncio.StreamReader | None = None

    async def post(self, path: str, body: bytes) -> tuple[int, bytes, bytes]:
        """Return the status, the header and the body of the answer."""
        if self.reader is None:
            self.reader, self.writer = await asyncio.open_connection(self.host, self.port, limit=2**26)
        head = f"POST {self.prefix}{path} HTTP/1.1\r\nHost: {self.host}\r\nContent-Type: application/json\r\n"
        self.writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        header = await self.reader.readuntil(b"\r\n\r\n")
        found = re.search(rb"content-length: (\d+)", header, re.IGNORECASE)
        assert found, header
        return int(header[9:12]), header, await self.reader.readexactly(int(found.group(1)))

    def close(self) -> None:
        if self.reader is not None:
            self.writer.close()


@dataclass(frozen=True, eq=False)
class Load:
    """Requests to a server, in turns."""

    url: str
    questions: list[Question]

    async def send(self, client: Client, number: int, due: float, outcome: Outcome) -> int:
        """Send a request. Returns the seconds to wait before the next, if the server asks for it."""
        question = self.questions[number % len(self.questions)]
        status, header, body = await client.post(question.path, question.body)
        outcome.statuses[status] += 1
        if status == 429:
            found = re.search(rb"retry-after: (\d+)", header, re.IGNORECASE)
            assert found, header
            return int(found.group(1))
        if status == 200:
            outcome.seconds.append(time.perf_counter() - due)
            outcome.worst = max(outcome.worst, question.difference(json.loads(body)))
            outcome.texts += question.texts
        return 0

    async def closed(self, clients: int, seconds: float) -> Outcome:
        """Let each client send its next request as soon as it has an answer."""
        outcome, start, count = Outcome(), time.perf_counter(), 0

        async def run() -> None:
            nonlocal count
            client = Client(self.url)
            while (now := time.perf_counter()) < start + seconds:
                count += 1
                await asyncio.sleep(await self.send(client, count, now, outcome))
            client.close()

        await asyncio.gather(*(run() for _ in range(clients)))
        outcome.elapsed = time.perf_counter() - start
        return outcome

    async def poisson(self, rate: float, seconds: float) -> Outcome:
        """Send requests at random times, `rate` per second, whether or not earlier ones have answers.

        With `CONNECTIONS` requests without an answer, the next one waits, and counts from then.
        """
        outcome, room = Outcome(), asyncio.Semaphore(CONNECTIONS)
        gaps = np.random.default_rng(1).exponential(1 / rate, max(1, int(rate * seconds)))
        idle: list[Client] = []
        start = time.perf_counter()

        async def one(number: int, due: float) -> None:
            waits = room.locked()
            async with room:
                client = idle.pop() if idle else Client(self.url)
                await self.send(client, number, time.perf_counter() if waits else due, outcome)
                idle.append(client)

        tasks = []
        for number, at in enumerate(np.cumsum(gaps)):
            due = start + at
            if (wait := due - time.perf_counter()) > 0:
                await asyncio.sleep(wait)
            tasks.append(asyncio.ensure_future(one(number, due)))
        await asyncio.gather(*tasks)
        for client in idle:
            client.close()
        return outcome


def embeddings(texts: list[str], vectors: np.ndarray, name: str) -> Question:
    """Return a request for vectors."""

    def difference(answer: Any) -> float:
        found = [np.frombuffer(base64.b64decode(each["embedding"]), "<f4") for each in answer["data"]]
        return float(np.abs(np.stack(found) - vectors).max())

    return Question("/embeddings", {"input": texts, "model": name, "encoding_format": "base64"}, difference, len(texts))


def mixed(model: bertie.Predictor, texts: list[str]) -> list[Question]:
    """Return requests of several kinds and sizes, in random order: what the model is able to answer."""
    rng = np.random.default_rng(2)

    def some(count: int) -> list[str]:
        return [texts[i] for i in rng.integers(0, len(texts), count)]

    found = []
    for size in [1] * 24 + [3] * 12 + [32] * 6 + [256]:
        given = some(size)
        found.append(embeddings(given, model.embed(given), "m"))
    for _ in range(6):
        given = some(8)
        cosines = model.similarity(given)
        found.append(Question("/similarity", {"texts": given}, _numbers("similarities", cosines), 8))
        query, documents = given[0], given[1:]
        with suppress(bertie.UserError):  # a classifier of one text does not rank
            scores = model.rerank(query, documents)
            found.append(Question("/rerank", {"query": query, "documents": documents}, _ranking(scores), 7))
        for shape in (lambda: some(1)[0], lambda: some(2)):
            inputs = [shape() for _ in range(4)]
            with suppress(bertie.UserError):  # a task with another number of texts
                wanted = [asdict(each) for each in model.predict(inputs)]
                found.append(Question("/predict", {"inputs": inputs}, _numbers("predictions", wanted), 4))
    if "mlm" in model.model.heads:
        for _ in range(6):
            masked = [f"{text[:20]} [MASK]" for text in some(3)]
            guesses = [[[asdict(guess) for guess in mask] for mask in model.fill_mask(text, 5)] for text in masked]
            found.append(Question("/fill-mask", {"inputs": masked}, _numbers("results", guesses), len(masked)))
    return [found[i] for i in rng.permutation(len(found))]


def _numbers(key: str, wanted: Any) -> Callable[[Any], float]:
    """Return what compares the numbers below a key."""

    def numbers(value: Any) -> list[float]:
        if isinstance(value, dict):
            return [x for name in sorted(value) for x in numbers(value[name])]
        if isinstance(value, list | np.ndarray):
            return [x for each in value for x in numbers(each)]
        return [] if isinstance(value, str) or value is None else [float(value)]

    offline = np.array(numbers(wanted))

    def difference(answer: Any) -> float:
        found = np.array(numbers(answer[key]))
        assert found.shape == offline.shape, answer
        return float(np.abs(found - offline).max(initial=0))

    return difference


def _ranking(scores: np.ndarray) -> Callable[[Any], float]:
    """Return what compares the scores of documents."""

    def difference(answer: Any) -> float:
        found = {each["index"]: each["relevance_score"] for each in answer["results"]}
        return max(abs(found[i] - score) for i, score in enumerate(scores))

    return difference


@contextmanager
def server(args: argparse.Namespace) -> Iterator[tuple[str, subprocess.Popen[str] | None]]:
    """Start the server; yield the address of its API. With --url, yield that."""
    if args.url:
        yield args.url, None
        return
    command = [sys.executable, "-m", "bertie", "serve", f"m={args.model}", "--port", "0", "--no-access-log"]
    command += ["--threads", str(args.threads), "--batch-tokens", str(args.batch_tokens)]
    command += ["--timeout", str(args.timeout), *(["--engine", args.engine] if args.engine else [])]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("{") and (event := json.loads(line))["event"] == "started":
            break
    else:
        raise SystemExit("the server did not start")
    try:
        yield f"http://127.0.0.1:{event['port']}/v1", process
    finally:
        process.send_signal(signal.SIGTERM)
        if process.wait(60) != 0:
            raise SystemExit("the server did not stop cleanly")
        process.stderr.close()


def usage_of(process: subprocess.Popen[str] | None) -> tuple[float, float]:
    """Return processor seconds and resident MB of the server; 0 without one."""
    if process is None:
        return 0.0, 0.0
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    pages = int(Path(f"/proc/{process.pid}/statm").read_text().split()[1])
    return (int(fields[11]) + int(fields[12])) / 100, pages * resource.getpagesize() / 1e6


def parts(args: argparse.Namespace, model: bertie.Predictor, texts: list[str]) -> list[Question]:
    """Return requests for the vectors of all texts, `--size` texts each."""
    vectors = model.embed(texts)
    chunks = [slice(i, i + args.size) for i in range(0, len(texts) - args.size + 1, args.size)]
    return [embeddings(texts[chunk], vectors[chunk], args.name) for chunk in chunks]


def own_rate(model: bertie.Predictor, texts: list[str]) -> tuple[float, float]:
    """Return texts per second of the model itself, by the clock and by the time of its processors."""
    clock, processor = time.perf_counter(), time.process_time()
    model.embed(texts)
    return len(texts) / (time.perf_counter() - clock), len(texts) / (time.process_time() - processor)


def saturation(args: argparse.Namespace, model: bertie.Predictor, texts: list[str]) -> None:
    questions = parts(args, model, texts)
    before = own_rate(model, texts)
    with server(args) as (url, process):
        load = Load(url, questions)
        asyncio.run(load.closed(args.clients, 3))
        used, own = usage_of(process)[0], time.process_time()
        outcome = asyncio.run(load.closed(args.clients, args.seconds))
        used, own = usage_of(process)[0] - used, time.process_time() - own
    after = own_rate(model, texts)
    clock, processor = (np.mean(pair) for pair in zip(before, after, strict=True))
    rate, asked = outcome.texts / outcome.elapsed, f"{args.clients} clients × {args.size} texts"
    print(
        f"model alone {clock:8.1f} texts/s (before {before[0]:.1f}, after {after[0]:.1f}), {processor:.1f} per CPU second"
    )
    print(f"over HTTP   {rate:8.1f} texts/s, {rate / clock:.2f} of the model's own; {asked}")
    if used:
        served = outcome.texts / used
        print(
            f"server CPU  {used:8.1f} s, {served:.1f} texts per CPU second, {served / processor:.2f} of the model's own"
        )
    print(f"client CPU  {own:8.1f} s")
    report(outcome)


def poisson(args: argparse.Namespace, model: bertie.Predictor, texts: list[str]) -> None:
    with server(args) as (url, _):
        load = Load(url, parts(args, model, texts))
        alone = asyncio.run(load.closed(1, 10))
        print(f"one request at a time: {alone.percentiles()}")
        full = asyncio.run(load.closed(args.clients, 10))
        capacity = len(full.seconds) / full.elapsed
        rate = args.share * capacity
        print(f"capacity {capacity:.1f} requests/s; sending {rate:.1f} requests/s, {args.size} texts each")
        outcome = asyncio.run(load.poisson(rate, args.seconds))
        report(outcome)
        print(f"p99 is {np.percentile(outcome.seconds, 99) / np.median(alone.seconds):.2f} × the median without load")


def soak(args: argparse.Namespace, model: bertie.Predictor, texts: list[str]) -> None:
    """Repeat four phases: 1, 8 and 64 clients, then twice the capacity at random times.

    The server returns freed memory when it has nothing to do, so its memory is measured after a pause.
    """
    questions = mixed(model, texts)
    phase = min(20.0, args.seconds / 12)
    end, memory, statuses, capacity = time.monotonic() + args.seconds, [], Counter[int](), 0.0
    with server(args) as (url, process):
        load = Load(url, questions)
        while time.monotonic() < end or len(memory) < 3:
            for clients in (1, 8, 64, 0):
                run = load.closed(clients, phase) if clients else load.poisson(2 * capacity, phase)
                outcome = asyncio.run(run)
                capacity = len(outcome.seconds) / max(outcome.elapsed, phase)
                print(f"{f'{clients} clients' if clients else '2 × capacity':>12}  ", end="")
                report(outcome)
                assert outcome.worst < TOLERANCE, "an answer is wrong"
                assert max(outcome.seconds) < args.timeout, "an admitted request took longer than its deadline"
                statuses += outcome.statuses
            before = usage_of(process)[1]
            time.sleep(3)
            memory.append(usage_of(process)[1])
            print(f"memory of the server: {before:.1f} MB, after a pause {memory[-1]:.1f} MB", flush=True)
    assert set(statuses) <= {200, 429}, statuses
    third = len(memory) // 3
    middle, last = np.mean(memory[third : 2 * third]), np.mean(memory[-third:])
    print(f"{sum(statuses.values()):,} requests, all answered")
    print(f"memory {middle:.1f} MB in the second third, {last:.1f} MB in the last: {last / middle - 1:+.1%}")
    assert last < 1.02 * middle, "the memory grows"


def report(outcome: Outcome) -> None:
    statuses = ", ".join(f"{count:,} × {status}" for status, count in sorted(outcome.statuses.items()))
    worst = f"largest difference {outcome.worst:.1e}"
    print(f"{outcome.texts:,} texts; {statuses}; {outcome.percentiles()}; {worst}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mode", choices=["saturation", "poisson", "soak"])
    parser.add_argument("model", help="a run, a model folder or a hub id")
    parser.add_argument("--input", type=Path, help="a text file, one text per line; default: Python's documentation")
    parser.add_argument("--texts", type=int, default=2000)
    parser.add_argument("--size", type=int, default=1, help="texts per request")
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--share", type=float, default=0.7, help="of the capacity, in `poisson`")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--batch-tokens", type=int, default=0)
    parser.add_argument("--timeout", type=float, default=30.0, help="seconds: the deadline of the server's requests")
    parser.add_argument("--engine", default="", help="engine of the model alone and of the server")
    parser.add_argument("--url", help="API of a server that runs already, such as http://127.0.0.1:7997")
    parser.add_argument("--name", default="m", help="the model's name at --url")
    args = parser.parse_args()
    model = bertie.load(args.model, threads=args.threads, engine=args.engine or None)
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("bertie", "torch", "uvicorn"))
    print(f"{runtime.environment(0)['cpu']}, {versions}, python {sys.version.split()[0]}")
    {"saturation": saturation, "poisson": poisson, "soak": soak}[args.mode](
        args, model, texts_of(args.input, args.texts)
    )


if __name__ == "__main__":
    main()
