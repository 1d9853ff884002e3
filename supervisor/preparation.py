"""From a command line to a pool that can start: everything that can be refused is refused here."""

import os
import re
import socket
from argparse import SUPPRESS, ArgumentParser, BooleanOptionalAction, Namespace, _ArgumentGroup
from collections.abc import Mapping
from dataclasses import dataclass

from shardpool.boot import Listener
from shardpool.exit_codes import ExitCode
from shardpool.settings import Settings, load
from shardpool.settings_table import TABLE, Kind, Setting
from shardpool.supervisor.app_facts import AppFacts, ask_app
from shardpool.supervisor.console import Console, Level
from shardpool.supervisor.cpus import usable_cpus_here
from shardpool.supervisor.listeners import Address, check_key_file, open_listeners, parse_address
from shardpool.supervisor.privileges import become, find_user
from shardpool.supervisor.refusal import Refusal

_APP = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")
# Shown by --help; the others are accepted as well and listed in docs/settings.md.
_SHOWN = {
    "workers", "acceptors", "bind", "name", "pin", "user", "run_dir", "tls_cert", "tls_key", "log_level",
    "drain_timeout", "connections", "frame_bytes", "slow_client", "origins", "static_dir",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Prepared:
    """What is known once the app was asked."""

    app: str
    facts: AppFacts
    name: str
    settings: Settings  # complete
    sockets: list[tuple[socket.socket, Listener]]


def add_arguments(parser: ArgumentParser) -> None:
    """Arguments of commands that prepare a pool."""
    parser.add_argument("app", metavar="MODULE:APP", help="the module to import and the App in it, as in arena:app")
    parser.add_argument("--config", metavar="FILE", help="TOML file with settings (docs/settings.md)")
    group = parser.add_argument_group("settings", "all of docs/settings.md are accepted; the most used are")
    for setting in TABLE:
        _add_flag(group, setting)


def read_settings(args: Namespace, environ: Mapping[str, str]) -> Settings:
    """Settings of all layers; raises SettingsError."""
    return load(args.config, environ, {setting.name: getattr(args, setting.name) for setting in TABLE})


def prepare(args: Namespace, settings: Settings, console: Console, *, bind: bool) -> Prepared:
    """Check everything and ask the app; bind and drop privileges if asked to.

    Args: bind: open the listening sockets (`serve`), or only check how they are written (`check`).
    Raises: Refusal, SettingsError.
    """
    app = check_app(args.app)
    values = settings.values
    addresses = _addresses(values["bind"])
    if values["tls_key"]:
        check_key_file(values["tls_key"])
    user = find_user(values["user"]) if values["user"] else None
    sockets = open_listeners(addresses) if bind else []
    if user is not None and bind:
        # Before user code is imported for the first time, even in a child.
        become(user)
    facts = ask_app(app, values["import_timeout"], lambda line: console.log(Level.INFO, line))
    settings = settings.with_app(facts.settings()).with_processes(usable_cpus_here())
    _check_static_dir(settings.values["static_dir"])
    return Prepared(app, facts, values["name"] or facts.name, settings, sockets)


def check_app(text: str) -> str:
    """Refuse what cannot name an app; raises Refusal."""
    if _APP.fullmatch(text):
        return text
    module, _, name = text.partition(":")
    if module.endswith(".py") or "/" in module:
        module = module.removesuffix(".py").strip("./").replace("/", ".")
        remedy = f"name the module, not the file: {module}:{name or 'app'}"
    else:
        remedy = f"give MODULE:APP, as in {module if _APP.fullmatch(f'{module}:app') else 'arena'}:app"
    raise Refusal(f"{text!r} does not name an app", remedy, ExitCode.USAGE)


def _check_static_dir(directory: str | None) -> None:
    """As the user that will serve it: a page that is not there would only show as 404 in somebody's browser."""
    if not directory:
        return
    if not os.path.exists(directory):
        found = "does not exist"
    elif not os.path.isdir(directory):
        found = "is no directory"
    elif not os.access(directory, os.R_OK | os.X_OK):
        found = "cannot be read"
    else:
        return
    raise Refusal(f"static_dir {directory} {found}", "name the directory of the files to serve", ExitCode.CONFIG)


def _addresses(bind: list[str]) -> list[Address]:
    addresses = [parse_address(text) for text in bind]
    for index, address in enumerate(addresses):
        for other in addresses[:index]:
            if address.port and (address.host, address.port) == (other.host, other.port):
                raise Refusal(
                    f"{address.given} and {other.given} are the same port", "give each its own port", ExitCode.CONFIG
                )
    return addresses


def _add_flag(group: _ArgumentGroup, setting: Setting) -> None:
    text = setting.help.replace("%", "%%") if setting.name in _SHOWN else SUPPRESS
    if setting.kind is Kind.SWITCH:
        group.add_argument(setting.flag, dest=setting.name, action=BooleanOptionalAction, default=None, help=text)
    elif setting.kind is Kind.TEXTS:
        group.add_argument(setting.flag, dest=setting.name, action="append", metavar=_METAVARS[setting.kind], help=text)
    else:
        group.add_argument(setting.flag, dest=setting.name, metavar=_METAVARS[setting.kind], help=text)


_METAVARS = {
    Kind.COUNT: "N",
    Kind.SECONDS: "SECONDS",
    Kind.BYTES: "BYTES",
    Kind.TEXT: "TEXT",
    Kind.TEXTS: "TEXT",
    Kind.CHOICE: "CHOICE",
}
