"""The service's types. Generated from the service's OpenAPI document by `make clients`. Do not edit."""

from __future__ import annotations

from base64 import b64decode, b64encode
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from ._unset import UNSET, Unset

Boot = Literal["restore", "cold"]
"""Boot says how a new sandbox comes to life."""
EventCode = Literal["ok", "error", "warn"]
"""EventCode is how grave an event is."""
FileType = Literal["file", "dir", "symlink", "other"]
"""FileType is what an entry is."""
ForkMode = Literal["cold", "warm"]
"""ForkMode says what a fork's children inherit."""
PreviewMode = Literal["public", "token"]
"""PreviewMode says who may see a sandbox's ports by their preview URLs."""
SandboxStatus = Literal["starting", "running", "paused", "hibernated", "failed", "deleting"]
"""SandboxStatus is where a sandbox stands."""
TemplateStatus = Literal["unbuilt", "queued", "building", "ready", "failed"]
"""TemplateStatus is where a template or a build of it stands."""


@dataclass(slots=True, kw_only=True)
class AddPeer:
    """AddPeer is the body of POST /v1/admin/raft/peers."""

    address: str
    """host:port of its peer port"""
    id: str

    def to_json(self) -> dict[str, Any]:
        out: dict[str, Any] = {}
        out["address"] = self.address
        out["id"] = self.id
        return out


@dataclass(slots=True, kw_only=True)
class AddPort:
    """AddPort is the body of POST /v1/sandboxes/{id}/ports."""

    port: int
    label: str | None = None

    def to_json(self) -> dict[str, Any]:
        out: dict[str, Any] = {}
        out["port"] = self.port
        if self.label is not None:
            out["label"] = self.label
        return out


@dataclass(slots=True, kw_only=True)
class Agent:
    """Agent is one host with its capacity and health."""

    address: str
    """host:port of its HTTPS API"""
    capacity: AgentCapacity
    created_at: datetime
    draining: bool
    id: str
    last_seen_at: datetime | None
    """last heartbeat; null when none since the leader changed"""
    ready: bool
    """heard of, and its inventory is complete"""
    sandboxes: int
    """placed on it"""
    state: str
    """"up" or "lost"."""
    templates: list[AgentTemplate]
    versions: AgentVersions

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> Agent:
        return cls(
            address=raw["address"],
            capacity=AgentCapacity.from_json(raw["capacity"]),
            created_at=datetime.fromisoformat(raw["created_at"]),
            draining=raw["draining"],
            id=raw["id"],
            last_seen_at=None if (v := raw["last_seen_at"]) is None else datetime.fromisoformat(v),
            ready=raw["ready"],
            sandboxes=raw["sandboxes"],
            state=raw["state"],
            templates=[AgentTemplate.from_json(e) for e in raw["templates"]],
            versions=AgentVersions.from_json(raw["versions"]),
        )


@dataclass(slots=True, kw_only=True)
class AgentCapacity:
    """AgentCapacity is what a host may give and what is given."""

    cpus: int
    disk_free_bytes: int
    memory_mb: int
    reserved_mb: int
    """worst case of all sandboxes on it"""
    slots: int
    """network slots: the most sandboxes it can hold"""
    slots_used: int

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> AgentCapacity:
        return cls(
            cpus=raw["cpus"],
            disk_free_bytes=raw["disk_free_bytes"],
            memory_mb=raw["memory_mb"],
            reserved_mb=raw["reserved_mb"],
            slots=raw["slots"],
            slots_used=raw["slots_used"],
        )


@dataclass(slots=True, kw_only=True)
class AgentTemplate:
    """AgentTemplate is one template on one host."""

    build_id: str
    """digest of everything it was built from"""
    error: str | None
    """why it failed"""
    name: str
    status: str
    """"building", "ready" or "failed"."""

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> AgentTemplate:
        return cls(
            build_id=raw["build_id"],
            error=raw["error"],
            name=raw["name"],
            status=raw["status"],
        )


@dataclass(slots=True, kw_only=True)
class AgentVersions:
    """AgentVersions are what a host's stored states are bound to."""

    engine: str
    hostd: str
    kernel: str

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> AgentVersions:
        return cls(
            engine=raw["engine"],
            hostd=raw["hostd"],
            kernel=raw["kernel"],
        )


@dataclass(slots=True, kw_only=True)
class Build:
    """Build is one build of a template."""

    created_at: datetime
    error: str | None
    finished_at: datetime | None
    id: str
    status: TemplateStatus
    template: str

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> Build:
        return cls(
            created_at=datetime.fromisoformat(raw["created_at"]),
            error=raw["error"],
            finished_at=None if (v := raw["finished_at"]) is None else datetime.fromisoformat(v),
            id=raw["id"],
            status=raw["status"],
            template=raw["template"],
        )


@dataclass(slots=True, kw_only=True)
class BuildTemplate:
    """BuildTemplate is the body of POST /v1/templates/build."""

    from_: str
    """a template, or an OCI image reference"""
    name: str
    cpu: int | None = None
    disk_mb: int | None = None
    env: dict[str, str] | None = None
    """of run, start and every exec"""
    files: dict[str, str] | None = None
    """absolute path to content, before run"""
    memory_mb: int | None = None
    ready: TemplateCheck | None = None
    """what must hold before the guest is stored"""
    run: list[str] | None = None
    """shell commands, in the guest, one after the other"""
    start: str | None = None
    """shell command that runs as long as the guest does"""

    def to_json(self) -> dict[str, Any]:
        out: dict[str, Any] = {}
        out["from"] = self.from_
        out["name"] = self.name
        if self.cpu is not None:
            out["cpu"] = self.cpu
        if self.disk_mb is not None:
            out["disk_mb"] = self.disk_mb
        if self.env is not None:
            out["env"] = self.env
        if self.files is not None:
            out["files"] = self.files
        if self.memory_mb is not None:
            out["memory_mb"] = self.memory_mb
        if self.ready is not None:
            out["ready"] = self.ready.to_json()
        if self.run is not None:
            out["run"] = self.run
        if self.start is not None:
            out["start"] = self.start
        return out


@dataclass(slots=True, kw_only=True)
class CreateJoinToken:
    """CreateJoinToken is the body of POST /v1/admin/join-tokens."""

    ttl_seconds: int | None = None
    """default one hour, at most 24 hours"""

    def to_json(self) -> dict[str, Any]:
        out: dict[str, Any] = {}
        if self.ttl_seconds is not None:
            out["ttl_seconds"] = self.ttl_seconds
        return out


@dataclass(slots=True, kw_only=True)
class CreatePreviewToken:
    """CreatePreviewToken is the body of POST /v1/sandboxes/{id}/preview-tokens."""

    port: int | None = None
    """default: every port"""
    ttl_seconds: int | None = None
    """default 3600, at most 604800"""

    def to_json(self) -> dict[str, Any]:
        out: dict[str, Any] = {}
        if self.port is not None:
            out["port"] = self.port
        if self.ttl_seconds is not None:
            out["ttl_seconds"] = self.ttl_seconds
        return out


@dataclass(slots=True, kw_only=True)
class CreateSandbox:
    """CreateSandbox is the body of POST /v1/sandboxes. CPU and memory come from the template; cpu
    and memory_mb are ignored if sent.
    """

    template: str
    """its name, such as "base"."""
    boot: Boot | None = None
    """default restore"""
    env: dict[str, str] | None = None
    """in the environment of every later exec"""
    from_snapshot: str | None = None
    """id of a snapshot of the same template"""
    metadata: dict[str, Any] | None = None
    """any object; kept and returned as it is"""
    persistent: bool | None = None
    """when its time ends it hibernates instead of being deleted"""
    preview: PreviewMode | None = None
    """default public"""
    ttl_seconds: int | None = None
    """default: it lives until it is deleted"""
    volumes: list[VolumeMount] | None = None
    """at most 8"""

    def to_json(self) -> dict[str, Any]:
        out: dict[str, Any] = {}
        out["template"] = self.template
        if self.boot is not None:
            out["boot"] = self.boot
        if self.env is not None:
            out["env"] = self.env
        if self.from_snapshot is not None:
            out["from_snapshot"] = self.from_snapshot
        if self.metadata is not None:
            out["metadata"] = self.metadata
        if self.persistent is not None:
            out["persistent"] = self.persistent
        if self.preview is not None:
            out["preview"] = self.preview
        if self.ttl_seconds is not None:
            out["ttl_seconds"] = self.ttl_seconds
        if self.volumes is not None:
            out["volumes"] = [e.to_json() for e in self.volumes]
        return out


@dataclass(slots=True, kw_only=True)
class CreateSnapshot:
    """CreateSnapshot is the body of POST /v1/sandboxes/{id}/snapshots."""

    name: str | None = None

    def to_json(self) -> dict[str, Any]:
        out: dict[str, Any] = {}
        if self.name is not None:
            out["name"] = self.name
        return out


@dataclass(slots=True, kw_only=True)
class CreateToken:
    """CreateToken is the body of POST /v1/me/tokens."""

    expires_at: datetime | None = None
    """from then on the key is refused; default: never"""
    name: str | None = None
    """for people; need not be unique"""
    scopes: list[str] | None = None
    """there are none yet: a key may do all that its workspace may"""

    def to_json(self) -> dict[str, Any]:
        out: dict[str, Any] = {}
        if self.expires_at is not None:
            out["expires_at"] = self.expires_at.isoformat()
        if self.name is not None:
            out["name"] = self.name
        if self.scopes is not None:
            out["scopes"] = self.scopes
        return out


@dataclass(slots=True, kw_only=True)
class CreateVolume:
    """CreateVolume is the body of POST /v1/volumes."""

    name: str
    size_mb: int | None = None
    """default 256, at most 65536"""

    def to_json(self) -> dict[str, Any]:
        out: dict[str, Any] = {}
        out["name"] = self.name
        if self.size_mb is not None:
            out["size_mb"] = self.size_mb
        return out


@dataclass(slots=True, kw_only=True)
class Directory:
    """Directory is what a directory holds, sorted by name."""

    entries: list[FileStat]
    path: str

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> Directory:
        return cls(
            entries=[FileStat.from_json(e) for e in raw["entries"]],
            path=raw["path"],
        )


@dataclass(slots=True, kw_only=True)
class ErrorBody:
    """ErrorBody is the JSON of every response of status 400 and above, except 411, which has no
    body. Quota errors carry more fields beside these two.
    """

    error: str
    detail: str | None = None


@dataclass(slots=True, kw_only=True)
class Event:
    """Event is one thing that happened to a sandbox."""

    agent_id: str
    code: EventCode
    message: str
    metadata: dict[str, Any]
    sandbox_id: str
    ts: datetime
    type: str

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> Event:
        return cls(
            agent_id=raw["agent_id"],
            code=raw["code"],
            message=raw["message"],
            metadata=raw["metadata"],
            sandbox_id=raw["sandbox_id"],
            ts=datetime.fromisoformat(raw["ts"]),
            type=raw["type"],
        )


@dataclass(slots=True, kw_only=True)
class Exec:
    """Exec is the body of POST /v1/sandboxes/{id}/exec."""

    cmd: str | list[str]
    """a string runs under sh -c, an array is an argv"""
    cwd: str | None = None
    """default: the user's home"""
    env: dict[str, str] | None = None
    """over the sandbox's own"""
    stdin: str | None = None
    """text"""
    stdin_base64: bytes | None = None
    """instead of stdin, for any bytes"""
    timeout_seconds: int | None = None
    """default 60, at most 3600"""
    user: str | None = None
    """name or uid[:gid]; default root"""

    def to_json(self) -> dict[str, Any]:
        out: dict[str, Any] = {}
        out["cmd"] = self.cmd
        if self.cwd is not None:
            out["cwd"] = self.cwd
        if self.env is not None:
            out["env"] = self.env
        if self.stdin is not None:
            out["stdin"] = self.stdin
        if self.stdin_base64 is not None:
            out["stdin_base64"] = b64encode(self.stdin_base64).decode()
        if self.timeout_seconds is not None:
            out["timeout_seconds"] = self.timeout_seconds
        if self.user is not None:
            out["user"] = self.user
        return out


@dataclass(slots=True, kw_only=True)
class ExecResult:
    """ExecResult is the end of an exec with what it wrote, up to 8 MiB a stream."""

    duration_ms: int
    """in the guest"""
    exit_code: int
    """128+n when signal n ended it"""
    stderr: str
    stdout: str
    timed_out: bool
    """timeout_seconds passed and the process group was killed"""
    truncated: bool
    """a stream went past 8 MiB and the rest was dropped"""
    stderr_base64: bytes | None = None
    """the exact bytes, where stderr is not UTF-8"""
    stdout_base64: bytes | None = None
    """the exact bytes, where stdout is not UTF-8"""

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> ExecResult:
        return cls(
            duration_ms=raw["duration_ms"],
            exit_code=raw["exit_code"],
            stderr=raw["stderr"],
            stdout=raw["stdout"],
            timed_out=raw["timed_out"],
            truncated=raw["truncated"],
            stderr_base64=None if (v := raw.get("stderr_base64")) is None else b64decode(v),
            stdout_base64=None if (v := raw.get("stdout_base64")) is None else b64decode(v),
        )


@dataclass(slots=True, kw_only=True)
class FailedFork:
    """FailedFork is a child that did not come to life."""

    error: str
    index: int

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> FailedFork:
        return cls(
            error=raw["error"],
            index=raw["index"],
        )


@dataclass(slots=True, kw_only=True)
class FileStat:
    """FileStat is one entry of a sandbox's file system. A link is described itself, not what it
    points to.
    """

    gid: int
    mode: str
    """octal permissions: "0644"."""
    modified_at: datetime
    name: str
    path: str
    size_bytes: int
    type: FileType
    uid: int
    target: str | None = None
    """of a symlink"""

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> FileStat:
        return cls(
            gid=raw["gid"],
            mode=raw["mode"],
            modified_at=datetime.fromisoformat(raw["modified_at"]),
            name=raw["name"],
            path=raw["path"],
            size_bytes=raw["size_bytes"],
            type=raw["type"],
            uid=raw["uid"],
            target=raw.get("target"),
        )


@dataclass(slots=True, kw_only=True)
class Fork:
    """Fork is the body of POST /v1/sandboxes/{id}/fork."""

    count: int | None = None
    """1 to 16, default 1; warm allows 1 alone"""
    mode: ForkMode | None = None
    """default cold"""

    def to_json(self) -> dict[str, Any]:
        out: dict[str, Any] = {}
        if self.count is not None:
            out["count"] = self.count
        if self.mode is not None:
            out["mode"] = self.mode
        return out


@dataclass(slots=True, kw_only=True)
class ForkTree:
    """ForkTree is the body of POST /v1/sandboxes/{id}/fork-tree."""

    count: int | None = None
    """1 to 16, default 2"""
    metadata: dict[str, Any] | None = None
    """of every child, with the fork's own keys"""

    def to_json(self) -> dict[str, Any]:
        out: dict[str, Any] = {}
        if self.count is not None:
            out["count"] = self.count
        if self.metadata is not None:
            out["metadata"] = self.metadata
        return out


@dataclass(slots=True, kw_only=True)
class Forked:
    """Forked is the answer of a fork."""

    children: list[Sandbox]
    failed: list[FailedFork]
    mode: ForkMode
    parent_id: str
    pause_ms: int
    """how long the parent stood still"""

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> Forked:
        return cls(
            children=[Sandbox.from_json(e) for e in raw["children"]],
            failed=[FailedFork.from_json(e) for e in raw["failed"]],
            mode=raw["mode"],
            parent_id=raw["parent_id"],
            pause_ms=raw["pause_ms"],
        )


@dataclass(slots=True, kw_only=True)
class ForkedTree:
    """ForkedTree is the answer of a fork-tree: children with the parent's disk and memory. One
    child that fails does not fail the call.
    """

    children: list[Sandbox]
    failed: list[FailedFork]
    parent_id: str
    pause_ms: int
    """how long the parent stood still"""
    tree_id: str

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> ForkedTree:
        return cls(
            children=[Sandbox.from_json(e) for e in raw["children"]],
            failed=[FailedFork.from_json(e) for e in raw["failed"]],
            parent_id=raw["parent_id"],
            pause_ms=raw["pause_ms"],
            tree_id=raw["tree_id"],
        )


@dataclass(slots=True, kw_only=True)
class Health:
    """Health is the answer of GET /healthz."""

    status: str
    """"ok"."""

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> Health:
        return cls(
            status=raw["status"],
        )


@dataclass(slots=True, kw_only=True)
class JoinToken:
    """JoinToken lets one host join the cluster, once."""

    ca_sha256: str
    """fingerprint of the cluster's CA, hex"""
    expires_at: datetime
    peers: list[str]
    """host:port of each replica's peer port"""
    token: str

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> JoinToken:
        return cls(
            ca_sha256=raw["ca_sha256"],
            expires_at=datetime.fromisoformat(raw["expires_at"]),
            peers=raw["peers"],
            token=raw["token"],
        )


@dataclass(slots=True, kw_only=True)
class Lifecycle:
    """Lifecycle is how long a sandbox lives and what becomes of it then."""

    expires_at: datetime | None
    """null: it lives until it is deleted"""
    persistent: bool
    """at its end it hibernates instead of being deleted"""
    status: SandboxStatus
    ttl_seconds: int | None

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> Lifecycle:
        return cls(
            expires_at=None if (v := raw["expires_at"]) is None else datetime.fromisoformat(v),
            persistent=raw["persistent"],
            status=raw["status"],
            ttl_seconds=raw["ttl_seconds"],
        )


@dataclass(slots=True, kw_only=True)
class Me:
    """Me is the answer of GET /v1/me: the person behind a JWT."""

    current_org: Org | None
    """in which the JWT acts; null for a member of none"""
    email: str
    """empty where the issuer does not tell it"""
    id: str
    orgs: list[Org]

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> Me:
        return cls(
            current_org=None if (v := raw["current_org"]) is None else Org.from_json(v),
            email=raw["email"],
            id=raw["id"],
            orgs=[Org.from_json(e) for e in raw["orgs"]],
        )


@dataclass(slots=True, kw_only=True)
class NewToken:
    """NewToken is the answer of POST /v1/me/tokens. The key is shown this once."""

    created_at: datetime
    expires_at: datetime | None
    name: str
    prefix: str
    token: str
    """the whole key, brt_<prefix>_<secret>"""

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> NewToken:
        return cls(
            created_at=datetime.fromisoformat(raw["created_at"]),
            expires_at=None if (v := raw["expires_at"]) is None else datetime.fromisoformat(v),
            name=raw["name"],
            prefix=raw["prefix"],
            token=raw["token"],
        )


@dataclass(slots=True, kw_only=True)
class Org:
    """Org is a workspace as its members see it."""

    created_at: datetime
    id: str
    name: str
    suspended: bool
    """creates are refused with 403"""

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> Org:
        return cls(
            created_at=datetime.fromisoformat(raw["created_at"]),
            id=raw["id"],
            name=raw["name"],
            suspended=raw["suspended"],
        )


@dataclass(slots=True, kw_only=True)
class Owner:
    """Owner is the app or database that manages a sandbox."""

    id: str
    type: str
    """"app" or "database"."""

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> Owner:
        return cls(
            id=raw["id"],
            type=raw["type"],
        )


@dataclass(slots=True, kw_only=True)
class PatchLifecycle:
    """PatchLifecycle is the body of PATCH /v1/sandboxes/{id}/lifecycle. What is absent stays as it
    is.
    """

    persistent: bool | None = None
    ttl_seconds: int | Unset | None = UNSET
    """counted from now; null: no end"""

    def to_json(self) -> dict[str, Any]:
        out: dict[str, Any] = {}
        if self.persistent is not None:
            out["persistent"] = self.persistent
        if not isinstance(self.ttl_seconds, Unset):
            out["ttl_seconds"] = self.ttl_seconds
        return out


@dataclass(slots=True, kw_only=True)
class Port:
    """Port is a port of a sandbox: one that something listens on, one that the client registered,
    or both.
    """

    label: str
    """as registered"""
    port: int
    process: str
    """that listens; empty where none does, or it is not known"""
    protocol: str
    """"tcp" or "udp"."""
    url: str
    """its preview; empty for udp"""

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> Port:
        return cls(
            label=raw["label"],
            port=raw["port"],
            process=raw["process"],
            protocol=raw["protocol"],
            url=raw["url"],
        )


@dataclass(slots=True, kw_only=True)
class PreviewAccess:
    """PreviewAccess is a token for the preview URLs of one sandbox, to be sent once as the query
    parameter berth_token, which sets a cookie, or with each request as the header
    Berth-Preview-Token.
    """

    expires_at: datetime
    token: str
    url: str
    """with the token; a pattern unless a port was given"""

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> PreviewAccess:
        return cls(
            expires_at=datetime.fromisoformat(raw["expires_at"]),
            token=raw["token"],
            url=raw["url"],
        )


@dataclass(slots=True, kw_only=True)
class Promote:
    """Promote is the body of POST /v1/sandboxes/{id}/promote, on the chosen child."""

    tree_id: str
    cleanup_siblings: bool | None = None
    """delete the other children of the tree"""

    def to_json(self) -> dict[str, Any]:
        out: dict[str, Any] = {}
        out["tree_id"] = self.tree_id
        if self.cleanup_siblings is not None:
            out["cleanup_siblings"] = self.cleanup_siblings
        return out


@dataclass(slots=True, kw_only=True)
class Promoted:
    """Promoted is the chosen child, and the siblings that were deleted."""

    deleted: list[str]
    promoted: Sandbox

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> Promoted:
        return cls(
            deleted=raw["deleted"],
            promoted=Sandbox.from_json(raw["promoted"]),
        )


@dataclass(slots=True, kw_only=True)
class RaftPeer:
    """RaftPeer is one member of the control store."""

    address: str
    """host:port of its peer port"""
    applied_index: int
    """0 where the answering replica does not know"""
    healthy: bool
    id: str
    last_contact_ms: int
    """-1 where the answering replica does not know"""
    voter: bool

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> RaftPeer:
        return cls(
            address=raw["address"],
            applied_index=raw["applied_index"],
            healthy=raw["healthy"],
            id=raw["id"],
            last_contact_ms=raw["last_contact_ms"],
            voter=raw["voter"],
        )


@dataclass(slots=True, kw_only=True)
class RaftStatus:
    """RaftStatus is the control store as one replica sees it."""

    applied_index: int
    commit_index: int
    last_contact_ms: int
    """since the leader was heard; 0 on the leader, -1 never"""
    last_log_index: int
    last_snapshot_index: int
    leader_address: str
    leader_id: str
    node_id: str
    """of the replica that answered"""
    peers: list[RaftPeer]
    state: str
    """"leader", "follower", "candidate" or "shutdown"."""
    term: int

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> RaftStatus:
        return cls(
            applied_index=raw["applied_index"],
            commit_index=raw["commit_index"],
            last_contact_ms=raw["last_contact_ms"],
            last_log_index=raw["last_log_index"],
            last_snapshot_index=raw["last_snapshot_index"],
            leader_address=raw["leader_address"],
            leader_id=raw["leader_id"],
            node_id=raw["node_id"],
            peers=[RaftPeer.from_json(e) for e in raw["peers"]],
            state=raw["state"],
            term=raw["term"],
        )


@dataclass(slots=True, kw_only=True)
class Sandbox:
    """Sandbox is one microVM. Its id is a bearer credential: whoever has it reaches the sandbox's
    ports through the preview URL.
    """

    agent_id: str
    """the host; empty until one is chosen"""
    cpu: int
    """virtual CPUs, from the template"""
    created_at: datetime
    disk_mb: int
    error: str | None
    """why it failed"""
    expires_at: datetime | None
    """null: it lives until it is deleted"""
    forked_from: str | None
    """id of the sandbox it was forked from"""
    from_snapshot: str | None
    """id of the snapshot it was made from"""
    id: str
    """26 characters of lower-case base32"""
    memory_mb: int
    metadata: dict[str, Any]
    """the client's own object; {} when none was given"""
    owner: Owner | None
    """the app or database that manages it"""
    persistent: bool
    """when its time ends it hibernates instead of being deleted"""
    preview: PreviewMode
    preview_url: str
    """a pattern: replace {port}"""
    started_at: datetime | None
    """when it first ran"""
    status: SandboxStatus
    template: str
    """its name"""
    ttl_seconds: int | None
    """as asked for at the create"""
    volumes: list[VolumeMount]

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> Sandbox:
        return cls(
            agent_id=raw["agent_id"],
            cpu=raw["cpu"],
            created_at=datetime.fromisoformat(raw["created_at"]),
            disk_mb=raw["disk_mb"],
            error=raw["error"],
            expires_at=None if (v := raw["expires_at"]) is None else datetime.fromisoformat(v),
            forked_from=raw["forked_from"],
            from_snapshot=raw["from_snapshot"],
            id=raw["id"],
            memory_mb=raw["memory_mb"],
            metadata=raw["metadata"],
            owner=None if (v := raw["owner"]) is None else Owner.from_json(v),
            persistent=raw["persistent"],
            preview=raw["preview"],
            preview_url=raw["preview_url"],
            started_at=None if (v := raw["started_at"]) is None else datetime.fromisoformat(v),
            status=raw["status"],
            template=raw["template"],
            ttl_seconds=raw["ttl_seconds"],
            volumes=[VolumeMount.from_json(e) for e in raw["volumes"]],
        )


@dataclass(slots=True, kw_only=True)
class SandboxMetrics:
    """SandboxMetrics is one row of GET /v1/metrics/sandboxes: one template on one day."""

    boot_ms: Summary
    day: str
    """UTC, 2006-01-02"""
    deaths: int
    forks: int
    """children that came to life"""
    sandboxes: int
    """that had an event"""
    starts: int
    """sandbox.running"""
    template: str
    wake_ms: Summary
    wakes: int

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> SandboxMetrics:
        return cls(
            boot_ms=Summary.from_json(raw["boot_ms"]),
            day=raw["day"],
            deaths=raw["deaths"],
            forks=raw["forks"],
            sandboxes=raw["sandboxes"],
            starts=raw["starts"],
            template=raw["template"],
            wake_ms=Summary.from_json(raw["wake_ms"]),
            wakes=raw["wakes"],
        )


@dataclass(slots=True, kw_only=True)
class SetCurrentOrg:
    """SetCurrentOrg is the body of POST /v1/me/current-org."""

    org_id: str

    def to_json(self) -> dict[str, Any]:
        out: dict[str, Any] = {}
        out["org_id"] = self.org_id
        return out


@dataclass(slots=True, kw_only=True)
class Snapshot:
    """Snapshot is a sandbox's memory, device state and disk at one moment."""

    agent_id: str
    """the host that has it"""
    created_at: datetime
    disk_bytes: int
    id: str
    memory_bytes: int
    name: str
    pause_ms: int
    """how long the sandbox stood still for it"""
    sandbox_id: str
    size_bytes: int
    """on the host's disk: memory_bytes + disk_bytes"""
    status: str
    """SnapshotStatus is where a snapshot stands."""
    stored: bool
    """it is in the snapshot store and can be restored on any host"""
    template: str

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> Snapshot:
        return cls(
            agent_id=raw["agent_id"],
            created_at=datetime.fromisoformat(raw["created_at"]),
            disk_bytes=raw["disk_bytes"],
            id=raw["id"],
            memory_bytes=raw["memory_bytes"],
            name=raw["name"],
            pause_ms=raw["pause_ms"],
            sandbox_id=raw["sandbox_id"],
            size_bytes=raw["size_bytes"],
            status=raw["status"],
            stored=raw["stored"],
            template=raw["template"],
        )


@dataclass(slots=True, kw_only=True)
class Summary:
    """Summary is a distribution in milliseconds; all zero where nothing was measured."""

    count: int
    max: float
    p50: float
    p90: float
    p99: float

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> Summary:
        return cls(
            count=raw["count"],
            max=raw["max"],
            p50=raw["p50"],
            p90=raw["p90"],
            p99=raw["p99"],
        )


@dataclass(slots=True, kw_only=True)
class Template:
    """Template is what sandboxes are made from."""

    build_id: str
    """of the build in use"""
    cpu: int
    created_at: datetime
    disk_mb: int
    memory_mb: int
    name: str
    size_bytes: int
    """on a host's disk"""
    status: TemplateStatus
    updated_at: datetime

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> Template:
        return cls(
            build_id=raw["build_id"],
            cpu=raw["cpu"],
            created_at=datetime.fromisoformat(raw["created_at"]),
            disk_mb=raw["disk_mb"],
            memory_mb=raw["memory_mb"],
            name=raw["name"],
            size_bytes=raw["size_bytes"],
            status=raw["status"],
            updated_at=datetime.fromisoformat(raw["updated_at"]),
        )


@dataclass(slots=True, kw_only=True)
class TemplateCheck:
    """TemplateCheck is when a new guest is ready; all that is given must hold."""

    cmd: str | None = None
    """exits 0"""
    port: int | None = None
    """accepts a TCP connection"""
    timeout_seconds: int | None = None

    def to_json(self) -> dict[str, Any]:
        out: dict[str, Any] = {}
        if self.cmd is not None:
            out["cmd"] = self.cmd
        if self.port is not None:
            out["port"] = self.port
        if self.timeout_seconds is not None:
            out["timeout_seconds"] = self.timeout_seconds
        return out


@dataclass(slots=True, kw_only=True)
class Token:
    """Token is an API key as lists show it."""

    created_at: datetime
    expires_at: datetime | None
    """null: it is good until it is revoked"""
    name: str
    prefix: str
    """8 characters: the key is brt_<prefix>_<secret>"""

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> Token:
        return cls(
            created_at=datetime.fromisoformat(raw["created_at"]),
            expires_at=None if (v := raw["expires_at"]) is None else datetime.fromisoformat(v),
            name=raw["name"],
            prefix=raw["prefix"],
        )


@dataclass(slots=True, kw_only=True)
class TransferLeadership:
    """TransferLeadership is the body of POST /v1/admin/raft/transfer-leadership."""

    to: str | None = None
    """a peer's id; default: the most up to date"""

    def to_json(self) -> dict[str, Any]:
        out: dict[str, Any] = {}
        if self.to is not None:
            out["to"] = self.to
        return out


@dataclass(slots=True, kw_only=True)
class VersionInfo:
    """VersionInfo is the answer of GET /version."""

    api: str
    """"v1"."""
    commit: str
    """of the source it was built from"""
    go_version: str
    """that built it"""
    version: str
    """of the control plane, "v0.1.0" or "devel"."""

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> VersionInfo:
        return cls(
            api=raw["api"],
            commit=raw["commit"],
            go_version=raw["go_version"],
            version=raw["version"],
        )


@dataclass(slots=True, kw_only=True)
class Volume:
    """Volume is a file system that outlives sandboxes."""

    agent_id: str
    attached_to: str | None
    """id of the sandbox"""
    created_at: datetime
    name: str
    size_mb: int
    used_bytes: int

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> Volume:
        return cls(
            agent_id=raw["agent_id"],
            attached_to=raw["attached_to"],
            created_at=datetime.fromisoformat(raw["created_at"]),
            name=raw["name"],
            size_mb=raw["size_mb"],
            used_bytes=raw["used_bytes"],
        )


@dataclass(slots=True, kw_only=True)
class VolumeMount:
    """VolumeMount attaches a volume to a sandbox."""

    mount_path: str
    """absolute path in the guest"""
    name: str

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> VolumeMount:
        return cls(
            mount_path=raw["mount_path"],
            name=raw["name"],
        )

    def to_json(self) -> dict[str, Any]:
        out: dict[str, Any] = {}
        out["mount_path"] = self.mount_path
        out["name"] = self.name
        return out
