"""A small signed archive on loopback, and an apt that uses one temporary folder as its root."""

from __future__ import annotations

import gzip
import http.server
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from gpunode.host.apt import Apt
from gpunode.host.port import Progress
from gpunode.host.process import FinishedCommand, OnLine, Runner
from tests.fakes.skipped_time import SkippedTime
from tests.needs import lacking

FOLDERS = (
    "etc/apt/apt.conf.d",
    "etc/apt/sources.list.d",
    "etc/apt/preferences.d",
    "var/lib/dpkg/updates",
    "var/lib/dpkg/info",
    "var/lib/apt/lists/partial",
    "var/cache/apt/archives/partial",
    "var/log/apt",
)
TOOLS = ("apt-get", "apt-ftparchive", "dpkg-deb", "dpkg-query", "gpg", "/usr/lib/apt/apt-helper")


class Archive:
    """An archive in the flat layout of NVIDIA's CUDA repository, whose answers can be replaced request by request.

    Attributes:
        falsified: the answers to give instead, by path, one after the other: a status or a body.
        asked: every requested path.
    """

    def __init__(self, folder: Path, key: Path) -> None:
        self.folder = folder
        self.key = key
        self.falsified: dict[str, list[int | bytes]] = {}
        self.asked: list[str] = []
        archive = self

        class Handler(http.server.SimpleHTTPRequestHandler):
            def __init__(self, *args: object, **kwargs: object) -> None:
                super().__init__(*args, directory=str(folder), **kwargs)  # type: ignore[arg-type]

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002
                pass

            def do_GET(self) -> None:
                archive.asked.append(self.path)
                answers = archive.falsified.get(self.path)
                answer = answers.pop(0) if answers else None
                if answer is None:
                    super().do_GET()
                elif isinstance(answer, int):
                    self.send_error(answer)
                else:
                    self.send_response(200)
                    self.send_header("Content-Length", str(len(answer)))
                    self.end_headers()
                    self.wfile.write(answer)

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01})

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_address[1]}"

    def __enter__(self) -> Archive:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.server.shutdown()
        self._thread.join()
        self.server.server_close()

    def lists(self, repository: str, key: Path | None = None) -> str:
        return f"deb [signed-by={key or self.key}] {self.url}/{repository}/ /\n"


def package(folder: Path, name: str, version: str, **fields: str) -> None:
    tree = folder / f"tree-{name}"
    (tree / "DEBIAN").mkdir(parents=True)
    control = {
        "Package": name,
        "Version": version,
        "Architecture": "all",
        "Maintainer": "Lab <lab@localhost>",
        **fields,
    }
    text = "".join(f"{key}: {value}\n" for key, value in {**control, "Description": f"lab {name}"}.items())
    (tree / "DEBIAN/control").write_text(text)
    target = folder / f"{name}_{version.replace(':', '%3a')}_all.deb"
    subprocess.run(["dpkg-deb", "--root-owner-group", "-Znone", "-b", tree, target], check=True, capture_output=True)
    shutil.rmtree(tree)


def index(folder: Path, gnupg: Path, user: str, **release_fields: str) -> None:
    """Write ``Packages`` and a signed ``InRelease`` for the packages in the folder."""
    packages = subprocess.run(["apt-ftparchive", "packages", "."], cwd=folder, check=True, capture_output=True).stdout
    (folder / "Packages").write_bytes(packages)
    (folder / "Packages.gz").write_bytes(gzip.compress(packages))
    argv = ["apt-ftparchive", "-o", "APT::FTPArchive::Release::Label=Lab CUDA", "release", "."]
    release = "".join(f"{key}: {value}\n" for key, value in release_fields.items()).encode()
    release += subprocess.run(argv, cwd=folder, check=True, capture_output=True).stdout
    sign: list[str | Path] = [
        "gpg",
        "--homedir",
        gnupg,
        "--batch",
        "--yes",
        "-u",
        user,
        "--clearsign",
        "-o",
        folder / "InRelease",
    ]
    subprocess.run(sign, input=release, check=True, capture_output=True)


@dataclass
class Keys:
    folder: Path

    def make(self, user: str) -> Path:
        gpg = ["gpg", "--homedir", str(self.folder), "--batch", "--quiet"]
        make = [*gpg, "--passphrase", "", "--quick-gen-key", user, "ed25519", "sign", "never"]
        subprocess.run(make, check=True, capture_output=True)
        exported = subprocess.run([*gpg, "--export", user], check=True, capture_output=True).stdout
        target = self.folder / f"{user}.gpg"
        target.write_bytes(exported)
        return target


@pytest.fixture(scope="session")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Keys]:
    if reason := lacking(*TOOLS):
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("g")
    folder.chmod(0o700)
    yield Keys(folder)
    subprocess.run(["gpgconf", "--homedir", folder, "--kill", "all"], check=False, capture_output=True)


@pytest.fixture(scope="session")
def signed(keys: Keys, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return the folder of two signed repositories, and their key."""
    key = keys.make("archive@localhost")
    folder = tmp_path_factory.mktemp("www")
    cuda, toolkit = folder / "debian12/x86_64", folder / "toolkit"
    for repository in (cuda, toolkit):
        repository.mkdir(parents=True)
    for version in ("580.1-1", "2:590.1-1"):
        package(cuda, "driver", version, Depends=f"driver-lib (= {version})", Conflicts="old-driver")
        package(cuda, "driver-lib", version)
    package(cuda, "needs-missing", "1", Depends="nosuch")
    package(toolkit, "toolkit", "1.18.0-1")
    for repository in (cuda, toolkit):
        index(repository, keys.folder, "archive@localhost")
    return folder, key


@pytest.fixture
def archive(signed: tuple[Path, Path], tmp_path: Path) -> Iterator[Archive]:
    folder, key = signed
    shutil.copytree(folder, tmp_path / "www")
    with Archive(tmp_path / "www", key) as served:
        yield served


class PrivateRunner(Runner):
    """Runs commands with all of apt's and dpkg's files in ``world``."""

    def __init__(self, world: Path) -> None:
        super().__init__()
        self.world = world
        self.commands: list[tuple[str, ...]] = []

    def run(
        self,
        argv: Sequence[str],
        *,
        timeout_s: float,
        stdin: bytes = b"",
        env: Mapping[str, str] = {},
        limit_bytes: int = 1 << 20,
        on_line: OnLine | None = None,
        status: OnLine | None = None,
        survives_gpunode: bool = False,
        only_reads: bool = False,
    ) -> FinishedCommand:
        self.commands.append(tuple(argv))
        private = {**env, "APT_CONFIG": str(self.world / "apt.conf"), "DPKG_ADMINDIR": str(self.world / "var/lib/dpkg")}
        return super().run(
            argv,
            timeout_s=timeout_s,
            stdin=stdin,
            env=private,
            limit_bytes=limit_bytes,
            on_line=on_line,
            status=status,
            survives_gpunode=survives_gpunode,
            only_reads=only_reads,
        )


@dataclass
class World:
    """A private apt.

    Attributes:
        waited: the seconds of every requested pause; none was actually made.
    """

    folder: Path
    waited: list[float]
    progress: list[Progress] = field(default_factory=list)
    on_wait: Callable[[], None] = lambda: None

    def __post_init__(self) -> None:
        for name in FOLDERS:
            (self.folder / name).mkdir(parents=True)
        self.installed("")
        (self.folder / "apt.conf").write_text(
            f'Dir "{self.folder}";\nDir::State::status "{self.folder}/var/lib/dpkg/status";\n'
            'APT::Architecture "amd64";\nAcquire::Languages "none";\nAPT::Sandbox::User "root";\n'
            'Acquire::Retries::Delay "false";\n'
        )

    def installed(self, *rows: str) -> None:
        """Write dpkg's status file from rows ``name version`` or ``name version rc``."""
        text = ""
        for name, version, *rc in (row.split() for row in rows if row):
            status = "deinstall ok config-files" if rc else "install ok installed"
            text += (
                f"Package: {name}\nStatus: {status}\nMaintainer: Lab <lab@localhost>\nArchitecture: all\n"
                f"Version: {version}\nConffiles:\n /etc/{name} 0\nDescription: lab\n\n"
            )
        (self.folder / "var/lib/dpkg/status").write_text(text)

    def source(self, name: str, text: str) -> str:
        path = self.folder / "etc/apt/sources.list.d" / name
        path.write_text(text)
        return str(path)

    def indexes(self) -> dict[str, bytes]:
        folder = self.folder / "var/lib/apt/lists"
        return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file() and path.name != "lock"}

    def apt(self, lock_timeout_s: float = 0.0) -> Apt:
        self.runner = PrivateRunner(self.folder)
        return Apt(self.runner, self._hear, lock_timeout_s)

    def _hear(self, progress: Progress) -> None:
        self.progress.append(progress)
        if progress.phase == "wait":
            self.on_wait()


@pytest.fixture
def world(tmp_path: Path, skipped_time: SkippedTime) -> World:
    return World(tmp_path / "world", skipped_time.waits)
