"""Managers in another process: judged like those in this one, and unable to take the run down."""

from __future__ import annotations

import ast
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from kvassay.harness import bridge, far, session
from kvassay.harness.campaign import ERROR, Budget, Campaign
from kvassay.harness.contract import CacheKey, ContractError, OutOfBlocks
from kvassay.harness.misuse import answers
from kvassay.harness.registry import Registration, UnknownImplementation, find
from kvassay.harness.scenario import Admit, Append, Commit, Fork, Release, Scenario
from kvassay.harness.session import explore, replay, without_inspection
from kvassay.harness.violation import Crash, Violation
from kvassay.impls.faulty.managers import FAULTS

pytest_plugins = ["pytester"]

HOUSE = Path(__file__).parents[2]
ADAPTER = HOUSE / "impls/bridge/kvassay_adapter.py"
TOY = HOUSE / "tests/bridge/toy.c"
HASHED = "kvassay.impls.faulty.hashed"
LIVE_AND_LEAVE = Scenario(3, 2, (Admit("a", CacheKey((1,))), Release("a")))
SCENARIO = Scenario(3, 2, (Admit("a", CacheKey((1,))), Append("a", (2,)), Release("a")))

SERVED = """
from kvassay_adapter import serve
from kvassay.harness.registry import find

(found,) = find({reference!r})
serve(found.factory, name="served", declaration=found.declaration, version="1.2")
"""
FAULTY = """
from kvassay_adapter import serve
from kvassay.impls.faulty.managers import FAULTS

fault = FAULTS[{name!r}]
serve(fault.build, name="served", declaration=fault.declaration)
"""
OWN = """
import os, signal, subprocess, sys, time
from kvassay_adapter import OutOfBlocks, serve

class Manager:
    def __init__(self, num_blocks, block_size):
        {build}
        self.num_blocks, self.block_size = num_blocks, block_size
        self.free, self.live = list(range(num_blocks)), {{}}

    def admit(self, request, key):
        self.live[request] = ([], [])
        try:
            self.grow(request, key.tokens)
        except OutOfBlocks:
            del self.live[request]
            raise
        return 0

    def grow(self, request, tokens):
        table, content = self.live[request]
        need = -(-(len(content) + len(tokens)) // self.block_size) - len(table)
        if need > len(self.free):
            raise OutOfBlocks()
        table.extend(self.free.pop() for _ in range(need))
        content.extend(tokens)

    def append(self, request, tokens):
        {append}
        self.grow(request, tokens)

    def block_table(self, request):
        return self.live[request][0]

    def release(self, request, outcome="finished"):
        self.free.extend(self.live.pop(request)[0])

    def counters(self):
        {counters}
        return {{"free": len(self.free), "cached": 0, "used": self.num_blocks - len(self.free)}}

serve(Manager, name="own", declaration={{"capabilities": {capabilities}}})
"""
RAW = """
import json, sys, time
for line in sys.stdin:
    message = json.loads(line)
    op, reply = message["op"], {{"id": message["id"]}}
    if op == "hello":
        {hello}
        reply.update(contract=1, name="raw", kind="CacheManager", declaration={{}})
        {hello_after}
    elif op == "new":
        reply.update(num_blocks=message["num_blocks"], block_size=message["block_size"])
    elif op == "admit":
        reply.update(result=0, tables={{message["args"][0]: [0]}})
    elif op == "append":
        {append}
    print(json.dumps(reply), flush=True)
"""

Write = Callable[..., Registration]


@pytest.fixture(autouse=True)
def processes(own_registry: None, tmp_path: Path) -> Iterator[None]:
    """The file to copy lies in the test's folder; every process is ended afterwards."""
    shutil.copy(ADAPTER, tmp_path)
    yield
    bridge.shut_down()


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write a far side and register it."""

    def written(source: str, **parts: Any) -> Registration:
        (tmp_path / "far.py").write_text(source.format(**parts))
        (registration,) = find("exec:" + shlex.join([sys.executable, str(tmp_path / "far.py")]))
        return registration

    return written


@pytest.fixture
def own(write: Write) -> Write:
    """A correct manager with something added to a method."""

    def written(**parts: Any) -> Registration:
        nothing = dict.fromkeys(("build", "append", "counters"), "pass")
        return write(OWN, **{**nothing, "capabilities": [], **parts})

    return written


@pytest.fixture
def raw(write: Write) -> Write:
    """A far side without the adapter, which prints what it likes."""

    def written(**parts: Any) -> Registration:
        return write(RAW, **{**dict.fromkeys(("hello", "hello_after", "append"), "pass"), **parts})

    return written


def goes_wrong(registration: Registration, text: str) -> None:
    """The append is an error, and the next instance works."""
    run = replay(registration, SCENARIO)
    assert isinstance(run.verdict, Crash), run.verdict
    assert (run.verdict.index, run.verdict.operation) == (1, SCENARIO.operations[1])
    assert re.search(text, str(run.verdict)), str(run.verdict)
    assert replay(registration, LIVE_AND_LEAVE).verdict is None


def served(write: Write, reference: str) -> Registration:
    """What the registry has here, in a process of its own."""
    return write(SERVED, reference=reference)


# ----------------------------------------------------------------------------------------- verdicts


@pytest.mark.parametrize("reference", [HASHED, "radix", "paged"])
def test_a_run_is_the_same_over_exec(write: Write, reference: str) -> None:
    there, (here,) = served(write, reference), find(reference)
    assert there.declaration == here.declaration
    assert (there.name, there.version, there.kind) == ("served", "1.2", here.kind)
    for seed in range(25):
        for focus in ("cow", "events"):
            one, other = (
                explore(entry, Random(seed), 6, 2, length=25, focus=focus)
                for entry in (there, here)
            )
            assert one == other
            assert one.verdict is None


def test_a_correct_manager_passes(write: Write) -> None:
    registration = served(write, HASHED)
    outcome = Campaign(registration, "cow", Budget(60)).run()
    assert outcome.findings == {}
    assert outcome.num_operations > 500


@pytest.mark.parametrize("blind", [False, True])
@pytest.mark.parametrize("name", ["copy-forgotten", "tail-leaked", "full-hit", "wrong-victim"])
def test_a_faulty_manager_is_convicted(write: Write, name: str, blind: bool) -> None:
    registration = write(FAULTY, name=name)
    if blind:
        declaration = without_inspection(registration.declaration)
        registration = replace(registration, declaration=declaration)
    runs = (explore(registration, Random(seed), 5, 2, length=40) for seed in range(80))
    verdict = next(run.verdict for run in runs if run.verdict is not None)
    assert isinstance(verdict, Violation)
    assert verdict.invariant in FAULTS[name].accepted


def test_wrong_calls_are_refused_on_the_far_side(write: Write) -> None:
    told = answers(served(write, "radix"))
    assert len(told) > 40
    assert [answer for answer in told if not answer.refused or answer.problem] == []


def test_errors_are_those_of_the_contract(own: Write) -> None:
    manager = own(append='raise {0: ValueError("odd"), 1: OutOfBlocks("of it")}[tokens[0]]').build(
        num_blocks=1, block_size=2
    )
    with pytest.raises(OutOfBlocks, match=r"^OOM: no block is free"):
        manager.admit("a", CacheKey((1, 2, 3)))
    manager.admit("a", CacheKey((1,)))
    with pytest.raises(ValueError, match=r"^odd$"):
        manager.append("a", [0])
    with pytest.raises(OutOfBlocks, match=r"^OOM: of it$"):
        manager.append("a", [1])
    with pytest.raises(KeyError, match=r"^'2'$"):
        manager.append("a", [2])
    with pytest.raises(KeyError, match="nobody"):
        manager.block_table("nobody")
    with pytest.raises(bridge.FarError, match=r"AttributeError: .*'commit'.*kvassay_adapter.py:"):
        manager.commit("a", 1)
    assert manager.block_table("a") == [0]


def test_a_shape_that_is_not_offered_is_the_factorys_right(own: Write) -> None:
    registration = own(build="if block_size == 3: raise ValueError('a power of two, not 3')")
    outcome = Campaign(registration, "allocator", Budget(40)).run()
    assert outcome.findings == {}
    assert {size for _, size in outcome.refused_geometries} == {3}


def test_a_method_that_is_declared_but_missing_is_named(own: Write) -> None:
    registration = own(capabilities=["commit"])
    with pytest.raises(ContractError, match=r"declared needs the method commit\(\)"):
        registration.build(num_blocks=1, block_size=1)


def test_an_instance_is_replaced_by_the_next(own: Write) -> None:
    registration = own()
    one, other = (registration.build(num_blocks=2, block_size=1) for _ in range(2))
    other.admit("a", CacheKey((1,)))
    with pytest.raises(bridge.BridgeError, match="admit: this instance was replaced"):
        one.admit("a", CacheKey((1,)))


# -------------------------------------------------------------------------------------- round trips


def test_a_checked_operation_is_one_round_trip(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    ask = far.Far.ask
    monkeypatch.setattr(
        far.Far, "ask", lambda self, op, rest: (asked.append(op), ask(self, op, rest))[1]
    )
    operations = (
        Admit("a", CacheKey((1, 2, 3))),
        Commit("a"),
        Fork("a", ("b", "c")),
        Append("a", (4,)),
        Append("b", (5,)),
        Release("a"),
        Release("b"),
    )
    registration = served(write, HASHED)
    assert replay(registration, Scenario(6, 2, operations)).verdict is None
    once = ["counters"]  # the harness looks for the first time, and all is shown from then on
    expected = ["hello", "new", "admit", *once, "commit", "fork", "append", "append"]
    assert asked == [*expected, "release", "release"]


def test_without_inspection_the_far_side_is_not_inspected_either(own: Write) -> None:
    sighted = own(counters="os._exit(5)", capabilities=["counters"])
    blind = replace(sighted, declaration=without_inspection(sighted.declaration))
    assert replay(blind, SCENARIO).verdict is None
    verdict = replay(sighted, SCENARIO).verdict
    assert "counters: expected an answer, but the process exited with status 5" in str(verdict)
    assert replay(blind, SCENARIO).verdict is None


def test_what_cannot_be_shown_is_asked_for_and_says_why(own: Write) -> None:
    registration = own(counters="if self.live: raise TypeError('lost')", capabilities=["counters"])
    verdict = replay(registration, SCENARIO).verdict
    assert re.search(r"TypeError: lost \(far.py:\d+\)", str(verdict))


# ------------------------------------------------------------------------------------ hostile sides


@pytest.mark.parametrize(
    ("append", "text"),
    [
        ("os.kill(os.getpid(), signal.SIGSEGV)", r"append: .*ended by signal 11 \(SIGSEGV\)"),
        ("os._exit(3)", "append: .*exited with status 3"),
        ("sys.exit('enough')", "append: .*exited with status 1; the last of its stderr: enough"),
        ("os.closerange(3, 99); time.sleep(99)", "append: .*the process closed its stdout"),
        ("raise ZeroDivisionError('of blocks')", r"ZeroDivisionError: of blocks \(far.py:"),
    ],
)
def test_a_process_that_ends_is_an_error_of_that_operation(
    own: Write, append: str, text: str
) -> None:
    goes_wrong(own(append=append), text)


def test_a_hang_is_ended(own: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bridge, "LIMIT", 1.5)
    monkeypatch.setattr(bridge, "LIMIT_AFTER_HANG", 0.9)
    registration = own(append="while True: pass")
    goes_wrong(registration, "append: no answer within 1.5 s: it hangs")
    goes_wrong(registration, "append: no answer within 0.9 s: it hangs")


def test_a_run_that_takes_too_long_ends_the_process(
    own: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    registration = own(append="time.sleep(99)")
    monkeypatch.setattr(session, "TIME_LIMIT", 0.5)
    goes_wrong(registration, "no answer within 0.5 s: it hangs")


def test_starting_anew_takes_no_time_from_the_run(
    own: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    registration = own(append="os._exit(1)", capabilities="time.sleep(0.6) or []")
    monkeypatch.setattr(session, "TIME_LIMIT", 0.5)
    goes_wrong(registration, "exited with status 1")


@pytest.mark.parametrize(
    ("append", "text"),
    [
        ("print('Loading...')", r"append.*: expected (one line|a JSON object), got .*Loading"),
        ("print('{\"id\": 1')", "expected (one line|a JSON object)"),
        ("print('[' * 100_000)", "expected (one line|a JSON object)"),
        ("sys.stdout.buffer.write(b'\\xff\\n')", "expected (one line|a JSON object)"),
        ("print([3])", "expected (one line|a JSON object)"),
        (
            "print('x' * 99_999, end=''); sys.exit(2)",
            "exited with status 2 and b'xxx.*xxx\\.\\.\\.",
        ),
        ("print('{', end='', flush=True); time.sleep(99)", "within 0.5 s, only b'{': it hangs"),
        ("print('x' * 999, end='', flush=True); time.sleep(99)", "got 999 bytes without an end"),
        ("reply['id'] += 1", "answers for the wrong request: expected id 3, got 4"),
        ("reply['id'] = None", "answers for the wrong request: expected id 3, got None"),
        ("reply['tables'] = [0]", r"tables: expected an object, got \[0\]"),
        ("reply['tables'] = {'a': 7}", r"block_table: expected \[block, ...\], got 7"),
        ("reply['error'] = 'no'", 'error: expected {"type": ..., "text": ...}, got \'no\''),
        ("reply['error'] = {'type': 'Panic', 'text': 'here'}", "Panic: here"),
    ],
)
def test_garbage_is_an_error_of_that_operation(
    raw: Write, monkeypatch: pytest.MonkeyPatch, append: str, text: str
) -> None:
    if "within" in text:
        monkeypatch.setattr(bridge, "LIMIT", 0.5)
    if "without an end" in text:
        monkeypatch.setattr(far, "LONGEST", 500)
    goes_wrong(raw(append=append), text)


@pytest.mark.parametrize(
    ("parts", "text"),
    [
        ({"hello_after": "reply['contract'] = 2"}, "expected contract version 1, got 2"),
        ({"hello_after": "reply['kind'] = 'Engine'"}, "expected kind 'CacheManager', got 'Engine'"),
        ({"hello_after": "reply['name'] = 'a b'"}, "name: expected a word .*, got 'a b'"),
        (
            {"hello_after": "reply['declaration'] = {'capabilities': ['teleport']}"},
            "unknown value 'teleport'; expected one of prefix_cache",
        ),
        (
            {"hello_after": "reply['declaration'] = {'capabilities': ['lock']}"},
            "a CacheManager has no capability lock",
        ),
        ({"hello_after": "reply['declaration'] = {'magic': 1}"}, "declaration: .*'magic'"),
        ({"hello_after": "reply['declaration'] = 7"}, "declaration: "),
        (
            {"hello_after": "reply['declaration'] = {'capabilities': ['groups']}"},
            "does not carry the capability groups",
        ),
        (
            {"hello_after": "reply['declaration'] = {'capabilities': ['attend']}"},
            "does not carry the capability attend",
        ),
        ({"hello": "sys.exit('no GPU')"}, "status 1; the last of its stderr: no GPU"),
        ({"hello": "time.sleep(99)"}, "no answer within 1 s"),
        ({"hello": "print('Welcome')"}, ": expected .*Welcome"),
    ],
)
def test_a_wrong_hello_is_an_error_of_every_run(
    raw: Write, monkeypatch: pytest.MonkeyPatch, parts: dict[str, str], text: str
) -> None:
    monkeypatch.setattr(bridge, "START_LIMIT", 1.0 if "sleep" in str(parts) else 20.0)
    registration = raw(**parts)
    assert registration.name == "far"
    verdict = replay(registration, SCENARIO).verdict
    assert isinstance(verdict, Crash)
    assert re.search(f"building it: BridgeError: hello.*{text}", str(verdict)), str(verdict)
    outcome = Campaign(registration, "allocator", Budget(5)).run()
    assert set(outcome.findings) == {ERROR}


def test_another_hello_after_a_restart_is_an_error(raw: Write) -> None:
    registration = raw(
        hello_after="import random; reply['version'] = random.random()", append="sys.exit()"
    )
    assert isinstance(replay(registration, SCENARIO).verdict, Crash)
    verdict = replay(registration, LIVE_AND_LEAVE).verdict
    assert re.search("building it: BridgeError: hello: expected .* again, got", str(verdict))


def test_printing_does_no_harm_with_the_adapter(own: Write) -> None:
    noise = "print('hi'); os.write(1, b'hi\\n'); subprocess.run(['echo', 'hi']); sys.stdin.read()"
    assert replay(own(append=noise), SCENARIO).verdict is None


def test_a_campaign_goes_on_after_every_crash(own: Write) -> None:
    registration = own(append="if tokens[0] % 3 == 0: os.abort()")
    outcome = Campaign(registration, "allocator", Budget(30)).run()
    assert set(outcome.findings) == {ERROR}
    assert outcome.examples > 5
    assert len(outcome.findings[ERROR].scenario.operations) == 2


def test_long_messages_pass(own: Write) -> None:
    manager = own().build(num_blocks=50_000, block_size=1)
    manager.admit("a", CacheKey(range(50_000)))
    assert sorted(manager.block_table("a")) == list(range(50_000))


# ------------------------------------------------------------------------------------- command line


def test_the_reference_survives_a_shell_and_finds_itself(own: Write, tmp_path: Path) -> None:
    registration = own()
    typed = shlex.split(f"--impl {registration.reference}")[1]
    assert find(typed)[0] is registration
    assert find(registration.reference)[0] is registration
    assert registration.origin == tmp_path / "far.py"


@pytest.mark.parametrize(
    ("command", "text"),
    [
        ("no-such-program x", "exec: cannot start 'no-such-program'"),
        ("", "expected a command"),
        ("'open", "No closing quotation"),
    ],
)
def test_what_cannot_be_started_is_a_usage_error(command: str, text: str) -> None:
    with pytest.raises(UnknownImplementation, match=text):
        find(f"exec:{command}")


def test_two_commands_of_one_name_are_refused(own: Write, tmp_path: Path) -> None:
    own()
    shutil.copy(tmp_path / "far.py", tmp_path / "other.py")
    with pytest.raises(ContractError, match=r"'own' is taken by exec:.*far.py.*must choose"):
        find("exec:" + shlex.join([sys.executable, str(tmp_path / "other.py")]))


def test_a_crash_fails_its_own_tests_and_leaves_the_others_alone(
    pytester: pytest.Pytester, own: Write, tmp_path: Path
) -> None:
    registration = own(append="os.kill(os.getpid(), signal.SIGSEGV)")
    pytester.makeini("[pytest]")
    result = pytester.runpytest_subprocess(
        *("-c", "tox.ini", "-p", "kvassay.harness.plugin", "--import-mode=importlib"),
        *("--pyargs", "kvassay.suites.allocator", "--examples=20", "--impl=paged"),
        "--impl=" + shlex.split(registration.reference)[0],
        timeout=60,
    )
    table = result.stdout.str().partition("kvassay verdicts")[2]
    header = re.search(r"^\S+ .*own.*$", table, re.M)
    assert header is not None
    names = [cell.strip() for cell in re.split("[│┃]", header[0])]
    rows = [line.split("│") for line in re.findall(r"^A\d .*$", table, re.M)]
    columns = {name: {row[at].strip() for row in rows} for at, name in enumerate(names)}
    assert (columns["own"], columns["paged"]) == ({"error"}, {"pass"})
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    told = re.findall(r"^replay: +(kvassay replay .*)$", result.stdout.str(), re.M)
    command = shlex.split(told[-1])
    command[0] = str(Path(sys.executable).with_name("kvassay"))
    again = subprocess.run(command, cwd=pytester.path, capture_output=True, text=True, check=False)
    assert again.returncode == 1
    assert "SIGSEGV" in again.stdout


# --------------------------------------------------------------------------------------- processes


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def test_processes_are_ended_and_collected(own: Write) -> None:
    registration = own(append="signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(99)")
    (process,) = far._running
    pid = process._process.pid
    registration.build(num_blocks=1, block_size=1)
    assert not gone(pid)
    bridge.shut_down()
    assert gone(pid)
    assert not far._running
    registration.build(num_blocks=1, block_size=1)
    (again,) = far._running
    os.kill(again._process.pid, signal.SIGKILL)
    verdict = replay(registration, SCENARIO).verdict
    assert "new: expected an answer, but the process was ended by signal 9" in str(verdict)
    assert gone(again._process.pid)


LONELY = """
import sys
from random import Random
from kvassay.harness import far
from kvassay.harness.registry import find
from kvassay.harness.session import explore

(found,) = find(sys.argv[1])
for seed in range(3):
    assert explore(found, Random(seed), 6, 2, length=20).verdict is None
print(*[process._process.pid for process in far._running])
print(*{"torch", "triton"} & set(sys.modules))
"""


def test_checking_imports_neither_torch_nor_triton_and_leaves_no_process(
    own: Write, tmp_path: Path
) -> None:
    reference = shlex.split(own().reference)[0]
    for module in ("torch", "triton"):  # importable, so that a try would show
        (tmp_path / f"{module}.py").touch()
    run = subprocess.run(
        [sys.executable, "-c", LONELY, reference],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (run.returncode, run.stderr) == (0, "")
    pid, imported = run.stdout.splitlines()
    assert imported == ""
    assert gone(int(pid))


def test_the_file_to_copy_needs_the_standard_library_of_an_old_python_alone() -> None:
    tree = ast.parse(ADAPTER.read_text(), feature_version=(3, 8))
    imported = {
        alias.name if isinstance(node, ast.Import) else node.module
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }
    assert imported <= sys.stdlib_module_names


# ---------------------------------------------------------------------------------------- in C


def compiled(folder: Path, *options: str) -> Registration:
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("no C compiler here: neither cc nor gcc nor clang is on the path")
    target = folder / "toy"
    command = [compiler, "-std=c11", "-O1", "-Wall", "-Wextra", *options, "-o", str(target)]
    subprocess.run([*command, str(TOY)], check=True, timeout=60)
    return find(f"exec:{shlex.quote(str(target))}")[0]


def test_a_toy_in_c_passes(tmp_path: Path) -> None:
    toy = compiled(tmp_path)
    assert toy.name == "toy-c"
    outcome = Campaign(toy, "allocator", Budget(150)).run()
    assert outcome.findings == {}
    assert outcome.num_operations > 3000


def test_the_toy_that_leaks_is_convicted(tmp_path: Path) -> None:
    outcome = Campaign(compiled(tmp_path, "-DLEAK"), "allocator", Budget(60)).run()
    assert outcome.findings
    assert set(outcome.findings) <= {"A4", "A5"}
