"""A fleet of real processes on this machine, a SuperLink and SuperNodes, that is removed without a trace."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import HTTPSHandler, ProxyHandler, build_opener

import psutil

from fedweave.core.settings import BadInput
from fedweave.engine.pool.zygote import ONE_THREAD
from fedweave.fleet.floors import OPEN
from fedweave.fleet.local import guard, keys

HOST = "127.0.0.1"
NAME = "fleet"  # of the connection in Flower's configuration

QUIET = {  # no network calls outside this machine, no installations
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
}

# Several commands in one process, because Flower's command line takes seconds to load.
REGISTER = """
import sys
from flwr.cli.app import app
for path in sys.argv[2:]:
    app(["supernode", "register", path, sys.argv[1]], standalone_mode=False)
"""
RUN = """
import os, signal, sys
from flwr.cli.app import app
name, status, path, *options = sys.argv[1:]
app(["run", path, name, "--stream", *options], standalone_mode=False)
sys.stdout.flush()
os.dup2(os.open(status, os.O_WRONLY | os.O_CREAT), 1)
signal.alarm(90)  # the status is available at once or never
app(["list", name, "--format", "json"], standalone_mode=False)
"""


class Processes(AbstractContextManager["Processes"]):
    """SuperLink and SuperNodes on the loopback interface, in a temporary folder that is removed afterwards.

    With ``secure`` everything to and from the SuperLink is encrypted and every node has a registered key.
    """

    host = HOST  # where the SuperLink is
    spaces: tuple[str, ...] = ()  # network namespaces that are removed afterwards

    def __init__(self, clients: int, *, secure: bool = True):
        self.clients, self.secure = clients, secure
        self.mark = uuid.uuid4().hex
        self.folder = Path(tempfile.mkdtemp(prefix="fedweave-fleet-"))
        self.nodes: dict[int, subprocess.Popen[bytes]] = {}
        self.link: subprocess.Popen[bytes] | None = None
        self.port = free_port()
        self._status = self.folder / "status.json"  # Flower's status of the last run
        self._files = keys.server_files(self.folder / "keys", ["localhost", self.host]) if secure else None
        tools = str(Path(sys.executable).parent)  # Flower starts its own commands by name
        own = {guard.MARK: self.mark, "FLWR_HOME": str(self.folder / "home")}
        direct = dict.fromkeys(("NO_PROXY", "no_proxy"), f"{HOST},localhost,{self.host}")
        path = os.pathsep.join([tools, os.environ.get("PATH", "")])
        self.env = {**os.environ, **QUIET, **direct, **ONE_THREAD, **own, "PATH": path, "NO_COLOR": "1"}
        self._guard = subprocess.Popen(
            [sys.executable, "-P", guard.__file__, self.mark, str(self.folder), *self.spaces],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )

    def __enter__(self) -> Processes:
        try:
            self._configure()
            self.start_link()
            if self.secure:
                self.register([keys.node_key(self.folder / "keys", f"node{i}") for i in range(self.clients)])
            for client in range(self.clients):
                self.start_node(client)
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _configure(self) -> None:
        trust = f'root-certificates = "{self._files.ca}"' if self._files else "insecure = true"
        home = self.folder / "home"
        home.mkdir()
        text = f'[superlink]\ndefault = "{NAME}"\n\n[superlink.{NAME}]\naddress = "{self.host}:{self.port}"\n{trust}\n'
        (home / "config.toml").write_text(text)

    def start_link(self) -> None:
        """Start the SuperLink and wait until it answers."""
        command = ["flower-superlink", "--host", self.host, "--port", str(self.port)]
        command += ["--disable-runtime-dependency-installation"]
        if self._files:
            command += ["--ssl-ca-certfile", str(self._files.ca), "--ssl-certfile", str(self._files.certificate)]
            command += ["--ssl-keyfile", str(self._files.key), "--enable-supernode-auth"]
        else:
            command += ["--insecure"]
        self.link = self._start(command, "superlink")
        context = ssl.create_default_context(cafile=str(self._files.ca)) if self._files else None
        address = f"{'https' if self._files else 'http'}://{self.host}:{self.port}/health"
        opener = build_opener(ProxyHandler({}), HTTPSHandler(context=context))
        for _ in _poll(90):
            if self.link.poll() is not None:
                raise RuntimeError(f"The SuperLink ended with code {self.link.returncode}: {self.log('superlink')}")
            with suppress(URLError, OSError), opener.open(address, timeout=2):
                return
        raise RuntimeError(f"The SuperLink did not answer within 90 s: {self.log('superlink')}")

    def register(self, private: Sequence[Path]) -> None:
        """Register the nodes' public keys with the SuperLink."""
        command = [sys.executable, "-c", REGISTER, NAME, *(f"{path}.pub" for path in private)]
        if self._start(command, "register").wait(timeout=90):
            raise RuntimeError(f"The nodes' keys could not be registered: {self.log('register')}")

    def start_node(self, client: int, *options: str, key: Path | None = None, secure: bool | None = None) -> Any:
        """Start the SuperNode of a client."""
        command = ["flower-supernode", "--superlink", f"{self.host}:{self.port}", "--host", HOST]
        command += ["--port", str(free_port())]
        config = f"partition-id={client} num-partitions={self.clients} {OPEN}=false"  # trains as in the simulator
        command += ["--node-config", config, *options]
        if self._files and secure is not False:
            key = key or self.folder / "keys" / f"node{client}"
            command += ["--root-certificates", str(self._files.ca), "--auth-supernode-private-key", str(key)]
        else:
            command += ["--insecure"]
        process = self._start(command, f"node{client}")
        self.nodes[client] = process
        return process

    def kill(self, client: int) -> None:
        """Kill a node and all processes that it has started, as a power cut would."""
        node = psutil.Process(self.nodes[client].pid)
        for process in [*node.children(recursive=True), node]:
            with suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGKILL)
        self.nodes[client].wait()

    def run(self, app: Path, config: Mapping[str, Any], on_line: Callable[[str], None] | None = None) -> None:
        """Run an app and pass each line of its log to ``on_line``; raise if the app fails."""
        process = self.begin(app, config)
        for line in self.follow(process, "run"):
            if on_line:
                on_line(line)
        self.check_finished()

    def begin(self, app: Path, config: Mapping[str, Any]) -> subprocess.Popen[bytes]:
        """Submit an app; the process ends when the run has ended."""
        self._status.unlink(missing_ok=True)
        command = [sys.executable, "-c", RUN, NAME, str(self._status), str(app)]
        for key, value in config.items():
            command += ["-c", f"{key}={json.dumps(value)}"]
        return self._start(command, "run")

    def follow(self, process: subprocess.Popen[bytes], name: str) -> Iterator[str]:
        """Yield the lines of a process's log as they come, until it ends."""
        with (self.folder / f"{name}.log").open(encoding="utf-8", errors="replace") as file:
            rest = ""
            while True:
                ended = process.poll() is not None
                *lines, rest = (rest + file.read()).split("\n")
                yield from lines
                if ended:
                    return
                time.sleep(0.1)

    def check_finished(self) -> None:
        """Raise if the last run failed, which Flower's exit code does not show."""
        try:
            status = json.loads(self._status.read_text(encoding="utf-8"))["runs"][0]["status"]
        except (OSError, ValueError, KeyError, IndexError):
            status = f"unknown ({self.log('run')})"
        if status == "finished:completed":
            return
        if said := re.findall(r"^fedweave\S+BadInput: (.+)", self.log("run", 1000), re.MULTILINE):
            raise BadInput(said[-1])
        raise RuntimeError(f"The run ended as {status!r}:\n{self.log('run')}")

    def log(self, name: str, lines: int = 30) -> str:
        """Return the last lines of a process's log."""
        path = self.folder / f"{name}.log"
        text = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
        return "\n".join(text.splitlines()[-lines:])

    def _start(self, command: Sequence[str], name: str) -> subprocess.Popen[bytes]:
        tool = shutil.which(command[0], path=self.env["PATH"])
        if tool is None:
            raise RuntimeError(f"{command[0]} is not installed: pip install 'fedweave[flower]'")
        with (self.folder / f"{name}.log").open("wb") as log:
            return subprocess.Popen(
                [tool, *command[1:]],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self.env,
                cwd=self.folder,
                start_new_session=True,  # Ctrl-C reaches only the main process, which ends them in order
            )

    def members(self) -> list[psutil.Process]:
        """Return the running processes of this fleet."""
        return guard.members(self.mark)

    def stop(self) -> None:
        """End every process of the fleet, gently and then by force, and remove its folder."""
        started = [p for p in (*self.nodes.values(), self.link) if p is not None]
        for process in started:
            if process.poll() is None:
                process.terminate()
        for process in started:
            with suppress(subprocess.TimeoutExpired):
                process.wait(timeout=5)
        assert self._guard.stdin is not None
        self._guard.stdin.close()
        self._guard.wait()
        for process in started:
            process.wait()


def free_port() -> int:
    """Return a port of this machine that is free now."""
    with socket.socket() as s:
        s.bind((HOST, 0))
        return s.getsockname()[1]


def _poll(seconds: float) -> Iterator[None]:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        yield
        time.sleep(0.2)
