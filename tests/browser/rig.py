"""A headless Chromium, what it complains of, and a small server of the page with an answer of a job."""

import contextlib
import http.server
import json
import pathlib
import shutil
import threading
import time

from playwright.sync_api import sync_playwright

ROOT = pathlib.Path(__file__).resolve().parents[2]
ASSETS = ROOT / "crates" / "admin" / "assets"
PICTURES = ROOT / "target" / "browser"
PACKAGES = ROOT / "target" / "browser-npm" / "node_modules"
POLICY = "default-src 'self'"
TYPES = {".html": "text/html; charset=utf-8", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}


class Site:
    """Serves the page, and as /job.json what `answer` is at that moment; `None`: it asks for the token `token`."""

    token = "a token of the tests"

    def __init__(self, answer):
        self.answer, self.hangs = answer, threading.Event()
        self.asked, self.began = 0, time.monotonic()
        site = self

        class Handler(http.server.BaseHTTPRequestHandler):
            """With the headers of the process that serves the page."""

            def do_GET(self):
                site.reply(self)

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.address = f"http://127.0.0.1:{self.server.server_port}/"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def reply(self, request):
        """Like the process, without anything that a page does not need."""
        while self.hangs.is_set():
            threading.Event().wait(0.1)
        path, _, query = request.path.partition("?")
        name = path.lstrip("/") or "index.html"
        path = ASSETS / name
        if name == "job.json":
            self.asked += 1
            self.query = query
            is_open = self.answer is not None or request.headers.get("Authorization") == f"Bearer {self.token}"
            answer = self.answer if self.answer is not None else self.behind_token
            self.send(
                request, 200 if is_open else 401, "application/json", json.dumps(self.stamped(answer) if is_open else {}).encode()
            )
        elif path.parent == ASSETS and path.is_file():
            self.send(request, 200, TYPES[path.suffix], path.read_bytes())
        else:
            self.send(request, 404, "text/plain", b"")

    def stamped(self, answer):
        """With the seconds that have passed since the first one was asked for."""
        passed = time.monotonic() - self.began if self.is_alive else 0.0
        return answer | {"asked_at": answer["asked_at"] + passed}

    is_alive = True
    """Whether it gives new answers, or the first one again."""
    query = ""
    """What was last asked for behind the question mark."""
    behind_token = None
    """What those get that have the token, if `answer` is `None`."""

    def send(self, request, code, kind, body):
        """One answer, whole."""
        request.send_response(code)
        for name, value in {"Content-Type": kind, "Content-Length": len(body), "Content-Security-Policy": POLICY}.items():
            request.send_header(name, str(value))
        request.end_headers()
        with contextlib.suppress(OSError):
            request.wfile.write(body)

    def close(self):
        """Stops serving."""
        self.hangs.clear()
        self.server.shutdown()
        self.server.server_close()


@contextlib.contextmanager
def chromium():
    """The system's Chromium, headless."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        yield browser
        browser.close()


class Sheet:
    """A page in a window of its own, and all that Chromium complained of while it was open."""

    def __init__(self, browser, *, dark=False, width=1280, height=900):
        scheme = "dark" if dark else "light"
        self.context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
        self.page = self.context.new_page()
        self.complaints = []
        self.page.on("console", self.hear)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))

    def hear(self, message):
        """Keeps what is wrong; that a machine has no graphics card is not."""
        if message.type in ("error", "warning") and "GL Driver Message" not in message.text:
            self.complaints.append(message.text)

    def open(self, address):
        """Opens an address, and waits for the first answer of a job."""
        self.page.goto(address)
        self.page.wait_for_selector("#main:not([hidden])", timeout=15_000)
        return self

    def text(self, selector):
        """The text that a reader sees there."""
        return self.page.inner_text(selector)

    def within(self, seconds, script):
        """Waits until an expression of JavaScript is true; fails after that many seconds. The page's policy forbids to wait in it."""
        end = time.monotonic() + seconds
        while not self.page.evaluate(script):
            assert time.monotonic() < end, f"not within {seconds} s: {script}; the page says\n{self.text('body')}"
            self.page.wait_for_timeout(50)

    def picture(self, name):
        """A screenshot of the whole page, to be looked at."""
        PICTURES.mkdir(parents=True, exist_ok=True)
        self.page.screenshot(path=PICTURES / f"{name}.png", full_page=True)

    def close(self):
        """Closes it; returns the complaints."""
        self.context.close()
        return self.complaints
