"""A real JupyterLab on this machine with a copy of the notebooks, and a Chromium before it."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import requests

ROOT = Path(__file__).resolve().parent.parent.parent
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or ""
ARGUMENTS = [
    "--no-sandbox",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
    "--disable-dev-shm-usage",
]
# What JupyterLab would ask the internet for: news, a newer version, the list of extensions.
# docs/notebooks.md names them.
SETTINGS = {
    "@jupyterlab/apputils-extension/notification": {"fetchNews": "false", "checkForUpdates": False},
    "@jupyterlab/extensionmanager-extension/plugin": {"enabled": False},
    # Every cell is there, also those that are not in view.
    "@jupyterlab/notebook-extension/tracker": {"windowingMode": "none"},
}


@contextlib.contextmanager
def chromium() -> Iterator[Any]:
    """A browser of this machine, closed at the end."""
    from playwright import sync_api

    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield browser
        browser.close()


@dataclass
class Lab:
    """A running server. ``asked`` are the addresses outside of this machine that the browser
    wanted; none was reached."""

    port: int
    token: str
    folder: Path
    asked: list[str] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def notebook(self, name: str) -> str:
        """The address of a notebook in a workspace of its own."""
        own = name.replace("/", "-")
        return f"{self.url}/lab/workspaces/{own}/tree/{name}.ipynb?token={self.token}&reset"

    def get(self, path: str) -> list[dict]:
        return requests.get(
            f"{self.url}/api/{path}", params={"token": self.token}, timeout=10
        ).json()

    def wait_idle(self, name: str, seconds: float) -> None:
        """Until the kernel of a notebook has a client and nothing to do: "Run All" before that is
        dropped without a word."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            kernels = [
                one["kernel"] for one in self.get("sessions") if one["path"].startswith(name)
            ]
            if kernels and all(
                one["execution_state"] == "idle" and one["connections"] for one in kernels
            ):
                return
            time.sleep(0.2)
        raise AssertionError(
            f"the kernel of {name} is not idle after {seconds} s: {self.get('sessions')}"
        )


def set_parameter(path: Path, name: str, value: str) -> None:
    """Set an empty parameter of a notebook to a text."""
    text = path.read_text()
    here = text.replace(f'{name}: str = \\"\\"', f'{name}: str = \\"{value}\\"')
    assert here != text, (path, name)
    path.write_text(here)


@contextlib.contextmanager
def running(folder: Path, theme: str = "JupyterLab Light", language: str = "en") -> Iterator[Lab]:
    """A server with its settings, kernels and results below a folder; gone at the end.

    In a checkout the folder of a translated notebook says its language; these are copies.
    """
    work, settings = folder / "notebooks", folder / "settings"
    shutil.copytree(ROOT / "notebooks", work, ignore=shutil.ignore_patterns(".ipynb_checkpoints"))
    for path in work.rglob("*.ipynb"):  # results go below the folder, not into the checkout
        set_parameter(path, "run_dir", f"{folder}/run-{path.parent.name}")
    chosen = SETTINGS | {"@jupyterlab/apputils-extension/themes": {"theme": theme}}
    for name, values in chosen.items():
        path = settings / f"{name}.jupyterlab-settings"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(values))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    token = secrets.token_hex(16)
    env = {name: value for name, value in os.environ.items() if not name.startswith("JUPYTER")}
    env |= {
        "JUPYTERLAB_SETTINGS_DIR": str(settings),
        "JUPYTER_TOKEN": token,
        "JUPYTERLAB_WORKSPACES_DIR": str(folder / "workspaces"),
        "JUPYTER_RUNTIME_DIR": str(folder / "runtime"),
        "JUPYTER_CONFIG_DIR": str(folder / "config"),
        "IPYTHONDIR": str(folder / "ipython"),
        "PYTHONPATH": str(ROOT),
        "KIMI_NB_LANG": language,
    }
    argv = [
        sys.executable,
        "-m",
        "jupyterlab",
        "--no-browser",
        "--ip",
        "127.0.0.1",
        "--port",
        str(port),
        "--ServerApp.port_retries=0",
        "--LabApp.news_url=",
        "--allow-root",
        "--LabApp.extension_manager=readonly",
        "--expose-app-in-browser",
    ]
    with (folder / "lab.log").open("wb") as log:
        server = subprocess.Popen(
            argv, cwd=work, env=env, stdout=log, stderr=log, start_new_session=True
        )
    lab = Lab(port, token, work)
    try:
        _wait(lab, server, folder / "lab.log")
        yield lab
    finally:
        with contextlib.suppress(requests.RequestException, ValueError):
            for one in lab.get("sessions"):
                requests.delete(
                    f"{lab.url}/api/sessions/{one['id']}", params={"token": token}, timeout=20
                )
        with contextlib.suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGTERM)
        try:
            server.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(server.pid, signal.SIGKILL)
            server.wait()


def _wait(lab: Lab, server: subprocess.Popen, log: Path) -> None:
    end = time.monotonic() + 60
    while time.monotonic() < end:
        assert server.poll() is None, log.read_text()
        with contextlib.suppress(requests.RequestException, ValueError):
            lab.get("status")
            return
        time.sleep(0.2)
    raise AssertionError(f"JupyterLab does not answer:\n{log.read_text()}")


def guard(page: object, lab: Lab) -> None:
    """Note every request that would leave this machine; Chromium resolves no other name."""

    def note(url: str) -> None:
        address = urlsplit(url)
        if address.scheme not in ("data", "blob") and address.hostname != "127.0.0.1":
            lab.asked.append(url)

    page.context.on("request", lambda request: note(request.url))
    page.on("websocket", lambda socket: note(socket.url))


def run_all(page: Any, lab: Lab, name: str, most: float) -> None:
    """Open a notebook and run all of its cells, within so many seconds."""
    page.goto(lab.notebook(name))
    page.wait_for_selector(".jp-Notebook .jp-CodeCell")
    lab.wait_idle(name, 60)
    page.click("text=Run >> nth=0")
    page.click("text=Run All Cells >> nth=0")
    # The last cell has run: everything before it has.
    page.wait_for_selector(".jp-CodeCell >> nth=-1 >> .jp-OutputArea-output", timeout=most * 1000)
    lab.wait_idle(name, 60)


def errors(page: Any) -> list[str]:
    """Return what the cells that failed say, and every traceback that is no line of a log."""
    outputs = page.locator(".jp-OutputArea-output")
    return outputs.evaluate_all(
        """all => all.filter(one => /error|stderr/.test(one.dataset.mimeType)
            || (one.matches('.jp-RenderedText') && one.textContent.includes('Traceback')))
            .map(one => one.textContent)"""
    )


def artefacts(folder: Path) -> Path:
    """Where screenshots are kept: what KIMI_NB_ARTEFACTS names, else a folder of the test."""
    chosen = Path(os.environ.get("KIMI_NB_ARTEFACTS") or folder / "artefacts")
    chosen.mkdir(parents=True, exist_ok=True)
    return chosen
