"""One function for each operation of the service, which returns the call to be made.

Hand it to Berth.call or AsyncBerth.call. Generated from the service's OpenAPI document by `make clients`. Do not edit.
"""

from __future__ import annotations

from datetime import datetime
from urllib.parse import quote

from . import models as m
from ._call import Body, Call, Nothing, Page, Socket, Stream, query


def _q(segment: str) -> str:
    return quote(segment, safe="")


def accept_restore() -> Nothing:
    """End the grace period after a restore. For an hour after a restore, nothing that hosts have
    and the backup does not know is deleted. This ends that hour.
    """
    return Nothing(
        method="DELETE",
        path="/v1/admin/raft/restore",
    )


def add_peer(body: m.AddPeer) -> Nothing:
    """Make a replica a voting member."""
    return Nothing(
        method="POST",
        path="/v1/admin/raft/peers",
        json=body.to_json(),
    )


def add_port(id: str, body: m.AddPort) -> Call[m.Port]:
    """Register a port, with a label. Any port can be reached at its preview URL, registered or
    not.
    """
    return Call(
        method="POST",
        path=f"/v1/sandboxes/{_q(id)}/ports",
        json=body.to_json(),
        decode=m.Port.from_json,
    )


def backup() -> Stream:
    """Download a whole backup of the control store. It holds every workspace's records. Secrets in
    it stay sealed with the cluster's key, which is not in it.
    """
    return Stream(
        method="GET",
        path="/v1/admin/raft/snapshot",
    )


def build_logs(id: str) -> Stream:
    """Follow what a build says, until it ends. Server-sent events: `log` with a BuildLog for each
    line, then one `end` with a BuildEnd, or `error` with an Error when the stream breaks off.
    To a request that accepts `text/plain` and no events: the lines there are, as text.
    """
    return Stream(
        method="GET",
        path=f"/v1/builds/{_q(id)}/logs",
    )


def build_template(body: m.BuildTemplate, *, idempotency_key: str | None = None) -> Call[m.Build]:
    """Build a template. Starts from another template or an OCI image: `files` are written, the
    steps of `run` run in a guest, `start` is started, and once `ready` holds the guest is
    stored with its memory. What is not given is as in the template that it is made from. A
    build that fails leaves the template's earlier one in place. The answer comes before the
    build is done: follow its log.
    """
    return Call(
        method="POST",
        path="/v1/templates/build",
        json=body.to_json(),
        idempotent=True,
        idempotency_key=idempotency_key,
        decode=m.Build.from_json,
    )


def create_join_token(body: m.CreateJoinToken) -> Call[m.JoinToken]:
    """Create a token with which one host can join."""
    return Call(
        method="POST",
        path="/v1/admin/join-tokens",
        json=body.to_json(),
        decode=m.JoinToken.from_json,
    )


def create_preview_token(id: str, body: m.CreatePreviewToken) -> Call[m.PreviewAccess]:
    """Make a token that shows a private sandbox's ports. For a sandbox whose `preview` is `token`.
    A browser is given the `url`, which sets a cookie; a program sends the token as the header
    Berth-Preview-Token. A token cannot be revoked before it expires.
    """
    return Call(
        method="POST",
        path=f"/v1/sandboxes/{_q(id)}/preview-tokens",
        json=body.to_json(),
        decode=m.PreviewAccess.from_json,
    )


def create_sandbox(body: m.CreateSandbox, *, idempotency_key: str | None = None) -> Call[m.Sandbox]:
    """Create a sandbox. Answers once the sandbox is running. CPU and memory are the template's:
    `cpu` and `memory_mb` are ignored if sent. Without an Idempotency-Key a create is not
    idempotent.
    """
    return Call(
        method="POST",
        path="/v1/sandboxes",
        json=body.to_json(),
        idempotent=True,
        idempotency_key=idempotency_key,
        decode=m.Sandbox.from_json,
    )


def create_snapshot(id: str, body: m.CreateSnapshot, *, idempotency_key: str | None = None) -> Call[m.Snapshot]:
    """Take a snapshot of a running sandbox: memory, device state and disk. The sandbox is paused
    for `pause_ms`. If its host has a snapshot store, the answer comes once the snapshot is in
    it, and any host can start from it. Use it as `from_snapshot` of a create.
    """
    return Call(
        method="POST",
        path=f"/v1/sandboxes/{_q(id)}/snapshots",
        json=body.to_json(),
        idempotent=True,
        idempotency_key=idempotency_key,
        decode=m.Snapshot.from_json,
    )


def create_token(body: m.CreateToken, *, idempotency_key: str | None = None) -> Call[m.NewToken]:
    """Create an API key of the current organization. The key is shown only here, and for 24 hours
    to whoever repeats the request with the same Idempotency-Key.
    """
    return Call(
        method="POST",
        path="/v1/me/tokens",
        json=body.to_json(),
        idempotent=True,
        idempotency_key=idempotency_key,
        decode=m.NewToken.from_json,
    )


def create_volume(body: m.CreateVolume, *, idempotency_key: str | None = None) -> Call[m.Volume]:
    """Make a volume. An ext4 file system on one host, where sandboxes that attach it are placed.
    It is attached by `volumes` of a create, and is free again when that sandbox is deleted. Its
    size does not change.
    """
    return Call(
        method="POST",
        path="/v1/volumes",
        json=body.to_json(),
        idempotent=True,
        idempotency_key=idempotency_key,
        decode=m.Volume.from_json,
    )


def delete_sandbox(id: str) -> Nothing:
    """Delete a sandbox, its memory and its disk."""
    return Nothing(
        method="DELETE",
        path=f"/v1/sandboxes/{_q(id)}",
    )


def delete_snapshot(id: str) -> Nothing:
    """Delete a snapshot and its stored copy. Sandboxes that were made from it live on."""
    return Nothing(
        method="DELETE",
        path=f"/v1/snapshots/{_q(id)}",
    )


def delete_template(name: str) -> Nothing:
    """Delete a template and its builds."""
    return Nothing(
        method="DELETE",
        path=f"/v1/templates/{_q(name)}",
    )


def delete_volume(name: str) -> Nothing:
    """Delete a volume and all that is in it."""
    return Nothing(
        method="DELETE",
        path=f"/v1/volumes/{_q(name)}",
    )


def drain_agent(id: str) -> Call[m.Agent]:
    """Place no new sandbox on a host. What runs on it keeps running."""
    return Call(
        method="POST",
        path=f"/v1/admin/agents/{_q(id)}/drain",
        decode=m.Agent.from_json,
    )


def events(id: str, *, tail: int | None = None, since: datetime | None = None) -> Call[list[m.Event]]:
    """Read what happened to a sandbox, oldest first. With `follow`, server-sent events named `ev`,
    each with an Event, its `id` the event's `ts`: pass it as `since`, or as Last-Event-ID, to
    go on from there without a gap or a double.
    """
    return Call(
        method="GET",
        path=f"/v1/sandboxes/{_q(id)}/events",
        query=query({
            "tail": tail,
            "since": since,
        }),
        decode=lambda raw: [m.Event.from_json(e) for e in raw],
    )


def exec(id: str, body: m.Exec) -> Call[m.ExecResult]:
    """Run a command and wait for its end. A string runs under `sh -c`, an array is an argv. Past
    `timeout_seconds` the process group is killed and `timed_out` is true. A client that goes
    away kills the process group.
    """
    return Call(
        method="POST",
        path=f"/v1/sandboxes/{_q(id)}/exec",
        json=body.to_json(),
        decode=m.ExecResult.from_json,
    )


def exec_socket(id: str) -> Socket:
    """Run a command over a WebSocket, with its input open. The first message is an Exec. After it
    Frames: `stdin`, `eof` and `signal` in; `stdout`, `stderr` and one `exit`, or `error`, out.
    A browser, which can set no header on a WebSocket, offers the subprotocols `berth.v1` and
    `bearer.<credential>`.
    """
    return Socket(
        method="GET",
        path=f"/v1/sandboxes/{_q(id)}/exec/ws",
    )


def exec_stream(id: str, body: m.Exec) -> Stream:
    """Run a command and stream what it writes. Server-sent events: `stdout` and `stderr` with an
    Output, then one `exit` with an Exit, or `error` with an Error when the stream breaks off. A
    client that goes away kills the process group; one that reads slowly slows the command.
    """
    return Stream(
        method="POST",
        path=f"/v1/sandboxes/{_q(id)}/exec/stream",
        json=body.to_json(),
    )


def follow_events(id: str, *, tail: int | None = None, since: datetime | None = None) -> Stream:
    """Read what happened to a sandbox, oldest first. With `follow`, server-sent events named `ev`,
    each with an Event, its `id` the event's `ts`: pass it as `since`, or as Last-Event-ID, to
    go on from there without a gap or a double.
    """
    return Stream(
        method="GET",
        path=f"/v1/sandboxes/{_q(id)}/events",
        query=query({
            "follow": True,
            "tail": tail,
            "since": since,
        }),
    )


def follow_logs(id: str, *, stream: str | None = None, tail: int | None = None) -> Stream:
    """Read what the template's start command and the console wrote. Text, or with `follow`
    server-sent events named `stdout`, `stderr` or `console` with a LogLine.
    """
    return Stream(
        method="GET",
        path=f"/v1/sandboxes/{_q(id)}/logs",
        query=query({
            "follow": True,
            "stream": stream,
            "tail": tail,
        }),
    )


def fork_sandbox(id: str, body: m.Fork, *, idempotency_key: str | None = None) -> Call[m.Forked]:
    """Make children with the disk of a running sandbox. Cold, the default: each child boots from a
    copy of the disk. Warm, for a single child: it takes over the parent's memory, disk and
    address, and the parent is paused until it is resumed. A child that fails to start is
    reported in `failed`; the others live.
    """
    return Call(
        method="POST",
        path=f"/v1/sandboxes/{_q(id)}/fork",
        json=body.to_json(),
        idempotent=True,
        idempotency_key=idempotency_key,
        decode=m.Forked.from_json,
    )


def fork_tree(id: str, body: m.ForkTree, *, idempotency_key: str | None = None) -> Call[m.ForkedTree]:
    """Make children with the disk and the memory of a running sandbox. Every process lives on in
    each child. The parent is paused for `pause_ms`. A child that fails to start is reported in
    `failed`; the others live.
    """
    return Call(
        method="POST",
        path=f"/v1/sandboxes/{_q(id)}/fork-tree",
        json=body.to_json(),
        idempotent=True,
        idempotency_key=idempotency_key,
        decode=m.ForkedTree.from_json,
    )


def get_build(id: str) -> Call[m.Build]:
    """Read one build."""
    return Call(
        method="GET",
        path=f"/v1/builds/{_q(id)}",
        decode=m.Build.from_json,
    )


def get_lifecycle(id: str) -> Call[m.Lifecycle]:
    """Read how long a sandbox lives and what becomes of it then."""
    return Call(
        method="GET",
        path=f"/v1/sandboxes/{_q(id)}/lifecycle",
        decode=m.Lifecycle.from_json,
    )


def get_sandbox(id: str) -> Call[m.Sandbox]:
    """Read one sandbox."""
    return Call(
        method="GET",
        path=f"/v1/sandboxes/{_q(id)}",
        decode=m.Sandbox.from_json,
    )


def get_snapshot(id: str) -> Call[m.Snapshot]:
    """Read one snapshot."""
    return Call(
        method="GET",
        path=f"/v1/snapshots/{_q(id)}",
        decode=m.Snapshot.from_json,
    )


def get_template(name: str) -> Call[m.Template]:
    """Read one template."""
    return Call(
        method="GET",
        path=f"/v1/templates/{_q(name)}",
        decode=m.Template.from_json,
    )


def get_volume(name: str) -> Call[m.Volume]:
    """Read one volume."""
    return Call(
        method="GET",
        path=f"/v1/volumes/{_q(name)}",
        decode=m.Volume.from_json,
    )


def healthz() -> Call[m.Health]:
    """Tell whether this replica is well. It answers 200 even while no sandbox can be placed."""
    return Call(
        method="GET",
        path="/healthz",
        decode=m.Health.from_json,
    )


def hibernate_sandbox(id: str) -> Call[m.Sandbox]:
    """Write a running sandbox's memory to its host's disk and end its VM. It keeps its disk and
    its network slot, but takes no memory and no CPU.
    """
    return Call(
        method="POST",
        path=f"/v1/sandboxes/{_q(id)}/hibernate",
        decode=m.Sandbox.from_json,
    )


def list_agent_events(id: str, *, tail: int | None = None, since: datetime | None = None) -> Call[list[m.Event]]:
    """List what a host found that belongs to no sandbox, newest last. `recover.unmanaged`: a VM
    that no record names, which was killed. From the event store.
    """
    return Call(
        method="GET",
        path=f"/v1/admin/agents/{_q(id)}/events",
        query=query({
            "tail": tail,
            "since": since,
        }),
        decode=lambda raw: [m.Event.from_json(e) for e in raw],
    )


def list_agents(*, limit: int | None = None, cursor: str | None = None) -> Page[m.Agent]:
    """List the hosts, their capacity and health."""
    return Page(
        method="GET",
        path="/v1/admin/agents",
        query=query({
            "limit": limit,
            "cursor": cursor,
        }),
        decode=m.Agent.from_json,
    )


def list_builds(name: str, *, limit: int | None = None, cursor: str | None = None) -> Page[m.Build]:
    """List the builds of a template, newest first."""
    return Page(
        method="GET",
        path=f"/v1/templates/{_q(name)}/builds",
        query=query({
            "limit": limit,
            "cursor": cursor,
        }),
        decode=m.Build.from_json,
    )


def list_dir(id: str, *, path: str) -> Call[m.Directory]:
    """List a directory."""
    return Call(
        method="GET",
        path=f"/v1/sandboxes/{_q(id)}/fs/dir",
        query=query({
            "path": path,
        }),
        decode=m.Directory.from_json,
    )


def list_ports(id: str) -> Call[list[m.Port]]:
    """List the ports that something listens on, and those that are registered."""
    return Call(
        method="GET",
        path=f"/v1/sandboxes/{_q(id)}/ports",
        decode=lambda raw: [m.Port.from_json(e) for e in raw],
    )


def list_sandboxes(*, limit: int | None = None, cursor: str | None = None) -> Page[m.Sandbox]:
    """List sandboxes, newest first."""
    return Page(
        method="GET",
        path="/v1/sandboxes",
        query=query({
            "limit": limit,
            "cursor": cursor,
        }),
        decode=m.Sandbox.from_json,
    )


def list_snapshots(*, limit: int | None = None, cursor: str | None = None, sandbox_id: str | None = None) -> Page[m.Snapshot]:
    """List snapshots, newest first."""
    return Page(
        method="GET",
        path="/v1/snapshots",
        query=query({
            "limit": limit,
            "cursor": cursor,
            "sandbox_id": sandbox_id,
        }),
        decode=m.Snapshot.from_json,
    )


def list_templates(*, limit: int | None = None, cursor: str | None = None) -> Page[m.Template]:
    """List templates, newest first. Those of the hosts' operator, which are everybody's, and the
    organization's own.
    """
    return Page(
        method="GET",
        path="/v1/templates",
        query=query({
            "limit": limit,
            "cursor": cursor,
        }),
        decode=m.Template.from_json,
    )


def list_tokens(*, limit: int | None = None, cursor: str | None = None) -> Page[m.Token]:
    """List the current organization's API keys, newest first."""
    return Page(
        method="GET",
        path="/v1/me/tokens",
        query=query({
            "limit": limit,
            "cursor": cursor,
        }),
        decode=m.Token.from_json,
    )


def list_volumes(*, limit: int | None = None, cursor: str | None = None) -> Page[m.Volume]:
    """List volumes, newest first."""
    return Page(
        method="GET",
        path="/v1/volumes",
        query=query({
            "limit": limit,
            "cursor": cursor,
        }),
        decode=m.Volume.from_json,
    )


def logs(id: str, *, stream: str | None = None, tail: int | None = None) -> Stream:
    """Read what the template's start command and the console wrote. Text, or with `follow`
    server-sent events named `stdout`, `stderr` or `console` with a LogLine.
    """
    return Stream(
        method="GET",
        path=f"/v1/sandboxes/{_q(id)}/logs",
        query=query({
            "stream": stream,
            "tail": tail,
        }),
    )


def make_dir(id: str, *, path: str) -> Nothing:
    """Make a directory, with its parents."""
    return Nothing(
        method="POST",
        path=f"/v1/sandboxes/{_q(id)}/fs/dir",
        query=query({
            "path": path,
        }),
    )


def me() -> Call[m.Me]:
    """Read who the JWT belongs to."""
    return Call(
        method="GET",
        path="/v1/me",
        decode=m.Me.from_json,
    )


def metrics() -> Stream:
    """Prometheus metrics of this replica."""
    return Stream(
        method="GET",
        path="/metrics",
    )


def open_language_server(id: str, lang: str) -> Socket:
    """Talk to a language server over a WebSocket. One JSON-RPC message a text message, without the
    header. A browser, which can set no header on a WebSocket, offers the subprotocols
    `berth.v1` and `bearer.<credential>`.
    """
    return Socket(
        method="GET",
        path=f"/v1/sandboxes/{_q(id)}/lsp/{_q(lang)}",
    )


def open_terminal(id: str, *, cmd: str | None = None, cols: int | None = None, rows: int | None = None, cwd: str | None = None, user: str | None = None) -> Socket:
    """Open a terminal over a WebSocket. Binary messages are the terminal's bytes, both ways. Text
    messages are Frames: `resize` and `signal` in, one `exit` out. A browser, which can set no
    header on a WebSocket, offers the subprotocols `berth.v1` and `bearer.<credential>`.
    """
    return Socket(
        method="GET",
        path=f"/v1/sandboxes/{_q(id)}/exec/pty",
        query=query({
            "cmd": cmd,
            "cols": cols,
            "rows": rows,
            "cwd": cwd,
            "user": user,
        }),
    )


def openapi() -> Call[object]:
    """This document."""
    return Call(
        method="GET",
        path="/openapi.json",
        decode=lambda raw: raw,
    )


def patch_lifecycle(id: str, body: m.PatchLifecycle) -> Call[m.Lifecycle]:
    """Change how long a sandbox lives and what becomes of it then. `ttl_seconds` counts from now;
    null removes the end. What is absent stays as it is.
    """
    return Call(
        method="PATCH",
        path=f"/v1/sandboxes/{_q(id)}/lifecycle",
        json=body.to_json(),
        decode=m.Lifecycle.from_json,
    )


def pause_sandbox(id: str) -> Call[m.Sandbox]:
    """Stop a running sandbox's CPUs. Its memory stays on the host, and its time to live keeps
    counting.
    """
    return Call(
        method="POST",
        path=f"/v1/sandboxes/{_q(id)}/pause",
        decode=m.Sandbox.from_json,
    )


def promote(id: str, body: m.Promote) -> Call[m.Promoted]:
    """Choose a fork-tree's child, and delete its siblings. The parent is not a sibling, and is
    kept.
    """
    return Call(
        method="POST",
        path=f"/v1/sandboxes/{_q(id)}/promote",
        json=body.to_json(),
        decode=m.Promoted.from_json,
    )


def raft_status() -> Call[m.RaftStatus]:
    """Read how this replica sees the control store. Every replica answers for itself, whether or
    not there is a leader.
    """
    return Call(
        method="GET",
        path="/v1/admin/raft-status",
        decode=m.RaftStatus.from_json,
    )


def read_file(id: str, *, path: str) -> Stream:
    """Read a file. Supports Range requests."""
    return Stream(
        method="GET",
        path=f"/v1/sandboxes/{_q(id)}/fs",
        query=query({
            "path": path,
        }),
    )


def remove_agent(id: str) -> Nothing:
    """Forget a host that has no sandbox left."""
    return Nothing(
        method="DELETE",
        path=f"/v1/admin/agents/{_q(id)}",
    )


def remove_file(id: str, *, path: str, recursive: bool | None = None) -> Nothing:
    """Delete a file or a directory."""
    return Nothing(
        method="DELETE",
        path=f"/v1/sandboxes/{_q(id)}/fs",
        query=query({
            "path": path,
            "recursive": recursive,
        }),
    )


def remove_peer(id: str) -> Nothing:
    """Remove a replica from the members."""
    return Nothing(
        method="DELETE",
        path=f"/v1/admin/raft/peers/{_q(id)}",
    )


def remove_port(id: str, *, port: int) -> Nothing:
    """Remove the registration of a port."""
    return Nothing(
        method="DELETE",
        path=f"/v1/sandboxes/{_q(id)}/ports",
        query=query({
            "port": port,
        }),
    )


def restore(content: Body) -> Nothing:
    """Replace the control store by a backup."""
    return Nothing(
        method="POST",
        path="/v1/admin/raft/restore",
        content=content,
    )


def resume_sandbox(id: str) -> Call[m.Sandbox]:
    """Let a paused sandbox run on. Also resumes the parent of a warm fork, which is left paused,
    and gets memory and a network slot again.
    """
    return Call(
        method="POST",
        path=f"/v1/sandboxes/{_q(id)}/resume",
        decode=m.Sandbox.from_json,
    )


def revoke_token(prefix: str) -> Nothing:
    """Revoke an API key by its prefix."""
    return Nothing(
        method="DELETE",
        path=f"/v1/me/tokens/{_q(prefix)}",
    )


def sandbox_metrics(*, from_: str | None = None, to: str | None = None, template: str | None = None) -> Call[list[m.SandboxMetrics]]:
    """Count and measure the workspace's sandboxes by day and template. The newest day first.
    Events are kept for 90 days, and counted a moment after they happen.
    """
    return Call(
        method="GET",
        path="/v1/metrics/sandboxes",
        query=query({
            "from": from_,
            "to": to,
            "template": template,
        }),
        decode=lambda raw: [m.SandboxMetrics.from_json(e) for e in raw],
    )


def set_current_org(body: m.SetCurrentOrg) -> Call[m.Me]:
    """Choose the organization in which the JWT acts from now on."""
    return Call(
        method="POST",
        path="/v1/me/current-org",
        json=body.to_json(),
        decode=m.Me.from_json,
    )


def stat_file(id: str, *, path: str) -> Call[m.FileStat]:
    """Describe a file, a directory or a link."""
    return Call(
        method="GET",
        path=f"/v1/sandboxes/{_q(id)}/fs/stat",
        query=query({
            "path": path,
        }),
        decode=m.FileStat.from_json,
    )


def transfer_leadership(body: m.TransferLeadership) -> Nothing:
    """Hand leadership to another replica."""
    return Nothing(
        method="POST",
        path="/v1/admin/raft/transfer-leadership",
        json=body.to_json(),
    )


def undrain_agent(id: str) -> Call[m.Agent]:
    """Place sandboxes on a host again."""
    return Call(
        method="POST",
        path=f"/v1/admin/agents/{_q(id)}/undrain",
        decode=m.Agent.from_json,
    )


def version() -> Call[m.VersionInfo]:
    """Tell which build answers."""
    return Call(
        method="GET",
        path="/version",
        decode=m.VersionInfo.from_json,
    )


def wake_sandbox(id: str) -> Call[m.Sandbox]:
    """Let a hibernated sandbox go on where it was. A sandbox that already runs is returned as it
    is, so wakes at the same time are one wake.
    """
    return Call(
        method="POST",
        path=f"/v1/sandboxes/{_q(id)}/wake",
        decode=m.Sandbox.from_json,
    )


def write_file(id: str, content: Body, *, path: str, mode: str | None = None) -> Nothing:
    """Write a file. The body is the bytes, of any number. Parent directories are made. The file is
    in its place once all of it is there: an upload that breaks off leaves what was there
    before.
    """
    return Nothing(
        method="PUT",
        path=f"/v1/sandboxes/{_q(id)}/fs",
        query=query({
            "path": path,
            "mode": mode,
        }),
        content=content,
    )
