"""The command line. Everything heavy is imported by the command that needs it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from privbench import __version__
from privbench.errors import BadInputError, PrivbenchError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from privbench.plugins import Registry
    from privbench.suite import Suite

_KINDS = ("attacks", "defenses", "targets", "datasets", "plugins")


class _Commands(click.Group):
    """Errors of ours end with one sentence and status 2, an interruption with status 130."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except PrivbenchError as error:
            click.echo(f"privbench: {error}", err=True)
            ctx.exit(2)
        except KeyboardInterrupt:
            click.echo(
                "privbench: interrupted; what is done is kept, run the same command to go on",
                err=True,
            )
            ctx.exit(130)

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        name = args[0]
        if name not in self.commands and not name.startswith("-"):
            import difflib

            near = difflib.get_close_matches(name, self.commands, n=1)
            hint = f"did you mean '{near[0]}'?" if near else f"known are {', '.join(self.commands)}"
            raise BadInputError(f"unknown command '{name}': {hint}")
        return super().resolve_command(ctx, args)


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="privbench")
@click.option(
    "-p", "plugins_off", multiple=True, metavar="no:NAME", help="Switch a plugin off (repeatable)."
)
@click.pass_context
def main(ctx: click.Context, plugins_off: tuple[str, ...]) -> None:
    """Which privacy attacks work against which defenses, on which models, at what cost."""
    for given in plugins_off:
        if not given.startswith("no:"):
            raise BadInputError(f"-p {given}: write -p no:NAME to switch a plugin off")
    ctx.obj = [given.removeprefix("no:") for given in plugins_off]


@main.command()
@click.argument("suite", required=False, type=click.Path(path_type=Path))
@click.option("--attack", "attacks", multiple=True, help="Attack by name (repeatable).")
@click.option("--defense", "defenses", multiple=True, help="Runs beside none; stack with a+b.")
@click.option("--target", "targets", multiple=True, help="Recipe of the victim [simclr].")
@click.option("--dataset", "datasets", multiple=True, help="Dataset [digits].")
@click.option("--protocol", "protocols", multiple=True, help="How data are cut [default].")
@click.option(
    "--adversary", "adversaries", multiple=True, type=click.Choice(["adaptive", "naive"]),
    help="Whether shadows are defended as the victim is [adaptive].",
)  # fmt: skip
@click.option("--sensitive", multiple=True, help="Sensitive attribute [the dataset's own].")
@click.option("--seeds", type=click.IntRange(min=1), help="How many seeds [1].")
@click.option("--preset", help="quick for a CPU, paper for published sizes [quick].")
@click.option("--set", "settings", multiple=True, metavar="METHOD.FIELD=VALUE")
@click.option("--out", type=click.Path(path_type=Path), default=Path("results"), show_default=True)
@click.option("--data-root", type=click.Path(path_type=Path), envvar="PRIVBENCH_DATA")
@click.option("--device", default="auto", show_default=True, help="cpu, cuda, cuda:1, auto.")
@click.option("--compile", "compiled", is_flag=True, help="torch.compile encoders in training.")
@click.option("--dry-run", is_flag=True, help="Say what would run, what is kept, what is skipped.")
@click.pass_obj
def run(plugins_off: list[str], /, suite: Path | None, **options: Any) -> None:
    """Run a grid: a SUITE file, or the methods named by options."""
    from privbench.session import Session

    session = Session(_suite(suite, options), plugins_off, options)
    if options["dry_run"]:
        session.explain()
        return
    sys.exit(session.run())


def _suite(path: Path | None, options: dict[str, Any]) -> Suite:
    from privbench.suite import parse_settings, read_suite, suite_from

    named = {
        key: list(options[key])
        for key in ("attacks", "defenses", "targets", "datasets", "protocols", "adversaries",
                    "sensitive")
        if options[key]
    }  # fmt: skip
    named |= {key: options[key] for key in ("seeds", "preset") if options[key] is not None}
    settings = parse_settings(list(options["settings"]))
    if path is None:
        if "attacks" not in named:
            raise BadInputError("nothing to run: name an --attack, or a SUITE file")
        return suite_from({**named, "set": settings}, "the command line")
    base = read_suite(path).model_dump(exclude_unset=True)
    merged = {**base.get("set", {})}
    for method, fields in settings.items():
        merged[method] = {**merged.get(method, {}), **fields}
    return suite_from({**base, **named, "set": merged}, f"suite {path}")


@main.command("list")
@click.argument("kind", required=False)
@click.option("--errors", is_flag=True, help="With tracebacks of broken plugins.")
@click.pass_obj
def list_(plugins_off: list[str], kind: str | None, errors: bool) -> None:
    """List attacks, defenses, targets, datasets or plugins (all of them by default)."""
    if kind is not None and kind not in _KINDS:
        from privbench.errors import UnknownNameError

        raise UnknownNameError("kind", kind, _KINDS)
    registry = _registry(plugins_off)
    for listed in (kind,) if kind else _KINDS:
        click.echo(f"{listed}:")
        if listed == "plugins":
            _list_plugins(registry, errors=errors)
            continue
        for method in registry.all(listed[:-1]):
            click.echo(f"  {method.name:<26} {_first_sentence(type(method).__doc__)}")


def _list_plugins(registry: Registry, *, errors: bool) -> None:
    for plugin in registry.plugins:
        tail = "; ".join(plugin.problems) or ", ".join(plugin.methods)
        click.echo(f"  {plugin.name:<26} {plugin.status:<9} {plugin.distribution}: {tail}")
        if errors and plugin.trace:
            click.echo(plugin.trace)


def _first_sentence(text: str | None) -> str:
    return (text or "").strip().splitlines()[0] if text else ""


def _registry(plugins_off: Sequence[str]) -> Registry:
    from privbench import plugins

    return plugins.load(plugins_off)


@main.command()
@click.argument("name")
@click.pass_obj
def show(plugins_off: list[str], name: str) -> None:
    """Show a method's card, or a result file."""
    if name.endswith(".json"):
        from privbench.cards import result_card
        from privbench.records import read

        path = Path(name)
        if not path.exists():
            raise BadInputError(f"no result at {path}: see the folder that --out named")
        click.echo(result_card(read(path)))
        return
    from privbench.cards import method_card
    from privbench.errors import UnknownNameError

    registry = _registry(plugins_off)
    found = [
        (kind, method)
        for kind in ("attack", "defense", "target", "dataset")
        for method in registry.all(kind)
    ]
    for kind, method in found:
        if method.name == name:
            click.echo(method_card(kind, method))
            return
    raise UnknownNameError("method", name, [method.name for _, method in found])


@main.command()
@click.argument("folders", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("-o", "--output", type=click.Path(path_type=Path), help="File [standard output].")
@click.option("--title", default="privbench leaderboard", show_default=True)
def leaderboard(folders: tuple[Path, ...], output: Path | None, title: str) -> None:
    """Render results as a markdown board; the same results give the same bytes."""
    from privbench.leaderboard import render
    from privbench.records import read_all

    text = render(read_all(folders), title)
    if output is None:
        click.echo(text, nl=False)
    else:
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text(text, encoding="utf-8")


@main.group()
def cache() -> None:
    """Look into the store of artifacts."""


@cache.command()
@click.argument("digest")
def why(digest: str) -> None:
    """Explain an artifact: all it depends on, and why it was not taken from the store."""
    click.echo(str(_store().why(digest)))


@cache.command()
def ls() -> None:
    """List artifacts."""
    total = 0
    for row in _store().list():
        total += row.bytes
        click.echo(
            f"{row.digest[:16]}  {row.kind:<10} {row.bytes:>12,} bytes  {row.seconds:>8.1f} s"
            f"  {row.created}"
        )
    click.echo(f"{total:,} bytes in all, under {_store().root}")


@cache.command()
@click.option(
    "--older-than", type=click.FloatRange(min=0), metavar="DAYS", help="Unused for so long."
)
def gc(older_than: float | None) -> None:
    """Remove what killed runs left behind, and artifacts that were not used for DAYS."""
    click.echo(f"{_store().gc(older_than):,} bytes freed")


def _store() -> Any:
    from privbench.store import Store, default_root

    return Store(default_root())
