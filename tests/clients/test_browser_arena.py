"""The arena's page in a real browser: Chromium, driven over the DevTools protocol."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import shutil
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from acceptor_pool import Running, pool
from websockets.asyncio.client import ClientConnection, connect

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
PATIENCE = 30.0
KEYS = {"ArrowRight": 39, "ArrowLeft": 37, "KeyS": 83}

# Where the dots of one colour are on the canvas, as a fraction of its size; null: there are none.
DOTS = """(name) => {
  const canvas = document.getElementById("arena"), [w, h] = [canvas.width, canvas.height];
  const wanted = getComputedStyle(document.documentElement).getPropertyValue(name).trim().slice(1);
  const rgb = [0, 2, 4].map((at) => parseInt(wanted.slice(at, at + 2), 16));
  const data = canvas.getContext("2d").getImageData(0, 0, w, h).data;
  let n = 0, x = 0, y = 0;
  for (let i = 0; i < data.length; i += 4)
    if (rgb.every((value, at) => data[i + at] === value)) { n++; x += (i / 4) % w; y += Math.floor(i / 4 / w); }
  return n ? [x / n / w, y / n / h] : null;
}"""


def chromium() -> str:
    if CHROMIUM is None:
        if os.environ.get("CI"):
            pytest.fail("CI has no Chromium: install it there (Debian: apt-get install chromium)")
        pytest.skip("no Chromium here (Debian: apt-get install chromium)")
    return CHROMIUM


class Tab:
    """One page of the browser."""

    def __init__(self, browser: Browser, session: str) -> None:
        self._browser, self._session = browser, session

    async def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        return await self._browser.call(method, self._session, **parameters)

    async def value(self, expression: str) -> Any:
        answer = await self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    async def state(self) -> str:
        """The line in which the page says how it is."""
        return str(await self.value("document.getElementById('state')?.textContent ?? ''"))

    async def dots(self, colour: str) -> tuple[float, float] | None:
        found = await self.value(f"({DOTS})({json.dumps(colour)})")
        return None if found is None else (found[0], found[1])

    async def until(self, look: Callable[[], Any], right: Callable[[Any], bool]) -> Any:
        """What `look` sees once it is right."""
        seen: Any = None
        try:
            async with asyncio.timeout(PATIENCE):
                while not right(seen := await look()):
                    await self.value("new Promise(requestAnimationFrame)")
        except TimeoutError:
            raise AssertionError(f"still {seen!r}; the page says {await self.state()!r}") from None
        return seen

    @asynccontextmanager
    async def held(self, key: str) -> AsyncIterator[None]:
        """A key is down."""
        facts = {"code": key, "key": key, "windowsVirtualKeyCode": KEYS[key]}
        await self.call("Input.dispatchKeyEvent", type="rawKeyDown", **facts)
        yield
        await self.call("Input.dispatchKeyEvent", type="keyUp", **facts)


class Browser:
    """Speaks DevTools with one Chromium; what its pages complain about is kept."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket
        self._numbers = itertools.count(1)
        self.complaints: list[Any] = []

    async def call(self, method: str, session: str | None = None, **parameters: Any) -> dict[str, Any]:
        number = next(self._numbers)
        request = {"id": number, "method": method, "params": parameters}
        await self._socket.send(json.dumps(request | ({"sessionId": session} if session else {})))
        while True:
            answer = json.loads(await self._socket.recv())
            if answer.get("id") == number:
                assert "error" not in answer, (method, answer)
                result: dict[str, Any] = answer["result"]
                return result
            parameters = answer.get("params", {})
            if answer.get("method") == "Runtime.exceptionThrown" or parameters.get("entry", {}).get("level") == "error":
                self.complaints.append(parameters)

    async def open(self, url: str) -> Tab:
        target = await self.call("Target.createTarget", url="about:blank", newWindow=True)
        attached = await self.call("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        tab = Tab(self, attached["sessionId"])
        await tab.call("Runtime.enable")
        await tab.call("Log.enable")
        await tab.call("Page.navigate", url=url)
        return tab


@asynccontextmanager
async def browser(profile: Path) -> AsyncIterator[Browser]:
    command = [chromium(), "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]
    # A page behind another window draws nothing, and then it sees nothing.
    command += ["--disable-renderer-backgrounding", "--disable-backgrounding-occluded-windows"]
    command += ["--remote-debugging-port=0", f"--user-data-dir={profile}", "--window-size=900,700", "about:blank"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        port, path = await _devtools(process, profile / "DevToolsActivePort")
        async with connect(f"ws://127.0.0.1:{port}{path}", max_size=None) as socket:
            yield Browser(socket)
    finally:
        process.terminate()
        await asyncio.to_thread(process.wait, PATIENCE)


async def _devtools(process: subprocess.Popen[bytes], file: Path) -> tuple[str, str]:
    async with asyncio.timeout(PATIENCE):
        while process.poll() is None:
            lines = file.read_text().split() if file.exists() else []
            if len(lines) == 2:
                return lines[0], lines[1]
            await asyncio.sleep(0.05)
    raise AssertionError(f"Chromium ended with code {process.returncode}")


@pytest.fixture
def arena() -> Iterator[Running]:
    chromium()
    with pool("from shardpool.examples.arena import app\n", "--workers", "2") as running:
        yield running


def test_two_tabs_see_each_others_dots_move(arena: Running, tmp_path: Path) -> None:
    """P-13: the page loads without a complaint, connects, sees a second tab; keys move a dot in both; left, it goes."""
    asyncio.run(_play(arena, tmp_path))


async def _play(arena: Running, tmp_path: Path) -> None:
    host, port = arena.addresses["ws"]
    async with browser(tmp_path) as chrome:
        ann = await chrome.open(f"http://{host}:{port}/?name=ann&room=test")
        await ann.until(ann.state, lambda state: "connected" in state and "1 player" in state)
        assert await ann.dots("--them") is None

        bob = await chrome.open(f"http://{host}:{port}/?name=bob&room=test")
        await bob.until(bob.state, lambda state: "2 players" in state)
        await ann.until(ann.state, lambda state: "2 players" in state)
        at = await bob.until(lambda: bob.dots("--you"), bool)

        async with bob.held("ArrowRight"):
            moved = await bob.until(lambda: bob.dots("--you"), lambda dot: dot is not None and dot[0] > at[0] + 0.1)
        assert moved[1] == pytest.approx(at[1], abs=0.02)
        seen = await ann.until(lambda: ann.dots("--them"), lambda dot: dot is not None and dot[0] > at[0] + 0.1)

        async with bob.held("KeyS"):
            await ann.until(lambda: ann.dots("--them"), lambda dot: dot is not None and dot[1] > seen[1] + 0.1)
        assert await ann.dots("--you") == pytest.approx(at, abs=0.02)  # her own stayed where it was
        assert chrome.complaints == []

        await bob.call("Page.navigate", url=f"http://{host}:{port}/healthz")
        await ann.until(ann.state, lambda state: "1 player" in state)

        await bob.value("history.back()")
        await bob.until(bob.state, lambda state: "2 players" in state)
