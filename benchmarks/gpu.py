"""Speed of pre-training on a GPU, bertie and transformers, in one command that knows its time. Then a short training.

    python benchmarks/gpu.py --out FILE.json [--minutes 8] [--cases modern-base-128-32768 …] [--peers eager compiled packed]
        [--rounds 5] [--starts FOLDER] [--shards SHARDS] [--train-minutes 2.5] [--work FOLDER] [--carry FOLDER]
        [--commit COMMIT] [--tiny]
    python benchmarks/gpu.py --table FILE.json
    python benchmarks/gpu.py --join FOLDER MODEL

A part that does not fit into the rest of the minutes is skipped and listed in FILE.json, which is written after each part:

1. The rate of large bf16 products on the idle GPU, and the error of attention on packed sequences, against the formula in
   fp32.
2. For each case: bertie with compiled layers and transformers (gpu_peers.py says how both run), in turn, on sequences of
   random tokens with real lengths (the deciles of the recipe's layout on the Simple English Wikipedia) and with equal
   lengths. `compiled` and `packed` are timed after `eager`, in turn with bertie again, if there is time for them.
3. With --starts: the seconds until the first step of `modern-base` on 100 million synthetic tokens, in two processes of
   which the second one finds compiled code (start.py). The goal for the second is 25 s.
4. With --shards: `modern-base` for the rest of the minutes, at least --train-minutes (equal_minutes.py without tasks).
   --carry writes the model in small files (weight_parts.py), which --join reads.

Each round times several steps between two synchronizations, after an untimed step. Tokens do not include padding. FLOPs are
those of bertie/model/flops.py for both sides, so padding does not count. `host` is the time until Python has queued a step on
an idle GPU, `gpu` the time of all kernels of a step in torch's profiler; FILE.json names the longest. `memory` is the peak of
the first steps minus what is allocated after them: later, bertie repeats recorded steps (CUDA graphs). On a GPU that others
use, the numbers say nothing. --tiny tries out the whole script on a CPU, in fp32 and without a compiler; its numbers say
nothing, either.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import Any

import torch

import weight_parts
from bertie.base import runtime
from bertie.batches.loader import Step
from bertie.model.attention.flash_attention import use_flash_attention_3
from bertie.model.flops import model_flops
from bertie.tokenizers.tokenizer import Tokenizer
from bertie.training.run_folder import read_metrics
from gpu_peers import DISTINCT, Bench, Case, Lengths, check_attention, shape, tokenizer_of
from gpu_run import Budget, OutOfTime, Report, dtype, free_memory, short, synchronize
from pretrain_speed import spread

CASES = [
    Case("modern-base", 128, 32_768, 4096, 75),
    Case("base", 512, 32_768, 4096, 45),
    Case("modern-small", 128, 32_768, 4096, 40),
    Case("modern-mini", 128, 2048, 2048, 35),
    Case("large", 512, 32_768, 4096, 90),
    Case("modern-mini", 128, 32_768, 4096, 35),
]
TINY = [Case("modern-tiny", 128, 1024, 512, 10), Case("tiny", 512, 2048, 1024, 10)]
LENGTHS: tuple[Lengths, ...] = ("real", "equal")
OPTIONAL = {"compiled": 60.0, "packed": 30.0}  # seconds for each kind of lengths, compilation included: a guess
ROUND_SECONDS = 0.25  # of bertie; a slower peer takes longer
KERNELS = 25  # of a step, in the report: those that take longest
AFTER_TRAINING = 45.0  # seconds: Python, held-out losses, copies of the weights


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--minutes", type=float, default=8)
    parser.add_argument("--cases", nargs="*", choices=[case.name for case in CASES + TINY])
    parser.add_argument("--peers", nargs="*", default=["eager", *OPTIONAL], choices=["eager", *OPTIONAL])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--starts", type=Path, help="folder for synthetic shards; without it, no starts are timed")
    parser.add_argument("--shards", type=Path, help="token shards for the training; without it, there is none")
    parser.add_argument("--train-minutes", type=float, default=2.5, help="minutes that are kept for the training")
    parser.add_argument("--work", type=Path, help="folder of the training; without it, a temporary one")
    parser.add_argument("--carry", type=Path, help="folder for the trained model in small files")
    parser.add_argument("--commit", help="the commit, if this is no checkout")
    parser.add_argument("--tiny", action="store_true", help="try out the script with tiny models")
    parser.add_argument("--table", type=Path, help="print the table of a FILE.json")
    parser.add_argument("--join", type=Path, nargs=2, metavar=("FOLDER", "MODEL"))
    args = parser.parse_args()
    if args.join:
        weight_parts.join(*args.join)
    elif args.table:
        print(table(json.loads(args.table.read_text())))
    elif not args.out or not (args.tiny or torch.cuda.is_available()):
        parser.error("needs --out, and a GPU unless there is --tiny")
    else:
        measure(args)


def measure(args: argparse.Namespace) -> None:
    budget, report = Budget(args.minutes), Report(args.out, args.commit)
    reserve = 60 * args.train_minutes + AFTER_TRAINING if args.shards else 0.0
    rate = matrix_rate(args.tiny)
    report.write(f"matrix rate {rate[1] / 1e12:.4g} TFLOPS", matrix_rate=rate)
    try:
        report.write("attention checked", attention=check_attention(), flash_attention_3=use_flash_attention_3())
    except Exception as error:  # the rest is worth measuring anyway
        report.write(f"attention failed: {short(error)}", attention=short(error))
    known = TINY if args.tiny else CASES
    cases = [case for case in known if args.cases is None or case.name in args.cases]
    tokenizer = tokenizer_of(1000 if args.tiny else 30_000)
    for number, case in enumerate(cases):
        if budget.left() - reserve < case.seconds:
            report.skip(case.name, f"{budget.left():.0f} s are left, {reserve:.0f} of them for the training")
            continue
        kept = reserve + sum(later.seconds for later in cases[number + 1 :])
        try:
            measure_case(case, tokenizer, args, budget, reserve, kept, report)
        except (Exception, OutOfTime) as error:
            report.skip(case.name, f"{short(error)}; what was finished before is kept")
        gc.collect()
        torch.compiler.reset()  # the next model has other sizes, and compiled code has a limited number of variants
        free_memory()
    report.write("measured", matrix_rate_at_the_end=matrix_rate(args.tiny), seconds=time.monotonic() - budget.begun)
    print(table(report.content), flush=True)
    time_starts(args, budget.left() - reserve, report)
    if args.shards:
        train(args, budget, report)
    else:
        report.skip("training", "no --shards")


def measure_case(
    case: Case,
    tokenizer: Tokenizer,
    args: argparse.Namespace,
    budget: Budget,
    reserve: float,
    kept: float,
    report: Report,
) -> None:
    """Time all sides of a case. Its models are gone afterwards."""
    with budget.until(reserve):
        bench = required(case, tokenizer, args, report)
    optional(bench, report.content["cases"][case.name], args, budget, kept, report)


def required(case: Case, tokenizer: Tokenizer, args: argparse.Namespace, report: Report) -> Bench:
    """Build the models of a case, and time bertie and the peer `eager`."""
    bench = Bench(case, tokenizer, bool(args.peers))
    found = report.content["cases"][case.name] = {
        "name": case.name,
        "rows_per_pass": bench.per_pass,
        "row_tokens": case.row,
        "losses": bench.losses,
        "errors": bench.errors,
        "compile_seconds": bench.compile_seconds,
        **{lengths: shape(bench.steps[lengths]) for lengths in LENGTHS},
    }
    names = ["bertie", *(peer for peer in args.peers if peer == "eager")]
    for lengths in LENGTHS:
        found[lengths]["sides"] = time_sides(bench, lengths, names, args.rounds, report.content["matrix_rate"][1])
        report.write(f"{case.name} {lengths}: {found[lengths]['sides']}")
    return bench


def optional(
    bench: Bench, found: dict[str, Any], args: argparse.Namespace, budget: Budget, kept: float, report: Report
) -> None:
    """Time the other peers of a case, as long as `kept` seconds remain for what comes later."""
    rate = report.content["matrix_rate"][1]
    parts: list[tuple[Lengths, str]] = [
        (lengths, peer) for lengths in LENGTHS for peer in OPTIONAL if peer in args.peers
    ]
    for lengths, peer in parts:
        name = f"{found['name']} {lengths} {peer}"
        if budget.left() - kept < OPTIONAL[peer] and not args.tiny:
            report.skip(name, f"{budget.left():.0f} s are left, {kept:.0f} kept")
            continue
        try:
            with budget.until(kept):
                sides = time_sides(bench, lengths, ["bertie", peer], args.rounds, rate)
        except OutOfTime as error:
            report.skip(name, short(error))
            bench.recover()
            continue
        found[lengths]["sides"] |= {peer: sides.get(peer, {"error": "bertie failed"})}
        report.write(f"{name}: {sides}")


def time_sides(bench: Bench, lengths: Lengths, names: list[str], rounds: int, rate: float) -> dict[str, Any]:
    """Time sides in turn. Returns the figures of each, or the error with which it stopped."""
    steps, found = bench.steps[lengths], dict[str, Any]()
    runs, samples, first = dict[str, Callable[[Step], None]](), dict[str, list[Any]](), dict[str, float]()
    memory, on_gpu = dict[str, int](), torch.cuda.is_available()

    def attempt(name: str, work: Callable[[], Any]) -> Any:
        try:
            return work()
        except Exception as error:  # out of memory, or whatever a peer does not support
            runs.pop(name, None)
            found[name] = {"error": short(error)}
            bench.recover()

    def begin(name: str) -> Callable[[Step], None]:
        run = bench.run(name, lengths)
        if on_gpu:
            torch.cuda.reset_peak_memory_stats()
        first[name] = seconds(run, steps[:1])
        seconds(run, steps)  # further variants of compiled code
        memory[name] = torch.cuda.max_memory_allocated() - torch.cuda.memory_allocated() if on_gpu else 0
        return run

    for name in names:
        if (run := attempt(name, lambda name=name: begin(name))) is not None:
            runs[name] = run
    if "bertie" not in runs:
        return found
    count = min(40, max(3, math.ceil(ROUND_SECONDS * len(steps) / seconds(runs["bertie"], steps))))
    work = [steps[number % len(steps)] for number in range(count)]
    for _ in range(rounds):
        for name, run in list(runs.items()):
            if (sample := attempt(name, lambda run=run: timed(run, work))) is not None:
                samples.setdefault(name, []).append(sample)
    if "bertie" not in runs:
        return found
    tokens = sum(micro.tokens for step in work for micro in step.micro_batches)
    flops = sum(model_flops(bench.model, micro) for step in work for micro in step.micro_batches)
    for name, run in runs.items():
        walls, hosts = zip(*samples[name], strict=True)
        pairs = zip(walls, (wall for wall, _ in samples["bertie"]), strict=False)
        found_kernels = (kernels(run, steps[0]) if lengths == "real" else None) or []
        found[name] = {
            "tokens_per_second": spread([tokens / wall for wall in walls]),
            "share_of_matrix_rate": spread([flops / wall / rate for wall in walls]),
            "times_bertie": spread([wall / ours for wall, ours in pairs]),
            "step_ms": spread([1000 * wall / count for wall in walls]),
            "host_ms": spread([1000 * host for host in hosts]),
            "kernels": found_kernels[:KERNELS],
            "gpu_ms": sum(each["ms"] for each in found_kernels) or None,
            "memory": memory[name],
            "first_step_seconds": first[name],
        }
    return found


def timed(run: Callable[[Step], None], work: list[Step]) -> tuple[float, float]:
    """Return the seconds of some steps, and those until Python has queued one."""
    untimed = work[:1]
    if torch.cuda.is_available() and torch.cuda.memory_reserved() > 0.6 * torch.cuda.mem_get_info()[1]:
        free_memory()  # that of the side before, so that this one does not free it while its time is taken
        untimed = work[:DISTINCT]
    seconds(run, untimed)
    wall = seconds(run, work)
    started = time.perf_counter()
    run(work[0])
    host = time.perf_counter() - started
    synchronize()
    return wall, host


def seconds(run: Callable[[Step], None], work: list[Step]) -> float:
    synchronize()
    started = time.perf_counter()
    for step in work:
        run(step)
    synchronize()
    return time.perf_counter() - started


def kernels(run: Callable[[Step], None], step: Step) -> list[dict[str, Any]] | None:
    """Return the kernels and copies of a step, the longest first, each with its calls and milliseconds in all.

    None: there is no GPU, or no profiler.
    """
    if not torch.cuda.is_available():
        return None
    with suppress(Exception):
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            seconds(run, [step])
        events = [event for event in profile.key_averages() if not getattr(event, "is_user_annotation", False)]
        events.sort(key=lambda event: -event.self_device_time_total)
        return [{"name": e.key[:100], "calls": e.count, "ms": e.self_device_time_total / 1000} for e in events]
    return None


def matrix_rate(tiny: bool) -> list[float]:
    """Return [lowest, median, highest] FLOPS of large products of matrices: 7 repetitions of 10 products."""
    size, times = 512 if tiny else 8192, 10
    left, right = (torch.randn(size, size, device=runtime.device(), dtype=dtype()) for _ in range(2))
    rates = []
    for _ in range(8):
        synchronize()
        started = time.perf_counter()
        for _ in range(times):
            torch.mm(left, right)
        synchronize()
        rates.append(times * 2 * size**3 / (time.perf_counter() - started))
    return [min(rates[1:]), median(rates[1:]), max(rates[1:])]  # the first one warms up


def time_starts(args: argparse.Namespace, left: float, report: Report) -> None:
    """Time two starts of a pre-training, in processes of their own, in `left` seconds."""
    recipe, tokens, seconds = ("modern-tiny", 200_000, 20) if args.tiny else ("modern-base", 100_000_000, 150)
    if not args.starts or left < seconds:
        report.skip("starts", f"{left:.0f} s are left" if args.starts else "no --starts")
        return
    command = [sys.executable, Path(__file__).with_name("start.py"), "--recipe", recipe, "--tokens", tokens]
    (result := args.starts / "starts.json").unlink(missing_ok=True)
    command += ["--work", args.starts, "--out", result]
    try:
        run_within(left, command)
    except Exception as error:  # the measurements are written
        report.skip("starts", f"{short(error)}; those that ended before are kept")
    if result.exists():
        report.write("starts timed", starts=json.loads(result.read_text())["starts"])


def run_within(seconds: float, command: list[Any]) -> None:
    """Run a command. After so many seconds, end it and all processes that it has started, which use the GPU."""
    with subprocess.Popen(list(map(str, command)), start_new_session=True) as process:
        try:
            code = process.wait(seconds)
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            raise
    if code:
        raise subprocess.CalledProcessError(code, command)


def train(args: argparse.Namespace, budget: Budget, report: Report) -> None:
    """Train for the rest of the minutes, and write the result and the model."""
    recipe, batch = ("modern-tiny", 16) if args.tiny else ("modern-base", 256)
    minutes = math.floor((budget.left() - AFTER_TRAINING) / 6) / 10
    if minutes < (0.1 if args.tiny else 1):
        report.skip("training", f"{budget.left():.0f} s are left")
        return
    work = args.work or Path(tempfile.mkdtemp(prefix="gpu-"))
    result = work / "equal_minutes.json"
    command = [sys.executable, Path(__file__).with_name("equal_minutes.py"), args.shards, "--tasks", "--work", work]
    command += ["--out", result, "--recipes", recipe, "--minutes", minutes, "--batch-size", batch, "--workers", 2]
    try:
        subprocess.run(list(map(str, command)), check=True)
        run = next(work.glob(f"{recipe}-*"))
        found = json.loads(result.read_text())["runs"]
    except Exception as error:  # the measurements are written
        report.skip("training", short(error))
        return
    report.write("trained", training={"runs": found, "evaluations": read_metrics(run, "eval")})
    if args.carry:
        parts = weight_parts.split(run, args.carry)
        report.write(f"{args.carry} has {len(parts)} parts and parts.json", parts=parts)


def table(content: dict[str, Any]) -> str:
    """Return the results in Markdown."""
    head = "Recipe, length, tokens of a step | Lengths | Side | Tokens/s | Times bertie's time | Matrix rate | Step, ms"
    head += " | Host, ms | GPU, ms | Memory, GB | First step, s"
    lines = [f"| {head} |", "|---" * (head.count("|") + 1) + "|"]
    for name, case in content["cases"].items():
        for lengths in LENGTHS:
            for side, row in case[lengths].get("sides", {}).items():
                cells = [", ".join(name.rsplit("-", 2)), lengths, side if side == "bertie" else f"transformers, {side}"]
                if "error" in row:
                    cells += [row["error"].replace("|", "/")] + [""] * 7
                else:
                    first = case["compile_seconds"] if side == "bertie" else row["first_step_seconds"]
                    low, middle, high = row["times_bertie"]
                    cells += [f"{row['tokens_per_second'][1]:,.0f}", f"{middle:.2f} ({low:.2f}–{high:.2f})"]
                    cells += [f"{row['share_of_matrix_rate'][1]:.0%}", f"{row['step_ms'][1]:.1f}"]
                    cells += [f"{row['host_ms'][1]:.1f}", f"{row['gpu_ms']:.1f}" if row["gpu_ms"] else "–"]
                    cells += [f"{row['memory'] / 1e9:.1f}", f"{first:.1f}"]
                lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    with suppress(BrokenPipeError):
        main()
