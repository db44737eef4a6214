"""Which implementations exist: by name, file, module or entry point.

Registering stores a factory and its declaration and checks both against the contract; nothing of
the implementation runs until it is built. The harness asks here and never imports an
implementation itself: built-ins come through the same entry-point group as third parties.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.metadata
import importlib.util
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from kvassay.harness.contract import (
    ATTRIBUTES,
    CAPABILITY_METHODS,
    METHODS,
    ContractError,
    Declaration,
)
from kvassay.harness.program import Program

ENTRY_POINT_GROUP = "kvassay.implementations"

Factory = TypeVar("Factory", bound=Callable[..., Any])


APART = (
    "kvassay.impls.engines.",
    "kvassay.impls.faulty.",
    "kvassay.impls.textbook",
    "kvassay.impls.interpreted",
)
"""What kvassay brings along but does not assay by default: engines, faults, the exercise, kernels
that take minutes."""


class Unavailable(RuntimeError):
    """An implementation whose package is not installed here; says how to install it."""


class UnknownImplementation(LookupError):
    """A name, file or module that leads to no registration; says what exists."""


@dataclass(frozen=True)
class Registration:
    """One implementation as it registered itself."""

    name: str
    kind: type
    factory: Callable[..., Any]
    declaration: Declaration
    packages: tuple[str, ...] = ()
    """Distributions of which it needs one (builds go by several names); its version is shown."""
    install: str | None = None
    """Command that installs what it needs."""
    program: Program | None = None
    """Executable that it needs besides, whose version is then shown."""
    reference: str = ""
    """What to pass to ``--impl`` to find it again: the name, a file or a module."""
    origin: Path | None = None
    """Source file of the registering module; deviations are looked for beside it."""
    execution: object = field(default=None, compare=False, repr=False)
    """Which execution of that file registered it: a file that is loaded again registers again."""

    @property
    def version(self) -> str:
        """Version of the program or package that it adapts; kvassay's own for built-ins."""
        if self.program is not None:
            return self.program.version
        return self._package_version

    @property
    def _package_version(self) -> str:
        for package in self.packages or ("kvassay",):
            try:
                return importlib.metadata.version(package)
            except importlib.metadata.PackageNotFoundError:
                continue
        return "not installed" if self.packages else "unversioned"

    @property
    def available(self) -> bool:
        """Whether the package and the program that it adapts are there."""
        if self.program is not None and self.program.path is None:
            return False
        return not self.packages or self._package_version != "not installed"

    @property
    def wanted(self) -> str:
        """What is missing and how to get it, for a message."""
        hint = self.install or f"pip install {self.packages[0] if self.packages else ''}"
        needs = [" or ".join(self.packages)] if self.packages else []
        needs += [self.program.wanted] if self.program is not None else []
        return f"{self.name} needs {' and '.join(needs)}; install it with: {hint}"

    def build(self, **arguments: Any) -> Any:
        """A new instance, checked for the methods that its declaration needs.

        Raises `Unavailable` if its package is missing, `ContractError` if a method is.
        """
        if not self.available:
            raise Unavailable(self.wanted)
        instance = self.factory(**arguments)
        check_methods(instance, self)
        return instance


_registered: dict[tuple[type, str], Registration] = {}
"""By kind and name: a manager and a kernel that belong together may share a name."""


def implementation(
    name: str,
    *,
    kind: type,
    declaration: Declaration | None = None,
    package: str | tuple[str, ...] = (),
    install: str | None = None,
    program: Program | None = None,
) -> Callable[[Factory], Factory]:
    """Register a class or factory under `name`.

    A CacheManager factory is called with the keywords ``num_blocks, block_size``, and ``groups``
    where it claims GROUPS, a PrefixIndex with ``capacity, page_size``, a PagedAttention and an
    Engine with none. Raises `ContractError` for an unknown kind, a capability the kind does not
    have, or a name that is taken by another implementation of the kind, in another file or the
    same.
    """

    caller = sys._getframe(1)
    origin = Path(caller.f_code.co_filename).resolve()
    execution = caller.f_globals.get("__spec__") or caller.f_globals

    def register(factory: Factory) -> Factory:
        declared = declaration if declaration is not None else Declaration()
        add(
            Registration(
                name=name,
                kind=kind,
                factory=factory,
                declaration=declared,
                packages=(package,) if isinstance(package, str) else package,
                install=install,
                program=program,
                reference=name,
                origin=origin,
                execution=execution,
            )
        )
        return factory

    return register


def add(registration: Registration) -> None:
    """Enter a registration, checking name, kind and declaration."""
    _check_registration(registration)
    key = (registration.kind, registration.name)
    known = _registered.get(key)
    if known is not None and not _same_source(known, registration):
        raise ContractError(
            f"the name {registration.name!r} is taken by {known.origin}; "
            f"{registration.origin} must choose another"
        )
    if known is not None and known.execution is registration.execution is not None:
        raise ContractError(
            f"the name {registration.name!r} is given twice in {registration.origin}: "
            f"expected one {registration.kind.__name__} of that name"
        )
    _registered[key] = registration


def _same_source(one: Registration, other: Registration) -> bool:
    return one.origin is not None and one.origin == other.origin


def _check_registration(registration: Registration) -> None:
    name, kind = registration.name, registration.kind
    if not name or not isinstance(name, str) or any(c in name for c in "/\\:[] "):
        raise ContractError(f"name: expected a word without / \\ : [ ] or blanks, got {name!r}")
    if kind not in METHODS:
        known = ", ".join(k.__name__ for k in METHODS)
        raise ContractError(f"{name}: unknown kind {kind!r}; expected one of {known}")
    foreign = registration.declaration.capabilities - set(CAPABILITY_METHODS[kind])
    if foreign:
        listed = ", ".join(sorted(foreign))
        raise ContractError(f"{name}: a {kind.__name__} has no capability {listed}")


def check_attributes(instance: Any, registration: Registration) -> None:
    """Raise `ContractError` naming the first attribute that the kind asks for in vain."""
    kind = registration.kind
    for attribute in ATTRIBUTES.get(kind, ()):
        value = getattr(instance, attribute, None)
        if not isinstance(value, int) or value < 1:
            raise ContractError(
                f"{registration.name}: a {kind.__name__} needs the attribute {attribute}, "
                f"an int of at least 1; got {value!r}"
            )


def check_methods(instance: Any, registration: Registration) -> None:
    """Raise `ContractError` naming the first method that kind or declaration ask for in vain."""
    name, kind = registration.name, registration.kind
    for method in METHODS[kind]:
        if not callable(getattr(instance, method, None)):
            raise ContractError(f"{name}: a {kind.__name__} needs the method {method}()")
    for capability in sorted(registration.declaration.capabilities):
        for method in CAPABILITY_METHODS[kind][capability]:
            if not callable(getattr(instance, method, None)):
                raise ContractError(
                    f"{name} declares {capability.value.upper()}, which needs the method {method}()"
                )


# ----------------------------------------------------------------------------------------- finding


def entry_points() -> dict[str, importlib.metadata.EntryPoint]:
    """The advertised implementations by name, not yet imported."""
    found = importlib.metadata.entry_points(group=ENTRY_POINT_GROUP)
    return {point.name: point for point in found}


def built_in_names() -> list[str]:
    """Names of the implementations that kvassay brings along, engine adapters apart."""
    return sorted(
        name
        for name, point in entry_points().items()
        if point.module.startswith("kvassay.impls.") and not point.module.startswith(APART)
    )


def find(reference: str) -> list[Registration]:
    """Registrations behind what a user typed: a name, ``./file.py``, ``package.module``, ``exec:``.

    A name stands for every kind of implementation that bears it. Raises `UnknownImplementation`
    with the known names, or what went wrong in the import.
    """
    if reference in entry_points():
        return _load_entry_point(reference)
    if named := _named(reference):
        return named
    if reference.startswith("exec:"):
        from kvassay.harness import bridge

        return bridge.registrations(reference.removeprefix("exec:"))
    if reference.endswith(".py") or "/" in reference:
        return _load_file(reference)
    if "." in reference or importlib.util.find_spec(reference) is not None:
        return _load_module(reference)
    known = ", ".join(sorted({*entry_points(), *(name for _, name in _registered)})) or "none"
    raise UnknownImplementation(
        f"no implementation {reference!r}: expected a known name ({known}), "
        "a file ./my_cache.py, a module my_package.cache or a command exec:'python adapter.py'"
    )


def _named(name: str) -> list[Registration]:
    return [entry for (_, known), entry in _registered.items() if known == name]


def _load_entry_point(name: str) -> list[Registration]:
    point = entry_points()[name]
    loaded = point.load()
    if not _named(name) and isinstance(loaded, ModuleType):
        _recognised(loaded, Path(loaded.__file__ or "").resolve())
    if not _named(name):
        raise UnknownImplementation(
            f"entry point {name!r} loads {point.value}, which registers no implementation so named"
        )
    # It may have been found by its module before: here it is asked for by name.
    return _at(_named(name), name)


def _load_file(reference: str) -> list[Registration]:
    path = Path(reference).expanduser().resolve()
    if not path.is_file():
        raise UnknownImplementation(f"no file {reference!r} (looked for {path})")
    module_name = f"kvassay_file_{hashlib.sha256(str(path).encode()).hexdigest()[:12]}"
    if module_name in sys.modules:
        return _found_in(sys.modules[module_name], path, str(path))
    spec = importlib.util.spec_from_file_location(module_name, path)
    if spec is None or spec.loader is None:
        raise UnknownImplementation(f"{reference!r} cannot be imported as Python source")
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[module_name]
        raise
    return _found_in(module, path, str(path))


def _load_module(reference: str) -> list[Registration]:
    try:
        module = importlib.import_module(reference)
    except ModuleNotFoundError as error:
        if error.name is not None and not reference.startswith(error.name):
            raise
        raise UnknownImplementation(f"no module {reference!r}: {error}") from error
    return _found_in(module, Path(module.__file__ or "").resolve(), reference)


def _found_in(module: ModuleType, path: Path, reference: str) -> list[Registration]:
    """What a module registers; failing that, the classes of the textbook in it.

    Empty for a module that has the textbook's prefix cache alone, which its suite finds by itself.
    """
    from kvassay.harness import textbook

    found = _registered_in(path) or _recognised(module, path)
    if not found and textbook.exercise_in(module) is not None:
        return []
    return _nonempty(_at(found, reference), reference)


def _recognised(module: ModuleType, path: Path) -> list[Registration]:
    from kvassay.harness import textbook

    found = textbook.recognise(module, path)
    for entry in found:
        add(entry)
    return found


def _registered_in(path: Path) -> list[Registration]:
    return [entry for entry in _registered.values() if entry.origin == path]


def _at(found: list[Registration], reference: str) -> list[Registration]:
    placed = []
    for entry in found:
        moved = replace(entry, reference=reference)
        _registered[moved.kind, moved.name] = moved
        placed.append(moved)
    return placed


def _nonempty(found: list[Registration], reference: str) -> list[Registration]:
    if not found:
        raise UnknownImplementation(
            f"{reference!r} registers nothing: decorate a class with "
            '@implementation("name", kind=CacheManager, declaration=Declaration(...))'
        )
    return found
