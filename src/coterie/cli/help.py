"""Workarounds for typer: help pages in plain text, and Ctrl-C."""

from __future__ import annotations

from typing import Any

import click
import typer.core
import typer.main
from typing_extensions import override

from coterie.core.errors import Interrupted


class Argument(typer.core.TyperArgument):
    """An argument that shows its help, which typer loses with click 8.5."""

    def __init__(self, *, help: str | None = None, **others: Any) -> None:
        super().__init__(help=help, **others)
        self._lost = help or "" if self.help is None else ""  # not put back: click would print it a second time

    def get_help_record(self, ctx: click.Context) -> tuple[str, str]:
        """Its name, and what it is."""
        record = super().get_help_record(ctx)
        assert record is not None  # none is hidden
        return (record[0], f"{self._lost}  {record[1]}".strip())


class Commands(typer.core.TyperGroup):
    """Commands whose end by Ctrl-C is said; typer would end in silence."""

    @override
    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise Interrupted("coterie: stopped") from None


def patch_typer() -> None:
    """Have typer write help pages as they are meant."""
    typer.main.TyperArgument = Argument  # type: ignore[attr-defined]
    typer.core.HAS_RICH = False  # else it writes \[required], escaped for rich, which does not print these pages
