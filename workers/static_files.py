"""Files of one directory over HTTP: found by a path that cannot leave it."""

import mimetypes
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote_to_bytes

import shardpool

BROWSER_CLIENT = "shardpool.js"

_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".mjs": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
    ".wasm": "application/wasm",
    ".ico": "image/x-icon",
}


@dataclass(frozen=True, slots=True)
class StaticFile:
    """A file that may be sent."""

    path: Path
    size: int
    type: str
    etag: str


class StaticFiles:
    """Looks paths of requests up below one directory, and the browser's client where that has none.

    Args: root: the directory; None: there are no files.
    """

    def __init__(self, root: str | None) -> None:
        self._root = None if root is None else Path(root).resolve()
        self._packaged = Path(shardpool.__path__[0]).resolve() / "client"

    def find(self, target: str) -> StaticFile | None:
        """The file that a request's path names.

        Args: target: path of the request, still percent-encoded, without the query.
        Returns: None: there is none, or it must not be sent (hidden, outside the directory, not a plain file).
        """
        if self._root is None or not target.startswith("/"):
            return None
        try:
            decoded = unquote_to_bytes(target).decode()
        except UnicodeDecodeError:
            return None
        parts = [part for part in decoded.split("/") if part]
        if "\0" in decoded or "\\" in decoded or any(part.startswith(".") for part in parts):
            return None
        if decoded.endswith("/"):
            parts.append("index.html")
        found = _file_below(self._root, parts)
        return _file_below(self._packaged, parts) if found is None and parts == [BROWSER_CLIENT] else found


def _file_below(root: Path, parts: list[str]) -> StaticFile | None:
    try:
        # resolved: a link inside the directory must not lead out of it
        path = root.joinpath(*parts).resolve(strict=True)
        status = path.stat()
    except (OSError, RuntimeError):
        return None
    if not path.is_relative_to(root) or not path.is_file():
        return None
    return StaticFile(path, status.st_size, content_type(path), f'"{status.st_size:x}-{status.st_mtime_ns:x}"')


def content_type(path: Path) -> str:
    """The type of a file by its name; not by the host's mime tables where it matters."""
    found = _TYPES.get(path.suffix.lower())
    if found is None:
        found = mimetypes.guess_type(path.name)[0] or "application/octet-stream"
    return found
