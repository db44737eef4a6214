"""The house: imports point one way, everything comes from one root, rooms are described."""

from __future__ import annotations

import ast
import importlib
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

HOUSE = Path(__file__).parents[1]
FOLDERS = ("harness", "reference", "impls", "suites", "results")
LONGEST = 500
ONE_IDEA = ("harness/contract.py",)
"""The contract is one text, whatever its length."""
MODULES = sorted(
    path.relative_to(HOUSE) for folder in FOLDERS for path in (HOUSE / folder).rglob("*.py")
)


def imported(tree: ast.AST, *, everywhere: bool) -> Iterator[str]:
    """Modules of the project that are imported; inside functions only if `everywhere`.

    What is imported for type checkers alone counts too: it is a dependency in a reader's head.
    """
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.startswith("kvassay"))
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, "imports are absolute"
            if (node.module or "").startswith("kvassay"):
                yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif everywhere or not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from imported(node, everywhere=everywhere)


def within(name: str, rooms: tuple[str, ...]) -> bool:
    return any(name == room or name.startswith(f"{room}.") for room in rooms)


def strays(module: Path, rooms: tuple[str, ...]) -> list[str]:
    tree = ast.parse((HOUSE / module).read_text())
    return [name for name in imported(tree, everywhere=True) if not within(name, rooms)]


def of(folder: str, *without: str) -> list[Path]:
    return [
        module
        for module in MODULES
        if module.parts[0] == folder and not (set(without) & set(module.parts))
    ]


def test_the_way_to_see_imports_sees_them() -> None:
    source = "import kvassay.a\nfrom kvassay.b import c\nif x:\n    import kvassay.d\n"
    source += "def f():\n    from kvassay.e import g\nimport json\n"
    tree = ast.parse(source)
    assert list(imported(tree, everywhere=False)) == ["kvassay.a", "kvassay.b.c", "kvassay.d"]
    assert "kvassay.e.g" in imported(tree, everywhere=True)
    assert within("kvassay.a.b", ("kvassay.a",))
    assert not within("kvassay.ab", ("kvassay.a",))
    assert len(MODULES) > 50


def test_the_contract_stands_on_the_ground() -> None:
    assert strays(Path("harness/contract.py"), ()) == []


@pytest.mark.parametrize("module", of("reference"), ids=str)
def test_the_reference_knows_the_contract_and_itself(module: Path) -> None:
    assert strays(module, ("kvassay.harness.contract", "kvassay.reference")) == []


@pytest.mark.parametrize("module", of("impls", "faulty", "engines"), ids=str)
def test_built_ins_know_contract_registry_interpreter_and_each_other(module: Path) -> None:
    rooms = ("contract", "registry", "interpreter")
    assert strays(module, (*(f"kvassay.harness.{room}" for room in rooms), "kvassay.impls")) == []
    assert not any(
        within(name, ("kvassay.impls.faulty", "kvassay.impls.engines"))
        for name in imported(ast.parse((HOUSE / module).read_text()), everywhere=True)
    )


@pytest.mark.parametrize("module", of("harness"), ids=str)
def test_the_harness_never_imports_what_it_tests(module: Path) -> None:
    rooms = ("kvassay.impls", "kvassay.suites")
    names = imported(ast.parse((HOUSE / module).read_text()), everywhere=False)
    assert [name for name in names if within(name, rooms)] == []


@pytest.mark.parametrize("module", of("suites", "benchmarks"), ids=str)
def test_suites_know_no_implementation(module: Path) -> None:
    assert strays(module, ("kvassay.harness", "kvassay.suites")) == []


def test_all_parts_come_from_one_root() -> None:
    for folder in ("", *FOLDERS):
        package = importlib.import_module(f"kvassay.{folder}".rstrip("."))
        assert Path(package.__file__ or "").parent == HOUSE / folder


@pytest.mark.parametrize("folder", ["", *FOLDERS])
def test_every_folder_of_the_house_is_described(folder: str) -> None:
    readme = HOUSE / folder / "README.md"
    assert readme.is_file()
    assert readme.read_text().startswith("# ")


def test_no_module_is_longer_than_one_idea() -> None:
    lengths = {str(module): len((HOUSE / module).read_text().splitlines()) for module in MODULES}
    long = {module for module, length in lengths.items() if length > LONGEST}
    assert long == set(ONE_IDEA)


def test_every_package_is_in_the_wheel() -> None:
    listed = tomllib.loads((HOUSE / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    found = {
        ".".join(("kvassay", *path.parent.relative_to(HOUSE).parts))
        for folder in FOLDERS
        for path in (HOUSE / folder).rglob("__init__.py")
    }
    assert set(listed) == found | {"kvassay"}
