"""Read token shards from a stand-in of S3, also one that fails, and compare with a local folder. Not run by pytest.

    python tests/long/remote_shards.py [--environment FOLDER] [--shards 8] [--steps 40] [--turns 7]

The environment gets moto and s3fs, unless it has them: 250 MB. Fails if a step has other bytes than the same step of the local
folder, if the loader has less than 0.9 of the local throughput after the first epoch (median of alternating turns), if a store
that fails 5 % of its requests costs more than time, or if the cache is larger than allowed. Prints the throughputs.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from itertools import islice
from pathlib import Path

import fsspec
import numpy as np
from environments import free_port, parser_of, python_with

from bertie.batches.contiguous import DocSentences
from bertie.batches.loader import Loader, Position, StepShape
from bertie.batches.prefetch import prefetch
from bertie.corpus import shard_writer
from bertie.corpus.remote_shards import ShardCache
from bertie.corpus.shards import Shards, open_shards
from bertie.files import store
from bertie.tokenizers.tokenizer import SPECIAL_TOKENS, Tokenizer

SHAPE = StepShape(4, 4096)
SHARD_TOKENS = 400_000
FAILING = 0.05
SIDE = Path(__file__).with_name("remote_shards_side.py")


def install(folder: Path) -> Path:
    """Return the Python of the environment, and make its packages importable here."""
    python = python_with(folder, "moto[server]", f"s3fs=={fsspec.__version__}")
    packages = (folder / "lib").glob("python3.*/site-packages")
    sys.path += map(str, packages)  # last: other packages remain those of bertie
    return python


@contextmanager
def served(python: Path, share: float, folder: Path) -> Iterator[str]:
    """Serve the shards of a folder. Yield their URL."""
    port = free_port()
    log = open(folder.parent / f"server-{port}.log", "w")  # noqa: SIM115
    server = subprocess.Popen([python, SIDE, str(port), str(share)], stdout=log, stderr=log)
    os.environ |= {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_DEFAULT_REGION": "us-east-1"}
    os.environ["AWS_ENDPOINT_URL"] = f"http://127.0.0.1:{port}"
    try:
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                assert server.poll() is None, Path(log.name).read_text()
                time.sleep(0.1)
        system = fsspec.filesystem("s3", skip_instance_cache=True)
        system.mkdir("bucket")
        system.put(str(folder), "bucket/shards", recursive=True)
        fsspec.filesystem("s3").clear_instance_cache()
        yield "s3://bucket/shards"
    finally:
        server.terminate()
        server.wait()


def write_shards(folder: Path, shards: int) -> None:
    """Write shards of random tokens: sentences of 5 to 30 tokens, documents of 5 to 30 sentences."""
    words = [f"w{number}" for number in range(20_000)]
    tokenizer, rng = Tokenizer.build([*SPECIAL_TOKENS, *words]), np.random.default_rng(0)
    tokenizer.save(folder / "tokenizer")
    for split, count in (("train", shards), ("eval", 1)):
        for shard in range(count):
            sentences = rng.integers(5, 31, SHARD_TOKENS // 17)
            edges = np.cumsum(rng.integers(5, 31, len(sentences) // 17))
            documents = np.diff([0, *edges[edges < len(sentences)], len(sentences)])
            ids = rng.integers(len(SPECIAL_TOKENS), tokenizer.size, sentences.sum(), dtype=np.int32)
            text = shard_writer.TokenizedDocuments(ids, sentences, documents)
            shard_writer.write_shard(folder / split, shard, text, tokenizer)
    shard_writer.write_manifest(folder, tokenizer, {"train": {"shards": shards}, "eval": {"shards": 1}}, {})


def hashes(shards: Shards, shuffle_tokens: int, workers: int = 0, position: Position = Position()) -> Iterator[str]:
    """Yield the hash of each step."""

    def make(worker: int, workers: int) -> Iterator[str]:
        loader = Loader(shards.train, shards.tokenizer, DocSentences(), SHAPE, 0, shuffle_tokens=shuffle_tokens)
        for step in islice(loader.steps(position), worker, None, workers):
            content = hashlib.sha256(str(step.position).encode())
            for batch in step.all_rows:
                content.update(batch.input_ids.tobytes() + batch.word_starts.tobytes())
            yield content.hexdigest()

    with closing(prefetch(make, workers)) as steps:
        yield from steps


def timed(shards: Shards, steps: int) -> np.ndarray:
    """Return the tokens of a loader in its second epoch by second and by second of the processor."""
    stream = hashes(shards, 0, position=Position(1))
    next(stream)
    begun = np.array([time.monotonic(), time.process_time()])
    for _ in islice(stream, steps):
        pass
    return steps * SHAPE.rows * SHAPE.row_tokens / (np.array([time.monotonic(), time.process_time()]) - begun)


def size(cache: Path) -> int:
    return sum(path.stat().st_size for path in cache.rglob("*") if path.is_file())


def first_epoch(url: str, cache: ShardCache, workers: int, expected: dict[int, list[str]]) -> tuple[float, list[str]]:
    """Read from a store with an empty cache, whole and in sections. Return the tokens per second, and what differs."""
    wrong = []
    begun, tokens = time.monotonic(), 0
    for shuffle_tokens, same in expected.items():
        assert cache.cache is not None
        shutil.rmtree(cache.cache, ignore_errors=True)
        found = list(islice(hashes(open_shards(url, cache), shuffle_tokens, workers), len(same)))
        tokens += len(found) * SHAPE.rows * SHAPE.row_tokens
        if found != same:
            wrong.append(f"shuffle_tokens {shuffle_tokens}, {workers} workers: other bytes than from the folder")
        if cache.cache_gb and (most := size(cache.cache)) > cache.cache_gb * 1e9:
            wrong.append(f"the cache has {most:,} bytes, more than {cache.cache_gb} GB")
    return tokens / (time.monotonic() - begun), wrong


def main() -> int:
    parser = parser_of(__doc__)
    parser.add_argument("--environment", type=Path)
    parser.add_argument("--shards", type=int, default=8)
    parser.add_argument("--steps", type=int, default=40, help="of a turn")
    parser.add_argument("--turns", type=int, default=7)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        work = Path(temporary)
        python = install(args.environment or work / "environment")
        write_shards(work / "shards", args.shards)
        local = open_shards(work / "shards")
        section = int(local.train.shard_starts[-1]) // 3
        per_epoch = int(local.train.shard_starts[-1]) // (SHAPE.rows * SHAPE.row_tokens)
        expected = {n: list(islice(hashes(local, n), per_epoch + 20)) for n in (0, section)}
        begun, wrong = time.monotonic(), list[str]()
        for n, same in expected.items():
            list(islice(hashes(local, n), len(same)))
        tokens = sum(map(len, expected.values())) * SHAPE.rows * SHAPE.row_tokens
        print(f"the folder: {tokens / (time.monotonic() - begun):,.0f} tokens/s", flush=True)
        for share in (0.0, FAILING):
            if share:
                store.CHUNK = 100_000  # so that there are hundreds of requests
            with served(python, share, work / "shards") as url:
                for workers in (0, 2):
                    cache = ShardCache(work / f"cache-{share}-{workers}")
                    speed, problems = first_epoch(url, cache, workers, expected)
                    wrong += problems
                    print(
                        f"{share:.0%} of requests fail, {workers} workers, empty cache: {speed:,.0f} tokens/s",
                        flush=True,
                    )
                small = ShardCache(work / "small", size(work / "shards") / 2e9)
                wrong += first_epoch(url, small, 0, {section: expected[section]})[1]
                if not share:
                    remote = open_shards(url, ShardCache(work / "cache-0.0-0"))
                    list(islice(hashes(remote, 0), per_epoch))
                    ratios = []
                    for turn in range(args.turns):
                        pair = (local, remote) if turn % 2 else (remote, local)
                        speeds = dict(zip(map(id, pair), [timed(each, args.steps) for each in pair], strict=True))
                        ratios.append(speeds[id(remote)] / speeds[id(local)])
                    ratio, of_processor = np.median(ratios, axis=0)
                    low, high = np.min(ratios, axis=0)[0], np.max(ratios, axis=0)[0]
                    spread = f"{low:.3f} to {high:.3f}, by processor time {of_processor:.3f}"
                    print(f"after the first epoch: {ratio:.3f} of local ({spread})", flush=True)
                    wrong += [f"{ratio:.3f} of the local throughput"] * bool(ratio < 0.9)
    for problem in wrong:
        print(f"FAILED: {problem}")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
