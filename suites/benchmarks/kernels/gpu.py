"""Everything that needs a GPU, in one run of a quarter of an hour: conformance, then speed.

    python -m kvassay.suites.benchmarks.kernels.gpu --out DIR
    python -m kvassay.suites.benchmarks.kernels.gpu --out DIR --dry-run     (on a CPU, minutes)

The stages follow each other, each a process with a time limit; one that fails or runs out of time
is reported and the others go on. The exit status is 0 if all succeeded.

1. `suites`: the K suites on the compiled kernel, spread over processes, as compiling takes longest;
2. `again`: the same once more, from the compiler's cache: whatever is not the same every time;
3. `sanitizer`: a few checks under compute-sanitizer, where it is installed;
4. `tune`: stages, tiles and splits at decode;
5. `bench`: the table beside torch on contiguous memory, with records and chart.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PACKAGE = Path(__file__).parents[3]
IMPLEMENTATIONS = ("triton", "triton-batch-invariant")
REACH = "test_run.py"
"""Judges what all checks reached together, and so needs them in one process."""
BENCH = "kvassay.suites.benchmarks.kernels"


@dataclass(frozen=True)
class Stage:
    """Commands that run at the same time, and how long they may take together."""

    name: str
    commands: tuple[tuple[str, ...], ...]
    seconds: float


def pytest(*arguments: str) -> tuple[str, ...]:
    """A pytest command with the plugin, away from any configuration of the folder."""
    return (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments)


def suite_commands(workers: int, seconds: float, only: str) -> Iterator[tuple[str, ...]]:
    """The K suites, their tests dealt to so many processes."""
    suite = PACKAGE / "suites" / "attention"
    implementations = [part for name in IMPLEMENTATIONS for part in ("--impl", name)]
    listed = subprocess.run(
        [*pytest(str(suite), "--collect-only", "-k", only), *implementations],
        capture_output=True,
        text=True,
        check=True,
        cwd=PACKAGE,
    ).stdout.splitlines()
    tests = [each for each in listed if "::" in each and REACH not in each]
    if not tests:
        raise RuntimeError(f"no tests were collected in {suite}")
    for worker in range(min(workers, len(tests))):
        yield (*pytest(*tests[worker::workers], "--seconds", str(seconds)), *implementations)


def stages(out: Path, *, dry_run: bool) -> Iterator[Stage]:
    """What is done, in order."""
    only = "length_tomography" if dry_run else "k"
    workers = max(1, (os.cpu_count() or 2) - 2)
    suites = tuple(suite_commands(workers, 0.5 if dry_run else 3.0, only))
    yield Stage("suites", suites, 270)
    yield Stage("again", suites, 90)
    sanitizer = shutil.which("compute-sanitizer")
    if sanitizer is not None:
        check = pytest("suites/attention", "--impl", "triton", "--seconds", "0.5", "-k", "oracle")
        yield Stage("sanitizer", ((sanitizer, "--tool", "memcheck", *check),), 90)
    yield Stage("tune", (_module(f"{BENCH}.tune", out, 1 if dry_run else 3),), 120)
    yield Stage("bench", (_module(BENCH, out, 1 if dry_run else 3),), 200)


def _module(name: str, out: Path, seconds: float) -> tuple[str, ...]:
    return (sys.executable, "-m", name, "--out", str(out), "--seconds", str(seconds))


def run(stage: Stage, out: Path, environment: dict[str, str]) -> bool:
    """Run a stage, keep what it printed, and say whether all of it succeeded in time."""
    start = time.monotonic()
    logs = [out / f"{stage.name}-{number}.log" for number in range(len(stage.commands))]
    running = []
    for command, log in zip(stage.commands, logs, strict=True):
        with log.open("w", encoding="utf-8") as file:
            process = subprocess.Popen(
                command, cwd=PACKAGE, env=environment, stdout=file, stderr=subprocess.STDOUT
            )
        running.append(process)
    codes = [_wait(process, start + stage.seconds) for process in running]
    failed = [log for log, code in zip(logs, codes, strict=True) if code != 0]
    seconds = time.monotonic() - start
    print(f"{stage.name}: {len(codes) - len(failed)} of {len(codes)} passed, {seconds:.0f} s")
    for log in failed:
        lines = log.read_text(encoding="utf-8").splitlines()
        print(f"--- {log.name}, its last lines:", *lines[-15:], sep="\n", flush=True)
    return not failed


def _wait(process: subprocess.Popen[bytes], deadline: float) -> int:
    try:
        return process.wait(max(0.1, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait() or -1


def main() -> None:
    """From the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--out", type=Path, required=True, help="folder for logs and results")
    parser.add_argument("--dry-run", action="store_true", help="interpreted, with tiny shapes")
    options = parser.parse_args()
    out = options.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "TRITON_INTERPRET": "1" if options.dry_run else "0"}
    passed = [run(stage, out, environment) for stage in stages(out, dry_run=options.dry_run)]
    sys.exit(0 if all(passed) else 1)


if __name__ == "__main__":
    main()
