"""The command line; each command imports heavy modules only when it needs them."""

from __future__ import annotations

import errno
import functools
import os
import signal
import sys
import threading
import warnings
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from privbench import __version__
from privbench.cli import completion
from privbench.cli.audit import audit, coins, compare, verify
from privbench.cli.boards import leaderboard, merge, report, score
from privbench.cli.border import Finite, Whole, data_root_option, prints_to_stderr, say
from privbench.cli.cache import cache
from privbench.cli.doc import doc
from privbench.cli.plugins import check, new
from privbench.cli.refusal import refuse
from privbench.cli.show import show
from privbench.cli.trust import challenge, check_submission, reproduce
from privbench.ground.errors import BadInputError, PrivbenchError, UnknownNameError
from privbench.ground.text import shown

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console

    from privbench.boards.board import Leaderboard
    from privbench.cli.index import Index
    from privbench.grid.suite import Suite
    from privbench.plugins.registry import Choice, Registry

_PACKAGE = Path(__file__).parents[1]
_KINDS = ("attacks", "defenses", "targets", "datasets", "games", "protocols", "plugins")


def _interrupted() -> None:
    text = "privbench: interrupted; finished work is saved: run the same command to resume"
    click.echo(text, err=True)


def _exit_2(message: str) -> NoReturn:
    say(f"privbench: {' '.join(message.split())}", err=True)
    raise click.exceptions.Exit(2)


def _misused(error: click.UsageError) -> str:
    if type(error).__name__ == "NoArgsIsHelpError":  # click 8.2 and later raise the help
        raise error
    where = error.ctx.command_path if error.ctx else "privbench"
    if isinstance(error, click.NoSuchOption) and error.option_name in ("-p", "--plugin"):
        return f"write {error.option_name} before the command: privbench --plugin FILE.py run …"
    return f"{shown(error.format_message().rstrip('.'), 200)}; see `{where} --help`"


@contextmanager
def _user_warnings() -> Iterator[None]:
    """Show warnings that are for users as one line; others as Python does."""
    as_python = warnings.showwarning

    def to_users(message: Any, category: Any, filename: str, *where: Any, **named: Any) -> None:
        if category is UserWarning and _PACKAGE in Path(filename).parents:
            say(f"privbench: {' '.join(str(message).split())}", err=True)
        else:
            as_python(message, category, filename, *where, **named)

    changed: Any = to_users
    warnings.showwarning = changed
    try:
        yield
    finally:
        warnings.showwarning = as_python


@contextmanager
def _terminable() -> Iterator[None]:
    """End as cleanly on SIGTERM as on Ctrl-C, but not in processes that the user's code forks."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    _not_in_forks()
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before or signal.SIG_DFL)  # None: not set by Python


@functools.cache
def _not_in_forks() -> None:
    def default() -> None:
        if signal.getsignal(signal.SIGTERM) is signal.default_int_handler:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)

    os.register_at_fork(after_in_child=default)


class _Commands(click.Group):
    """Prints errors as one sentence with status 2; an interruption ends with status 130."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            with _terminable(), _user_warnings():
                return super().invoke(ctx)
        except PrivbenchError as error:
            message = str(error)
        except click.UsageError as error:
            message = _misused(error)
        except OSError as error:
            if error.errno == errno.EPIPE:
                raise
            at = f" {shown(str(error.filename), 200)}" if error.filename else ""
            message = f"cannot read or write{at}: {error.strerror or error}"
        except KeyboardInterrupt:
            _interrupted()
            ctx.exit(130)
        _exit_2(message)

    def make_context(self, *given: Any, **named: Any) -> click.Context:
        try:
            return super().make_context(*given, **named)
        except click.UsageError as error:  # of an option before the command
            _exit_2(_misused(error))

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        name = args[0]
        if name not in self.commands and not name.startswith("-"):
            raise UnknownNameError("command", name, self.commands)
        return super().resolve_command(ctx, args)


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="privbench")
@click.option(
    "-p", "--plugin", "plugins", multiple=True, metavar="FILE.py|no:NAME",
    help="Load a plugin that is one file, or switch an installed one off (repeatable).",
)  # fmt: skip
@click.pass_context
def main(ctx: click.Context, plugins: tuple[str, ...]) -> None:
    """Measure which privacy attacks work against which defenses, on which models, at what cost."""
    ctx.obj = [_chosen(given) for given in plugins]


def _chosen(given: str) -> str | Path:
    """A plugin to load, as an absolute path, or the name of one to switch off."""
    if given.startswith("no:"):
        return given.removeprefix("no:")
    if not given.endswith(".py"):
        raise BadInputError(
            f"-p {shown(given)}: write -p FILE.py to load a plugin that is one file, or -p no:NAME "
            "to switch an installed one off"
        )
    return Path(given).absolute()


@main.command()
@click.argument("suite", required=False, type=click.Path(path_type=Path))
@click.option(
    "--attack", "attacks", multiple=True, metavar="NAME", help="Attack (repeatable).",
    shell_complete=completion.of("attack"),
)  # fmt: skip
@click.option(
    "--defense",
    "defenses",
    multiple=True,
    metavar="NAME",
    help="Defense, in addition to none (repeatable); a stack is a+b.",
    shell_complete=completion.of("defense"),
)
@click.option(
    "--sweep", multiple=True, metavar="NAME",
    help="Defense that runs with every value of its strength (repeatable).",
    shell_complete=completion.of("defense"),
)  # fmt: skip
@click.option(
    "--match-utility", type=Finite(min=0, max=1), metavar="LOSS",
    help="Pick each defense's strongest setting that loses at most this much accuracy on reference "
    "rows, for example 0.02.",
)  # fmt: skip
@click.option(
    "--target",
    "targets",
    multiple=True,
    metavar="NAME",
    help="How the victim is built and trained [simclr].",
    shell_complete=completion.of("target"),
)
@click.option(
    "--dataset", "datasets", multiple=True, metavar="NAME", help="Dataset [digits].",
    shell_complete=completion.of("dataset"),
)  # fmt: skip
@click.option(
    "--protocol", "protocols", multiple=True, metavar="NAME", help="How data are split [default].",
    shell_complete=completion.among(completion.protocols),
)  # fmt: skip
@click.option(
    "--adversary", "adversaries", multiple=True,
    type=click.Choice(["adaptive", "naive", "white-box"]),
    help="adaptive trains its shadows under the victim's defense, naive does not; white-box is "
    "adaptive and also has gradients and weights [adaptive].",
)  # fmt: skip
@click.option(
    "--sensitive",
    multiple=True,
    metavar="NAME",
    help="Sensitive attribute [the dataset's default].",
)
@click.option("--seeds", type=Whole(1, 1000), metavar="N", help="Number of seeds [1].")
@click.option(
    "--preset", metavar="NAME", help="cpu for small sizes, paper for the published sizes [cpu]."
)
@click.option(
    "--set", "settings", multiple=True, metavar="METHOD.FIELD=VALUE",
    help="Hyperparameter, for example talos.adversarial_factor=5 (repeatable).",
)  # fmt: skip
@click.option(
    "--out", type=click.Path(path_type=Path), default=Path("results"), show_default=True,
    help="Directory for results; results in it are kept.",
)  # fmt: skip
@data_root_option("Directory of datasets; without it, data are downloaded.")
@click.option("--device", default="auto", show_default=True, help="cpu, cuda, cuda:1 or auto.")
@click.option("--compile", "compiled", is_flag=True, help="Use torch.compile to train encoders.")
@click.option(
    "--jobs", default="1", show_default=True, metavar="N",
    help="Number of worker processes; auto for one per core.",
)  # fmt: skip
@click.option(
    "--threads", type=Whole(min=1), default=1, show_default=True, metavar="N",
    help="Threads of each job; another number changes the last bits of results.",
)  # fmt: skip
@click.option(
    "--devices",
    metavar="0,1",
    help="CUDA devices of the workers; --jobs share a device if its memory allows.",
)
@click.option(
    "--executor", type=click.Choice(["serial", "processes", "ray"]),
    help="Where trials run [processes for several jobs, a time limit or methods of other packages, "
    "otherwise serial].",
)  # fmt: skip
@click.option("--address", help="Address of a Ray cluster; auto finds the running one.")
@click.option(
    "--precision", type=click.Choice(["auto", "float32", "bf16"]), default="auto",
    show_default=True,
    help="Of training; auto: bf16 on CUDA, float32 on the CPU. Another one gives other numbers.",
)  # fmt: skip
@click.option(
    "--timeout", type=Finite(min=0, max=1e9, min_open=True), metavar="SECONDS",
    help="Time limit for one attack; if exceeded, the cell fails.",
)  # fmt: skip
@click.option(
    "--isolate", is_flag=True,
    help="Run every cell in its own process, and its attack in a process without the truth.",
)  # fmt: skip
@click.option(
    "--shard", metavar="I/N", help="Run part I of N of the grid; join the parts with `merge`."
)
@click.option(
    "--json", is_flag=True,
    help="Print one JSON document; everything else goes to standard error.",
)  # fmt: skip
@click.option(
    "--dry-run", is_flag=True, help="Only print what would run, what is stored, what is skipped."
)
@click.pass_obj
def run(chosen: list[Choice], /, suite: Path | None, **options: Any) -> None:
    """Run a grid from a SUITE file or from the methods given by options.

    `privbench list` lists the methods. Options given with a SUITE replace its lists.
    Exit status: 0 if all is ok, 1 if a cell failed, 2 for bad input, 130 if interrupted.
    """
    from privbench.api import options as run_options

    asked = _suite(suite, options)
    run_options.check(options)
    as_json = options.pop("json")
    if as_json and options["dry_run"]:
        raise BadInputError("--dry-run prints lines to read: leave out --json")
    with prints_to_stderr() if as_json else nullcontext():
        refuse(asked, chosen, make=options["dry_run"])
    if options["dry_run"]:
        from privbench.api.planning import Planning

        planned = Planning(asked, chosen, options)
        planned.explain(options["out"].absolute(), options["timeout"], say)
        return
    from privbench.api.console import terminal_console
    from privbench.boards.as_json import document

    console, status = terminal_console(stderr=as_json), 130
    try:
        with prints_to_stderr() if as_json else nullcontext():
            status, board = _run(asked, chosen, options, console)
        if as_json:
            say(document(board))
    except KeyboardInterrupt:
        _interrupted()
    sys.exit(_end(status))


def _run(
    suite: Suite, chosen: list[Choice], options: dict[str, Any], console: Console
) -> tuple[int, Leaderboard]:
    """Run a grid; show it at once, without importing torch, if it is known to be finished."""
    from privbench.api.console import show_finished
    from privbench.boards.board import Leaderboard
    from privbench.grid.apart import is_planned_apart
    from privbench.grid.kept import FinishedGrids
    from privbench.ground.store.store import NOTES, default_root
    from privbench.plugins.registry import others

    given = {name: str(value) for name, value in options.items()}
    plugins = [[type(one).__name__, str(one)] for one in chosen]
    request = {**given, "suite": suite.model_dump(mode="json"), "plugins": plugins}
    finished = FinishedGrids(default_root() / NOTES, request, options["data_root"])
    out = options["out"].absolute()
    if found := finished.find(out):
        board = Leaderboard(found.records, suite.match_utility, found.judging)
        problem = show_finished(board, out, suite.name, console, options["shard"] or "")
        return 1 if problem else 0, board
    apart = is_planned_apart(suite.names, chosen, options["executor"])
    refuse(suite, chosen, make=not others(chosen))  # now also where no index was kept
    workers = options["jobs"] != "1" or options["executor"] == "processes" or options["timeout"]
    if workers or options["isolate"] or apart:
        from privbench.grid.server import start_server

        start_server(options["threads"])  # it begins to import torch
    from privbench.api.session import Session

    session = Session.of(suite, chosen, options, console)
    status = session.run()
    if status == 0 and not session.reads_given_files:
        trials = [(item.digest, item.skip) for item in session.planned.items]
        finished.add(trials, session.files, session.judging)
    return status, session.board


def _end(status: int) -> int:
    """The exit status; a thread that a plugin left behind does not keep the process alive."""
    here = threading.current_thread()
    if any(not thread.daemon and thread is not here for thread in threading.enumerate()):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    return status


def _suite(path: Path | None, options: dict[str, Any]) -> Suite:
    from privbench.grid.suite import parse_settings, read_suite, suite_from

    named = {
        key: list(options[key])
        for key in ("attacks", "defenses", "targets", "datasets", "protocols", "adversaries",
                    "sensitive", "sweep")
        if options[key]
    }  # fmt: skip
    single = ("seeds", "preset", "match_utility")
    named |= {key: options[key] for key in single if options[key] is not None}
    settings = parse_settings(list(options["settings"]))
    if path is None:
        if "attacks" not in named:
            raise BadInputError("nothing to run: give --attack NAME or a SUITE file")
        return suite_from({**named, "set": settings}, "the command line")
    base = read_suite(path).model_dump(exclude_unset=True)
    merged = {**base.get("set", {})}
    for method, fields in settings.items():
        merged[method] = {**merged.get(method, {}), **fields}
    return suite_from({**base, **named, "set": merged}, f"suite {shown(str(path), 200)}")


@main.command("list")
@click.argument(
    "kind", required=False,
    shell_complete=lambda ctx, param, given: [k for k in _KINDS if k.startswith(given)],  # noqa: ARG005
)  # fmt: skip
@click.option("--errors", is_flag=True, help="Show tracebacks of broken plugins.")
@click.pass_obj
def list_(chosen: list[Choice], kind: str | None, errors: bool) -> None:
    """List attacks, defenses, targets, datasets, games, protocols or plugins; by default all.

    Attacks have their game, the access that they need, and their shadows: each is a training as
    long as the victim's.
    """
    if kind is not None and kind not in _KINDS:
        raise UnknownNameError("kind", kind, _KINDS)
    from privbench.cli.index import index

    known = index(chosen)
    for listed in (kind,) if kind else _KINDS:
        say(f"{listed}:")
        if listed == "plugins":
            _list_plugins(known, errors=errors)
            continue
        for name, text in _listed(known, listed):
            say(f"  {name:<26} {text}".rstrip())


def _listed(known: Index, kind: str) -> Iterator[tuple[str, str]]:
    """Yield the names of a kind, each with a line about it."""
    if kind == "games":
        yield from ((name, card[2]) for name, card in known.games.items())
    elif kind == "protocols":
        from privbench.measure.data.protocol import PROTOCOLS

        owners = {name: ["every dataset"] for name in PROTOCOLS}
        for dataset in known.all("dataset"):
            for name in dataset.protocols.keys() - PROTOCOLS.keys():
                owners.setdefault(name, []).append(dataset.name)
        yield from ((name, f"of {', '.join(whose)}") for name, whose in sorted(owners.items()))
    elif kind == "attacks":
        known_of = known.all("attack")
        columns = [("GAME", "ACCESS", "SHADOWS", "WHAT IT DOES")]
        columns += [(one.game, one.access, one.shadows or "–", one.title) for one in known_of]
        *wide, _ = (max(map(len, column)) for column in zip(*columns, strict=True))
        for name, row in zip(["NAME", *(one.name for one in known_of)], columns, strict=True):
            yield name, "  ".join(f"{text:<{w}}" for text, w in zip(row, [*wide, 0], strict=True))
    else:
        yield from ((method.name, method.title) for method in known.all(kind[:-1]))


def _list_plugins(registry: Registry, *, errors: bool) -> None:
    own = sorted(registry.plugins, key=lambda one: one.distribution == "privbench")
    for plugin in own:  # those of others first
        tail = "; ".join(filter(None, [", ".join(plugin.offers), *plugin.problems]))
        tail = f": {tail}" if tail else ""
        origin = f"{plugin.distribution} {plugin.version}".rstrip()
        say(f"  {plugin.name:<26} {plugin.status:<9} {origin}{tail}")
        if errors and plugin.trace:
            say(plugin.trace)


for command in (
    audit, cache, challenge, check, check_submission, coins, compare, doc, leaderboard, merge, new,
    report, reproduce, score, show, verify,
):  # fmt: skip
    main.add_command(command)
