"""`python -m shardpool.check MODULE:APP [--json]`: load an app, check it, say what the supervisor must know of it.

The supervisor runs no user code; it runs this instead.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

import msgspec

from shardpool.app import App
from shardpool.loading import AppNotLoaded, load_app


def describe(app: App) -> dict[str, Any]:
    """What the supervisor and the acceptors need of an app."""
    return {
        "name": app.name,
        "codec": app.codec.value,
        "envelope": app.envelope,
        "static_dir": None if app.static_dir is None else str(app.static_dir),
        "origins": list(app.origins),
        "slow_client": app.slow_client.value,
    }


def main(arguments: list[str]) -> int:
    """Run the check. Returns: the exit code."""
    parser = argparse.ArgumentParser("python -m shardpool.check", description="Load an app and check it.")
    parser.add_argument("app", metavar="MODULE:APP")
    parser.add_argument("--json", action="store_true", help="print one line of JSON")
    options = parser.parse_args(arguments)
    code = 0
    # What the app prints at import must not be taken for the answer.
    answer_to, sys.stdout = sys.stdout, sys.stderr
    try:
        answer = describe(load_app(options.app).app)
    except AppNotLoaded as error:
        code = int(error.exit_code)
        answer = {"error": error.error, "remedy": error.remedy, "exit_code": code}
    finally:
        sys.stdout = answer_to
    if options.json:
        sys.stdout.write(msgspec.json.encode(answer).decode() + "\n")
    elif code:
        sys.stderr.write(f"shardpool: {answer['error']}. {answer['remedy']}\n")
    else:
        sys.stdout.write("".join(f"{key}: {value}\n" for key, value in answer.items()))
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
