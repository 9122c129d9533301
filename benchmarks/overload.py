"""Measure servers of embeddings under overload: latency and throughput with and without --latency-target.

python benchmarks/overload.py MODEL
python benchmarks/overload.py MODEL --infinity ENVIRONMENT/bin/infinity_emb

Each round measures the capacity of `bertie serve` with clients that wait for their answers. Then it sends requests with one
or several texts at random times, at a multiple of this capacity, to a server with its defaults, to one with a target, and
to infinity (github.com/michaelfeil/infinity), one after the other. Clients and servers share the processors. The latency is
that of answered requests, from the time at which they were due, which includes delays in the client.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

import bertie
from bertie.base import storage
from results import environment
from serve import Client, texts_of

CONNECTIONS = 3000
WARM_UP = 10.0  # seconds
GIVE_UP = 30.0  # seconds after which a client closes its connection


@dataclass(frozen=True)
class Request:
    """The body of a request, and its tokens."""

    body: bytes
    tokens: int


@dataclass
class Seen:
    """What the clients saw in the measured time."""

    seconds: list[float] = field(default_factory=list)
    """Latency of the answers with status 200."""
    refusals: list[float] = field(default_factory=list)
    """Latency of the answers with status 429."""
    statuses: Counter[str] = field(default_factory=Counter)
    """By status; "none": no answer within `GIVE_UP` seconds."""
    tokens: int = 0
    """Of the answers with status 200 that arrived in the measured time."""

    def summary(self, measured: float) -> dict[str, Any]:
        at = {f"p{p:g}": round(float(np.percentile(self.seconds or [np.nan], p)), 4) for p in (50, 90, 99)}
        refused = round(float(np.percentile(self.refusals or [np.nan], 99)), 4)
        facts = {"tokens_per_second": round(self.tokens / measured, 1), "statuses": dict(self.statuses)}
        return {**at, "refusal_p99": refused, **facts}


def requests(model: bertie.Predictor, name: str, count: int, sizes: list[int]) -> list[Request]:
    """Return requests with texts of Python's documentation. sizes: numbers of texts to choose from."""
    rng, texts = np.random.default_rng(0), texts_of(None, 2000)
    tokens = [len(each) for each in model.text_sequences(texts, "")]
    found = []
    for _ in range(count):
        chosen = rng.integers(0, len(texts), rng.choice(sizes)).tolist()
        message = {"model": name, "input": [texts[i] for i in chosen], "encoding_format": "base64"}
        found.append(Request(json.dumps(message).encode(), sum(tokens[i] for i in chosen)))
    return found


async def capacity(url: str, given: list[Request], seconds: float, clients: int = 24) -> float:
    """Return the requests per second that clients get which wait for their answers."""
    numbers, done, start = iter(range(10**9)), 0, time.perf_counter()

    async def run() -> None:
        nonlocal done
        client = Client(url)
        while time.perf_counter() < start + seconds:
            status, *_ = await client.post("/embeddings", given[next(numbers) % len(given)].body)
            done += status == 200
        client.close()

    await asyncio.gather(*(run() for _ in range(clients)))
    return done / (time.perf_counter() - start)


async def overload(url: str, given: list[Request], rate: float, before: float, measured: float, seed: int) -> Seen:
    """Send requests at random times. Only those count that are due after `before` seconds, for `measured` seconds."""
    seen, idle, room = Seen(), list[Client](), asyncio.Semaphore(CONNECTIONS)
    due_at = np.cumsum(np.random.default_rng(seed).exponential(1 / rate, int(rate * (before + measured))))
    start = time.perf_counter()
    first, last = start + before, start + before + measured

    async def one(request: Request, due: float) -> None:
        async with room:
            client = idle.pop() if idle else Client(url)
            try:
                status, *_ = await asyncio.wait_for(client.post("/embeddings", request.body), GIVE_UP)
                idle.append(client)
            except (TimeoutError, OSError, asyncio.IncompleteReadError):
                status = None
                client.close()
        now = time.perf_counter()
        seen.tokens += request.tokens * (status == 200 and first <= now < last)
        if due >= first:
            seen.statuses[str(status or "none")] += 1
            if status in (200, 429):
                (seen.seconds if status == 200 else seen.refusals).append(now - due)

    tasks = []
    for number, at in enumerate(due_at):
        if (wait := start + at - time.perf_counter()) > 0:
            await asyncio.sleep(wait)
        tasks.append(asyncio.ensure_future(one(given[number % len(given)], start + at)))
    await asyncio.gather(*tasks)
    for client in idle:
        client.close()
    return seen


@contextmanager
def process(command: list[str], url: str, path: str, given: list[Request]) -> Iterator[str]:
    """Run a server until the end of the block. Yields the address of its API as soon as it answers."""
    running = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        end = time.monotonic() + 180
        while True:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", int(url.rsplit(":")[-1].split("/")[0]))) == 0:
                    break
            if running.poll() is not None or time.monotonic() > end:
                raise SystemExit(f"the server did not start: {' '.join(command)}")
            time.sleep(0.2)
        asyncio.run(capacity(url + path, given, WARM_UP))  # compiles the products of many shapes
        yield url + path
    finally:
        running.send_signal(signal.SIGTERM)
        try:
            running.wait(10)
        except subprocess.TimeoutExpired:  # infinity computes all that waits
            running.kill()
            running.wait()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return found.getsockname()[1]


def commands(args: argparse.Namespace, port: int) -> dict[str, tuple[list[str], str]]:
    """Return the command and the path of each server."""
    ours = [sys.executable, "-m", "bertie", "serve", f"m={args.model}", "--port", str(port), "--no-access-log"]
    ours += ["--max-connections", "4096", "--threads", str(args.threads)]
    ours += ["--engine", args.engine] if args.engine else []
    found = {"default": (ours, "/v1"), "target": ([*ours, "--latency-target", str(args.target)], "/v1")}
    if args.infinity:
        theirs = [
            "env",
            "DO_NOT_TRACK=1",
            "HF_HUB_OFFLINE=1",
            args.infinity,
            "v2",
            "--model-id",
            args.model,
            "--served-model-name",
            "m",
            "--port",
            str(port),
        ]
        found["infinity"] = ([*theirs, "--device", "cpu", "--engine", "torch", "--no-bettertransformer"], "")
    return found


def table(rounds: list[dict[str, Any]]) -> str:
    """Return medians over the rounds as a Markdown table."""
    lines = [
        "| server | p50, s | p90, s | p99, s | p99 in each round | tokens/s | of default | 429 |",
        "|" + "---|" * 8,
    ]
    for name in rounds[0]["servers"]:
        each = [one["servers"][name] for one in rounds]
        p50, p90, p99, rate = (median(one[key] for one in each) for key in ("p50", "p90", "p99", "tokens_per_second"))
        ratio = median(
            one["servers"][name]["tokens_per_second"] / one["servers"]["default"]["tokens_per_second"] for one in rounds
        )
        refused = median(one["statuses"].get("429", 0) / sum(one["statuses"].values()) for one in each)
        all_p99 = ", ".join(f"{one['p99']:.2f}" for one in each)
        lines.append(
            f"| {name} | {p50:.2f} | {p90:.2f} | {p99:.2f} | {all_p99} | {rate:,.0f} | {ratio:.2f} | {refused:.0%} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a run, a model folder or a hub id")
    parser.add_argument("--target", type=float, default=1.0, help="seconds")
    parser.add_argument("--share", type=float, default=2.0, help="of the capacity")
    parser.add_argument(
        "--sizes", type=int, nargs="+", default=[1, 1, 1, 1, 2, 4], help="texts of a request, at random"
    )
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--before", type=float, default=20.0, help="seconds until the queue of a server is full")
    parser.add_argument("--seconds", type=float, default=20.0, help="seconds that are measured")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--engine", default="")
    parser.add_argument("--infinity", default="", help="the program infinity_emb")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/overload.json"))
    args = parser.parse_args()
    given = requests(bertie.load(args.model, threads=args.threads), "m", 500, args.sizes)
    rounds: list[dict[str, Any]] = []
    for number in range(args.runs):
        found: dict[str, Any] = {}
        rate = 0.0
        for name, (command, path) in commands(args, port := free_port()).items():
            with process(command, f"http://127.0.0.1:{port}", path, given) as url:
                rate = rate or args.share * asyncio.run(capacity(url, given, 10))
                seen = asyncio.run(overload(url, given, rate, args.before, args.seconds, number))
            found[name] = seen.summary(args.seconds)
            print(f"round {number + 1}, {rate:.0f} requests/s, {name}: {found[name]}", flush=True)
        rounds.append({"requests_per_second": round(rate, 1), "servers": found})
        settings = {key: getattr(args, key) for key in ("target", "share", "sizes", "before", "seconds", "engine")}
        storage.write_json(args.out, {"environment": environment(args.threads), **settings, "rounds": rounds})
    print(table(rounds))


if __name__ == "__main__":
    main()
