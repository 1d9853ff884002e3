"""Find and check the app that `MODULE:APP` names, with an error for a person where that fails."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import sys
import traceback
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from shardpool.app import App, Blueprint
from shardpool.errors import ShardpoolError
from shardpool.exit_codes import ExitCode


@dataclass(frozen=True)
class AppNotLoaded(Exception):
    """Why there is no app: what was asked of what and found, and what to do."""

    error: str
    remedy: str
    exit_code: ExitCode = ExitCode.APP

    def __str__(self) -> str:
        return f"{self.error}. {self.remedy}"


def load_app(spec: str) -> Blueprint:
    """Import the module, take the app, check all of it.

    Args: spec: "module:attribute"; the current directory is searched first.
    Raises: AppNotLoaded. SystemExit and KeyboardInterrupt of the module are reported the same way.
    """
    module_name, colon, attribute = spec.partition(":")
    if not colon or not module_name or not attribute:
        raise AppNotLoaded(f"{spec!r} does not name an app", "Write MODULE:APP, as in arena:app", ExitCode.USAGE)
    if module_name.endswith(".py") or "/" in module_name:
        dotted = module_name.removesuffix(".py").strip("./").replace("/", ".")
        raise AppNotLoaded(
            f"{module_name!r} is a path, not a module",
            f"Write it as Python imports it: {dotted}:{attribute}",
            ExitCode.USAGE,
        )
    module = _import(module_name)
    app = _attribute(module, module_name, attribute)
    try:
        return app.compile()
    except ShardpoolError as error:
        found = f"app {app.name!r} in {module_name!r} cannot run: {error}"
        raise AppNotLoaded(found, "Correct it and start again") from None


def _import(name: str) -> ModuleType:
    here = str(Path.cwd())
    if sys.path[:1] != [here]:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(error.name + ".")):
            raise AppNotLoaded(
                f"there is no module {error.name!r} in {here} or the installed packages",
                f"Start in the directory that holds it, or install it{_nearest_module(error.name)}",
            ) from None
        raise _raised(name, error) from None
    except BaseException as error:  # SystemExit too: a module that exits is as unusable as one that raises
        raise _raised(name, error) from None


def _raised(name: str, error: BaseException) -> AppNotLoaded:
    where = ""
    frames = traceback.extract_tb(error.__traceback__)
    if isinstance(error, SyntaxError):
        where = f" at {error.filename}:{error.lineno}"
    else:
        for frame in reversed(frames):
            if "importlib" not in frame.filename and not frame.filename.startswith(str(Path(__file__).parent)):
                where = f" at {frame.filename}:{frame.lineno}"
                break
    text = error.msg if isinstance(error, SyntaxError) else str(error)
    return AppNotLoaded(
        f"module {name!r} raised {type(error).__name__} at import: {text.strip() or 'no message'}{where}",
        f"Correct it; `python -c 'import {name}'` shows the whole traceback",
    )


def _nearest_module(name: str) -> str:
    here = [path.stem for path in Path.cwd().iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()]
    nearest = difflib.get_close_matches(name, here, 1)
    return f'; did you mean "{nearest[0]}"?' if nearest else ""


def _attribute(module: ModuleType, module_name: str, attribute: str) -> App:
    apps = [name for name, value in vars(module).items() if isinstance(value, App)]
    value = getattr(module, attribute, None)
    if isinstance(value, App):
        return value
    nearest = difflib.get_close_matches(attribute, apps or list(vars(module)), 1, 0.5) or apps[:1]
    remedy = (
        f"Did you mean {module_name}:{nearest[0]}?"
        if nearest and nearest[0] in apps
        else 'Make one there: `app = App("name")`'
    )
    if value is None:
        raise AppNotLoaded(f"module {module_name!r} ({module.__file__}) has no attribute {attribute!r}", remedy)
    raise AppNotLoaded(f"{module_name}:{attribute} is {_a(value)}, not a shardpool.App", remedy)


def _a(value: object) -> str:
    name = type(value).__name__
    return f"an {name}" if name[0] in "aeiouAEIOU" else f"a {name}"
