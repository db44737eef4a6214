"""How a command ends that was called wrongly."""

from __future__ import annotations

from typing import NoReturn

import typer

USAGE_ERROR = 2


def fail(message: str) -> NoReturn:
    """Say what is wrong, and end with the status of a wrong call."""
    typer.echo(f"kvassay: {message}", err=True)
    raise typer.Exit(USAGE_ERROR)
