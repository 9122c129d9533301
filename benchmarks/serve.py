"""Measure `bertie serve`: throughput beside the model's own, latency under open-loop load, and hours of operation.

python benchmarks/serve.py saturation MODEL     texts per second over HTTP, and of the same model without a server
python benchmarks/serve.py poisson MODEL        latency percentiles, with requests at random times, at a share of capacity
python benchmarks/serve.py soak MODEL           a mix of requests for a long time: answers and memory

Every answer is compared with the vector that the model computes offline. `--url` measures another server with OpenAI's
embeddings, such as infinity, in place of starting one. Client and server share the processors, so the client's time is
reported too.
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
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np

import bertie
from bertie import runtime

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
    """Largest difference from an offline vector."""
    texts: int = 0

    def percentiles(self) -> str:
        values = np.array(self.seconds or [0.0]) * 1000
        return ", ".join(f"p{p} {np.percentile(values, p):.1f}" for p in (50, 90, 99, 99.9)) + " ms"


class Client:
    """A connection that stays open."""

    def __init__(self, url: str, model: str):
        parts = urlsplit(url)
        self.host, self.port, self.path, self.model = parts.hostname, parts.port, parts.path, model
        self.reader: asyncio.StreamReader | None = None

    async def post(self, texts: list[str]) -> tuple[int, bytes]:
        if self.reader is None:
            self.reader, self.writer = await asyncio.open_connection(self.host, self.port, limit=2**26)
        body = json.dumps({"input": texts, "model": self.model, "encoding_format": "base64"}).encode()
        head = f"POST {self.path} HTTP/1.1\r\nHost: {self.host}\r\nContent-Type: application/json\r\n"
        self.writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        header = await self.reader.readuntil(b"\r\n\r\n")
        found = re.search(rb"content-length: (\d+)", header, re.IGNORECASE)
        assert found, header
        return int(header[9:12]), await self.reader.readexactly(int(found.group(1)))

    def close(self) -> None:
        if self.reader is not None:
            self.writer.close()


@dataclass(frozen=True, eq=False)
class Load:
    """Requests with consecutive texts."""

    url: str
    model: str
    texts: list[str]
    vectors: np.ndarray
    size: int

    def request(self, number: int) -> np.ndarray:
        """Return the indices of the texts of a request."""
        return np.arange(number * self.size, (number + 1) * self.size) % len(self.texts)

    async def send(self, client: Client, number: int, due: float, outcome: Outcome) -> None:
        index = self.request(number)
        status, body = await client.post([self.texts[i] for i in index])
        outcome.statuses[status] += 1
        if status == 200:
            outcome.seconds.append(time.perf_counter() - due)
            data = [each["embedding"] for each in json.loads(body)["data"]]
            found = np.stack([np.frombuffer(base64.b64decode(each), "<f4") for each in data])
            outcome.worst = max(outcome.worst, float(np.abs(found - self.vectors[index]).max()))
            outcome.texts += len(index)

    async def closed(self, clients: int, seconds: float) -> Outcome:
        """Let each client send its next request as soon as it has an answer."""
        outcome, end, count = Outcome(), time.perf_counter() + seconds, 0

        async def run() -> None:
            nonlocal count
            client = Client(self.url, self.model)
            while (now := time.perf_counter()) < end:
                count += 1
                await self.send(client, count, now, outcome)
            client.close()

        await asyncio.gather(*(run() for _ in range(clients)))
        return outcome

    async def poisson(self, rate: float, seconds: float) -> Outcome:
        """Send requests at random times, `rate` per second, whether or not earlier ones have answers."""
        outcome = Outcome()
        gaps = np.random.default_rng(1).exponential(1 / rate, int(rate * seconds))
        idle: list[Client] = []
        start = time.perf_counter()

        async def one(number: int, due: float) -> None:
            client = idle.pop() if idle else Client(self.url, self.model)
            await self.send(client, number, due, outcome)
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


@contextmanager
def server(args: argparse.Namespace) -> Iterator[tuple[str, subprocess.Popen[str] | None]]:
    """Start the server; yield the address of its embeddings. With --url, yield that."""
    if args.url:
        yield args.url, None
        return
    command = [sys.executable, "-m", "bertie", "serve", f"m={args.model}", "--port", "0", "--no-access-log"]
    command += ["--threads", str(args.threads), "--batch-tokens", str(args.batch_tokens)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("{") and (event := json.loads(line))["event"] == "started":
            break
    else:
        raise SystemExit("the server did not start")
    try:
        yield f"http://127.0.0.1:{event['port']}/v1/embeddings", process
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


def own_rate(model: bertie.Predictor, texts: list[str]) -> tuple[float, float]:
    """Return texts per second of the model itself, by the clock and by the time of its processors."""
    clock, processor = time.perf_counter(), time.process_time()
    model.embed(texts)
    return len(texts) / (time.perf_counter() - clock), len(texts) / (time.process_time() - processor)


def saturation(args: argparse.Namespace, model: bertie.Predictor, texts: list[str]) -> None:
    vectors = model.embed(texts)
    before = own_rate(model, texts)
    with server(args) as (url, process):
        load = Load(url, args.name, texts, vectors, args.size)
        asyncio.run(load.closed(args.clients, 3))
        used, own = usage_of(process)[0], time.process_time()
        outcome = asyncio.run(load.closed(args.clients, args.seconds))
        used, own = usage_of(process)[0] - used, time.process_time() - own
    after = own_rate(model, texts)
    clock, processor = (np.mean(pair) for pair in zip(before, after, strict=True))
    rate, asked = outcome.texts / args.seconds, f"{args.clients} clients × {args.size} texts"
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
    vectors = model.embed(texts)
    with server(args) as (url, _):
        load = Load(url, args.name, texts, vectors, args.size)
        capacity = asyncio.run(load.closed(args.clients, 10)).texts / 10 / args.size
        rate = args.share * capacity
        print(f"capacity {capacity:.1f} requests/s; sending {rate:.1f} requests/s, {args.size} texts each")
        report(asyncio.run(load.poisson(rate, args.seconds)))


def soak(args: argparse.Namespace, model: bertie.Predictor, texts: list[str]) -> None:
    vectors = model.embed(texts)
    end, memory, statuses = time.monotonic() + args.seconds, [], Counter[int]()
    rng = np.random.default_rng(2)
    with server(args) as (url, process):
        while time.monotonic() < end:
            load = Load(url, args.name, texts, vectors, int(rng.choice([1, 3, 32, 256])))
            outcome = asyncio.run(load.closed(int(rng.choice([1, 8, 64])), min(20, args.seconds / 10)))
            memory.append(usage_of(process)[1])
            print(f"{memory[-1]:8.1f} MB  ", end="")
            report(outcome)
            assert outcome.worst < TOLERANCE
            statuses += outcome.statuses
    assert set(statuses) <= {200, 429}
    half = len(memory) // 2
    print(f"memory: {np.mean(memory[half : half + 3]):.1f} MB at half time, {np.mean(memory[-3:]):.1f} MB at the end")


def report(outcome: Outcome) -> None:
    statuses = ", ".join(f"{count:,} × {status}" for status, count in sorted(outcome.statuses.items()))
    print(
        f"{outcome.texts:,} texts; {statuses}; {outcome.percentiles()}; largest difference {outcome.worst:.1e}",
        flush=True,
    )


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
    parser.add_argument("--url", help="embeddings of a server that runs already")
    parser.add_argument("--name", default="m", help="the model's name at --url")
    args = parser.parse_args()
    model = bertie.load(args.model, threads=args.threads)
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("bertie", "torch", "uvicorn"))
    print(f"{runtime.environment(0)['cpu']}, {versions}, python {sys.version.split()[0]}")
    {"saturation": saturation, "poisson": poisson, "soak": soak}[args.mode](
        args, model, texts_of(args.input, args.texts)
    )


if __name__ == "__main__":
    main()
