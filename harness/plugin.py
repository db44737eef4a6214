"""The pytest plugin: options, the `assay` fixture, and the verdict table in the summary.

One suite's campaign against one implementation runs once, in whichever worker gets its first
test (the tests of one campaign are kept together under pytest-xdist); the tests of the suite
then read their verdicts off it. Loaded by the project's own configuration or with
``-p kvassay.harness.plugin``.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kvassay.harness import options
from kvassay.harness.assay import Assay, AssayError, Plan
from kvassay.harness.contract import CacheManager, PagedAttention
from kvassay.harness.pairs.pairing import pairing
from kvassay.harness.registry import Registration, built_in_names, find
from kvassay.harness.summary import PROPERTY, Summary

if TYPE_CHECKING:
    from kvassay.harness.attention.assay import KernelAssay
    from kvassay.harness.pairs.assay import PairAssay


def pytest_addoption(parser: pytest.Parser) -> None:
    options.add(parser)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        "suite(name, kind=CacheManager): whose campaign the tests read, and what it assays",
    )
    config.pluginmanager.register(Summary(config), "kvassay-summary")


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    """A wrong option is a usage error, said once, before anything is collected."""
    Plan.from_options(session.config)
    if session.config.getoption("impl"):
        implementations(session.config)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    if config.getoption("dist") != "load":
        return None
    from kvassay.harness import scheduling

    return scheduling.make(config, log)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if PAIRED in metafunc.fixturenames:
        _each_pair(metafunc)
    if "assay" not in metafunc.fixturenames:
        return
    marker = metafunc.definition.get_closest_marker("suite")
    if marker is None:
        raise pytest.UsageError(f"{metafunc.definition.nodeid}: a test that assays needs a suite")
    suite, kind = marker.args[0], marker.kwargs.get("kind", CacheManager)
    fitting = [
        pytest.param((registration, suite), id=registration.name)
        for registration in implementations(metafunc.config)
        if registration.kind is kind
    ]
    metafunc.parametrize("assay", fitting or [pytest.param(kind, id="none")], indirect=True)


def _each_pair(metafunc: pytest.Metafunc) -> None:
    """Managers and kernels, each with each; see `harness.pairs.pairing`."""
    pairs = pairing(implementations(metafunc.config)).pairs
    fitting = [pytest.param(pair, id="+".join(half.name for half in pair)) for pair in pairs]
    metafunc.parametrize(PAIRED, fitting or [pytest.param(CacheManager, id="none")], indirect=True)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the suites that assay another kind; it is a mistake if none is left."""
    assaying = {
        item: params[name]
        for item in items
        for name in FIXTURES
        if name in (params := _params(item))
    }
    left_out = {item: kind for item, kind in assaying.items() if isinstance(kind, type)}
    asked = implementations(config)
    supplied = pairing(asked).supplied
    if supplied and any("assay" in _params(i) for i in assaying.keys() - left_out):
        # Pairs with what nobody named are for those who ask for pairs alone.
        left_out |= {i: CacheManager for i in assaying if _params(i).get(PAIRED) in supplied}
    if not left_out:
        return
    if asked and len(left_out) == len(assaying):
        found = ", ".join(f"{entry.name} is a {entry.kind.__name__}" for entry in asked)
        kinds = ", ".join(sorted({kind.__name__ for kind in left_out.values()}))
        told = f"nothing to assay: {found}; the suites here are for {kinds}"
        _mistaken(config, "; ".join(filter(None, (told, pairing(asked).note))))
    items[:] = [item for item in items if item not in left_out]
    config.hook.pytest_deselected(items=list(left_out))


def _mistaken(config: pytest.Config, message: str) -> None:
    """A usage error, told by the process that the user sees."""
    if not hasattr(config, "workeroutput"):
        raise pytest.UsageError(message)
    config.workeroutput[MISTAKE] = message


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """What a worker of pytest-xdist found to be a mistake is one of the whole run."""
    message = getattr(node, "workeroutput", {}).get(MISTAKE)
    if message is not None:
        node.config.stash[MISTAKEN] = message


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    message = session.config.stash.get(MISTAKEN, None)
    if message is not None:
        raise pytest.UsageError(message)


def _params(item: pytest.Item) -> dict[str, Any]:
    callspec = getattr(item, "callspec", None)
    return {} if callspec is None else callspec.params


PAIRED = "pair_assay"
FIXTURES = ("assay", PAIRED)
"""Those that stand for a campaign."""
MISTAKE = "kvassay mistake"
MISTAKEN = pytest.StashKey[str]()
CHOSEN = pytest.StashKey[list[Registration]]()
RUNNING = pytest.StashKey["dict[tuple[type, str, str], Assay | KernelAssay]"]()
PAIRS = pytest.StashKey["dict[tuple[str, str], PairAssay]"]()


def asked_for(folder: Path, config: pytest.Config) -> bool:
    """Whether the command line names something in a folder of suites, by path or as a package."""
    places = [argument.partition("::")[0] for argument in config.args]
    return any(
        place.endswith(f".{folder.name}")
        or folder in (Path(place).resolve(), *Path(place).resolve().parents)
        for place in places
    )


def implementations(config: pytest.Config) -> list[Registration]:
    """What ``--impl`` names, or the built-ins."""
    if CHOSEN not in config.stash:
        config.stash[CHOSEN] = _resolve(config.getoption("impl") or built_in_names())
    return config.stash[CHOSEN]


def _resolve(references: list[str]) -> list[Registration]:
    found: dict[tuple[type, str], Registration] = {}
    for reference in references:
        try:
            registrations = find(reference)
        except Exception as error:
            raise pytest.UsageError(f"--impl {reference}: {error}") from error
        for registration in registrations:
            if not registration.available:
                raise pytest.UsageError(f"--impl {reference}: {registration.wanted}")
            found[registration.kind, registration.name] = registration
    return list(found.values())


@pytest.fixture(scope="session")
def assay(request: pytest.FixtureRequest) -> Assay | KernelAssay:
    """The campaign of this suite against this implementation (run at its first use)."""
    registration, suite = request.param
    running = request.config.stash.setdefault(RUNNING, {})
    key = (registration.kind, registration.name, suite)
    if key not in running:
        plan = Plan.from_options(request.config)
        try:
            running[key] = _begin(registration, suite, plan)
        except AssayError as error:
            pytest.fail(str(error), pytrace=False)
    return running[key]


def _begin(registration: Registration, suite: str, plan: Plan) -> Assay | KernelAssay:
    """Kernels are assayed check by check; only they need torch."""
    if registration.kind is not PagedAttention:
        return Assay(registration, suite, plan)
    from kvassay.harness.attention.assay import KernelAssay

    return KernelAssay(registration, suite, plan)


@pytest.fixture(scope="session")
def pair_assay(request: pytest.FixtureRequest) -> PairAssay:
    """The campaign of this manager with this kernel (run at its first use)."""
    from kvassay.harness.pairs.assay import PairAssay

    manager, kernel = request.param
    running = request.config.stash.setdefault(PAIRS, {})
    key = (manager.name, kernel.name)
    if key not in running:
        try:
            running[key] = PairAssay(manager, kernel, Plan.from_options(request.config))
        except AssayError as error:
            pytest.fail(str(error), pytrace=False)
    return running[key]


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[Any]) -> Any:
    """Hand the verdicts of a test to the terminal, across processes."""
    report = (yield).get_result()
    given = getattr(item, "funcargs", {})
    for running in filter(None, map(given.get, FIXTURES)):
        if call.when == "call" and hasattr(running, "take_news"):
            report.user_properties += [(PROPERTY, news) for news in running.take_news()]


def pytest_report_collectionfinish(config: pytest.Config, items: list[pytest.Item]) -> list[str]:
    asked = {name for item in items for name in getattr(item, "fixturenames", ())} & {*FIXTURES}
    if not asked:
        return []
    chosen = implementations(config)
    names = {registration.name: None for registration in chosen}
    note = pairing(chosen).note if PAIRED in asked else ""
    told = f"kvassay: assaying {', '.join(names)} ({config.getoption('assay_mode')})"
    return [told, *([f"kvassay: {note}"] if note else [])]
