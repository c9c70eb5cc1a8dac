"""The service's types. Generated from the service's OpenAPI document by `make clients`. Do not edit."""

from __future__ import annotations

from base64 import b64decode, b64encode
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from ._unset import UNSET, Unset

AppSource = Literal["git", "upload"]
"""AppSource is where an app's source comes from."""
AppStatus = Literal["created", "running", "hibernated", "waking", "failed"]
"""AppStatus is the status of an app."""
Boot = Literal["restore", "cold"]
"""Boot says how a new sandbox starts."""
DatabaseSize = Literal["1g", "4g", "16g"]
"""DatabaseSize is the memory of a database."""
DatabaseStatus = Literal["provisioning", "running", "hibernated", "waking", "failed", "restoring"]
"""DatabaseStatus is the status of a database."""
DeploymentStatus = Literal["queued", "building", "deploying", "live", "failed"]
"""DeploymentStatus is how far a deployment has come."""
DeploymentTrigger = Literal["api", "push", "wake", "rollback", "pull_request"]
"""DeploymentTrigger is what began a deployment."""
EventCode = Literal["ok", "error", "warn"]
"""EventCode is the severity of an event."""
FileType = Literal["file", "dir", "symlink", "other"]
"""FileType is the type of an entry."""
ForkMode = Literal["cold", "warm"]
"""ForkMode says what a fork's children inherit."""
FunctionRuntime = Literal["python", "node"]
"""FunctionRuntime is what runs a function's handler."""
PreviewMode = Literal["public", "token"]
"""PreviewMode says who may see a sandbox's ports by their preview URLs."""
SandboxStatus = Literal["starting", "running", "paused", "hibernated", "failed", "deleting"]
"""SandboxStatus is the status of a sandbox."""
TemplateStatus = Literal["unbuilt", "queued", "building", "ready", "failed"]
"""TemplateStatus is the status of a template or of one of its builds."""
WebhookEventType = Literal["deployment.building", "deployment.succeeded", "deployment.failed", "database.failover.started", "database.failover.completed", "quota.warning", "quota.exhausted", "endpoint.test"]
"""WebhookEventType is what a webhook tells of."""
WebhookStatus = Literal["pending", "delivered", "failed", "dead"]
"""WebhookStatus is where a delivery stands."""


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
    evacuation: AgentEvacuation | None
    id: str
    last_seen_at: datetime | None
    """last heartbeat; null if the current leader has received none"""
    ready: bool
    """it has sent a heartbeat, and its inventory is complete"""
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
            evacuation=None if (v := raw["evacuation"]) is None else AgentEvacuation.from_json(v),
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
    """AgentCapacity is a host's capacity, and how much of it is in use."""

    cpus: int
    disk_free_bytes: int
    memory_mb: int
    reserved_mb: int
    """the most that all its sandboxes may use"""
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
class AgentEvacuation:
    """AgentEvacuation is how far a host has been emptied."""

    at_once: int
    began_at: datetime
    done: bool
    """nothing moves or waits any more; what stays is in Stays"""
    moved: int
    """sandboxes that are on other hosts now"""
    moving: int
    """sandboxes under way"""
    staying: int
    """what does not move"""
    stays: list[AgentStay]
    waiting: int
    """sandboxes whose turn has not come, or that are being created or deleted"""

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> AgentEvacuation:
        return cls(
            at_once=raw["at_once"],
            began_at=datetime.fromisoformat(raw["began_at"]),
            done=raw["done"],
            moved=raw["moved"],
            moving=raw["moving"],
            staying=raw["staying"],
            stays=[AgentStay.from_json(e) for e in raw["stays"]],
            waiting=raw["waiting"],
        )


@dataclass(slots=True, kw_only=True)
class AgentStay:
    """AgentStay is something that stays on a host that is evacuated."""

    id: str
    """of a sandbox its beginning, because the whole is a credential"""
    kind: str
    """"sandbox", "volume" or "snapshot"."""
    reason: str
    workspace_id: str

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> AgentStay:
        return cls(
            id=raw["id"],
            kind=raw["kind"],
            reason=raw["reason"],
            workspace_id=raw["workspace_id"],
        )


@dataclass(slots=True, kw_only=True)
class AgentTemplate:
    """AgentTemplate is one template on one host."""

    build_id: str
    """digest of all inputs of the build"""
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
    """AgentVersions are the versions that a host's stored states depend on."""

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
class App:
    """App is a program that is built from a repository and served at a stable URL."""

    auto_deploy: bool
    auto_hibernate: bool
    created_at: datetime
    deployment_id: str
    """the one that is served; "": none yet"""
    env: dict[str, str]
    """secret values are masked"""
    fork_previews: bool
    """those from forks too, without secrets"""
    git_url: str
    id: str
    idle_timeout_seconds: int
    instances: int
    """that serve now"""
    last_request_at: datetime | None
    """null: none yet"""
    max_instances: int
    name: str
    port: int
    """that the app binds, as PORT says"""
    previews: bool
    """pull requests of its repository get one"""
    sandbox_id: str
    """"" while it hibernates"""
    status: AppStatus
    updated_at: datetime
    url: str
    build_command: str | None = None
    cpu: int | None = None
    """as requested; has no effect"""
    error: str | None = None
    """why it is failed, or not what it was deployed as"""
    framework: str | None = None
    """"": detected by each build"""
    git_branch: str | None = None
    """"": the repository's default branch"""
    install_command: str | None = None
    memory_mb: int | None = None
    """as requested; has no effect"""
    root_directory: str | None = None
    runtime: str | None = None
    start_command: str | None = None

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> App:
        return cls(
            auto_deploy=raw["auto_deploy"],
            auto_hibernate=raw["auto_hibernate"],
            created_at=datetime.fromisoformat(raw["created_at"]),
            deployment_id=raw["deployment_id"],
            env=raw["env"],
            fork_previews=raw["fork_previews"],
            git_url=raw["git_url"],
            id=raw["id"],
            idle_timeout_seconds=raw["idle_timeout_seconds"],
            instances=raw["instances"],
            last_request_at=None if (v := raw["last_request_at"]) is None else datetime.fromisoformat(v),
            max_instances=raw["max_instances"],
            name=raw["name"],
            port=raw["port"],
            previews=raw["previews"],
            sandbox_id=raw["sandbox_id"],
            status=raw["status"],
            updated_at=datetime.fromisoformat(raw["updated_at"]),
            url=raw["url"],
            build_command=raw.get("build_command"),
            cpu=raw.get("cpu"),
            error=raw.get("error"),
            framework=raw.get("framework"),
            git_branch=raw.get("git_branch"),
            install_command=raw.get("install_command"),
            memory_mb=raw.get("memory_mb"),
            root_directory=raw.get("root_directory"),
            runtime=raw.get("runtime"),
            start_command=raw.get("start_command"),
        )


@dataclass(slots=True, kw_only=True)
class AppDomain:
    """AppDomain is a host name of its workspace's own at which an app is served."""

    app_id: str
    certificate: DomainCertificate
    checked_at: datetime | None
    """null: not yet"""
    created_at: datetime
    dns: list[DNSRecord]
    """what has to be in DNS"""
    domain: str
    """in its ASCII form"""
    next_check_at: datetime | None
    """null: nobody looks again by himself"""
    status: str
    """DomainStatus is whether a domain has been proven to be its workspace's."""
    url: str
    """where the app is, once it is verified"""
    verified_at: datetime | None
    error: str | None = None
    """what is amiss in DNS"""

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> AppDomain:
        return cls(
            app_id=raw["app_id"],
            certificate=DomainCertificate.from_json(raw["certificate"]),
            checked_at=None if (v := raw["checked_at"]) is None else datetime.fromisoformat(v),
            created_at=datetime.fromisoformat(raw["created_at"]),
            dns=[DNSRecord.from_json(e) for e in raw["dns"]],
            domain=raw["domain"],
            next_check_at=None if (v := raw["next_check_at"]) is None else datetime.fromisoformat(v),
            status=raw["status"],
            url=raw["url"],
            verified_at=None if (v := raw["verified_at"]) is None else datetime.fromisoformat(v),
            error=raw.get("error"),
        )


@dataclass(slots=True, kw_only=True)
class AppMetrics:
    """AppMetrics is the answer of GET /v1/apps/{id}/metrics: what all replicas together have
    counted of the requests to an app since each of them started.
    """

    app_id: str
    instances: list[InstanceUsage]
    minutes: list[AppMinute]
    """of the last hour, oldest first; those with a request"""
    missing: list[str]
    """replicas that did not answer"""
    open_requests: int
    """in progress, with those that wait for a wake"""
    replicas: list[str]
    """whose counts these are"""
    requests: RequestCounts
    since: datetime | None
    """when the first of them began to count; null: none has seen a request"""
    status: AppStatus
    wakes: int
    """that requests have waited for"""

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> AppMetrics:
        return cls(
            app_id=raw["app_id"],
            instances=[InstanceUsage.from_json(e) for e in raw["instances"]],
            minutes=[AppMinute.from_json(e) for e in raw["minutes"]],
            missing=raw["missing"],
            open_requests=raw["open_requests"],
            replicas=raw["replicas"],
            requests=RequestCounts.from_json(raw["requests"]),
            since=None if (v := raw["since"]) is None else datetime.fromisoformat(v),
            status=raw["status"],
            wakes=raw["wakes"],
        )


@dataclass(slots=True, kw_only=True)
class AppMinute:
    """AppMinute is one minute of an app's requests."""

    at: datetime
    """its beginning"""
    errors: int
    """of them, with a status from 500"""
    p50_ms: float
    p95_ms: float
    received_bytes: int
    requests: int
    sent_bytes: int

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> AppMinute:
        return cls(
            at=datetime.fromisoformat(raw["at"]),
            errors=raw["errors"],
            p50_ms=raw["p50_ms"],
            p95_ms=raw["p95_ms"],
            received_bytes=raw["received_bytes"],
            requests=raw["requests"],
            sent_bytes=raw["sent_bytes"],
        )


@dataclass(slots=True, kw_only=True)
class AppRequest:
    """AppRequest is a request to an app that has ended."""

    at: datetime
    """when it began"""
    class_: str
    duration_ms: int
    first_byte_ms: int
    method: str
    path: str
    """escaped as in a URL, without the query"""
    received_bytes: int
    replica: str
    """that has served it"""
    request_id: str
    """of its X-Request-Id"""
    sent_bytes: int
    status: int
    """0: the client left before an answer"""
    held: bool | None = None
    """it waited while the app woke"""
    path_cut: bool | None = None
    """it was longer"""

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> AppRequest:
        return cls(
            at=datetime.fromisoformat(raw["at"]),
            class_=raw["class"],
            duration_ms=raw["duration_ms"],
            first_byte_ms=raw["first_byte_ms"],
            method=raw["method"],
            path=raw["path"],
            received_bytes=raw["received_bytes"],
            replica=raw["replica"],
            request_id=raw["request_id"],
            sent_bytes=raw["sent_bytes"],
            status=raw["status"],
            held=raw.get("held"),
            path_cut=raw.get("path_cut"),
        )


@dataclass(slots=True, kw_only=True)
class AppVariable:
    """AppVariable is one environment variable of an app."""

    key: str
    scope: str
    """"": none"""
    secret: bool
    updated_at: datetime
    value: str
    """masked if it is secret"""

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> AppVariable:
        return cls(
            key=raw["key"],
            scope=raw["scope"],
            secret=raw["secret"],
            updated_at=datetime.fromisoformat(raw["updated_at"]),
            value=raw["value"],
        )


@dataclass(slots=True, kw_only=True)
class AppsMetrics:
    """AppsMetrics is one row of GET /v1/metrics/apps: one app in one bucket of time."""

    app_id: str
    at: datetime
    deaths: int
    """of instances"""
    deploy_ms: Summary
    """of those that went live, from the start of the build"""
    deployments: int
    """that ended"""
    failed_deployments: int
    """of them"""
    requests: AppsRequests
    wake_ms: Summary
    wakes: int
    """instances that were started for requests"""

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> AppsMetrics:
        return cls(
            app_id=raw["app_id"],
            at=datetime.fromisoformat(raw["at"]),
            deaths=raw["deaths"],
            deploy_ms=Summary.from_json(raw["deploy_ms"]),
            deployments=raw["deployments"],
            failed_deployments=raw["failed_deployments"],
            requests=AppsRequests.from_json(raw["requests"]),
            wake_ms=Summary.from_json(raw["wake_ms"]),
            wakes=raw["wakes"],
        )


@dataclass(slots=True, kw_only=True)
class AppsRequests:
    """AppsRequests are the requests to one app in one bucket of time, as all replicas have counted
    them. Times are until the answer began.
    """

    count: int
    p50_ms: float
    p95_ms: float
    p99_ms: float
    statuses: StatusCounts

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> AppsRequests:
        return cls(
            count=raw["count"],
            p50_ms=raw["p50_ms"],
            p95_ms=raw["p95_ms"],
            p99_ms=raw["p99_ms"],
            statuses=StatusCounts.from_json(raw["statuses"]),
        )


@dataclass(slots=True, kw_only=True)
class AuditEntry:
    """AuditEntry tells who did what, and what came of it."""

    action: str
    """the request's operationId, or signUp, signIn, firstUseOfToken, moreActs, joinAgent,
    promotePeer
    """
    actor_type: str
    """what actor_id is the id of"""
    outcome: str
    """ok: done, or begun; refused: nothing was done; failed: not or not completely done, or
    unknown
    """
    time: datetime
    actor_id: str | None = None
    """a user's id, a key's prefix, a replica's or a host's id, or the name in an operator's
    certificate; absent: the operators' token
    """
    error: str | None = None
    """the error that was answered"""
    hash: str | None = None
    """hex SHA-256 of all of the above, which docs/operations.md describes"""
    previous: str | None = None
    """the hash of the entry before it; absent in the first"""
    request_id: str | None = None
    """the request's X-Request-Id"""
    resource: str | None = None
    """such as databases/<id>; of a sandbox only the beginning of its id"""
    sequence: int | None = None
    """counts the entries of one log from 1; absent for a moment, as previous and hash, until the
    entry has its place
    """
    workspace_id: str | None = None
    """whose log it is in; absent: the operators'"""

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> AuditEntry:
        return cls(
            action=raw["action"],
            actor_type=raw["actor_type"],
            outcome=raw["outcome"],
            time=datetime.fromisoformat(raw["time"]),
            actor_id=raw.get("actor_id"),
            error=raw.get("error"),
            hash=raw.get("hash"),
            previous=raw.get("previous"),
            request_id=raw.get("request_id"),
            resource=raw.get("resource"),
            sequence=raw.get("sequence"),
            workspace_id=raw.get("workspace_id"),
        )


@dataclass(slots=True, kw_only=True)
class BillingSync:
    """BillingSync is the answer to a sync with the provider of payments."""

    paused: bool
    subscription_status: str
    """active, trialing, past_due, canceled; empty: there is no subscription"""
    tier: str

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> BillingSync:
        return cls(
            paused=raw["paused"],
            subscription_status=raw["subscription_status"],
            tier=raw["tier"],
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
    """environment of run, start and every exec"""
    files: dict[str, str] | None = None
    """absolute path to content, written before run"""
    memory_mb: int | None = None
    ready: TemplateCheck | None = None
    """what must hold before the guest is stored"""
    run: list[str] | None = None
    """shell commands, run in the guest in sequence"""
    start: str | None = None
    """shell command that runs as long as the guest"""

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
class ClassCount:
    """ClassCount counts requests of one class: real, served, quiet or monitor."""

    class_: str
    count: int

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> ClassCount:
        return cls(
            class_=raw["class"],
            count=raw["count"],
        )


@dataclass(slots=True, kw_only=True)
class CloneDatabase:
    """CloneDatabase is the body of POST /v1/databases/{id}/clone."""

    label: str | None = None
    """default: the source's, with " (clone)"."""
    size: DatabaseSize | None = None
    """default: the source's"""
    target_time: str | None = None
    """RFC 3339, for point-in-time recovery; default: the latest that is archived"""

    def to_json(self) -> dict[str, Any]:
        out: dict[str, Any] = {}
        if self.label is not None:
            out["label"] = self.label
        if self.size is not None:
            out["size"] = self.size
        if self.target_time is not None:
            out["target_time"] = self.target_time
        return out


@dataclass(slots=True, kw_only=True)
class CommandExit:
    """CommandExit is how a detached command ended: the data of the server-sent event exit."""

    duration_ms: int
    exit_code: int
    """128+n when signal n ended it"""
    offset: int
    """of the end of the output"""
    timed_out: bool


@dataclass(slots=True, kw_only=True)
class CommandGap:
    """CommandGap says that output which was asked for is not kept: the data of the server-sent
    event gap.
    """

    offset: int
    """where the output goes on"""


@dataclass(slots=True, kw_only=True)
class CommandInput:
    """CommandInput is the body of POST /v1/sandboxes/{id}/commands/{cid}/input."""

    data: str | None = None
    encoding: str | None = None
    """"base64" if data is base64"""
    eof: bool | None = None
    """nothing follows: the command reads the end of its input"""

    def to_json(self) -> dict[str, Any]:
        out: dict[str, Any] = {}
        if self.data is not None:
            out["data"] = self.data
        if self.encoding is not None:
            out["encoding"] = self.encoding
        if self.eof is not None:
            out["eof"] = self.eof
        return out


@dataclass(slots=True, kw_only=True)
class CommandOutput:
    """CommandOutput is a piece of a detached command's output: the data of the server-sent events
    stdout and stderr.
    """

    data: str
    offset: int
    """of its first byte, in the bytes of both streams"""
    encoding: str | None = None
    """"base64" if the bytes are not UTF-8"""


@dataclass(slots=True, kw_only=True)
class CommandSignal:
    """CommandSignal is the body of POST /v1/sandboxes/{id}/commands/{cid}/signal."""

    signal: str
    """a name such as INT, with or without SIG"""

    def to_json(self) -> dict[str, Any]:
        out: dict[str, Any] = {}
        out["signal"] = self.signal
        return out


@dataclass(slots=True, kw_only=True)
class CreateApp:
    """CreateApp is the body of POST /v1/apps. It stores the settings and builds nothing."""

    name: str
    auto_deploy: bool | None = None
    auto_hibernate: bool | None = None
    """default true"""
    build_command: str | None = None
    cpu: int | None = None
    env: dict[str, str] | None = None
    fork_previews: bool | None = None
    """pull requests from forks get one too, without secrets"""
    framework: str | None = None
    git_branch: str | None = None
    git_url: str | None = None
    """https; required unless source is "upload"."""
    idle_timeout_seconds: int | None = None
    """default 900"""
    install_command: str | None = None
    max_instances: int | None = None
    """default 1"""
    memory_mb: int | None = None
    port: int | None = None
    """default 3000"""
    previews: bool | None = None
    """default: as auto_deploy"""
    root_directory: str | None = None
    runtime: str | None = None
    source: AppSource | None = None
    """default "git"."""
    start_command: str | None = None

    def to_json(self) -> dict[str, Any]:
        out: dict[str, Any] = {}
        out["name"] = self.name
        if self.auto_deploy is not None:
            out["auto_deploy"] = self.auto_deploy
        if self.auto_hibernate is not None:
            out["auto_hibernate"] = self.auto_hibernate
        if self.build_command is not None:
            out["build_command"] = self.build_command
        if self.cpu is not None:
            out["cpu"] = self.cpu
        if self.env is not None:
            out["env"] = self.env
        if self.fork_previews is not None:
            out["fork_previews"] = self.fork_previews
        if self.framework is not None:
            out["framework"] = self.framework
        if self.git_branch is not None:
            out["git_branch"] = self.git_branch
        if self.git_url is not None:
            out["git_url"] = self.git_url
        if self.idle_timeout_seconds is not None:
            out["idle_timeout_seconds"] = self.idle_timeout_seconds
        if self.install_command is not None:
            out["install_command"] = self.install_command
        if self.max_instances is not None:
            out["max_instances"] = self.max_instances
        if self.memory_mb is not None:
            out["memory_mb"] = self.memory_mb
        if self.port is not None:
            out["port"] = self.port
        if self.previews is not None:
            out["previews"] = self.previews
        if self.root_directory is not None:
            out["root_directory"] = self.root_directory
        if self.runtime is not None:
            out["runtime"] = self.runtime
        if self.source is not None:
            out["source"] = self.source
        if self.start_command is not None:
            out["start_command"] = self.start_command
        return out


@dataclass(slots=True, kw_only=True)
class CreateAppDomain:
    """CreateAppDomain is the body of POST /v1/apps/{id}/domains. An internationalized name may be
    in either form.
    """

    domain: str

    def to_json(self) -> dict[str, Any]:
        out: dict[str, Any] = {}
        out["domain"] = self.domain
        return out


@dataclass(slots=True, kw_only=True)
class CreateDatabase:
    """CreateDatabase is the body of POST /v1/databases. cpu and memory_mb are recorded and have no
    effect.
    """

    always_on: bool | None = None
    cpu: int | None = None
    label: str | None = None
    memory_mb: int | None = None
    size: DatabaseSize | None = None
    """default 1g"""

    def to_json(self) -> dict[str, Any]:
        out: dict[str, Any] = {}
        if self.always_on is not None:
            out["always_on"] = self.always_on
        if self.cpu is not None:
            out["cpu"] = self.cpu
        if self.label is not None:
            out["label"] = self.label
        if self.memory_mb is not None:
            out["memory_mb"] = self.memory_mb
        if self.size is not None:
            out["size"] = self.size
        return out


@dataclass(slots=True, kw_only=True)
class CreateDeployment:
    """CreateDeployment is the body of POST /v1/apps/{id}/deploys."""

    clear_cache: bool | None = None
    git_ref: str | None = None
    """branch, tag or commit; default: git_branch"""
    source_id: str | None = None
    """of an uploaded source"""

    def to_json(self) -> dict[str, Any]:
        out: dict[str, Any] = {}
        if self.clear_cache is not None:
            out["clear_cache"] = self.clear_cache
        if self.git_ref is not None:
            out["git_ref"] = self.git_ref
        if self.source_id is not None:
            out["source_id"] = self.source_id
        return out


@dataclass(slots=True, kw_only=True)
class CreateFunction:
    """CreateFunction is the body of POST /v1/functions."""

    name: str
    runtime: FunctionRuntime
    env: dict[str, str] | None = None
    timeout_seconds: int | None = None
    """default 30"""

    def to_json(self) -> dict[str, Any]:
        out: dict[str, Any] = {}
        out["name"] = self.name
        out["runtime"] = self.runtime
        if self.env is not None:
            out["env"] = self.env
        if self.timeout_seconds is not None:
            out["timeout_seconds"] = self.timeout_seconds
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
class CreateOrg:
    """CreateOrg is the body of POST /v1/orgs."""

    name: str

    def to_json(self) -> dict[str, Any]:
        out: dict[str, Any] = {}
        out["name"] = self.name
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
    """environment of every later exec"""
    from_snapshot: str | None = None
    """id of a snapshot of the same template"""
    metadata: dict[str, Any] | None = None
    """any object; returned unchanged"""
    persistent: bool | None = None
    """at expires_at it hibernates instead of being deleted"""
    preview: PreviewMode | None = None
    """default public"""
    ttl_seconds: int | None = None
    """default: it never expires"""
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

    name: str
    """need not be unique"""
    expires_at: datetime | None = None
    """the key is refused from then on; default: never"""
    scopes: list[str] | None = None
    """"all", "read-only", "sandboxes", "databases", "apps", "volumes", "webhooks", or "app:" and
    an id; the key may do what any one allows; default: "all".
    """

    def to_json(self) -> dict[str, Any]:
        out: dict[str, Any] = {}
        out["name"] = self.name
        if self.expires_at is not None:
            out["expires_at"] = self.expires_at.isoformat()
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
class CreateWebhookEndpoint:
    """CreateWebhookEndpoint is the body of POST /v1/webhooks/endpoints."""

    url: str
    """https, of a host on the public internet"""
    events: list[WebhookEventType] | None = None
    """default and empty: all"""

    def to_json(self) -> dict[str, Any]:
        out: dict[str, Any] = {}
        out["url"] = self.url
        if self.events is not None:
            out["events"] = self.events
        return out


@dataclass(slots=True, kw_only=True)
class CreateWorkspace:
    """CreateWorkspace is the body of POST /v1/admin/workspaces."""

    name: str
    quotas: Quotas | None = None
    tier: str | None = None
    """default: the default tier"""

    def to_json(self) -> dict[str, Any]:
        out: dict[str, Any] = {}
        out["name"] = self.name
        if self.quotas is not None:
            out["quotas"] = self.quotas.to_json()
        if self.tier is not None:
            out["tier"] = self.tier
        return out


@dataclass(slots=True, kw_only=True)
class DNSRecord:
    """DNSRecord is what a domain's owner sets in DNS. A TXT record proves the domain; the other
    one leads to the app. It is an ALIAS for a domain at which DNS allows no CNAME: providers
    call it so, or ANAME, or flatten a CNAME.
    """

    name: str
    type: str
    """"TXT", "CNAME" or "ALIAS"."""
    value: str

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> DNSRecord:
        return cls(
            name=raw["name"],
            type=raw["type"],
            value=raw["value"],
        )


@dataclass(slots=True, kw_only=True)
class Database:
    """Database is a managed PostgreSQL database. Lists omit its credentials."""

    always_on: bool
    """it never sleeps"""
    broker_url: str
    """accepts SQL over HTTP"""
    created_at: datetime
    host: str
    """for PostgreSQL clients, with TLS"""
    id: str
    """a UUID"""
    port: int
    size: DatabaseSize
    status: DatabaseStatus
    template: str
    """"postgres-16"."""
    broker_token: str | None = None
    """while it runs; the bearer token of broker_url"""
    cloned_from: str | None = None
    """id of the database that it was cloned from"""
    connection_url: str | None = None
    """while it runs; does not set sslmode"""
    cpu: int | None = None
    """as requested; has no effect"""
    database: str | None = None
    """while it runs"""
    detail: str | None = None
    """details of the error"""
    error: str | None = None
    """why it has this status"""
    failover_available: bool | None = None
    """while it is failed"""
    failover_eta_seconds: int | None = None
    """while it is failed"""
    failover_reason: str | None = None
    """while it is failed: why a failover is possible or not"""
    label: str | None = None
    memory_mb: int | None = None
    """as requested; has no effect"""
    password: str | None = None
    """while it runs"""
    target_time: datetime | None = None
    """the point in time of the source that was cloned, if one was given"""
    username: str | None = None
    """while it runs"""

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> Database:
        return cls(
            always_on=raw["always_on"],
            broker_url=raw["broker_url"],
            created_at=datetime.fromisoformat(raw["created_at"]),
            host=raw["host"],
            id=raw["id"],
            port=raw["port"],
            size=raw["size"],
            status=raw["status"],
            template=raw["template"],
            broker_token=raw.get("broker_token"),
            cloned_from=raw.get("cloned_from"),
            connection_url=raw.get("connection_url"),
            cpu=raw.get("cpu"),
            database=raw.get("database"),
            detail=raw.get("detail"),
            error=raw.get("error"),
            failover_available=raw.get("failover_available"),
            failover_eta_seconds=raw.get("failover_eta_seconds"),
            failover_reason=raw.get("failover_reason"),
            label=raw.get("label"),
            memory_mb=raw.get("memory_mb"),
            password=raw.get("password"),
            target_time=None if (v := raw.get("target_time")) is None else datetime.fromisoformat(v),
            username=raw.get("username"),
        )


@dataclass(slots=True, kw_only=True)
class DatabaseArchive:
    """DatabaseArchive describes what a database can be restored from."""

    base_backups: list[DatabaseBaseBackup]
    """oldest first"""
    error: str | None
    """why it fails"""
    failing_since: datetime | None
    first_restorable: datetime | None
    """null: nothing yet"""
    lag_seconds: float
    """age of the oldest write that may not be archived"""
    last_archived_lsn: str | None
    last_restorable: datetime | None
    size_bytes: int
    """in the bucket"""

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> DatabaseArchive:
        return cls(
            base_backups=[DatabaseBaseBackup.from_json(e) for e in raw["base_backups"]],
            error=raw["error"],
            failing_since=None if (v := raw["failing_since"]) is None else datetime.fromisoformat(v),
            first_restorable=None if (v := raw["first_restorable"]) is None else datetime.fromisoformat(v),
            lag_seconds=raw["lag_seconds"],
            last_archived_lsn=raw["last_archived_lsn"],
            last_restorable=None if (v := raw["last_restorable"]) is None else datetime.fromisoformat(v),
            size_bytes=raw["size_bytes"],
        )


@dataclass(slots=True, kw_only=True)
class DatabaseBaseBackup:
    """DatabaseBaseBackup is a base backup, the start of a restore."""

    id: str
    size_bytes: int
    started_at: datetime

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> DatabaseBaseBackup:
        return cls(
            id=raw["id"],
            size_bytes=raw["size_bytes"],
            started_at=datetime.fromisoformat(raw["started_at"]),
        )


@dataclass(slots=True, kw_only=True)
class DatabaseColumn:
    """DatabaseColumn is a column of a table."""

    name: str
    nullable: bool
    primary_key: bool
    type: str
    """as in SQL: "character varying(20)"."""
    default: str | None = None

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> DatabaseColumn:
        return cls(
            name=raw["name"],
            nullable=raw["nullable"],
            primary_key=raw["primary_key"],
            type=raw["type"],
            default=raw.get("default"),
        )


@dataclass(slots=True, kw_only=True)
class DatabaseConnection:
    """DatabaseConnection contains how clients connect to a database."""

    broker_url: str
    host: str
    port: int
    status: DatabaseStatus
    broker_token: str | None = None
    """while it runs"""
    connection_url: str | None = None
    """while it runs"""
    database: str | None = None
    """while it runs"""
    error: str | None = None
    """why it has this status"""
    password: str | None = None
    """while it runs"""
    username: str | None = None
    """while it runs"""

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> DatabaseConnection:
        return cls(
            broker_url=raw["broker_url"],
            host=raw["host"],
            port=raw["port"],
            status=raw["status"],
            broker_token=raw.get("broker_token"),
            connection_url=raw.get("connection_url"),
            database=raw.get("database"),
            error=raw.get("error"),
            password=raw.get("password"),
            username=raw.get("username"),
        )


@dataclass(slots=True, kw_only=True)
class DatabaseFailover:
    """DatabaseFailover is the answer to a failover, which continues after it."""

    error: str
    """where the archive ends, and what is lost"""
    id: str
    status: DatabaseStatus

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> DatabaseFailover:
        return cls(
            error=raw["error"],
            id=raw["id"],
            status=raw["status"],
        )


@dataclass(slots=True, kw_only=True)
class DatabaseMetrics:
    """DatabaseMetrics is one row of GET /v1/metrics/databases: one database in one bucket of time."""

    at: datetime
    boot_ms: Summary
    database_id: str
    deaths: int
    hibernate_ms: Summary
    hibernations: int
    starts: int
    """of its virtual machine: its create, and failovers"""
    wake_ms: Summary
    wakes: int

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> DatabaseMetrics:
        return cls(
            at=datetime.fromisoformat(raw["at"]),
            boot_ms=Summary.from_json(raw["boot_ms"]),
            database_id=raw["database_id"],
            deaths=raw["deaths"],
            hibernate_ms=Summary.from_json(raw["hibernate_ms"]),
            hibernations=raw["hibernations"],
            starts=raw["starts"],
            wake_ms=Summary.from_json(raw["wake_ms"]),
            wakes=raw["wakes"],
        )


@dataclass(slots=True, kw_only=True)
class DatabaseSchema:
    """DatabaseSchema contains the tables that the database's role can see."""

    tables: list[DatabaseTable]
    truncated: bool

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> DatabaseSchema:
        return cls(
            tables=[DatabaseTable.from_json(e) for e in raw["tables"]],
            truncated=raw["truncated"],
        )


@dataclass(slots=True, kw_only=True)
class DatabaseTable:
    """DatabaseTable is a table, a view or another relation with columns."""

    columns: list[DatabaseColumn]
    estimated_rows: int
    """-1: PostgreSQL has no estimate yet"""
    kind: str
    """"table", "partitioned table", "view", "materialized view", "foreign table"."""
    name: str
    schema: str

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> DatabaseTable:
        return cls(
            columns=[DatabaseColumn.from_json(e) for e in raw["columns"]],
            estimated_rows=raw["estimated_rows"],
            kind=raw["kind"],
            name=raw["name"],
            schema=raw["schema"],
        )


@dataclass(slots=True, kw_only=True)
class DatabaseUsage:
    """DatabaseUsage is the answer of GET /v1/databases/{id}/metrics. A database without a virtual
    machine has no usage.
    """

    archive_lag_seconds: float | None
    """age of the oldest write that may not be archived, while it runs"""
    clients: int | None
    """clients' sessions, while it runs"""
    database_id: str
    status: DatabaseStatus
    usage: ResourceUsage | None

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> DatabaseUsage:
        return cls(
            archive_lag_seconds=raw["archive_lag_seconds"],
            clients=raw["clients"],
            database_id=raw["database_id"],
            status=raw["status"],
            usage=None if (v := raw["usage"]) is None else ResourceUsage.from_json(v),
        )


@dataclass(slots=True, kw_only=True)
class DatabaseWake:
    """DatabaseWake is the answer to a wake."""

    detail: str
    status: DatabaseStatus

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> DatabaseWake:
        return cls(
            detail=raw["detail"],
            status=raw["status"],
        )


@dataclass(slots=True, kw_only=True)
class DeployFunction:
    """DeployFunction is the body of POST /v1/functions/{id}/deploy, where it is JSON. What does
    not fit, or is no text, is sent as a tar.gz.
    """

    files: dict[str, str]
    """texts by name, 8 MiB together"""

    def to_json(self) -> dict[str, Any]:
        out: dict[str, Any] = {}
        out["files"] = self.files
        return out


@dataclass(slots=True, kw_only=True)
class Deployment:
    """Deployment is one attempt to bring a version of an app into service."""

    app_id: str
    created_at: datetime
    current: bool
    """it is the one that is served"""
    error: str
    """why it failed; "": it has not"""
    finished_at: datetime | None
    git_author: str
    git_commit: str
    """"" until it is cloned"""
    git_message: str
    git_ref: str
    id: str
    phases: list[DeploymentPhase]
    """that have ended"""
    source: AppSource
    started_at: datetime | None
    status: DeploymentStatus
    trigger: DeploymentTrigger
    framework: str | None = None
    """as built"""
    rollback_to: str | None = None
    """the deployment whose artifact it serves"""
    runtime: str | None = None
    source_id: str | None = None
    start_command: str | None = None

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> Deployment:
        return cls(
            app_id=raw["app_id"],
            created_at=datetime.fromisoformat(raw["created_at"]),
            current=raw["current"],
            error=raw["error"],
            finished_at=None if (v := raw["finished_at"]) is None else datetime.fromisoformat(v),
            git_author=raw["git_author"],
            git_commit=raw["git_commit"],
            git_message=raw["git_message"],
            git_ref=raw["git_ref"],
            id=raw["id"],
            phases=[DeploymentPhase.from_json(e) for e in raw["phases"]],
            source=raw["source"],
            started_at=None if (v := raw["started_at"]) is None else datetime.fromisoformat(v),
            status=raw["status"],
            trigger=raw["trigger"],
            framework=raw.get("framework"),
            rollback_to=raw.get("rollback_to"),
            runtime=raw.get("runtime"),
            source_id=raw.get("source_id"),
            start_command=raw.get("start_command"),
        )


@dataclass(slots=True, kw_only=True)
class DeploymentPhase:
    """DeploymentPhase is a part of a deployment that has ended."""

    duration_ms: int
    name: str
    """queue, sandbox, source, detect, runtimes, install, build, start, artifact"""

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> DeploymentPhase:
        return cls(
            duration_ms=raw["duration_ms"],
            name=raw["name"],
        )


@dataclass(slots=True, kw_only=True)
class Directory:
    """Directory is the content of a directory, sorted by name."""

    entries: list[FileStat]
    path: str

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> Directory:
        return cls(
            entries=[FileStat.from_json(e) for e in raw["entries"]],
            path=raw["path"],
        )


@dataclass(slots=True, kw_only=True)
class DomainCertificate:
    """DomainCertificate is the state of a domain's certificate."""

    expires_at: datetime | None
    """null: there is none"""
    status: str
    """CertificateStatus is how it stands with the certificate of a domain."""
    error: str | None = None

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> DomainCertificate:
        return cls(
            expires_at=None if (v := raw["expires_at"]) is None else datetime.fromisoformat(v),
            status=raw["status"],
            error=raw.get("error"),
        )


@dataclass(slots=True, kw_only=True)
class ErrorBody:
    """ErrorBody is the JSON of every response with status 400 or above, except 411, which has no
    body. Errors about quotas have more fields.
    """

    error: str
    detail: str | None = None


@dataclass(slots=True, kw_only=True)
class EvacuateAgent:
    """EvacuateAgent is the body of POST /v1/admin/agents/{id}/evacuate."""

    at_once: int | None = None
    """sandboxes that move at a time; default 4"""

    def to_json(self) -> dict[str, Any]:
        out: dict[str, Any] = {}
        if self.at_once is not None:
            out["at_once"] = self.at_once
        return out


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
    """added to the sandbox's own"""
    stdin: str | None = None
    """the command's input, as text"""
    stdin_base64: bytes | None = None
    """instead of stdin, for arbitrary bytes"""
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
    """ExecResult is the result of an exec, with up to 8 MiB of each output stream."""

    duration_ms: int
    """in the guest"""
    exit_code: int
    """128+n when signal n ended it"""
    stderr: str
    stdout: str
    timed_out: bool
    """timeout_seconds passed and the process group was killed"""
    truncated: bool
    """output was dropped: a stream exceeded 8 MiB, or the host's memory for outputs was full"""
    stderr_base64: bytes | None = None
    """the exact bytes, if stderr is not UTF-8"""
    stdout_base64: bytes | None = None
    """the exact bytes, if stdout is not UTF-8"""

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
    """FailedFork is a child that did not start."""

    error: str
    index: int

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> FailedFork:
        return cls(
            error=raw["error"],
            index=raw["index"],
        )


@dataclass(slots=True, kw_only=True)
class FailoverDatabase:
    """FailoverDatabase is the body of POST /v1/databases/{id}/failover."""

    force: bool | None = None
    """fail over even if the database runs"""

    def to_json(self) -> dict[str, Any]:
        out: dict[str, Any] = {}
        if self.force is not None:
            out["force"] = self.force
        return out


@dataclass(slots=True, kw_only=True)
class FileStat:
    """FileStat is one entry of a sandbox's file system. It describes a symbolic link itself, not
    its target.
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
    """1 to 16, default 1; at most 1 if warm"""
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
    """of every child, combined with the fork's own keys"""

    def to_json(self) -> dict[str, Any]:
        out: dict[str, Any] = {}
        if self.count is not None:
            out["count"] = self.count
        if self.metadata is not None:
            out["metadata"] = self.metadata
        return out


@dataclass(slots=True, kw_only=True)
class Forked:
    """Forked is the answer to a fork."""

    children: list[Sandbox]
    failed: list[FailedFork]
    mode: ForkMode
    parent_id: str
    pause_ms: int
    """how long the parent was paused"""

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
    """ForkedTree is the answer to a fork-tree: children with the parent's disk and memory. The
    call succeeds even if some children fail.
    """

    children: list[Sandbox]
    failed: list[FailedFork]
    parent_id: str
    pause_ms: int
    """how long the parent was paused"""
    stored: bool
    """the capture is in the snapshot store; an upload that failed is repeated"""
    tree_id: str

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> ForkedTree:
        return cls(
            children=[Sandbox.from_json(e) for e in raw["children"]],
            failed=[FailedFork.from_json(e) for e in raw["failed"]],
            parent_id=raw["parent_id"],
            pause_ms=raw["pause_ms"],
            stored=raw["stored"],
            tree_id=raw["tree_id"],
        )


@dataclass(slots=True, kw_only=True)
class Function:
    """Function is a handler that is called by requests, and runs only while there are some."""

    created_at: datetime
    deployment_id: str
    """the one that is served; "": none yet"""
    env: dict[str, str]
    """secret values are masked"""
    id: str
    instances: int
    """that serve now; 0 while it hibernates"""
    last_invoked_at: datetime | None
    """to the minute; null: not yet"""
    name: str
    """that no other function of the workspace has"""
    runtime: FunctionRuntime
    status: AppStatus
    """created until its first deployment is live"""
    timeout_seconds: int
    """that an invocation may take"""
    updated_at: datetime
    error: str | None = None
    """why it is failed"""

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> Function:
        return cls(
            created_at=datetime.fromisoformat(raw["created_at"]),
            deployment_id=raw["deployment_id"],
            env=raw["env"],
            id=raw["id"],
            instances=raw["instances"],
            last_invoked_at=None if (v := raw["last_invoked_at"]) is None else datetime.fromisoformat(v),
            name=raw["name"],
            runtime=raw["runtime"],
            status=raw["status"],
            timeout_seconds=raw["timeout_seconds"],
            updated_at=datetime.fromisoformat(raw["updated_at"]),
            error=raw.get("error"),
        )


@dataclass(slots=True, kw_only=True)
class FunctionMetrics:
    """FunctionMetrics is one row of GET /v1/metrics/functions: one function in one bucket of time."""

    at: datetime
    deaths: int
    """of instances"""
    deploy_ms: Summary
    """of those that went live, from the start of the build"""
    deployments: int
    """that ended"""
    failed_deployments: int
    """of them"""
    function_id: str
    wake_ms: Summary
    wakes: int
    """instances that were started for invocations"""

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> FunctionMetrics:
        return cls(
            at=datetime.fromisoformat(raw["at"]),
            deaths=raw["deaths"],
            deploy_ms=Summary.from_json(raw["deploy_ms"]),
            deployments=raw["deployments"],
            failed_deployments=raw["failed_deployments"],
            function_id=raw["function_id"],
            wake_ms=Summary.from_json(raw["wake_ms"]),
            wakes=raw["wakes"],
        )


@dataclass(slots=True, kw_only=True)
class GitHubConnect:
    """GitHubConnect is the answer to GET /v1/github/connect."""

    expires_at: datetime
    url: str
    """where a person installs the GitHub App"""

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> GitHubConnect:
        return cls(
            expires_at=datetime.fromisoformat(raw["expires_at"]),
            url=raw["url"],
        )


@dataclass(slots=True, kw_only=True)
class GitHubInstallation:
    """GitHubInstallation is an installation of the GitHub App that a workspace has connected."""

    account: str
    """login of the user or the organization"""
    account_type: str
    created_at: datetime
    """when it was connected"""
    id: str
    """GitHub's"""
    repository_selection: str
    """all or selected"""
    suspended: bool

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> GitHubInstallation:
        return cls(
            account=raw["account"],
            account_type=raw["account_type"],
            created_at=datetime.fromisoformat(raw["created_at"]),
            id=raw["id"],
            repository_selection=raw["repository_selection"],
            suspended=raw["suspended"],
        )


@dataclass(slots=True, kw_only=True)
class GitHubRepo:
    """GitHubRepo is a repository of an installation."""

    clone_url: str
    default_branch: str
    full_name: str
    id: str
    """GitHub's"""
    private: bool

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> GitHubRepo:
        return cls(
            clone_url=raw["clone_url"],
            default_branch=raw["default_branch"],
            full_name=raw["full_name"],
            id=raw["id"],
            private=raw["private"],
        )


@dataclass(slots=True, kw_only=True)
class Health:
    """Health is the answer of GET /healthz and GET /readyz."""

    status: str
    """"ok"."""

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> Health:
        return cls(
            status=raw["status"],
        )


@dataclass(slots=True, kw_only=True)
class ImportAppEnv:
    """ImportAppEnv is the body of POST /v1/apps/{id}/env/import. secret and scope are as in
    PutAppVariable, for all of its variables.
    """

    dotenv: str
    """the text of a .env file"""
    scope: str | None = None
    secret: bool | None = None

    def to_json(self) -> dict[str, Any]:
        out: dict[str, Any] = {}
        out["dotenv"] = self.dotenv
        if self.scope is not None:
            out["scope"] = self.scope
        if self.secret is not None:
            out["secret"] = self.secret
        return out


@dataclass(slots=True, kw_only=True)
class InstanceUsage:
    """InstanceUsage is what one instance of an app uses, or why that is not known."""

    deployment_id: str
    sandbox_id: str
    usage: ResourceUsage | None
    error: str | None = None

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> InstanceUsage:
        return cls(
            deployment_id=raw["deployment_id"],
            sandbox_id=raw["sandbox_id"],
            usage=None if (v := raw["usage"]) is None else ResourceUsage.from_json(v),
            error=raw.get("error"),
        )


@dataclass(slots=True, kw_only=True)
class Invitation:
    """Invitation is one that has not been accepted yet."""

    created_at: datetime
    email: str
    expires_at: datetime
    id: str
    org_id: str
    role: str
    """Role says what a member may do in an organization."""

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> Invitation:
        return cls(
            created_at=datetime.fromisoformat(raw["created_at"]),
            email=raw["email"],
            expires_at=datetime.fromisoformat(raw["expires_at"]),
            id=raw["id"],
            org_id=raw["org_id"],
            role=raw["role"],
        )


@dataclass(slots=True, kw_only=True)
class Invite:
    """Invite is the body of POST /v1/orgs/{id}/members."""

    email: str
    role: str | None = None
    """default: member"""

    def to_json(self) -> dict[str, Any]:
        out: dict[str, Any] = {}
        out["email"] = self.email
        if self.role is not None:
            out["role"] = self.role
        return out


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
class Latency:
    """Latency is how long it took until answers began."""

    buckets: list[LatencyBucket]
    """by rising bounds, which never change"""
    p50_ms: float
    """estimated from the buckets, as the other two"""
    p95_ms: float
    p99_ms: float
    sum_ms: int

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> Latency:
        return cls(
            buckets=[LatencyBucket.from_json(e) for e in raw["buckets"]],
            p50_ms=raw["p50_ms"],
            p95_ms=raw["p95_ms"],
            p99_ms=raw["p99_ms"],
            sum_ms=raw["sum_ms"],
        )


@dataclass(slots=True, kw_only=True)
class LatencyBucket:
    """LatencyBucket counts what took longer than the bucket before has, and up to its bound."""

    count: int
    up_to_ms: int | None
    """null: no bound"""

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> LatencyBucket:
        return cls(
            count=raw["count"],
            up_to_ms=raw["up_to_ms"],
        )


@dataclass(slots=True, kw_only=True)
class Lifecycle:
    """Lifecycle describes when a sandbox expires, and what happens then."""

    expires_at: datetime | None
    """null: never"""
    persistent: bool
    """at expires_at it hibernates instead of being deleted"""
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
    """Me is the answer to GET /v1/me: the user of a JWT."""

    current_org: Org | None
    """the workspace in which the JWT acts; null if the user is a member of none"""
    email: str
    """empty if the issuer does not provide it"""
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
class Member:
    """Member is a person in an organization."""

    email: str
    """empty if the issuer does not provide it"""
    role: str
    """Role says what a member may do in an organization."""
    user_id: str

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> Member:
        return cls(
            email=raw["email"],
            role=raw["role"],
            user_id=raw["user_id"],
        )


@dataclass(slots=True, kw_only=True)
class NewInvitation:
    """NewInvitation is the answer to POST /v1/orgs/{id}/members. The link is shown only once, and
    works once.
    """

    created_at: datetime
    email: str
    expires_at: datetime
    id: str
    link: str
    """where the invited person sends a POST with a JWT"""
    org_id: str
    role: str
    """Role says what a member may do in an organization."""
    token: str
    """what the link contains"""

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> NewInvitation:
        return cls(
            created_at=datetime.fromisoformat(raw["created_at"]),
            email=raw["email"],
            expires_at=datetime.fromisoformat(raw["expires_at"]),
            id=raw["id"],
            link=raw["link"],
            org_id=raw["org_id"],
            role=raw["role"],
            token=raw["token"],
        )


@dataclass(slots=True, kw_only=True)
class NewToken:
    """NewToken is the answer to POST /v1/me/tokens. The key is shown only once."""

    created_at: datetime
    expires_at: datetime | None
    last_used_at: datetime | None
    name: str
    prefix: str
    scopes: list[str]
    token: str
    """the complete key, brt_<prefix>_<secret>"""

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> NewToken:
        return cls(
            created_at=datetime.fromisoformat(raw["created_at"]),
            expires_at=None if (v := raw["expires_at"]) is None else datetime.fromisoformat(v),
            last_used_at=None if (v := raw["last_used_at"]) is None else datetime.fromisoformat(v),
            name=raw["name"],
            prefix=raw["prefix"],
            scopes=raw["scopes"],
            token=raw["token"],
        )


@dataclass(slots=True, kw_only=True)
class NewWebhookEndpoint:
    """NewWebhookEndpoint is an endpoint with its signing secret, which is shown when it is made
    and when it is changed.
    """

    created_at: datetime
    events: list[WebhookEventType]
    id: str
    secret: str
    """whsec_…"""
    url: str

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> NewWebhookEndpoint:
        return cls(
            created_at=datetime.fromisoformat(raw["created_at"]),
            events=raw["events"],
            id=raw["id"],
            secret=raw["secret"],
            url=raw["url"],
        )


@dataclass(slots=True, kw_only=True)
class Org:
    """Org is a workspace as its members see it."""

    created_at: datetime
    id: str
    name: str
    role: str
    """of whom it is shown to"""
    suspended: bool
    """creates are refused with 403"""
    tier: str
    """names its limits"""

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> Org:
        return cls(
            created_at=datetime.fromisoformat(raw["created_at"]),
            id=raw["id"],
            name=raw["name"],
            role=raw["role"],
            suspended=raw["suspended"],
            tier=raw["tier"],
        )


@dataclass(slots=True, kw_only=True)
class OrgDetails:
    """OrgDetails is the answer to GET /v1/orgs/{id}."""

    created_at: datetime
    id: str
    limits: Quotas
    """those that apply; absent: no limit"""
    name: str
    role: str
    """Role says what a member may do in an organization."""
    suspended: bool
    tier: str
    usage: WorkspaceUsage

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> OrgDetails:
        return cls(
            created_at=datetime.fromisoformat(raw["created_at"]),
            id=raw["id"],
            limits=Quotas.from_json(raw["limits"]),
            name=raw["name"],
            role=raw["role"],
            suspended=raw["suspended"],
            tier=raw["tier"],
            usage=WorkspaceUsage.from_json(raw["usage"]),
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
class PatchApp:
    """PatchApp is the body of PATCH /v1/apps/{id}. What is absent stays as it is; null is the
    default. A change of framework, install_command, build_command, start_command,
    root_directory, port or env makes the next wake build the app anew.
    """

    auto_deploy: bool | Unset | None = UNSET
    auto_hibernate: bool | Unset | None = UNSET
    build_command: str | Unset | None = UNSET
    cpu: int | Unset | None = UNSET
    env: dict[str, str] | Unset | None = UNSET
    """replaces all variables"""
    fork_previews: bool | Unset | None = UNSET
    framework: str | Unset | None = UNSET
    git_branch: str | Unset | None = UNSET
    git_url: str | Unset | None = UNSET
    idle_timeout_seconds: int | Unset | None = UNSET
    install_command: str | Unset | None = UNSET
    max_instances: int | Unset | None = UNSET
    memory_mb: int | Unset | None = UNSET
    name: str | Unset | None = UNSET
    port: int | Unset | None = UNSET
    previews: bool | Unset | None = UNSET
    """null: as auto_deploy"""
    root_directory: str | Unset | None = UNSET
    runtime: str | Unset | None = UNSET
    start_command: str | Unset | None = UNSET

    def to_json(self) -> dict[str, Any]:
        out: dict[str, Any] = {}
        if not isinstance(self.auto_deploy, Unset):
            out["auto_deploy"] = self.auto_deploy
        if not isinstance(self.auto_hibernate, Unset):
            out["auto_hibernate"] = self.auto_hibernate
        if not isinstance(self.build_command, Unset):
            out["build_command"] = self.build_command
        if not isinstance(self.cpu, Unset):
            out["cpu"] = self.cpu
        if not isinstance(self.env, Unset):
            out["env"] = self.env
        if not isinstance(self.fork_previews, Unset):
            out["fork_previews"] = self.fork_previews
        if not isinstance(self.framework, Unset):
            out["framework"] = self.framework
        if not isinstance(self.git_branch, Unset):
            out["git_branch"] = self.git_branch
        if not isinstance(self.git_url, Unset):
            out["git_url"] = self.git_url
        if not isinstance(self.idle_timeout_seconds, Unset):
            out["idle_timeout_seconds"] = self.idle_timeout_seconds
        if not isinstance(self.install_command, Unset):
            out["install_command"] = self.install_command
        if not isinstance(self.max_instances, Unset):
            out["max_instances"] = self.max_instances
        if not isinstance(self.memory_mb, Unset):
            out["memory_mb"] = self.memory_mb
        if not isinstance(self.name, Unset):
            out["name"] = self.name
        if not isinstance(self.port, Unset):
            out["port"] = self.port
        if not isinstance(self.previews, Unset):
            out["previews"] = self.previews
        if not isinstance(self.root_directory, Unset):
            out["root_directory"] = self.root_directory
        if not isinstance(self.runtime, Unset):
            out["runtime"] = self.runtime
        if not isinstance(self.start_command, Unset):
            out["start_command"] = self.start_command
        return out


@dataclass(slots=True, kw_only=True)
class PatchDatabase:
    """PatchDatabase is the body of PATCH /v1/databases/{id}."""

    always_on: bool

    def to_json(self) -> dict[str, Any]:
        out: dict[str, Any] = {}
        out["always_on"] = self.always_on
        return out


@dataclass(slots=True, kw_only=True)
class PatchFunction:
    """PatchFunction is the body of PATCH /v1/functions/{id}. What is absent stays as it is; null
    is the default. A change of env or timeout_seconds makes the next wake build the function
    anew.
    """

    env: dict[str, str] | Unset | None = UNSET
    """replaces all variables"""
    name: str | Unset | None = UNSET
    timeout_seconds: int | Unset | None = UNSET

    def to_json(self) -> dict[str, Any]:
        out: dict[str, Any] = {}
        if not isinstance(self.env, Unset):
            out["env"] = self.env
        if not isinstance(self.name, Unset):
            out["name"] = self.name
        if not isinstance(self.timeout_seconds, Unset):
            out["timeout_seconds"] = self.timeout_seconds
        return out


@dataclass(slots=True, kw_only=True)
class PatchLifecycle:
    """PatchLifecycle is the body of PATCH /v1/sandboxes/{id}/lifecycle. Absent members stay
    unchanged.
    """

    persistent: bool | None = None
    ttl_seconds: int | Unset | None = UNSET
    """from now; null: it never expires"""

    def to_json(self) -> dict[str, Any]:
        out: dict[str, Any] = {}
        if self.persistent is not None:
            out["persistent"] = self.persistent
        if not isinstance(self.ttl_seconds, Unset):
            out["ttl_seconds"] = self.ttl_seconds
        return out


@dataclass(slots=True, kw_only=True)
class PatchMember:
    """PatchMember is the body of PATCH /v1/orgs/{id}/members/{user}."""

    role: str
    """Role says what a member may do in an organization."""

    def to_json(self) -> dict[str, Any]:
        out: dict[str, Any] = {}
        out["role"] = self.role
        return out


@dataclass(slots=True, kw_only=True)
class PatchOrg:
    """PatchOrg is the body of PATCH /v1/orgs/{id}."""

    name: str

    def to_json(self) -> dict[str, Any]:
        out: dict[str, Any] = {}
        out["name"] = self.name
        return out


@dataclass(slots=True, kw_only=True)
class PatchWebhookEndpoint:
    """PatchWebhookEndpoint is the body of PATCH /v1/webhooks/endpoints/{id}. What is absent stays
    as it is.
    """

    events: list[str] | None = None
    """empty: all"""
    url: str | None = None

    def to_json(self) -> dict[str, Any]:
        out: dict[str, Any] = {}
        if self.events is not None:
            out["events"] = self.events
        if self.url is not None:
            out["url"] = self.url
        return out


@dataclass(slots=True, kw_only=True)
class PatchWorkspace:
    """PatchWorkspace is the body of PATCH /v1/admin/workspaces/{id}. What is absent stays."""

    quotas: Quotas | None = None
    """all of its own"""
    subscription_status: str | None = None
    suspended: bool | None = None
    tier: str | None = None
    """empty: the default tier"""

    def to_json(self) -> dict[str, Any]:
        out: dict[str, Any] = {}
        if self.quotas is not None:
            out["quotas"] = self.quotas.to_json()
        if self.subscription_status is not None:
            out["subscription_status"] = self.subscription_status
        if self.suspended is not None:
            out["suspended"] = self.suspended
        if self.tier is not None:
            out["tier"] = self.tier
        return out


@dataclass(slots=True, kw_only=True)
class Port:
    """Port is a port of a sandbox on which something listens, which was registered, or both."""

    label: str
    """as registered"""
    port: int
    process: str
    """that listens; empty if there is none or it is unknown"""
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
    """PreviewAccess is a token for the preview URLs of one sandbox. A client sends it once as the
    query parameter berth_token, which sets a cookie, or with each request as the header
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
class PutAppVariable:
    """PutAppVariable is the body of PUT /v1/apps/{id}/env/{key}. Without secret and scope a
    variable that exists keeps its own, and a new one has none.
    """

    value: str
    scope: str | None = None
    """"production" keeps it out of previews"""
    secret: bool | None = None
    """masked when read, and redacted from build logs"""

    def to_json(self) -> dict[str, Any]:
        out: dict[str, Any] = {}
        out["value"] = self.value
        if self.scope is not None:
            out["scope"] = self.scope
        if self.secret is not None:
            out["secret"] = self.secret
        return out


@dataclass(slots=True, kw_only=True)
class PutRepoVariable:
    """PutRepoVariable is the body of PUT /v1/repos/{repoID}/preview-env/{key}. Without secret a
    variable that exists stays what it is, and a new one is not secret.
    """

    value: str
    secret: bool | None = None
    """masked when read, and redacted from build logs"""

    def to_json(self) -> dict[str, Any]:
        out: dict[str, Any] = {}
        out["value"] = self.value
        if self.secret is not None:
            out["secret"] = self.secret
        return out


@dataclass(slots=True, kw_only=True)
class Quotas:
    """Quotas limit what a workspace has; docs/limits.md says what each counts. Absent: as the tier
    says; -1: no limit.
    """

    app_instances: int | None = None
    """of one app at once, whatever its max_instances"""
    apps: int | None = None
    builds: int | None = None
    """at once"""
    cpu: int | None = None
    """of sandboxes that are not hibernated"""
    creates_per_hour: int | None = None
    """of sandboxes, also of those that are gone"""
    databases: int | None = None
    disk_mb: int | None = None
    """of sandboxes, databases, snapshots and volumes together"""
    keys: int | None = None
    members: int | None = None
    memory_mb: int | None = None
    """likewise"""
    monthly_budget_cents: int | None = None
    """that may be used at all, likewise"""
    monthly_cpu_seconds: int | None = None
    """processor time that is used"""
    monthly_credit_cents: int | None = None
    """that may be used without a subscription, in cents of USD"""
    orgs: int | None = None
    """that an owner of this one may own"""
    requests_burst: int | None = None
    requests_per_second: int | None = None
    sandboxes: int | None = None
    snapshots: int | None = None
    templates: int | None = None
    volume_mb: int | None = None

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> Quotas:
        return cls(
            app_instances=raw.get("app_instances"),
            apps=raw.get("apps"),
            builds=raw.get("builds"),
            cpu=raw.get("cpu"),
            creates_per_hour=raw.get("creates_per_hour"),
            databases=raw.get("databases"),
            disk_mb=raw.get("disk_mb"),
            keys=raw.get("keys"),
            members=raw.get("members"),
            memory_mb=raw.get("memory_mb"),
            monthly_budget_cents=raw.get("monthly_budget_cents"),
            monthly_cpu_seconds=raw.get("monthly_cpu_seconds"),
            monthly_credit_cents=raw.get("monthly_credit_cents"),
            orgs=raw.get("orgs"),
            requests_burst=raw.get("requests_burst"),
            requests_per_second=raw.get("requests_per_second"),
            sandboxes=raw.get("sandboxes"),
            snapshots=raw.get("snapshots"),
            templates=raw.get("templates"),
            volume_mb=raw.get("volume_mb"),
        )

    def to_json(self) -> dict[str, Any]:
        out: dict[str, Any] = {}
        if self.app_instances is not None:
            out["app_instances"] = self.app_instances
        if self.apps is not None:
            out["apps"] = self.apps
        if self.builds is not None:
            out["builds"] = self.builds
        if self.cpu is not None:
            out["cpu"] = self.cpu
        if self.creates_per_hour is not None:
            out["creates_per_hour"] = self.creates_per_hour
        if self.databases is not None:
            out["databases"] = self.databases
        if self.disk_mb is not None:
            out["disk_mb"] = self.disk_mb
        if self.keys is not None:
            out["keys"] = self.keys
        if self.members is not None:
            out["members"] = self.members
        if self.memory_mb is not None:
            out["memory_mb"] = self.memory_mb
        if self.monthly_budget_cents is not None:
            out["monthly_budget_cents"] = self.monthly_budget_cents
        if self.monthly_cpu_seconds is not None:
            out["monthly_cpu_seconds"] = self.monthly_cpu_seconds
        if self.monthly_credit_cents is not None:
            out["monthly_credit_cents"] = self.monthly_credit_cents
        if self.orgs is not None:
            out["orgs"] = self.orgs
        if self.requests_burst is not None:
            out["requests_burst"] = self.requests_burst
        if self.requests_per_second is not None:
            out["requests_per_second"] = self.requests_per_second
        if self.sandboxes is not None:
            out["sandboxes"] = self.sandboxes
        if self.snapshots is not None:
            out["snapshots"] = self.snapshots
        if self.templates is not None:
            out["templates"] = self.templates
        if self.volume_mb is not None:
            out["volume_mb"] = self.volume_mb
        return out


@dataclass(slots=True, kw_only=True)
class RaftPeer:
    """RaftPeer is one member of the control store."""

    address: str
    """host:port of its peer port"""
    applied_index: int
    """0 if the answering replica does not know"""
    healthy: bool
    id: str
    last_contact_ms: int
    """-1 if the answering replica does not know"""
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
    """since the leader was last heard; 0 on the leader, -1 if never"""
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
class Rebalance:
    """Rebalance is the body of POST /v1/admin/rebalance."""

    at_once: int | None = None
    """sandboxes that move at a time, of all hosts; default 4"""
    dry_run: bool | None = None
    """only tell what would move"""
    percent: int | None = None
    """hosts may differ by less than this, of an even share; default 20"""

    def to_json(self) -> dict[str, Any]:
        out: dict[str, Any] = {}
        if self.at_once is not None:
            out["at_once"] = self.at_once
        if self.dry_run is not None:
            out["dry_run"] = self.dry_run
        if self.percent is not None:
            out["percent"] = self.percent
        return out


@dataclass(slots=True, kw_only=True)
class RebalanceMove:
    """RebalanceMove is a move to another host."""

    disk_mb: int
    from_: str
    id: str
    """of a sandbox its beginning, because the whole is a credential"""
    kind: str
    """"sandbox" or "database"."""
    state: str
    """"moving" or "waiting"."""
    to: str
    workspace_id: str

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> RebalanceMove:
        return cls(
            disk_mb=raw["disk_mb"],
            from_=raw["from"],
            id=raw["id"],
            kind=raw["kind"],
            state=raw["state"],
            to=raw["to"],
            workspace_id=raw["workspace_id"],
        )


@dataclass(slots=True, kw_only=True)
class RebalancedHost:
    """RebalancedHost is how full a host is that takes part in a rebalancing. A sandbox that is
    under way counts where it arrives.
    """

    disk_mb: int
    """reserved by sandboxes, their saved memory and volumes"""
    id: str
    sandboxes: int
    share: int
    """in percent of an even share, by the hosts' memory"""
    share_after: int
    """once what waits has moved"""

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> RebalancedHost:
        return cls(
            disk_mb=raw["disk_mb"],
            id=raw["id"],
            sandboxes=raw["sandboxes"],
            share=raw["share"],
            share_after=raw["share_after"],
        )


@dataclass(slots=True, kw_only=True)
class Rebalancing:
    """Rebalancing is how even hosts are, and how far the last rebalancing has come."""

    at_once: int
    began_at: datetime | None
    """null if there was none, or it was given up"""
    done: bool
    """nothing moves or waits any more"""
    dry_run: bool
    ended_at: datetime | None
    failed: int
    """sandboxes that could not be moved"""
    hosts: list[RebalancedHost]
    moved: int
    """sandboxes that are on other hosts now"""
    moves: list[RebalanceMove]
    moving: int
    """sandboxes under way"""
    percent: int
    planned: int
    """sandboxes to be moved, as it was when it began"""
    stays: list[AgentStay]
    waiting: int
    """sandboxes whose turn has not come"""

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> Rebalancing:
        return cls(
            at_once=raw["at_once"],
            began_at=None if (v := raw["began_at"]) is None else datetime.fromisoformat(v),
            done=raw["done"],
            dry_run=raw["dry_run"],
            ended_at=None if (v := raw["ended_at"]) is None else datetime.fromisoformat(v),
            failed=raw["failed"],
            hosts=[RebalancedHost.from_json(e) for e in raw["hosts"]],
            moved=raw["moved"],
            moves=[RebalanceMove.from_json(e) for e in raw["moves"]],
            moving=raw["moving"],
            percent=raw["percent"],
            planned=raw["planned"],
            stays=[AgentStay.from_json(e) for e in raw["stays"]],
            waiting=raw["waiting"],
        )


@dataclass(slots=True, kw_only=True)
class RepoVariable:
    """RepoVariable is a variable of the previews of a repository's pull requests."""

    key: str
    secret: bool
    updated_at: datetime
    value: str
    """masked if it is secret"""

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> RepoVariable:
        return cls(
            key=raw["key"],
            secret=raw["secret"],
            updated_at=datetime.fromisoformat(raw["updated_at"]),
            value=raw["value"],
        )


@dataclass(slots=True, kw_only=True)
class RequestCounts:
    """RequestCounts are requests that have ended."""

    classes: list[ClassCount]
    count: int
    held: int
    """waited while the app woke"""
    latency: Latency
    received_bytes: int
    """of bodies"""
    sent_bytes: int
    """of bodies; not those of a WebSocket"""
    statuses: StatusCounts

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> RequestCounts:
        return cls(
            classes=[ClassCount.from_json(e) for e in raw["classes"]],
            count=raw["count"],
            held=raw["held"],
            latency=Latency.from_json(raw["latency"]),
            received_bytes=raw["received_bytes"],
            sent_bytes=raw["sent_bytes"],
            statuses=StatusCounts.from_json(raw["statuses"]),
        )


@dataclass(slots=True, kw_only=True)
class ResourceUsage:
    """ResourceUsage is what a virtual machine uses and has used, as its host measures it."""

    at: datetime
    """when it was measured"""
    cpu: int
    """virtual CPUs"""
    cpu_seconds: float
    """total, of all CPUs, with the virtual machine monitor's own"""
    disk_bytes: int
    """that its disk takes on the host"""
    disk_limit_bytes: int
    history: list[UsageSample]
    """oldest first; begins anew when the host's daemon restarts"""
    interval_seconds: float
    """of the history"""
    memory_bytes: int
    memory_limit_bytes: int
    network_received_bytes: int
    """total"""
    network_sent_bytes: int
    """total"""
    since: datetime
    """when the totals were zero: its create, or a restart of the host's machine"""

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> ResourceUsage:
        return cls(
            at=datetime.fromisoformat(raw["at"]),
            cpu=raw["cpu"],
            cpu_seconds=raw["cpu_seconds"],
            disk_bytes=raw["disk_bytes"],
            disk_limit_bytes=raw["disk_limit_bytes"],
            history=[UsageSample.from_json(e) for e in raw["history"]],
            interval_seconds=raw["interval_seconds"],
            memory_bytes=raw["memory_bytes"],
            memory_limit_bytes=raw["memory_limit_bytes"],
            network_received_bytes=raw["network_received_bytes"],
            network_sent_bytes=raw["network_sent_bytes"],
            since=datetime.fromisoformat(raw["since"]),
        )


@dataclass(slots=True, kw_only=True)
class RollBackApp:
    """RollBackApp is the body of POST /v1/apps/{id}/rollback."""

    deployment_id: str | None = None
    """default: the one that was live before"""

    def to_json(self) -> dict[str, Any]:
        out: dict[str, Any] = {}
        if self.deployment_id is not None:
            out["deployment_id"] = self.deployment_id
        return out


@dataclass(slots=True, kw_only=True)
class SQLBatchResult:
    """SQLBatchResult is the result of one statement of a batch, or its error."""

    columns: list[SQLColumn] | None = None
    command: str | None = None
    detail: str | None = None
    error: str | None = None
    row_count: int | None = None
    rows: list[list[Any]] | None = None
    sqlstate: str | None = None
    truncated: bool | None = None

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> SQLBatchResult:
        return cls(
            columns=None if (v := raw.get("columns")) is None else [SQLColumn.from_json(e) for e in v],
            command=raw.get("command"),
            detail=raw.get("detail"),
            error=raw.get("error"),
            row_count=raw.get("row_count"),
            rows=raw.get("rows"),
            sqlstate=raw.get("sqlstate"),
            truncated=raw.get("truncated"),
        )


@dataclass(slots=True, kw_only=True)
class SQLBatchResults:
    """SQLBatchResults has a result for each statement."""

    results: list[SQLBatchResult]

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> SQLBatchResults:
        return cls(
            results=[SQLBatchResult.from_json(e) for e in raw["results"]],
        )


@dataclass(slots=True, kw_only=True)
class SQLColumn:
    """SQLColumn is a column of a result."""

    name: str
    type: str
    """as PostgreSQL names it: "int4", "text", "_int4" for an array"""

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> SQLColumn:
        return cls(
            name=raw["name"],
            type=raw["type"],
        )


@dataclass(slots=True, kw_only=True)
class SQLQueries:
    """SQLQueries are statements that run in sequence."""

    queries: list[SQLQuery]
    timeout_seconds: float | None = None
    """for all statements together; default 30, at most 600"""

    def to_json(self) -> dict[str, Any]:
        out: dict[str, Any] = {}
        out["queries"] = [e.to_json() for e in self.queries]
        if self.timeout_seconds is not None:
            out["timeout_seconds"] = self.timeout_seconds
        return out


@dataclass(slots=True, kw_only=True)
class SQLQuery:
    """SQLQuery is one SQL statement with its parameters ($1, $2, …)."""

    sql: str
    params: list[Any] | None = None
    timeout_seconds: float | None = None
    """default 30, at most 600; without effect in a batch or a transaction"""

    def to_json(self) -> dict[str, Any]:
        out: dict[str, Any] = {}
        out["sql"] = self.sql
        if self.params is not None:
            out["params"] = self.params
        if self.timeout_seconds is not None:
            out["timeout_seconds"] = self.timeout_seconds
        return out


@dataclass(slots=True, kw_only=True)
class SQLResult:
    """SQLResult is what a statement returned."""

    columns: list[SQLColumn]
    command: str
    """"SELECT", "INSERT"."""
    row_count: int
    """rows returned, or rows affected if the statement returns none"""
    rows: list[list[Any]]
    truncated: bool
    """rows were left out because the answer is limited"""

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> SQLResult:
        return cls(
            columns=[SQLColumn.from_json(e) for e in raw["columns"]],
            command=raw["command"],
            row_count=raw["row_count"],
            rows=raw["rows"],
            truncated=raw["truncated"],
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
    """null: never"""
    forked_from: str | None
    """id of the sandbox it was forked from"""
    from_snapshot: str | None
    """id of the snapshot it was made from"""
    id: str
    """26 characters of lower-case base32"""
    memory_mb: int
    metadata: dict[str, Any]
    """the client's own object; {} if it gave none"""
    owner: Owner | None
    """the app or database that manages it"""
    persistent: bool
    """at expires_at it hibernates instead of being deleted"""
    preview: PreviewMode
    preview_url: str
    """a pattern: replace {port}"""
    started_at: datetime | None
    """when it first ran"""
    status: SandboxStatus
    template: str
    """its name"""
    ttl_seconds: int | None
    """as requested"""
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
class SandboxCommand:
    """SandboxCommand is a detached command: it belongs to the sandbox and not to the request that
    started it.
    """

    cmd: str | list[str]
    """of a long one, its beginning"""
    ended_at: datetime | None
    """null while it runs"""
    exit_code: int | None
    """null while it runs; 128+n when signal n ended it"""
    id: str
    output_bytes: int
    """that it has written: the offset of what it writes next"""
    started_at: datetime
    status: str
    """CommandStatus says whether a detached command has ended."""
    timed_out: bool
    """timeout_seconds passed and the process group was killed"""

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> SandboxCommand:
        return cls(
            cmd=raw["cmd"],
            ended_at=None if (v := raw["ended_at"]) is None else datetime.fromisoformat(v),
            exit_code=raw["exit_code"],
            id=raw["id"],
            output_bytes=raw["output_bytes"],
            started_at=datetime.fromisoformat(raw["started_at"]),
            status=raw["status"],
            timed_out=raw["timed_out"],
        )


@dataclass(slots=True, kw_only=True)
class SandboxMetrics:
    """SandboxMetrics is one row of GET /v1/metrics/sandboxes: one template in one bucket of time."""

    at: datetime
    """the beginning of the bucket"""
    boot_ms: Summary
    day: str
    """its day in UTC, 2006-01-02"""
    deaths: int
    """failures: VMs that ended by themselves, or were lost"""
    forks: int
    """children that started"""
    hibernate_ms: Summary
    hibernations: int
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
            at=datetime.fromisoformat(raw["at"]),
            boot_ms=Summary.from_json(raw["boot_ms"]),
            day=raw["day"],
            deaths=raw["deaths"],
            forks=raw["forks"],
            hibernate_ms=Summary.from_json(raw["hibernate_ms"]),
            hibernations=raw["hibernations"],
            sandboxes=raw["sandboxes"],
            starts=raw["starts"],
            template=raw["template"],
            wake_ms=Summary.from_json(raw["wake_ms"]),
            wakes=raw["wakes"],
        )


@dataclass(slots=True, kw_only=True)
class SandboxUsage:
    """SandboxUsage is the answer of GET /v1/sandboxes/{id}/metrics."""

    sandbox_id: str
    status: SandboxStatus
    usage: ResourceUsage

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> SandboxUsage:
        return cls(
            sandbox_id=raw["sandbox_id"],
            status=raw["status"],
            usage=ResourceUsage.from_json(raw["usage"]),
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
    """how long the sandbox was paused for it"""
    sandbox_id: str
    size_bytes: int
    """on the host's disk: memory_bytes + disk_bytes"""
    status: str
    """SnapshotStatus is the status of a snapshot."""
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
class SourceUpload:
    """SourceUpload is the answer to PUT /v1/apps/{id}/source."""

    size_bytes: int
    source_id: str

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> SourceUpload:
        return cls(
            size_bytes=raw["size_bytes"],
            source_id=raw["source_id"],
        )


@dataclass(slots=True, kw_only=True)
class StatusCounts:
    """StatusCounts counts requests by the first digit of their status."""

    field_1xx: int
    """upgraded, to a WebSocket"""
    field_2xx: int
    field_3xx: int
    field_4xx: int
    field_5xx: int
    none: int
    """the client left before an answer"""

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> StatusCounts:
        return cls(
            field_1xx=raw["1xx"],
            field_2xx=raw["2xx"],
            field_3xx=raw["3xx"],
            field_4xx=raw["4xx"],
            field_5xx=raw["5xx"],
            none=raw["none"],
        )


@dataclass(slots=True, kw_only=True)
class Summary:
    """Summary is a distribution in milliseconds; all zero if nothing was measured."""

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
    """Template is what sandboxes are created from."""

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
    """TemplateCheck says when a new guest is ready; all given conditions must hold."""

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
class Tier:
    """Tier is a row of the table of tiers that the operator edits."""

    default: bool
    """of the workspaces that have none"""
    name: str
    quotas: Quotas

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> Tier:
        return cls(
            default=raw["default"],
            name=raw["name"],
            quotas=Quotas.from_json(raw["quotas"]),
        )


@dataclass(slots=True, kw_only=True)
class Token:
    """Token is an API key as lists show it."""

    created_at: datetime
    expires_at: datetime | None
    """null: valid until it is revoked"""
    last_used_at: datetime | None
    """to the hour; null: it was never used"""
    name: str
    prefix: str
    """8 characters: the key is brt_<prefix>_<secret>"""
    scopes: list[str]

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> Token:
        return cls(
            created_at=datetime.fromisoformat(raw["created_at"]),
            expires_at=None if (v := raw["expires_at"]) is None else datetime.fromisoformat(v),
            last_used_at=None if (v := raw["last_used_at"]) is None else datetime.fromisoformat(v),
            name=raw["name"],
            prefix=raw["prefix"],
            scopes=raw["scopes"],
        )


@dataclass(slots=True, kw_only=True)
class TransferLeadership:
    """TransferLeadership is the body of POST /v1/admin/raft/transfer-leadership."""

    to: str | None = None
    """a peer's id; default: the most up-to-date one"""

    def to_json(self) -> dict[str, Any]:
        out: dict[str, Any] = {}
        if self.to is not None:
            out["to"] = self.to
        return out


@dataclass(slots=True, kw_only=True)
class Usage:
    """Usage is what a workspace has used in a month of UTC. What hosts have not told yet, about a
    minute's, is not in it.
    """

    begins: datetime
    cost_microusd: int
    ends: datetime
    lines: list[UsageLine]
    """by product and resource"""
    month: str
    """YYYY-MM"""
    paused: bool
    workspace_id: str
    budget_microusd: int | None = None
    credit_microusd: int | None = None

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> Usage:
        return cls(
            begins=datetime.fromisoformat(raw["begins"]),
            cost_microusd=raw["cost_microusd"],
            ends=datetime.fromisoformat(raw["ends"]),
            lines=[UsageLine.from_json(e) for e in raw["lines"]],
            month=raw["month"],
            paused=raw["paused"],
            workspace_id=raw["workspace_id"],
            budget_microusd=raw.get("budget_microusd"),
            credit_microusd=raw.get("credit_microusd"),
        )


@dataclass(slots=True, kw_only=True)
class UsageLine:
    """UsageLine is one resource of one product."""

    cost_microusd: int
    """by the prices of its time, in millionths of a USD"""
    product: str
    """sandbox, database, app"""
    quantity: float
    """in the unit that the resource names, to the millisecond"""
    resource: str

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> UsageLine:
        return cls(
            cost_microusd=raw["cost_microusd"],
            product=raw["product"],
            quantity=raw["quantity"],
            resource=raw["resource"],
        )


@dataclass(slots=True, kw_only=True)
class UsageSample:
    """UsageSample is what was used in the seconds before a moment."""

    at: datetime
    cpu_seconds: float
    disk_bytes: int
    """at the moment"""
    memory_bytes: int
    """at the moment"""
    network_received_bytes: int
    network_sent_bytes: int
    seconds: float

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> UsageSample:
        return cls(
            at=datetime.fromisoformat(raw["at"]),
            cpu_seconds=raw["cpu_seconds"],
            disk_bytes=raw["disk_bytes"],
            memory_bytes=raw["memory_bytes"],
            network_received_bytes=raw["network_received_bytes"],
            network_sent_bytes=raw["network_sent_bytes"],
            seconds=raw["seconds"],
        )


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


@dataclass(slots=True, kw_only=True)
class WebhookAttempt:
    """WebhookAttempt is one request to an endpoint."""

    at: datetime
    duration_ms: int | None
    """null: it is under way, or was interrupted"""
    error: str | None
    """why it was no success"""
    status_code: int | None
    """null: there was no answer"""

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> WebhookAttempt:
        return cls(
            at=datetime.fromisoformat(raw["at"]),
            duration_ms=raw["duration_ms"],
            error=raw["error"],
            status_code=raw["status_code"],
        )


@dataclass(slots=True, kw_only=True)
class WebhookDelivery:
    """WebhookDelivery is one event on its way to one endpoint."""

    attempts: list[WebhookAttempt]
    """oldest first, of them the last 20"""
    created_at: datetime
    error: str | None
    """why it is dead without another attempt"""
    id: str
    """wd_…, the id of the event"""
    next_attempt_at: datetime | None
    """null: there is none to come"""
    status: WebhookStatus
    type: WebhookEventType

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> WebhookDelivery:
        return cls(
            attempts=[WebhookAttempt.from_json(e) for e in raw["attempts"]],
            created_at=datetime.fromisoformat(raw["created_at"]),
            error=raw["error"],
            id=raw["id"],
            next_attempt_at=None if (v := raw["next_attempt_at"]) is None else datetime.fromisoformat(v),
            status=raw["status"],
            type=raw["type"],
        )


@dataclass(slots=True, kw_only=True)
class WebhookDeployment:
    """WebhookDeployment is the data of deployment.building, deployment.succeeded and
    deployment.failed.
    """

    app_id: str
    deployment_id: str
    git_commit: str
    status: str
    """building, live or failed"""
    error: str | None = None
    """of deployment.failed"""

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> WebhookDeployment:
        return cls(
            app_id=raw["app_id"],
            deployment_id=raw["deployment_id"],
            git_commit=raw["git_commit"],
            status=raw["status"],
            error=raw.get("error"),
        )


@dataclass(slots=True, kw_only=True)
class WebhookEndpoint:
    """WebhookEndpoint is a URL that events of a workspace are sent to."""

    created_at: datetime
    events: list[WebhookEventType]
    """that are sent; empty: all"""
    id: str
    url: str

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> WebhookEndpoint:
        return cls(
            created_at=datetime.fromisoformat(raw["created_at"]),
            events=raw["events"],
            id=raw["id"],
            url=raw["url"],
        )


@dataclass(slots=True, kw_only=True)
class WebhookEvent:
    """WebhookEvent is the body of a delivery."""

    created_at: datetime
    data: dict[str, Any]
    """of the type that its event has"""
    id: str
    """the same at each attempt: an event that was received already has a known one"""
    type: WebhookEventType
    workspace: str
    """id of the workspace in which it happened"""

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> WebhookEvent:
        return cls(
            created_at=datetime.fromisoformat(raw["created_at"]),
            data=raw["data"],
            id=raw["id"],
            type=raw["type"],
            workspace=raw["workspace"],
        )


@dataclass(slots=True, kw_only=True)
class WebhookFailover:
    """WebhookFailover is the data of database.failover.started and database.failover.completed."""

    database_id: str
    forced: bool
    """it was running, and was stopped for it"""
    label: str
    status: DatabaseStatus
    """restoring, then running"""
    agent_id: str | None = None
    """of what is completed: the host that it is on now"""
    detail: str | None = None
    """of what is started: what it is restored from, and what is lost"""

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> WebhookFailover:
        return cls(
            database_id=raw["database_id"],
            forced=raw["forced"],
            label=raw["label"],
            status=raw["status"],
            agent_id=raw.get("agent_id"),
            detail=raw.get("detail"),
        )


@dataclass(slots=True, kw_only=True)
class WebhookQuota:
    """WebhookQuota is the data of quota.warning and quota.exhausted."""

    cost_usd_used: float
    """so far"""
    credit_usd: float
    """included in a month"""
    period_end: datetime
    """when the next month's credit begins"""

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> WebhookQuota:
        return cls(
            cost_usd_used=raw["cost_usd_used"],
            credit_usd=raw["credit_usd"],
            period_end=datetime.fromisoformat(raw["period_end"]),
        )


@dataclass(slots=True, kw_only=True)
class WebhookTest:
    """WebhookTest is the data of endpoint.test."""

    endpoint_id: str

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> WebhookTest:
        return cls(
            endpoint_id=raw["endpoint_id"],
        )


@dataclass(slots=True, kw_only=True)
class Workspace:
    """Workspace is an organization as an operator sees it."""

    created_at: datetime
    id: str
    limits: Quotas
    """those that apply"""
    name: str
    quotas: Quotas
    """its own, which take the place of the tier's"""
    subscription_status: str
    """empty, "active", "trialing", "past_due" or "canceled"; creates are refused with 402 for the
    last two
    """
    suspended: bool
    """creates are refused with 403"""
    tier: str
    usage: WorkspaceUsage
    paused_at: datetime | None = None
    """since when its compute is stopped, because the month's free credit is spent"""

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> Workspace:
        return cls(
            created_at=datetime.fromisoformat(raw["created_at"]),
            id=raw["id"],
            limits=Quotas.from_json(raw["limits"]),
            name=raw["name"],
            quotas=Quotas.from_json(raw["quotas"]),
            subscription_status=raw["subscription_status"],
            suspended=raw["suspended"],
            tier=raw["tier"],
            usage=WorkspaceUsage.from_json(raw["usage"]),
            paused_at=None if (v := raw.get("paused_at")) is None else datetime.fromisoformat(v),
        )


@dataclass(slots=True, kw_only=True)
class WorkspaceUsage:
    """WorkspaceUsage is what a workspace has now, by the names of the quotas that limit it."""

    apps: int
    """and functions"""
    cpu: int
    """of those that are not hibernated"""
    creates_per_hour: int
    """of sandboxes in the last hour; 0 where no quota has them counted"""
    databases: int
    disk_mb: int
    """of sandboxes, databases, snapshots and volumes together"""
    keys: int
    """that have not expired"""
    members: int
    memory_mb: int
    """likewise"""
    sandboxes: int
    """without those of apps and databases"""
    snapshots: int
    templates: int
    volume_mb: int

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> WorkspaceUsage:
        return cls(
            apps=raw["apps"],
            cpu=raw["cpu"],
            creates_per_hour=raw["creates_per_hour"],
            databases=raw["databases"],
            disk_mb=raw["disk_mb"],
            keys=raw["keys"],
            members=raw["members"],
            memory_mb=raw["memory_mb"],
            sandboxes=raw["sandboxes"],
            snapshots=raw["snapshots"],
            templates=raw["templates"],
            volume_mb=raw["volume_mb"],
        )
