// One function for each operation of the service, which returns the call to be
// made: hand it to Berth.call. Generated from the service's OpenAPI document by `make clients`. Do not edit.
import type { Body, Call, Nothing, Page, Socket, Stream } from "./call.js";
import type * as m from "./models.js";

const q = encodeURIComponent;

/**
 * End the grace period after a restore. For an hour after a restore, nothing that hosts have and
 * the backup does not know is deleted. This ends that hour.
 */
export function acceptRestore(): Nothing {
  return {
    kind: "nothing",
    method: "DELETE",
    path: "/v1/admin/raft/restore",
  };
}

/** Make a replica a voting member. */
export function addPeer(body: m.AddPeer): Nothing {
  return {
    kind: "nothing",
    method: "POST",
    path: "/v1/admin/raft/peers",
    json: body,
  };
}

/**
 * Register a port, with a label. Any port can be reached at its preview URL, registered or not.
 */
export function addPort(id: string, body: m.AddPort): Call<m.Port> {
  return {
    kind: "call",
    method: "POST",
    path: `/v1/sandboxes/${q(id)}/ports`,
    json: body,
  };
}

/**
 * Download a whole backup of the control store. It holds every workspace's records. Secrets in it
 * stay sealed with the cluster's key, which is not in it.
 */
export function backup(): Stream {
  return {
    kind: "stream",
    method: "GET",
    path: "/v1/admin/raft/snapshot",
  };
}

/**
 * Follow what a build says, until it ends. Server-sent events: `log` with a BuildLog for each line,
 * then one `end` with a BuildEnd, or `error` with an Error when the stream breaks off. To a request
 * that accepts `text/plain` and no events: the lines there are, as text.
 */
export function buildLogs(id: string): Stream {
  return {
    kind: "stream",
    method: "GET",
    path: `/v1/builds/${q(id)}/logs`,
  };
}

/**
 * Build a template. Starts from another template or an OCI image: `files` are written, the steps of
 * `run` run in a guest, `start` is started, and once `ready` holds the guest is stored with its
 * memory. What is not given is as in the template that it is made from. A build that fails leaves
 * the template's earlier one in place. The answer comes before the build is done: follow its log.
 */
export function buildTemplate(body: m.BuildTemplate, options: { idempotencyKey?: string | undefined } = {}): Call<m.Build> {
  return {
    kind: "call",
    method: "POST",
    path: "/v1/templates/build",
    json: body,
    idempotent: true,
    idempotencyKey: options.idempotencyKey,
  };
}

/** Create a token with which one host can join. */
export function createJoinToken(body: m.CreateJoinToken): Call<m.JoinToken> {
  return {
    kind: "call",
    method: "POST",
    path: "/v1/admin/join-tokens",
    json: body,
  };
}

/**
 * Make a token that shows a private sandbox's ports. For a sandbox whose `preview` is `token`. A
 * browser is given the `url`, which sets a cookie; a program sends the token as the header
 * Berth-Preview-Token. A token cannot be revoked before it expires.
 */
export function createPreviewToken(id: string, body: m.CreatePreviewToken): Call<m.PreviewAccess> {
  return {
    kind: "call",
    method: "POST",
    path: `/v1/sandboxes/${q(id)}/preview-tokens`,
    json: body,
  };
}

/**
 * Create a sandbox. Answers once the sandbox is running. CPU and memory are the template's: `cpu`
 * and `memory_mb` are ignored if sent. Without an Idempotency-Key a create is not idempotent.
 */
export function createSandbox(body: m.CreateSandbox, options: { idempotencyKey?: string | undefined } = {}): Call<m.Sandbox> {
  return {
    kind: "call",
    method: "POST",
    path: "/v1/sandboxes",
    json: body,
    idempotent: true,
    idempotencyKey: options.idempotencyKey,
  };
}

/**
 * Take a snapshot of a running sandbox: memory, device state and disk. The sandbox is paused for
 * `pause_ms`. If its host has a snapshot store, the answer comes once the snapshot is in it, and
 * any host can start from it. Use it as `from_snapshot` of a create.
 */
export function createSnapshot(id: string, body: m.CreateSnapshot, options: { idempotencyKey?: string | undefined } = {}): Call<m.Snapshot> {
  return {
    kind: "call",
    method: "POST",
    path: `/v1/sandboxes/${q(id)}/snapshots`,
    json: body,
    idempotent: true,
    idempotencyKey: options.idempotencyKey,
  };
}

/**
 * Create an API key of the current organization. The key is shown only here, and for 24 hours to
 * whoever repeats the request with the same Idempotency-Key.
 */
export function createToken(body: m.CreateToken, options: { idempotencyKey?: string | undefined } = {}): Call<m.NewToken> {
  return {
    kind: "call",
    method: "POST",
    path: "/v1/me/tokens",
    json: body,
    idempotent: true,
    idempotencyKey: options.idempotencyKey,
  };
}

/**
 * Make a volume. An ext4 file system on one host, where sandboxes that attach it are placed. It is
 * attached by `volumes` of a create, and is free again when that sandbox is deleted. Its size does
 * not change.
 */
export function createVolume(body: m.CreateVolume, options: { idempotencyKey?: string | undefined } = {}): Call<m.Volume> {
  return {
    kind: "call",
    method: "POST",
    path: "/v1/volumes",
    json: body,
    idempotent: true,
    idempotencyKey: options.idempotencyKey,
  };
}

/** Delete a sandbox, its memory and its disk. */
export function deleteSandbox(id: string): Nothing {
  return {
    kind: "nothing",
    method: "DELETE",
    path: `/v1/sandboxes/${q(id)}`,
  };
}

/** Delete a snapshot and its stored copy. Sandboxes that were made from it live on. */
export function deleteSnapshot(id: string): Nothing {
  return {
    kind: "nothing",
    method: "DELETE",
    path: `/v1/snapshots/${q(id)}`,
  };
}

/** Delete a template and its builds. */
export function deleteTemplate(name: string): Nothing {
  return {
    kind: "nothing",
    method: "DELETE",
    path: `/v1/templates/${q(name)}`,
  };
}

/** Delete a volume and all that is in it. */
export function deleteVolume(name: string): Nothing {
  return {
    kind: "nothing",
    method: "DELETE",
    path: `/v1/volumes/${q(name)}`,
  };
}

/** Place no new sandbox on a host. What runs on it keeps running. */
export function drainAgent(id: string): Call<m.Agent> {
  return {
    kind: "call",
    method: "POST",
    path: `/v1/admin/agents/${q(id)}/drain`,
  };
}

/**
 * Read what happened to a sandbox, oldest first. With `follow`, server-sent events named `ev`, each
 * with an Event, its `id` the event's `ts`: pass it as `since`, or as Last-Event-ID, to go on from
 * there without a gap or a double.
 */
export function events(id: string, options: { tail?: number | undefined; since?: string | undefined } = {}): Call<m.Event[]> {
  return {
    kind: "call",
    method: "GET",
    path: `/v1/sandboxes/${q(id)}/events`,
    query: { tail: options.tail, since: options.since },
  };
}

/**
 * Run a command and wait for its end. A string runs under `sh -c`, an array is an argv. Past
 * `timeout_seconds` the process group is killed and `timed_out` is true. A client that goes away
 * kills the process group.
 */
export function exec(id: string, body: m.Exec): Call<m.ExecResult> {
  return {
    kind: "call",
    method: "POST",
    path: `/v1/sandboxes/${q(id)}/exec`,
    json: body,
  };
}

/**
 * Run a command over a WebSocket, with its input open. The first message is an Exec. After it
 * Frames: `stdin`, `eof` and `signal` in; `stdout`, `stderr` and one `exit`, or `error`, out. A
 * browser, which can set no header on a WebSocket, offers the subprotocols `berth.v1` and
 * `bearer.<credential>`.
 */
export function execSocket(id: string): Socket {
  return {
    kind: "socket",
    method: "GET",
    path: `/v1/sandboxes/${q(id)}/exec/ws`,
  };
}

/**
 * Run a command and stream what it writes. Server-sent events: `stdout` and `stderr` with an
 * Output, then one `exit` with an Exit, or `error` with an Error when the stream breaks off. A
 * client that goes away kills the process group; one that reads slowly slows the command.
 */
export function execStream(id: string, body: m.Exec): Stream {
  return {
    kind: "stream",
    method: "POST",
    path: `/v1/sandboxes/${q(id)}/exec/stream`,
    json: body,
  };
}

/**
 * Read what happened to a sandbox, oldest first. With `follow`, server-sent events named `ev`, each
 * with an Event, its `id` the event's `ts`: pass it as `since`, or as Last-Event-ID, to go on from
 * there without a gap or a double.
 */
export function followEvents(id: string, options: { tail?: number | undefined; since?: string | undefined } = {}): Stream {
  return {
    kind: "stream",
    method: "GET",
    path: `/v1/sandboxes/${q(id)}/events`,
    query: { follow: true, tail: options.tail, since: options.since },
  };
}

/**
 * Read what the template's start command and the console wrote. Text, or with `follow` server-sent
 * events named `stdout`, `stderr` or `console` with a LogLine.
 */
export function followLogs(id: string, options: { stream?: string | undefined; tail?: number | undefined } = {}): Stream {
  return {
    kind: "stream",
    method: "GET",
    path: `/v1/sandboxes/${q(id)}/logs`,
    query: { follow: true, stream: options.stream, tail: options.tail },
  };
}

/**
 * Make children with the disk of a running sandbox. Cold, the default: each child boots from a copy
 * of the disk. Warm, for a single child: it takes over the parent's memory, disk and address, and
 * the parent is paused until it is resumed. A child that fails to start is reported in `failed`;
 * the others live.
 */
export function forkSandbox(id: string, body: m.Fork, options: { idempotencyKey?: string | undefined } = {}): Call<m.Forked> {
  return {
    kind: "call",
    method: "POST",
    path: `/v1/sandboxes/${q(id)}/fork`,
    json: body,
    idempotent: true,
    idempotencyKey: options.idempotencyKey,
  };
}

/**
 * Make children with the disk and the memory of a running sandbox. Every process lives on in each
 * child. The parent is paused for `pause_ms`. A child that fails to start is reported in `failed`;
 * the others live.
 */
export function forkTree(id: string, body: m.ForkTree, options: { idempotencyKey?: string | undefined } = {}): Call<m.ForkedTree> {
  return {
    kind: "call",
    method: "POST",
    path: `/v1/sandboxes/${q(id)}/fork-tree`,
    json: body,
    idempotent: true,
    idempotencyKey: options.idempotencyKey,
  };
}

/** Read one build. */
export function getBuild(id: string): Call<m.Build> {
  return {
    kind: "call",
    method: "GET",
    path: `/v1/builds/${q(id)}`,
  };
}

/** Read how long a sandbox lives and what becomes of it then. */
export function getLifecycle(id: string): Call<m.Lifecycle> {
  return {
    kind: "call",
    method: "GET",
    path: `/v1/sandboxes/${q(id)}/lifecycle`,
  };
}

/** Read one sandbox. */
export function getSandbox(id: string): Call<m.Sandbox> {
  return {
    kind: "call",
    method: "GET",
    path: `/v1/sandboxes/${q(id)}`,
  };
}

/** Read one snapshot. */
export function getSnapshot(id: string): Call<m.Snapshot> {
  return {
    kind: "call",
    method: "GET",
    path: `/v1/snapshots/${q(id)}`,
  };
}

/** Read one template. */
export function getTemplate(name: string): Call<m.Template> {
  return {
    kind: "call",
    method: "GET",
    path: `/v1/templates/${q(name)}`,
  };
}

/** Read one volume. */
export function getVolume(name: string): Call<m.Volume> {
  return {
    kind: "call",
    method: "GET",
    path: `/v1/volumes/${q(name)}`,
  };
}

/** Tell whether this replica is well. It answers 200 even while no sandbox can be placed. */
export function healthz(): Call<m.Health> {
  return {
    kind: "call",
    method: "GET",
    path: "/healthz",
  };
}

/**
 * Write a running sandbox's memory to its host's disk and end its VM. It keeps its disk and its
 * network slot, but takes no memory and no CPU.
 */
export function hibernateSandbox(id: string): Call<m.Sandbox> {
  return {
    kind: "call",
    method: "POST",
    path: `/v1/sandboxes/${q(id)}/hibernate`,
  };
}

/**
 * List what a host found that belongs to no sandbox, newest last. `recover.unmanaged`: a VM that no
 * record names, which was killed. From the event store.
 */
export function listAgentEvents(id: string, options: { tail?: number | undefined; since?: string | undefined } = {}): Call<m.Event[]> {
  return {
    kind: "call",
    method: "GET",
    path: `/v1/admin/agents/${q(id)}/events`,
    query: { tail: options.tail, since: options.since },
  };
}

/** List the hosts, their capacity and health. */
export function listAgents(options: { limit?: number | undefined; cursor?: string | undefined } = {}): Page<m.Agent> {
  return {
    kind: "page",
    method: "GET",
    path: "/v1/admin/agents",
    query: { limit: options.limit, cursor: options.cursor },
  };
}

/** List the builds of a template, newest first. */
export function listBuilds(name: string, options: { limit?: number | undefined; cursor?: string | undefined } = {}): Page<m.Build> {
  return {
    kind: "page",
    method: "GET",
    path: `/v1/templates/${q(name)}/builds`,
    query: { limit: options.limit, cursor: options.cursor },
  };
}

/** List a directory. */
export function listDir(id: string, options: { path: string }): Call<m.Directory> {
  return {
    kind: "call",
    method: "GET",
    path: `/v1/sandboxes/${q(id)}/fs/dir`,
    query: { path: options.path },
  };
}

/** List the ports that something listens on, and those that are registered. */
export function listPorts(id: string): Call<m.Port[]> {
  return {
    kind: "call",
    method: "GET",
    path: `/v1/sandboxes/${q(id)}/ports`,
  };
}

/** List sandboxes, newest first. */
export function listSandboxes(options: { limit?: number | undefined; cursor?: string | undefined } = {}): Page<m.Sandbox> {
  return {
    kind: "page",
    method: "GET",
    path: "/v1/sandboxes",
    query: { limit: options.limit, cursor: options.cursor },
  };
}

/** List snapshots, newest first. */
export function listSnapshots(options: { limit?: number | undefined; cursor?: string | undefined; sandbox_id?: string | undefined } = {}): Page<m.Snapshot> {
  return {
    kind: "page",
    method: "GET",
    path: "/v1/snapshots",
    query: { limit: options.limit, cursor: options.cursor, sandbox_id: options.sandbox_id },
  };
}

/**
 * List templates, newest first. Those of the hosts' operator, which are everybody's, and the
 * organization's own.
 */
export function listTemplates(options: { limit?: number | undefined; cursor?: string | undefined } = {}): Page<m.Template> {
  return {
    kind: "page",
    method: "GET",
    path: "/v1/templates",
    query: { limit: options.limit, cursor: options.cursor },
  };
}

/** List the current organization's API keys, newest first. */
export function listTokens(options: { limit?: number | undefined; cursor?: string | undefined } = {}): Page<m.Token> {
  return {
    kind: "page",
    method: "GET",
    path: "/v1/me/tokens",
    query: { limit: options.limit, cursor: options.cursor },
  };
}

/** List volumes, newest first. */
export function listVolumes(options: { limit?: number | undefined; cursor?: string | undefined } = {}): Page<m.Volume> {
  return {
    kind: "page",
    method: "GET",
    path: "/v1/volumes",
    query: { limit: options.limit, cursor: options.cursor },
  };
}

/**
 * Read what the template's start command and the console wrote. Text, or with `follow` server-sent
 * events named `stdout`, `stderr` or `console` with a LogLine.
 */
export function logs(id: string, options: { stream?: string | undefined; tail?: number | undefined } = {}): Stream {
  return {
    kind: "stream",
    method: "GET",
    path: `/v1/sandboxes/${q(id)}/logs`,
    query: { stream: options.stream, tail: options.tail },
  };
}

/** Make a directory, with its parents. */
export function makeDir(id: string, options: { path: string }): Nothing {
  return {
    kind: "nothing",
    method: "POST",
    path: `/v1/sandboxes/${q(id)}/fs/dir`,
    query: { path: options.path },
  };
}

/** Read who the JWT belongs to. */
export function me(): Call<m.Me> {
  return {
    kind: "call",
    method: "GET",
    path: "/v1/me",
  };
}

/** Prometheus metrics of this replica. */
export function metrics(): Stream {
  return {
    kind: "stream",
    method: "GET",
    path: "/metrics",
  };
}

/**
 * Talk to a language server over a WebSocket. One JSON-RPC message a text message, without the
 * header. A browser, which can set no header on a WebSocket, offers the subprotocols `berth.v1` and
 * `bearer.<credential>`.
 */
export function openLanguageServer(id: string, lang: string): Socket {
  return {
    kind: "socket",
    method: "GET",
    path: `/v1/sandboxes/${q(id)}/lsp/${q(lang)}`,
  };
}

/**
 * Open a terminal over a WebSocket. Binary messages are the terminal's bytes, both ways. Text
 * messages are Frames: `resize` and `signal` in, one `exit` out. A browser, which can set no header
 * on a WebSocket, offers the subprotocols `berth.v1` and `bearer.<credential>`.
 */
export function openTerminal(id: string, options: { cmd?: string | undefined; cols?: number | undefined; rows?: number | undefined; cwd?: string | undefined; user?: string | undefined } = {}): Socket {
  return {
    kind: "socket",
    method: "GET",
    path: `/v1/sandboxes/${q(id)}/exec/pty`,
    query: { cmd: options.cmd, cols: options.cols, rows: options.rows, cwd: options.cwd, user: options.user },
  };
}

/** This document. */
export function openapi(): Call<Record<string, unknown> | null> {
  return {
    kind: "call",
    method: "GET",
    path: "/openapi.json",
  };
}

/**
 * Change how long a sandbox lives and what becomes of it then. `ttl_seconds` counts from now; null
 * removes the end. What is absent stays as it is.
 */
export function patchLifecycle(id: string, body: m.PatchLifecycle): Call<m.Lifecycle> {
  return {
    kind: "call",
    method: "PATCH",
    path: `/v1/sandboxes/${q(id)}/lifecycle`,
    json: body,
  };
}

/**
 * Stop a running sandbox's CPUs. Its memory stays on the host, and its time to live keeps counting.
 */
export function pauseSandbox(id: string): Call<m.Sandbox> {
  return {
    kind: "call",
    method: "POST",
    path: `/v1/sandboxes/${q(id)}/pause`,
  };
}

/**
 * Choose a fork-tree's child, and delete its siblings. The parent is not a sibling, and is kept.
 */
export function promote(id: string, body: m.Promote): Call<m.Promoted> {
  return {
    kind: "call",
    method: "POST",
    path: `/v1/sandboxes/${q(id)}/promote`,
    json: body,
  };
}

/**
 * Read how this replica sees the control store. Every replica answers for itself, whether or not
 * there is a leader.
 */
export function raftStatus(): Call<m.RaftStatus> {
  return {
    kind: "call",
    method: "GET",
    path: "/v1/admin/raft-status",
  };
}

/** Read a file. Supports Range requests. */
export function readFile(id: string, options: { path: string }): Stream {
  return {
    kind: "stream",
    method: "GET",
    path: `/v1/sandboxes/${q(id)}/fs`,
    query: { path: options.path },
  };
}

/** Forget a host that has no sandbox left. */
export function removeAgent(id: string): Nothing {
  return {
    kind: "nothing",
    method: "DELETE",
    path: `/v1/admin/agents/${q(id)}`,
  };
}

/** Delete a file or a directory. */
export function removeFile(id: string, options: { path: string; recursive?: boolean | undefined }): Nothing {
  return {
    kind: "nothing",
    method: "DELETE",
    path: `/v1/sandboxes/${q(id)}/fs`,
    query: { path: options.path, recursive: options.recursive },
  };
}

/** Remove a replica from the members. */
export function removePeer(id: string): Nothing {
  return {
    kind: "nothing",
    method: "DELETE",
    path: `/v1/admin/raft/peers/${q(id)}`,
  };
}

/** Remove the registration of a port. */
export function removePort(id: string, options: { port: number }): Nothing {
  return {
    kind: "nothing",
    method: "DELETE",
    path: `/v1/sandboxes/${q(id)}/ports`,
    query: { port: options.port },
  };
}

/** Replace the control store by a backup. */
export function restore(content: Body): Nothing {
  return {
    kind: "nothing",
    method: "POST",
    path: "/v1/admin/raft/restore",
    content,
  };
}

/**
 * Let a paused sandbox run on. Also resumes the parent of a warm fork, which is left paused, and
 * gets memory and a network slot again.
 */
export function resumeSandbox(id: string): Call<m.Sandbox> {
  return {
    kind: "call",
    method: "POST",
    path: `/v1/sandboxes/${q(id)}/resume`,
  };
}

/** Revoke an API key by its prefix. */
export function revokeToken(prefix: string): Nothing {
  return {
    kind: "nothing",
    method: "DELETE",
    path: `/v1/me/tokens/${q(prefix)}`,
  };
}

/**
 * Count and measure the workspace's sandboxes by day and template. The newest day first. Events are
 * kept for 90 days, and counted a moment after they happen.
 */
export function sandboxMetrics(options: { from?: string | undefined; to?: string | undefined; template?: string | undefined } = {}): Call<m.SandboxMetrics[]> {
  return {
    kind: "call",
    method: "GET",
    path: "/v1/metrics/sandboxes",
    query: { from: options.from, to: options.to, template: options.template },
  };
}

/** Choose the organization in which the JWT acts from now on. */
export function setCurrentOrg(body: m.SetCurrentOrg): Call<m.Me> {
  return {
    kind: "call",
    method: "POST",
    path: "/v1/me/current-org",
    json: body,
  };
}

/** Describe a file, a directory or a link. */
export function statFile(id: string, options: { path: string }): Call<m.FileStat> {
  return {
    kind: "call",
    method: "GET",
    path: `/v1/sandboxes/${q(id)}/fs/stat`,
    query: { path: options.path },
  };
}

/** Hand leadership to another replica. */
export function transferLeadership(body: m.TransferLeadership): Nothing {
  return {
    kind: "nothing",
    method: "POST",
    path: "/v1/admin/raft/transfer-leadership",
    json: body,
  };
}

/** Place sandboxes on a host again. */
export function undrainAgent(id: string): Call<m.Agent> {
  return {
    kind: "call",
    method: "POST",
    path: `/v1/admin/agents/${q(id)}/undrain`,
  };
}

/** Tell which build answers. */
export function version(): Call<m.VersionInfo> {
  return {
    kind: "call",
    method: "GET",
    path: "/version",
  };
}

/**
 * Let a hibernated sandbox go on where it was. A sandbox that already runs is returned as it is, so
 * wakes at the same time are one wake.
 */
export function wakeSandbox(id: string): Call<m.Sandbox> {
  return {
    kind: "call",
    method: "POST",
    path: `/v1/sandboxes/${q(id)}/wake`,
  };
}

/**
 * Write a file. The body is the bytes, of any number. Parent directories are made. The file is in
 * its place once all of it is there: an upload that breaks off leaves what was there before.
 */
export function writeFile(id: string, content: Body, options: { path: string; mode?: string | undefined }): Nothing {
  return {
    kind: "nothing",
    method: "PUT",
    path: `/v1/sandboxes/${q(id)}/fs`,
    query: { path: options.path, mode: options.mode },
    content,
  };
}
