"""tox environments that share a folder are one environment.

tox remembers by name whose folder it is, and installs everything anew (a minute, with PyTorch) when
another environment of `tox.ini` comes to use it. Here the folder's own name is remembered.
"""

from __future__ import annotations

from typing import Any

from tox.tox_env.info import Info

_compare = Info.compare


def compare_by_folder(info: Info, value: Any, section: str, sub_section: str | None = None) -> Any:
    """As `Info.compare`; the name of an environment is that of its folder."""
    if section == "ToxEnv":
        value = {**value, "name": info._path.parent.name}
    return _compare(info, value, section, sub_section)


Info.compare = compare_by_folder  # type: ignore[method-assign]
