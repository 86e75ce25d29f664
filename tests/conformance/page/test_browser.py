"""The page in a real browser, if one is installed: no console messages, no network requests."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpunode.page.report import node_page
from tests.needs import lacking
from tests.unit.page import nodes
from tests.unit.page import test_fleet_page as fleet_page
from tests.unit.page.test_page import ABOUT, render_node

_NAMES = ("chromium", "chromium-browser", "google-chrome")
BROWSER = next((found for name in _NAMES if (found := shutil.which(name))), "")
# Hosts that Chromium contacts by itself, whatever page it shows.
OWN = re.compile(r"(?:^|\.)(?:google|googleapis|gstatic|gvt1|chromium|chrome)\.(?:com|org)(?::|$)")
PAGES = {
    "sample": lambda: node_page(nodes.examined(), ABOUT),
    "hostile": lambda: render_node(nodes.hostile()),
    "fleet": lambda: fleet_page.render_fleet(fleet_page.HEALTHY, fleet_page.BROKEN, fleet_page.UNREAD),
}

pytestmark = pytest.mark.skipif(not BROWSER, reason=lacking("chromium"))


@contextmanager
def proxy() -> Iterator[tuple[int, list[str]]]:
    """Yield a proxy that records the requested hosts and never answers."""
    asked: list[str] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with connection:
                    connection.settimeout(2)
                    words = connection.recv(4096).decode("latin-1").split()
                    asked.append(re.sub(r"^https?://|/.*$", "", words[1]) if len(words) > 1 else "?")

        threading.Thread(target=serve, daemon=True).start()
        yield server.getsockname()[1], asked
        server.shutdown(socket.SHUT_RDWR)


def open_page(text: str, tmp_path: Path, *more: str) -> tuple[str, str, list[str]]:
    """Return the page as the browser renders it, the console messages, and the requested hosts."""
    file = tmp_path / "page.html"
    file.write_text(text)
    with proxy() as (port, asked):
        done = subprocess.run(
            [
                BROWSER,
                *("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"),
                *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
                *("--enable-logging=stderr", f"--user-data-dir={tmp_path}/profile"),
                *(f"--proxy-server=http://127.0.0.1:{port}", "--proxy-bypass-list=<-loopback>"),
                *("--window-size=1200,1600", "--virtual-time-budget=3000", *more),
                file.as_uri(),
            ],
            capture_output=True, text=True, timeout=120, check=True, env={**os.environ, "HOME": str(tmp_path)},
        )  # fmt: skip
    return done.stdout, done.stderr, asked


@pytest.mark.parametrize("name", PAGES)
def test_page_logs_no_error_and_requests_nothing(name: str, tmp_path: Path) -> None:
    dom, said, asked = open_page(PAGES[name](), tmp_path, "--dump-dom")
    assert "CONSOLE" not in said, said
    assert not [host for host in asked if not OWN.search(host)]
    assert "<script" not in dom
    assert "</footer>" in dom


def test_browser_check_detects_scripts_and_requests(tmp_path: Path) -> None:
    text = render_node(nodes.hostile())
    opened = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", text).replace(
        "</main>", '<img src="http://evil.example/x.png"><script>console.error("ran")</script></main>'
    )
    _, said, asked = open_page(opened, tmp_path, "--dump-dom")
    assert "CONSOLE" in said
    assert any("evil.example" in host for host in asked)


def test_content_security_policy_blocks_injected_markup(tmp_path: Path) -> None:
    text = render_node(nodes.hostile()).replace(
        "</main>", '<img src="http://evil.example/x.png"><script>document.title="ran"</script></main>'
    )
    dom, _, asked = open_page(text, tmp_path, "--dump-dom")
    assert not any("evil.example" in host for host in asked)
    assert "<title>ran" not in dom
