"""A stand-in for the Hugging Face Hub, as far as Polyak and `huggingface_hub` use it, in memory.

`with Hub() as hub:` serves on a free local port; clients find it by HF_ENDPOINT=hub.url, with
HF_HUB_DISABLE_XET=1. Statuses, headers and error codes are those of the true one.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
import urllib.parse
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any

LARGE = (".safetensors", ".mp4", ".gif")
"""Files that the Hub wants by the protocol for large ones, beside those of over 100 kB."""


class Repository:
    """The versions of a model repository, the oldest first."""

    def __init__(self, files: Mapping[str, bytes] | None = None, *, private: bool = False) -> None:
        self.private = private
        self.versions: list[dict[str, bytes]] = []
        self.commit(files or {".gitattributes": b"*.safetensors filter=lfs\n"})

    @property
    def files(self) -> dict[str, bytes]:
        """The newest version."""
        return self.versions[-1]

    def commit(self, files: Mapping[str, bytes]) -> str:
        """Adds a version; returns its commit hash."""
        self.versions.append(dict(files))
        return self._hash(len(self.versions) - 1)

    def at(self, revision: str) -> tuple[str, dict[str, bytes]] | None:
        """Commit hash and files of `main` or of a commit, or None where there is no such."""
        hashes = [self._hash(index) for index in range(len(self.versions))]
        if revision == "main":
            return hashes[-1], self.files
        return (revision, self.versions[hashes.index(revision)]) if revision in hashes else None

    def _hash(self, index: int) -> str:
        names = [f"{k} {hashlib.sha1(v).hexdigest()}" for k, v in self.versions[index].items()]  # noqa: S324
        return hashlib.sha1("\n".join([str(index), *names]).encode()).hexdigest()  # noqa: S324


class Hub(ThreadingHTTPServer):
    """The server. `repositories` by `owner/name`; `log` has a line for each request.

    Args:
        token: the one token it knows.
        role: what that token may do.
    """

    daemon_threads = True

    def __init__(self, token: str = "hf_standin", role: str = "write") -> None:  # noqa: S107
        super().__init__(("127.0.0.1", 0), _Handler)
        self.token, self.role = token, role
        self.user, self.organisations = "tester", ["lab"]
        self.repositories: dict[str, Repository] = {}
        self.blobs: dict[str, bytes] = {}
        self.log: list[str] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def __enter__(self) -> Hub:
        threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None = None,
        error: BaseException | None = None,
        at: TracebackType | None = None,
    ) -> None:
        self.shutdown()
        self.server_close()


class _Error(Exception):
    """An answer that is an error: status, X-Error-Code, X-Error-Message."""

    def __init__(self, status: int, code: str, message: str) -> None:
        self.status, self.code, self.message = status, code, message


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Hub

    def log_message(self, *args: Any) -> None:
        pass

    def _serve(self) -> None:
        path = urllib.parse.unquote(urllib.parse.urlsplit(self.path).path)
        self.server.log.append(f"{self.command} {path}")
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.headers.get("Transfer-Encoding") == "chunked":
            body = self._chunks()
        try:
            if self._token() not in (None, self.server.token):
                message = "Invalid credentials in Authorization header"
                raise _Error(401, "", message)
            for pattern, answer in ROUTES:
                if found := re.fullmatch(pattern, f"{self.command} {path}"):
                    answer(self, body, *found.groups())
                    return
            raise _Error(404, "", f"no such endpoint: {self.command} {path}")
        except _Error as error:
            headers = {"X-Error-Code": error.code, "X-Error-Message": error.message}
            self._json({"error": error.message}, error.status, headers)

    do_GET = do_HEAD = do_POST = do_PUT = _serve  # noqa: N815

    def _chunks(self) -> bytes:
        body = b""
        while size := int(self.rfile.readline().split(b";")[0], 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body

    def _token(self) -> str | None:
        header = self.headers.get("Authorization")
        return header.removeprefix("Bearer ") if header else None

    def _bytes(self, data: bytes, status: int = 200, headers: Mapping[str, str] = {}) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(data)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def _json(self, value: Any, status: int = 200, headers: Mapping[str, str] = {}) -> None:
        self._bytes(
            json.dumps(value).encode(), status, {"Content-Type": "application/json", **headers}
        )

    def _repository(self, name: str, *, to_write: bool = False) -> Repository:
        found = self.server.repositories.get(name)
        if found is None or (found.private and self._token() is None):
            # To who is not logged in, the Hub doesn't say whether there is such a repository.
            status = 401 if self._token() is None else 404
            raise _Error(status, "RepoNotFound", "Repository not found")
        if to_write:
            self._need_write(name.partition("/")[0])
        return found

    def _need_write(self, owner: str) -> None:
        if self._token() is None:
            raise _Error(401, "", "Invalid username or password.")
        if self.server.role == "read" or owner not in (
            self.server.user,
            *self.server.organisations,
        ):
            raise _Error(403, "", "You don't have the rights to write here")

    def _version(self, name: str, revision: str) -> tuple[str, dict[str, bytes]]:
        version = self._repository(name).at(revision)
        if version is None:
            raise _Error(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        return version

    # One method for each endpoint

    def home(self, body: bytes) -> None:
        self._bytes(b"")

    def whoami(self, body: bytes) -> None:
        if self._token() is None:
            raise _Error(401, "", "Invalid username or password.")
        self._json(
            {
                "type": "user",
                "name": self.server.user,
                "orgs": [{"name": name} for name in self.server.organisations],
                "auth": {"type": "access_token", "accessToken": {"role": self.server.role}},
            }
        )

    def create(self, body: bytes) -> None:
        asked = json.loads(body)
        owner = asked.get("organization") or self.server.user
        self._need_write(owner)
        name = f"{owner}/{asked['name']}"
        answer = {"url": f"{self.server.url}/{name}", "name": name}
        if name in self.server.repositories:
            self._json(answer | {"error": "You already created this model repo"}, 409)
            return
        # `private` until huggingface_hub 2, `visibility` since.
        private = asked.get("private") or asked.get("visibility") == "private"
        self.server.repositories[name] = Repository(private=bool(private))
        self._json(answer)

    def validate(self, body: bytes) -> None:
        self._json({"errors": [], "warnings": []})

    def info(self, body: bytes, name: str, revision: str | None) -> None:
        commit, files = self._version(name, revision or "main")
        self._json(
            {
                "_id": name,
                "id": name,
                "modelId": name,
                "sha": commit,
                "private": self._repository(name).private,
                "tags": [],
                "downloads": 0,
                "likes": 0,
                "siblings": [{"rfilename": k, "size": len(v)} for k, v in sorted(files.items())],
            }
        )

    def preupload(self, body: bytes, name: str, revision: str) -> None:
        self._repository(name, to_write=True)
        _, files = self._version(name, revision)
        self._json(
            {
                "files": [
                    {
                        "path": file["path"],
                        "uploadMode": "lfs" if _is_large(file) else "regular",
                        "shouldIgnore": False,
                        "oid": _oid(files.get(file["path"]), large=_is_large(file)),
                    }
                    for file in json.loads(body)["files"]
                ]
            }
        )

    def large(self, body: bytes, name: str) -> None:
        self._repository(name, to_write=True)
        answers = []
        for asked in json.loads(body)["objects"]:
            answer = {"oid": asked["oid"], "size": asked["size"]}
            if asked["oid"] not in self.server.blobs:
                href = f"{self.server.url}/_lfs/{asked['oid']}"
                answer["actions"] = {"upload": {"href": href, "header": {}}}
            answers.append(answer)
        self._json({"transfer": "basic", "objects": answers})

    def upload(self, body: bytes, oid: str) -> None:
        if hashlib.sha256(body).hexdigest() != oid:
            raise _Error(400, "", "the content is not what was announced")
        self.server.blobs[oid] = body
        self._bytes(b"")

    def commit(self, body: bytes, name: str, revision: str) -> None:
        repository = self._repository(name, to_write=True)
        files = dict(repository.files)
        for line in map(json.loads, body.splitlines()):
            value = line["value"]
            if line["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                files[value["path"]] = self.server.blobs[value["oid"]]
            elif line["key"] == "deletedFile":
                del files[value["path"]]
        commit = repository.commit(files)
        url = f"{self.server.url}/{name}/commit/{commit}"
        self._json({"success": True, "commitUrl": url, "commitOid": commit, "hookOutput": ""})

    def resolve(self, body: bytes, name: str, revision: str, file: str) -> None:
        commit, files = self._version(name, revision)
        if file not in files:
            raise _Error(404, "EntryNotFound", "Entry not found")
        etag = hashlib.sha256(files[file]).hexdigest()
        self._bytes(files[file], headers={"X-Repo-Commit": commit, "ETag": f'"{etag}"'})


def _is_large(file: Mapping[str, Any]) -> bool:
    return file["size"] > 100_000 or file["path"].endswith(LARGE)


def _oid(data: bytes | None, *, large: bool) -> str | None:
    """What Git calls a file of this content."""
    if data is None:
        return None
    if large:
        return hashlib.sha256(data).hexdigest()
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()  # noqa: S324


ROUTES: list[tuple[str, Callable[..., None]]] = [
    (r"HEAD /?", _Handler.home),
    (r"GET /api/whoami-v2", _Handler.whoami),
    (r"POST /api/repos/create", _Handler.create),
    (r"POST /api/validate-yaml", _Handler.validate),
    (r"GET /api/models/([^/]+/[^/]+)(?:/revision/(.+))?", _Handler.info),
    (r"POST /api/models/([^/]+/[^/]+)/preupload/(.+)", _Handler.preupload),
    (r"POST /([^/]+/[^/]+)\.git/info/lfs/objects/batch", _Handler.large),
    (r"PUT /_lfs/([0-9a-f]{64})", _Handler.upload),
    (r"POST /api/models/([^/]+/[^/]+)/commit/(.+)", _Handler.commit),
    (r"(?:GET|HEAD) /([^/]+/[^/]+)/resolve/([^/]+)/(.+)", _Handler.resolve),
]
