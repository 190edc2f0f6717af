"""The chat page in headless Chromium, driven by a script of its own."""

from __future__ import annotations

import os
import queue
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import HTMLResponse, Response
from support.repository import ROOT
from support.served import served

from efficientbench.chat.answers import Chat
from efficientbench.chat.web import PAGE_POLICY

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
"""None: this machine has none."""
LIMIT_S = 120
DRIVER = """
const said = () => [...at("log").children].map((each) => [each.className, each.textContent]);
async function say(text) {
  at("text").value = text;
  at("form").requestSubmit();
  while (running) await new Promise((then) => setTimeout(then, 20));
}
// What is learned by heart is the likeliest.
const plain = fetch;
const likeliest = (body) => JSON.stringify({ ...JSON.parse(body), temperature: 0 });
fetch = (url, given) => plain(url, given && { ...given, body: likeliest(given.body) });
(async () => { SCRIPT })().catch(String)
  .then((found) => plain("told", { method: "POST", body: JSON.stringify(found) }));
"""


def seen(chat: Chat, script: str, folder: Path, key: str | None = None) -> Any:
    """Return what a script returns in the page, as wide as a phone, of a server of this chat.

    Args:
        chat: that the page talks with.
        script: the body of an async function. `say` asks and waits for the answer; `said` is what stands there.
        folder: for the browser's own files.
        key: of the server.
    """
    page = (ROOT / "efficientbench" / "chat" / "page.html").read_text(encoding="utf-8")
    driven = page.replace("</body>", f"<script>{DRIVER.replace('SCRIPT', script)}</script></body>")
    told: queue.Queue[Any] = queue.Queue()

    def also(app: FastAPI) -> None:
        @app.get("/driven")
        async def drive() -> Response:
            return HTMLResponse(driven, headers={"Content-Security-Policy": PAGE_POLICY})

        @app.post("/told")
        async def take(request: Request) -> Response:
            told.put(await request.json())
            return Response()

    with served(chat, key=key, also=also) as server:
        assert CHROMIUM is not None
        words = ("--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-port=0", "--lang=en")
        places = (f"--user-data-dir={folder}", "--window-size=400,740", f"{server.url}/driven")
        browser = subprocess.Popen(
            [CHROMIUM, *words, *places],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            return told.get(timeout=LIMIT_S)
        finally:
            os.killpg(browser.pid, signal.SIGKILL)
            browser.wait()
