"""A headless Chromium that clicks and types, over its debugging pipe: no driver, no socket, no network."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import shutil
import signal
from typing import Any

BINARY = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-dev-shm-usage --disable-background-networking --no-first-run "
    "--disable-component-update --disable-sync --hide-scrollbars --remote-debugging-pipe "
    "--disable-features=IsolateSandboxedIframes"  # a frame is then reached by its page's session
).split(" ")
KEYS = {"Enter": 13, "Escape": 27, "End": 35, "Home": 36}
KEYS |= {"ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40}


class Tab:
    """A browser of one tab; ``errors`` are what its pages complain of: exceptions, refused loads, console errors."""

    def __init__(self, folder: str) -> None:
        assert BINARY is not None
        out, self.write = _pipe()
        self.read, back = _pipe()
        moves = [(os.POSIX_SPAWN_DUP2, out, 3), (os.POSIX_SPAWN_DUP2, back, 4)]
        log = [(os.POSIX_SPAWN_OPEN, 2, f"{folder}/chromium.log", os.O_WRONLY | os.O_CREAT, 0o600)]
        command = [BINARY, *FLAGS, f"--user-data-dir={folder}", "about:blank"]
        self.process = os.posix_spawn(BINARY, command, os.environ, file_actions=[*moves, *log], setpgroup=0)
        os.close(out)
        os.close(back)
        self.received, self.count, self.session = b"", 0, dict[str, str]()
        self.errors: list[dict[str, Any]] = []
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self.session = {"sessionId": self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]}
        for domain in ("Page", "Runtime", "Log"):
            self.send(f"{domain}.enable")

    def send(self, method: str, **params: Any) -> dict[str, Any]:
        self.count += 1
        call = {"id": self.count, "method": method, "params": params, **self.session}
        os.write(self.write, json.dumps(call).encode() + b"\0")
        while True:
            while b"\0" not in self.received:
                read = os.read(self.read, 1 << 16)
                assert read, "Chromium has ended"
                self.received += read
            first, self.received = self.received.split(b"\0", 1)
            message = json.loads(first)
            if message.get("id") == self.count:
                assert "error" not in message, (method, message["error"])
                return message["result"]
            about = message.get("params", {})
            if message.get("method") == "Runtime.exceptionThrown" or about.get("entry", {}).get("level") == "error":
                self.errors.append(about)

    def goto(self, url: str, *, width: int = 1280, height: int = 800, dark: bool = False) -> None:
        """Load a page and wait until it has run."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.send("Emulation.setDeviceMetricsOverride", **size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.send("Emulation.setEmulatedMedia", features=[scheme])
        self.send("Page.navigate", url="about:blank")
        self.send("Page.navigate", url=url)
        while not self.evaluate("document.readyState == 'complete' && location.href != 'about:blank'"):
            pass

    def evaluate(self, script: str) -> Any:
        """The value of an expression; promises are awaited."""
        answer = self.send("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def click(self, selector: str) -> None:
        """Press the mouse in the middle of what a selector finds, once it is drawn: what is not cannot be hit."""
        self.evaluate("new Promise(go => requestAnimationFrame(() => requestAnimationFrame(() => go(true))))")
        x, y = self.evaluate(
            f"(() => {{ const e = document.querySelector({json.dumps(selector)});"
            "e.scrollIntoView({block: 'nearest'}); const r = e.getBoundingClientRect();"
            "return [r.x + r.width / 2, r.y + r.height / 2]; })()"
        )
        for kind in ("mousePressed", "mouseReleased"):
            self.send("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def press(self, *keys: str) -> None:
        for key in keys:
            text = "\r" if key == "Enter" else key if len(key) == 1 else ""
            for kind, typed in (("keyDown", text), ("keyUp", "")):
                code = KEYS.get(key, ord(key[0]))
                self.send("Input.dispatchKeyEvent", type=kind, key=key, text=typed, windowsVirtualKeyCode=code)

    def type(self, text: str) -> None:
        """Type into what has the focus."""
        self.send("Input.insertText", text=text)

    def screenshot(self) -> bytes:
        return base64.b64decode(self.send("Page.captureScreenshot")["data"])

    def close(self) -> None:
        """End the process and those it started."""
        os.close(self.write)
        os.close(self.read)
        os.killpg(self.process, signal.SIGKILL)
        os.waitpid(self.process, 0)


def _pipe() -> tuple[int, int]:
    """A pipe whose ends are no descriptor that the child gets."""
    ends = os.pipe()
    high = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 20) for end in ends]
    for end in ends:
        os.close(end)
    return high[0], high[1]
