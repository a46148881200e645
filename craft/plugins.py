"""Parts that other people add: modules that a sweep file names under `plugins`, and installed distributions that announce
themselves by the entry point group `craft_sweeps`. A plugin registers rows when it is imported:

    from craft.plugins import register_metric      # ..._task, _method, _tuner; orchestrator.register_searcher
    register_metric("kappa", Metric(kappa, "classification", signed=True))

`load_plugins` imports what a sweep file names. Processes that this one starts find the same plugins in the environment, single
files with their text, so that other machines need no copy; there `load_inherited` imports them.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cache
from importlib.machinery import ModuleSpec
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from craft.methods.method import Method
    from craft.tasks.task import Metric, Task

from craft import TUNERS

GROUP, VARIABLE = "craft_sweeps", "CRAFT_SWEEPS_PLUGINS"
LARGEST = 120_000
"""Bytes of all plugins as Ray gives them to a worker: within one argument of 128 KiB, in which the variable is quoted again."""


class PluginError(ValueError):
    """A plugin cannot be imported, or registers what exists; the message is for people."""


@dataclass(frozen=True)
class Plugin:
    """A plugin as it was imported: its module, its version (may be empty), the SHA-256 of its file or of all Python files of
    its package, and its source if it is a file that a sweep file names."""

    module: str
    version: str
    sha256: str
    text: str | None = None

    @property
    def record(self) -> dict[str, str]:
        return {"version": self.version, "sha256": self.sha256}


LOADED: dict[str, Plugin] = {}
"""The plugins that sweep files name, by module, in the order in which they were imported."""
_importing: list[str] = []
_owners: dict[tuple[int, str], str] = {}


def load_plugins(names: Iterable[str], folders: Sequence[Path] = ()) -> list[Plugin]:
    """Imports plugins, installed ones first, and notes them for the processes that this one starts.

    `NAME.py` and a `NAME` of which a file is in one of `folders` are files. Raises PluginError if one is absent, fails, or
    registers a name that exists.
    """
    load_installed()
    plugins = [_load(name, folders) for name in names]
    if plugins:
        os.environ[VARIABLE] = _written(LOADED)
    return plugins


def _written(plugins: Mapping[str, Plugin]) -> str:
    return json.dumps([asdict(plugin) for plugin in plugins.values()])


def load_inherited() -> None:
    """Imports installed plugins and those of the process that started this one. Raises PluginError as `load_plugins` does, and
    if a module is another one here."""
    load_installed()
    for fields in json.loads(os.environ.get(VARIABLE, "[]")):
        there = Plugin(**fields)
        if there.module in LOADED:
            continue
        if there.text is not None:
            _run_text(there)
            continue
        here = _import_module(there.module)
        if here.sha256 != there.sha256:
            raise PluginError(
                f"plugin {there.module} is another one here ({here.version or here.sha256[:8]}) than where the sweep began "
                f"({there.version or there.sha256[:8]}): install the same on every machine"
            )


@cache
def load_installed() -> None:
    """Imports the distributions that announce themselves, once in a process."""
    for point in entry_points(group=GROUP):
        with _naming(point.value):
            point.load()


def find_plugin(name: str, folders: Sequence[Path]) -> Path | None:
    """Returns the file that a name means; None for a module on the path. Raises PluginError if `NAME.py` is nowhere."""
    file = Path(name if name.endswith(".py") else f"{name}.py")
    present = next((folder / file for folder in (*folders, Path.cwd()) if (folder / file).is_file()), None)
    if present is None and name.endswith(".py"):
        raise PluginError(f"there is no file {name}, neither next to the sweep file nor here")
    return present


def _load(name: str, folders: Sequence[Path]) -> Plugin:
    file = find_plugin(name, folders)
    if file is None:
        return LOADED.get(name) or _import_module(name)
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise PluginError(f"plugin {file} cannot be read: {error}") from None
    digest = hashlib.sha256(text.encode()).hexdigest()
    if (earlier := LOADED.get(file.stem)) is not None and earlier.sha256 == digest:
        return earlier
    if not file.stem.isidentifier():
        raise PluginError(f"plugin {file}: a plugin file has a Python name, of letters, digits and _; rename it")
    plugin = Plugin(file.stem, "", digest, text)
    if (size := len(json.dumps(_written(LOADED | {file.stem: plugin})))) > LARGEST:
        raise PluginError(
            f"plugin {file}: with it all plugins have {size:,} bytes, quoted for the processes that train, and at most "
            f"{LARGEST:,} fit. Install large ones as a package on every machine"
        )
    other = sys.modules[file.stem].__spec__ if file.stem in sys.modules else find_spec(file.stem)
    if earlier is None and other is not None and not (other.origin and file.samefile(other.origin)):
        raise PluginError(f"plugin {file} has the name of another module, {file.stem}: rename the file")
    return _run_text(plugin, str(file))


def _run_text(plugin: Plugin, place: str | None = None) -> Plugin:
    """Imports a plugin from its source, under its name."""
    assert plugin.text is not None
    module = ModuleType(plugin.module)
    module.__file__ = place or f"{plugin.module}.py"
    module.__spec__ = ModuleSpec(plugin.module, None, origin=module.__file__)
    sys.modules[plugin.module] = module
    try:
        with _naming(plugin.module):
            exec(compile(plugin.text, module.__file__, "exec"), module.__dict__)
    except PluginError:
        del sys.modules[plugin.module]
        raise
    version = str(getattr(module, "__version__", plugin.version))
    return LOADED.setdefault(plugin.module, Plugin(plugin.module, version, plugin.sha256, plugin.text))


def _import_module(name: str) -> Plugin:
    with _naming(name):
        module = importlib.import_module(name)
    file = Path(module.__file__ or "")
    files = sorted(file.parent.rglob("*.py")) if file.name == "__init__.py" else [file] if file.is_file() else []
    digest = hashlib.sha256(b"".join(hashlib.sha256(path.read_bytes()).digest() for path in files)).hexdigest()
    return LOADED.setdefault(name, Plugin(name, str(getattr(module, "__version__", "")), digest))


@contextmanager
def _naming(plugin: str) -> Iterator[None]:
    """Notes which plugin registers rows inside the block, and says in one sentence where it fails."""
    _importing.append(plugin)
    LOADED.pop(plugin, None)
    try:
        yield
    except PluginError:
        raise
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and error.name == plugin.partition(".")[0]:
            raise PluginError(
                f"plugin {plugin}: there is no such module on Python's path, and no file {plugin}.py next to the sweep file"
            ) from error
        last = traceback.extract_tb(error.__traceback__)[-1]
        line = traceback.format_exception_only(error)[-1].strip()
        raise PluginError(f"plugin {plugin} cannot be imported: {line} ({last.filename}:{last.lineno})") from error
    finally:
        _importing.pop()


def added_rows(table: Mapping[str, Any], fields: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Returns fields of the rows that plugins have added to a table, by name: what readers of a record need of them."""
    added = {name: row for name, row in table.items() if _owners.get((id(table), name))}
    return {name: {field: getattr(row, field) for field in fields} for name, row in added.items()}


def note_rows(table: MutableMapping[str, Any], make: Callable[..., Any], described: Mapping[str, Mapping[str, Any]]) -> None:
    """Adds rows as a record describes them, where they are not known, so that reading a record runs no code that it names."""
    for name, fields in described.items():
        if name not in table:
            table[name] = make(**fields)
            _owners[id(table), name] = ""


def refuse(*_: Any) -> Any:
    """Takes the place of a function that only the plugin has."""
    raise PluginError("this is the part of a plugin, which works only where its sweep runs")


def add_row(table: MutableMapping[str, Any], kind: str, name: str, row: Any) -> None:
    """Adds a row to a table of rows. A plugin that is imported again may replace its own; others raise PluginError."""
    owner = _importing[-1] if _importing else ""
    if name in table and _owners.get((id(table), name), "the project") not in (owner, ""):
        raise PluginError(f"there is a {kind} {name!r} already: give yours another name")
    table[name] = row
    _owners[id(table), name] = owner


def register_metric(name: str, row: Metric) -> None:
    """Adds a metric that own tasks may name."""
    from craft.tasks.metrics import METRICS

    add_row(METRICS, "metric", name, row)


def register_task(row: Task) -> None:
    """Adds a task, and its suite."""
    from craft.tasks import SUITES, TASKS

    add_row(TASKS, "task", row.name, row)
    SUITES[row.suite] = tuple(dict.fromkeys((*SUITES.get(row.suite, ()), row.name)))


def register_method(row: Method) -> None:
    """Adds a method that blocks may name."""
    from craft.methods import METHODS

    add_row(METHODS, "method", row.name, row)


def register_tuner(name: str, config: type, model: type) -> None:
    """Adds a type to PEFT, with its configuration and its tuner."""
    from craft.tuners.joint import register

    add_row(TUNERS, "tuner", name, (config.__module__, config.__name__, model.__name__))
    register()
