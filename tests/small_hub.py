"""A small hub over HTTP with the routes, headers and refusals of the real one, for the real client library.

It serves the API (`/api/models/…`, listing and tree), files (`/ORG/NAME/resolve/REVISION/FILE`: direct ones, and large
ones behind a redirect as the real hub has them on another host), ranges and etags; and it can refuse, stall, cut and
count. Everything asked for is in `requests`.
"""

from __future__ import annotations

import hashlib
import json
import re
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

WEIGHTS = (".safetensors", ".bin", ".gguf", ".pt", ".pth", ".onnx", ".h5", ".msgpack")
_API = re.compile(r"/api/models/(?P<repo>.+?)(?:/(?P<what>revision|tree)/(?P<revision>[^/]+)(?P<below>/.*)?)?")
_RESOLVE = re.compile(r"/(?P<repo>.+?)/resolve/(?P<revision>[^/]+)/(?P<file>.+)")
_CDN = re.compile(r"/cdn/(?P<digest>[0-9a-f]{64})")


def commit_of(text: str) -> str:
    """A commit id made of a text."""
    return hashlib.sha1(text.encode()).hexdigest()


@dataclass
class Repository:
    """One repository.

    Attributes:
        commits: files of each commit.
        branches: commit of each branch and tag.
        large: names of files that are behind a redirect.
        token: what a client must send to see it (private) or to read its files (gated).
    """

    commits: dict[str, Mapping[str, bytes]]
    branches: dict[str, str]
    large: frozenset[str] = frozenset()
    private: bool = False
    gated: bool = False
    disabled: bool = False
    token: str = "hf_good"

    def commit(self, files: Mapping[str, bytes], branch: str = "main") -> str:
        """Put new files on a branch; the commit."""
        commit = commit_of(f"{branch}{sorted(files)}{len(self.commits)}")
        self.commits[commit] = files
        self.branches[branch] = commit
        return commit


@dataclass
class Trouble:
    """What goes wrong with requests whose path has `where` in it, `times` times.

    Attributes:
        status: answered instead of what was asked for.
        headers: of that answer.
        cut_after: the connection ends after so many bytes of the body.
        stall: the answer waits for this event.
    """

    where: str
    times: int = 1
    status: int = 0
    headers: Mapping[str, str] = field(default_factory=dict)
    cut_after: int | None = None
    stall: threading.Event | None = None
    method: str = ""


class SmallHub:
    """The hub's content and what was asked of it. `url` is what HF_ENDPOINT names."""

    def __init__(self, url: str) -> None:
        self.url = url
        # The library tells other hosts by their names: to those it sends no token, and does not follow them for a HEAD.
        self.cdn_url = url.replace("127.0.0.1", "localhost")
        self.repositories: dict[str, Repository] = {}
        self.troubles: list[Trouble] = []
        self.requests: list[tuple[str, str]] = []
        self.bytes_sent = 0
        self.asked = threading.Condition()

    def add(self, repo: str, files: Mapping[str, bytes], **options: Any) -> Repository:
        """A repository with one commit on its main branch."""
        commit = commit_of(repo)
        repository = self.repositories[repo] = Repository({commit: files}, {"main": commit}, **options)
        return repository

    @property
    def weights_asked(self) -> list[str]:
        """Paths of weights that somebody asked for."""
        return [path for _, path in self.requests if path.endswith(WEIGHTS)]

    def files_asked(self) -> set[str]:
        """Names of the files that were fetched."""
        found = (_RESOLVE.fullmatch(path) for method, path in self.requests if method == "GET")
        return {match["file"] for match in found if match}

    def wait_asked(self, where: str, timeout: float = 10.0) -> None:
        """Wait until a path with `where` in it has been asked for."""
        with self.asked:
            assert self.asked.wait_for(lambda: any(where in path for _, path in self.requests), timeout), where

    def trouble_with(self, method: str, path: str) -> Trouble | None:
        """The trouble that this request has, if any; it is used up."""
        with self.asked:
            for trouble in self.troubles:
                if trouble.where in path and trouble.times > 0 and trouble.method in ("", method):
                    trouble.times -= 1
                    return trouble
        return None


@contextmanager
def small_hub() -> Iterator[SmallHub]:
    """A running hub."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    server.daemon_threads = True
    server.block_on_close = False
    hub = server.hub = SmallHub(f"http://127.0.0.1:{server.server_port}")  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        for trouble in hub.troubles:
            if trouble.stall is not None:
                trouble.stall.set()
        server.shutdown()
        server.server_close()
        thread.join()


class _Refused(Exception):
    def __init__(self, status: int, code: str = "", message: str = "", commit: str = "") -> None:
        super().__init__(message)
        headers = {"X-Error-Code": code, "X-Error-Message": message, "X-Repo-Commit": commit}
        self.status, self.headers = status, {key: value for key, value in headers.items() if value}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    @property
    def hub(self) -> SmallHub:
        return self.server.hub  # type: ignore[attr-defined,no-any-return]

    def log_message(self, format: str, *args: object) -> None:
        """Says nothing."""

    def do_GET(self) -> None:
        self._answer()

    def do_HEAD(self) -> None:
        self._answer()

    def _answer(self) -> None:
        path = unquote(urlsplit(self.path).path)
        with self.hub.asked:
            self.hub.requests.append((self.command, path))
            self.hub.asked.notify_all()
        self._trouble = self.hub.trouble_with(self.command, path)
        if self._trouble is not None and self._trouble.stall is not None:
            self._trouble.stall.wait()
        try:
            if self._trouble is not None and self._trouble.status:
                self._send(self._trouble.status, b"", dict(self._trouble.headers))
                return
            self._route(urlsplit(self.path).path)
        except _Refused as refused:
            self._send(refused.status, json.dumps({"error": str(refused)}).encode(), refused.headers)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    def _route(self, path: str) -> None:
        if found := _CDN.fullmatch(path):
            self._send_file(self._large(found["digest"]), {"ETag": f'"{found["digest"]}"'})
        elif found := _RESOLVE.fullmatch(path):
            self._resolve(found["repo"], unquote(found["revision"]), unquote(found["file"]))
        elif found := _API.fullmatch(path):
            below = unquote(found["below"] or "").strip("/")
            self._describe(found["repo"], unquote(found["revision"] or "main"), found["what"], below)
        else:
            raise _Refused(404, message="no such page")

    # ---- who may see what ---------------------------------------------------------------------------------

    def _repository(self, name: str) -> Repository:
        repository = self.hub.repositories.get(name)
        token = self.headers.get("Authorization", "").removeprefix("Bearer ")
        if token and not token.startswith("hf_"):
            raise _Refused(401, message="Invalid credentials in Authorization header")
        if repository is None or (repository.private and token != repository.token):
            raise _Refused(404 if token else 401, "RepoNotFound", "Repository not found")
        if repository.disabled:
            raise _Refused(403, message="Access to this resource is disabled.")
        return repository

    def _commit(self, repository: Repository, revision: str) -> str:
        commit = repository.branches.get(revision, revision)
        if commit not in repository.commits:
            raise _Refused(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        return commit

    # ---- answers ------------------------------------------------------------------------------------------

    def _describe(self, name: str, revision: str, what: str | None, below: str) -> None:
        repository = self._repository(name)
        commit = self._commit(repository, revision)
        files = repository.commits[commit]
        if what == "tree":
            inside = {path: content for path, content in files.items() if path.startswith(below)}
            if below and not inside:
                raise _Refused(404, "EntryNotFound", f"{below} does not exist", commit)
            value: Any = [self._tree_entry(repository, path, content) for path, content in inside.items()]
        else:
            siblings = [{"rfilename": path, "size": len(content)} for path, content in files.items()]
            value = {"_id": "0", "id": name, "modelId": name, "sha": commit, "siblings": siblings, "tags": []}
            value |= {"private": repository.private, "gated": "manual" if repository.gated else False, "downloads": 0}
        self._send(200, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def _tree_entry(self, repository: Repository, path: str, content: bytes) -> dict[str, Any]:
        entry: dict[str, Any] = {"type": "file", "oid": hashlib.sha1(content).hexdigest(), "size": len(content)}
        if path in repository.large:
            digest = hashlib.sha256(content).hexdigest()
            entry["lfs"] = {"oid": digest, "sha256": digest, "size": len(content), "pointerSize": 134}
        return entry | {"path": path}

    def _resolve(self, name: str, revision: str, file: str) -> None:
        repository = self._repository(name)
        commit = self._commit(repository, revision)
        if repository.gated and self.headers.get("Authorization") != f"Bearer {repository.token}":
            status = 403 if "Authorization" in self.headers else 401
            raise _Refused(status, "GatedRepo", f"Access to model {name} is restricted.")
        content = repository.commits[commit].get(file)
        if content is None:
            raise _Refused(404, "EntryNotFound", "Entry not found", commit)
        headers = {"X-Repo-Commit": commit}
        if file not in repository.large:
            self._send_file(content, headers | {"ETag": f'"{hashlib.sha1(content).hexdigest()}"'})
            return
        digest = hashlib.sha256(content).hexdigest()
        headers |= {"X-Linked-Etag": f'"{digest}"', "X-Linked-Size": str(len(content))}
        self._send(302, b"", headers | {"Location": f"{self.hub.cdn_url}/cdn/{digest}"})

    def _large(self, digest: str) -> bytes:
        for repository in self.hub.repositories.values():
            for files in repository.commits.values():
                for content in files.values():
                    if hashlib.sha256(content).hexdigest() == digest:
                        return content
        raise _Refused(404, message="no such blob")

    def _send_file(self, content: bytes, headers: dict[str, str]) -> None:
        headers = headers | {"Accept-Ranges": "bytes"}
        found = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if found is None:
            self._send(200, content, headers)
            return
        first, last = int(found[1]), int(found[2] or len(content) - 1)
        headers["Content-Range"] = f"bytes {first}-{last}/{len(content)}"
        self._send(206, content[first : last + 1], headers)

    def _send(self, status: int, body: bytes, headers: Mapping[str, str]) -> None:
        self.send_response(status)
        for key, value in headers.items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "HEAD":
            return
        if self._trouble is not None and self._trouble.cut_after is not None:
            body = body[: self._trouble.cut_after]
            self.wfile.write(body)
            self.wfile.flush()
            self.connection.shutdown(socket.SHUT_RDWR)
            self.close_connection = True
        else:
            self.wfile.write(body)
        with self.hub.asked:
            self.hub.bytes_sent += len(body)


def model_files(directory: Any) -> dict[str, bytes]:
    """The files of a model's directory, as a repository has them, with weights beside them."""
    files = {path.name: path.read_bytes() for path in sorted(directory.iterdir()) if path.is_file()}
    return {
        ".gitattributes": b"*.safetensors lfs\n",
        "README.md": b"# a model\n",
        "model.safetensors": b"\0" * 4096,
    } | files
