"""Finding implementations, and what the registry says when there is none or it is wrong."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

from kvassay.harness import registry
from kvassay.harness.contract import (
    CacheManager,
    Capability,
    ContractError,
    Declaration,
    PagedAttention,
    PrefixIndex,
)
from kvassay.harness.registry import (
    Registration,
    Unavailable,
    UnknownImplementation,
    find,
    implementation,
)

SOURCE = """
from kvassay.harness.contract import CacheManager
from kvassay.harness.registry import implementation

@implementation({name!r}, kind=CacheManager)
class Cache:
    def __init__(self, num_blocks, block_size): ...
    def admit(self, request, key): ...
    def append(self, request, tokens): ...
    def block_table(self, request): ...
    def release(self, request, outcome=None): ...
"""


pytestmark = pytest.mark.usefixtures("own_registry")


class Cache:
    """The required methods and nothing else."""

    def __init__(self, num_blocks: int, block_size: int) -> None: ...
    def admit(self, request: str, key: object) -> int: ...
    def append(self, request: str, tokens: object) -> None: ...
    def block_table(self, request: str) -> list[int]: ...
    def release(self, request: str, outcome: object = None) -> None: ...


def write(folder: Path, name: str, file: str = "own_cache.py") -> Path:
    path = folder / file
    path.write_text(SOURCE.format(name=name))
    return path


# --------------------------------------------------------------------------------------- finding


def test_a_name_stays_a_name_when_its_module_was_asked_for() -> None:
    (by_module,) = find("kvassay.impls.radix")
    assert by_module.reference == "kvassay.impls.radix"
    (by_name,) = find("radix")
    assert by_name.reference == "radix"


@pytest.mark.parametrize("name", ["paged", "radix", "vllm"])
def test_finds_an_entry_point_by_name(name: str) -> None:
    (found,) = find(name)
    assert (found.name, found.reference, found.kind) == (name, name, CacheManager)


def test_built_ins_are_the_entry_points_that_adapt_no_engine() -> None:
    contiguous = ["contiguous", "contiguous-oracle", "contiguous-pow2"]
    assert registry.built_in_names() == [*contiguous, "paged", "radix", "radix-index", "torch"]


def test_finds_what_a_file_registers(tmp_path: Path) -> None:
    path = write(tmp_path, "own")
    (found,) = find(str(path))
    assert (found.name, found.origin, found.reference) == ("own", path.resolve(), str(path))
    assert find(str(path)) == [found]
    assert find("own") == [found]
    assert type(found.build(num_blocks=1, block_size=1)).__name__ == "Cache"


def test_finds_what_a_module_registers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, "own")
    monkeypatch.syspath_prepend(tmp_path)
    (found,) = find("own_cache")
    assert (found.name, found.reference) == ("own", "own_cache")
    (again,) = find("own_cache")
    assert again == found


@pytest.mark.parametrize(
    ("reference", "says"),
    [
        ("pagde", r"no implementation 'pagde': expected a known name \(.*paged.*radix"),
        ("./no_such_file.py", r"no file './no_such_file.py' \(looked for /"),
        ("no_such_package.cache", "no module 'no_such_package.cache'"),
        ("kvassay.no_such_module", "no module 'kvassay.no_such_module'"),
        ("kvassay.harness.contract", "'kvassay.harness.contract' registers nothing: decorate"),
    ],
)
def test_what_leads_nowhere_is_said(reference: str, says: str) -> None:
    with pytest.raises(UnknownImplementation, match=says):
        find(reference)


def test_a_file_that_registers_nothing_is_told_how(tmp_path: Path) -> None:
    path = tmp_path / "empty.py"
    path.write_text("x = 1\n")
    with pytest.raises(UnknownImplementation, match="registers nothing: decorate a class"):
        find(str(path))


def test_an_error_inside_a_file_is_shown_and_the_file_can_be_tried_again(tmp_path: Path) -> None:
    path = tmp_path / "own_cache.py"
    path.write_text("import no_such_dependency\n")
    with pytest.raises(ModuleNotFoundError, match="no_such_dependency"):
        find(str(path))
    write(tmp_path, "own")
    assert [found.name for found in find(str(path))] == ["own"]


def test_a_dependency_that_a_module_lacks_is_not_mistaken_for_the_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_cache.py").write_text("import no_such_dependency\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="no_such_dependency"):
        find("own_cache")


# ----------------------------------------------------------------------------------- registering


def test_a_name_is_taken_once_but_a_source_may_register_again(tmp_path: Path) -> None:
    one, other = write(tmp_path, "own", "one.py"), write(tmp_path, "own", "other.py")
    find(str(one))
    with pytest.raises(ContractError, match=r"'own' is taken by .*one.py; .*other.py must choose"):
        find(str(other))
    assert find(str(one))[0].origin == one
    implementation("mine", kind=CacheManager)(Cache)
    assert find("mine")[0].origin == Path(__file__).resolve()


def test_a_file_that_is_loaded_again_may_register_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path, "own")
    (by_path,) = find(str(path))
    monkeypatch.syspath_prepend(tmp_path)
    (by_module,) = find("own_cache")
    assert by_module.factory is not by_path.factory
    importlib.reload(sys.modules["own_cache"])
    assert find("own")[0].factory is not by_module.factory


def test_a_name_stands_once_in_a_file(tmp_path: Path) -> None:
    path = write(tmp_path, "own")
    once = path.read_text()
    path.write_text(once + once.replace("CacheManager", "PrefixIndex"))
    assert [entry.kind for entry in find(str(path))] == [CacheManager, PrefixIndex]
    twice = tmp_path / "twice.py"
    twice.write_text(once.replace("own", "again") * 2)
    with pytest.raises(ContractError, match=r"'again' is given twice in .*twice.py: expected one"):
        find(str(twice))


KERNEL = """
from kvassay.harness.contract import PagedAttention

@implementation({name!r}, kind=PagedAttention)
class Kernel:
    def __call__(self, batch): ...
"""


def test_a_name_may_stand_for_one_implementation_of_each_kind(tmp_path: Path) -> None:
    path = write(tmp_path, "own")
    path.write_text(SOURCE.format(name="own") + KERNEL.format(name="own"))
    for reference in (str(path), "own"):
        assert [found.kind for found in find(reference)] == [CacheManager, PagedAttention]
        assert {(found.name, found.reference) for found in find(reference)} == {("own", str(path))}
    assert type(find("own")[1].build()).__name__ == "Kernel"
    with pytest.raises(ContractError, match=r"'own' is taken by .*own_cache.py; .*test_registry"):
        implementation("own", kind=PagedAttention)(Cache)
    implementation("own", kind=PrefixIndex)(Cache)
    assert len(find("own")) == 3


def test_the_contiguous_baseline_is_a_manager_and_a_kernel() -> None:
    assert {found.kind for found in find("contiguous")} == {CacheManager, PagedAttention}
    assert [found.kind for found in find("contiguous-pow2")] == [CacheManager]
    assert [found.kind for found in find("torch")] == [PagedAttention]


@pytest.mark.parametrize("name", ["", "a b", "a/b", "a[1]", "a:b", "a\\b"])
def test_a_name_is_one_word(name: str) -> None:
    with pytest.raises(ContractError, match="name: expected a word"):
        implementation(name, kind=CacheManager)(Cache)
    assert implementation("a-b.c", kind=CacheManager)(Cache) is Cache


def test_an_unknown_kind_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ContractError, match=r"unknown kind <class 'dict'>; .*CacheManager"):
        implementation("mine", kind=dict)(Cache)


def test_an_unknown_capability_is_refused() -> None:
    with pytest.raises(ContractError, match="unknown value 'teleport'"):
        implementation("mine", kind=CacheManager, declaration=Declaration(["teleport"]))(Cache)


def test_a_capability_of_another_kind_is_refused() -> None:
    locks = Declaration(["lock", "evict"])
    with pytest.raises(ContractError, match=r"mine: a CacheManager has no capability lock$"):
        implementation("mine", kind=CacheManager, declaration=locks)(Cache)
    implementation("index", kind=PrefixIndex, declaration=locks)(Cache)
    assert find("index")[0].declaration.has(Capability.LOCK)


@pytest.mark.parametrize("method", ["admit", "append", "block_table", "release"])
def test_a_missing_required_method_is_named(method: str) -> None:
    whole = Registration("mine", CacheManager, Cache, Declaration())
    assert isinstance(whole.build(num_blocks=1, block_size=1), Cache)
    lacking = type("Lacking", (Cache,), {method: None})
    broken = Registration("mine", CacheManager, lacking, Declaration())
    with pytest.raises(ContractError, match=rf"a CacheManager needs the method {method}\(\)"):
        broken.build(num_blocks=1, block_size=1)


def test_a_method_that_a_declared_capability_needs_is_named() -> None:
    declared = Registration("mine", CacheManager, Cache, Declaration(["chunked"]))
    with pytest.raises(ContractError, match=r"mine declares CHUNKED, which needs .* begin\(\)"):
        declared.build(num_blocks=1, block_size=1)


def test_what_is_not_installed_says_how_to_install_it() -> None:
    package, install = ("no-such-package", "nor-this"), "pip install no-such-package"
    implementation("mine", kind=CacheManager, package=package, install=install)(Cache)
    implementation("bare", kind=CacheManager, package="no-such-package")(Cache)
    implementation("there", kind=CacheManager, package=("no-such-package", "pytest"))(Cache)
    (mine,), (bare,), (there,) = find("mine"), find("bare"), find("there")
    assert (mine.available, mine.version) == (False, "not installed")
    for lacking in (mine, bare):
        with pytest.raises(Unavailable, match=r"no-such-package.*pip install no-such-package"):
            lacking.build(num_blocks=1, block_size=1)
    assert (there.available, there.version) == (True, pytest.__version__)
    assert isinstance(there.build(num_blocks=1, block_size=1), Cache)
