"""Packages of plugins: ``privbench new`` writes one, ``privbench check`` tests what one offers."""

from __future__ import annotations

import keyword
import re
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING

import click

from privbench import API_VERSION, __version__
from privbench import __all__ as PUBLIC
from privbench.cli import completion
from privbench.cli.border import data_root_option, say
from privbench.ground.errors import BadInputError, UnknownNameError
from privbench.ground.text import shown

if TYPE_CHECKING:
    from collections.abc import Iterator

    from privbench.measure.methods.method import Method
    from privbench.plugins.registry import Choice, Registry

#: Kind -> a command that runs a new method in the grid.
EXAMPLES = {
    "attack": "privbench run --attack $name --target supervised",
    "defense": "privbench run --attack metric-loss --defense $name --target supervised",
    "target": "privbench run --attack metric-loss --target $name",
    "dataset": "privbench run --attack metric-loss --target supervised --dataset $name",
    "game": "privbench run --attack $name-confidence --target supervised",
}
#: What a package offers to privbench, where that is not the thing that it is named after.
_OFFERED = {"game": ("attack", "Confidence")}
_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
_LONGEST = 40


@click.command()
@click.argument("kind", type=click.Choice(list(EXAMPLES)))
@click.argument("name")
@click.option(
    "--out", type=click.Path(path_type=Path), default=Path(), help="Folder for the package [.]."
)
def new(kind: str, name: str, out: Path) -> None:
    """Write a package with a new attack, defense, target, dataset or game called NAME.

    It works as it is, and its test runs the conformance kit: change it step by step.
    """
    if not _NAME.fullmatch(name) or len(name) > _LONGEST:
        raise BadInputError(
            f"a method cannot be called {shown(name)}: use lower-case letters, digits and single "
            f"hyphens, at most {_LONGEST} characters, such as my-{kind}"
        )
    method, suffix = _OFFERED.get(kind, (kind, ""))
    offered = f"{name}-{suffix.lower()}" if suffix else name
    if offered in completion.names(method):
        raise BadInputError(f"{method} '{offered}' exists already: choose another name")
    module = name.replace("-", "_")
    named = "".join(word.capitalize() for word in name.split("-"))
    if keyword.iskeyword(module) or named in PUBLIC:
        raise BadInputError(
            f"a method cannot be called {shown(name)}, since its module or class would be called "
            f"like a word of Python or privbench: choose another name, such as my-{shown(name)}"
        )
    words = {
        "kind": kind, "name": name, "module": module, "package": f"privbench_{module}",
        "distribution": f"privbench-{name}", "api": API_VERSION, "version": __version__,
        "class": named, "point": f"{kind}_{module}", "method": method, "offered": named + suffix,
    }  # fmt: skip
    words["example"] = Template(EXAMPLES[kind]).substitute(words)
    folder = out / words["distribution"]
    if folder.exists():
        raise BadInputError(f"{shown(str(folder), 200)} exists: remove it, or choose another --out")
    written = {
        "pyproject.toml": "pyproject.toml",
        "README.md": "README.md",
        ".github/workflows/check.yml": "ci.yml",
        ".gitignore": "gitignore",
        f"tests/test_{module}.py": "test.py",
        f"{words['package']}/{module}.py": f"{kind}.py",
    }
    templates = files("privbench.cli") / "templates"
    for path, template in written.items():
        text = (templates / f"{template}.txt").read_text("utf-8")
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(Template(text).substitute(words), encoding="utf-8")
    (folder / words["package"] / "__init__.py").write_text(
        f'"""The {kind} {name} for privbench."""\n', encoding="utf-8"
    )
    say(f"wrote {folder}: the {kind} is in {words['package']}/{module}.py. Next:")
    say(f"  cd {folder} && pip install -e .")
    say(f"  privbench check {name}")
    say(f"  {words['example']}")


@click.command()
@click.argument("name", shell_complete=completion.among(completion.checked))
@data_root_option("Directory of datasets, for a dataset that reads files.")
@click.pass_obj
def check(chosen: list[Choice], name: str, data_root: Path | None) -> None:
    """Run the conformance kit on a method, a plugin, a package, a FILE.py or a game's attacks.

    It says what each check tried and, if it fails, what to do.

    Exit status: 0 if every check passes, 1 if one fails, 2 for bad input.
    """
    from privbench.cli.index import kept_index
    from privbench.plugins import registry as plugins

    if name.endswith(".py"):
        chosen, name = [*chosen, Path(name).absolute()], Path(name).name
    failed = total = skipped = 0
    unusable: list[str] = []
    if (index := kept_index(chosen)) is not None:
        _ = [*_methods(index, name)]  # refused before torch is imported
    registry = plugins.load(chosen)
    registry.refuse_broken_files()
    from privbench.testing import checks

    for method in _methods(registry, name):
        say(f"{method.name}:")
        known: dict[str, str] = {}  # what went wrong -> the check that said so first
        for one in checks(method, root=data_root):
            total += 1
            try:
                untried = one()
            except BadInputError as error:  # of its data
                unusable.append(str(error))
                say(f"  not checked: {error}")
                break
            except AssertionError as error:
                failed += 1
                told = " ".join(str(error).split()) or "no reason given"
                first = known.setdefault(told, one.name)
                same = f'as for "{first}"'
                say(f"  FAILED  {one.name}: {told if first == one.name else same}")
                say(f"          tried: {one.tried}")
            else:
                if untried:
                    skipped += 1
                    say(f"  skipped {one.name}: {untried}")
                else:
                    say(f"  ok      {one.name}\n          tried: {one.tried}")
    say(f"{total} checks, {failed} failed" + (f", {skipped} skipped" if skipped else ""))
    if unusable:
        raise BadInputError(unusable[0])
    raise click.exceptions.Exit(1 if failed else 0)


def _methods(registry: Registry, name: str) -> Iterator[Method]:
    """The methods of that name, of that plugin or package, or the attacks that play that game.

    Raises:
        PrivbenchError: if there is nothing of that name, or it is broken.
    """
    held = [
        plugin
        for plugin in registry.plugins
        if name in (plugin.name, plugin.distribution, plugin.module.partition(".")[0])
    ]
    if not held:
        plays = [attack for attack in registry.all("attack") if attack.game == name]
        if plays:
            yield from plays
            return
        try:
            yield from (method for _, method in registry.find(name))
        except UnknownNameError as error:
            raise BadInputError(
                f"{error} (a package must be installed in this environment: `privbench list "
                "plugins` shows what is there)"
            ) from None
        return
    for plugin in held:
        if plugin.status != "ok":
            why = "; ".join(plugin.problems) or "remove its `-p no:` option"
            raise BadInputError(
                f"plugin '{plugin.name}' is {plugin.status}: {why}; see `privbench list plugins "
                "--errors`"
            )
        if plugin.problems or not (plugin.methods or plugin.games):
            why = "; ".join(plugin.problems) or "it offers no method: return some from a hook"
            raise BadInputError(f"plugin '{plugin.name}': {why}")
        for told in plugin.methods:
            kind, _, known = told.partition(" ")
            yield registry.get(kind, known)
