// One function for each operation of the service, which returns the call to be
// made: hand it to Berth.call. Generated from the service's OpenAPI document by `make clients`. Do not edit.
import type { Body, Call, Nothing, Page, Socket, Stream } from "./call.js";
import type * as m from "./models.js";

const q = encodeURIComponent;

/** Accept an invitation. */
export function acceptInvitation(token: string): Call<m.Org> {
  return {
    kind: "call",
    method: "POST",
    path: `/v1/invitations/${q(token)}`,
  };
}

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

/**
 * Add a replica, which votes once it is stable. It gets every record. It votes once it has had them
 * for a while and every other voter is there, or in the place of one that was silent for long. Of a
 * member, it changes the address.
 */
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
 * Read what an app has written. Of each of its instances since it started, one after the other; of
 * several, each line begins with its instance in brackets. Text, or with `follow` server-sent
 * events named `stdout` or `stderr` with a LogLine, also of the instances that come later, until
 * none is left.
 */
export function appLogs(id: string, options: { tail?: number | undefined } = {}): Stream {
  return {
    kind: "stream",
    method: "GET",
    path: `/v1/apps/${q(id)}/runtime-logs`,
    query: { tail: options.tail },
  };
}

/**
 * Count and measure the requests to an app, and what its instances use. Counted by the replicas
 * that serve them, each since it started, and added up. Nothing of it is stored: a replica that
 * restarts begins anew.
 */
export function appMetrics(id: string): Call<m.AppMetrics> {
  return {
    kind: "call",
    method: "GET",
    path: `/v1/apps/${q(id)}/metrics`,
  };
}

/**
 * Read the latest requests to an app. Oldest first. Each replica keeps the latest 200 of an app in
 * memory; they are gone when it restarts. With `follow` server-sent events named `request`, also of
 * those that end from now on, about a second late.
 */
export function appRequests(id: string, options: { tail?: number | undefined } = {}): Call<m.AppRequest[]> {
  return {
    kind: "call",
    method: "GET",
    path: `/v1/apps/${q(id)}/requests`,
    query: { tail: options.tail },
  };
}

/**
 * Count and measure deployments, wakes and requests of the workspace's apps, by time and app. The
 * newest first; what had no event in a day or an hour is not there. Events are kept for 90 days,
 * and counted a moment after they happen. Requests are those of whole hours, a minute after they
 * were answered at the latest.
 */
export function appsMetrics(options: { from?: string | undefined; to?: string | undefined; bucket?: string | undefined; app?: string | undefined } = {}): Call<m.AppsMetrics[]> {
  return {
    kind: "call",
    method: "GET",
    path: "/v1/metrics/apps",
    query: { from: options.from, to: options.to, bucket: options.bucket, app: options.app },
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
 * Run SQL statements, each by itself. A database that sleeps is woken. What PostgreSQL or the
 * broker refuses has a `sqlstate`. One that fails has its error in its place, and the next runs all
 * the same. After one that was cut off, as by the time-out, none is run.
 */
export function batchDatabase(id: string, body: m.SQLQueries): Call<m.SQLBatchResults> {
  return {
    kind: "call",
    method: "POST",
    path: `/v1/databases/${q(id)}/proxy/batch`,
    json: body,
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

/**
 * Cancel a deployment that has not ended. It has failed, with the error `cancelled`. What was live
 * goes on.
 */
export function cancelDeployment(id: string, deploy: string): Call<m.Deployment> {
  return {
    kind: "call",
    method: "POST",
    path: `/v1/apps/${q(id)}/deploys/${q(deploy)}/cancel`,
  };
}

/** Cancel a deployment of a function that has not ended. */
export function cancelFunctionDeployment(id: string, deploy: string): Call<m.Deployment> {
  return {
    kind: "call",
    method: "POST",
    path: `/v1/functions/${q(id)}/deploys/${q(deploy)}/cancel`,
  };
}

/**
 * Clone a database, as it is or as of a point in time. Of databases that run, hibernate or have
 * failed. Answers at once, as a create does. Another `size` is how a database is resized.
 */
export function cloneDatabase(id: string, body: m.CloneDatabase, options: { idempotencyKey?: string | undefined } = {}): Call<m.Database> {
  return {
    kind: "call",
    method: "POST",
    path: `/v1/databases/${q(id)}/clone`,
    json: body,
    idempotent: true,
    idempotencyKey: options.idempotencyKey,
  };
}

/**
 * Read what a command has written, and what it writes. Server-sent events: `stdout` and `stderr`
 * with a CommandOutput, `gap` with a CommandGap where what was asked for is not kept any more (the
 * last 8 MiB are), and a last `exit` with a CommandExit once the command has ended, or `error` with
 * an Error when the stream breaks off. The `id` of an event is the offset after it: pass it as
 * `since`, or as Last-Event-ID, to go on from there. A client that reads slowly does not slow the
 * command.
 */
export function commandOutput(id: string, cid: string, options: { since?: number | undefined } = {}): Stream {
  return {
    kind: "stream",
    method: "GET",
    path: `/v1/sandboxes/${q(id)}/commands/${q(cid)}/output`,
    query: { since: options.since },
  };
}

/**
 * Get the URL at which a person connects GitHub to the workspace. Open it in a browser within 15
 * minutes, and install the GitHub App in the account that has the repositories.
 */
export function connectGithub(): Call<m.GitHubConnect> {
  return {
    kind: "call",
    method: "GET",
    path: "/v1/github/connect",
  };
}

/**
 * Create an app. Stores the settings and builds nothing: deploy it next. With `source` "upload"
 * there is no repository, and its source is uploaded. `cpu` and `memory_mb` are recorded and have
 * no effect.
 */
export function createApp(body: m.CreateApp, options: { idempotencyKey?: string | undefined } = {}): Call<m.App> {
  return {
    kind: "call",
    method: "POST",
    path: "/v1/apps",
    json: body,
    idempotent: true,
    idempotencyKey: options.idempotencyKey,
  };
}

/**
 * Add a custom domain to an app. The answer says in `dns` what to set: the TXT record proves the
 * domain, the other record leads to the app. DNS is looked into by itself for a week, and by
 * `verify` at once. At most 10 an app and 50 a workspace.
 */
export function createAppDomain(id: string, body: m.CreateAppDomain, options: { idempotencyKey?: string | undefined } = {}): Call<m.AppDomain> {
  return {
    kind: "call",
    method: "POST",
    path: `/v1/apps/${q(id)}/domains`,
    json: body,
    idempotent: true,
    idempotencyKey: options.idempotencyKey,
  };
}

/**
 * Create a PostgreSQL database. Answers at once with status `provisioning`: read it until it is
 * `running`, or `failed`, and `error` says why. `cpu` and `memory_mb` are recorded and have no
 * effect.
 */
export function createDatabase(body: m.CreateDatabase, options: { idempotencyKey?: string | undefined } = {}): Call<m.Database> {
  return {
    kind: "call",
    method: "POST",
    path: "/v1/databases",
    json: body,
    idempotent: true,
    idempotencyKey: options.idempotencyKey,
  };
}

/** Create a function. Stores the settings: deploy its code next. */
export function createFunction(body: m.CreateFunction, options: { idempotencyKey?: string | undefined } = {}): Call<m.Function> {
  return {
    kind: "call",
    method: "POST",
    path: "/v1/functions",
    json: body,
    idempotent: true,
    idempotencyKey: options.idempotencyKey,
  };
}

/** Create a token with which one host can join. */
export function createJoinToken(body: m.CreateJoinToken, options: { idempotencyKey?: string | undefined } = {}): Call<m.JoinToken> {
  return {
    kind: "call",
    method: "POST",
    path: "/v1/admin/join-tokens",
    json: body,
    idempotent: true,
    idempotencyKey: options.idempotencyKey,
  };
}

/** Create an organization that you own. */
export function createOrg(body: m.CreateOrg, options: { idempotencyKey?: string | undefined } = {}): Call<m.Org> {
  return {
    kind: "call",
    method: "POST",
    path: "/v1/orgs",
    json: body,
    idempotent: true,
    idempotencyKey: options.idempotencyKey,
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

/**
 * Register a URL that events are sent to. At most 10 a workspace. The answer has the secret that
 * deliveries are signed with.
 */
export function createWebhookEndpoint(body: m.CreateWebhookEndpoint, options: { idempotencyKey?: string | undefined } = {}): Call<m.NewWebhookEndpoint> {
  return {
    kind: "call",
    method: "POST",
    path: "/v1/webhooks/endpoints",
    json: body,
    idempotent: true,
    idempotencyKey: options.idempotencyKey,
  };
}

/** Create a workspace. */
export function createWorkspace(body: m.CreateWorkspace, options: { idempotencyKey?: string | undefined } = {}): Call<m.Workspace> {
  return {
    kind: "call",
    method: "POST",
    path: "/v1/admin/workspaces",
    json: body,
    idempotent: true,
    idempotencyKey: options.idempotencyKey,
  };
}

/**
 * Create an API key of a workspace. So that a first key needs no identity provider. No member's
 * leaving ends it.
 */
export function createWorkspaceToken(id: string, body: m.CreateToken, options: { idempotencyKey?: string | undefined } = {}): Call<m.NewToken> {
  return {
    kind: "call",
    method: "POST",
    path: `/v1/admin/workspaces/${q(id)}/tokens`,
    json: body,
    idempotent: true,
    idempotencyKey: options.idempotencyKey,
  };
}

/**
 * Read what a database's server has written. Text, or with `follow` server-sent events named
 * `stdout` or `stderr` with a LogLine.
 */
export function databaseLogs(id: string, options: { tail?: number | undefined } = {}): Stream {
  return {
    kind: "stream",
    method: "GET",
    path: `/v1/databases/${q(id)}/logs`,
    query: { tail: options.tail },
  };
}

/**
 * Count and measure what the workspace's databases do, by time and database. The newest first; what
 * had no event in a day or an hour is not there. Events are kept for 90 days, and counted a moment
 * after they happen.
 */
export function databaseMetrics(options: { from?: string | undefined; to?: string | undefined; bucket?: string | undefined; database?: string | undefined } = {}): Call<m.DatabaseMetrics[]> {
  return {
    kind: "call",
    method: "GET",
    path: "/v1/metrics/databases",
    query: { from: options.from, to: options.to, bucket: options.bucket, database: options.database },
  };
}

/**
 * Describe the tables of a database. A database that sleeps is woken. What PostgreSQL or the broker
 * refuses has a `sqlstate`.
 */
export function databaseSchema(id: string): Call<m.DatabaseSchema> {
  return {
    kind: "call",
    method: "GET",
    path: `/v1/databases/${q(id)}/proxy/schema`,
  };
}

/** Measure what a database uses and has used. In any status, and without waking it. */
export function databaseUsage(id: string, options: { minutes?: number | undefined } = {}): Call<m.DatabaseUsage> {
  return {
    kind: "call",
    method: "GET",
    path: `/v1/databases/${q(id)}/metrics`,
    query: { minutes: options.minutes },
  };
}

/** Delete an app with its deployments, variables and uploaded sources. */
export function deleteApp(id: string): Nothing {
  return {
    kind: "nothing",
    method: "DELETE",
    path: `/v1/apps/${q(id)}`,
  };
}

/**
 * Remove a custom domain of an app. It leads to the app no more, and its certificate is deleted.
 */
export function deleteAppDomain(id: string, domain: string): Nothing {
  return {
    kind: "nothing",
    method: "DELETE",
    path: `/v1/apps/${q(id)}/domains/${q(domain)}`,
  };
}

/** Remove an environment variable of an app. */
export function deleteAppEnv(id: string, key: string): Nothing {
  return {
    kind: "nothing",
    method: "DELETE",
    path: `/v1/apps/${q(id)}/env/${q(key)}`,
  };
}

/** Kill a command with everything it started, and forget it. */
export function deleteCommand(id: string, cid: string): Nothing {
  return {
    kind: "nothing",
    method: "DELETE",
    path: `/v1/sandboxes/${q(id)}/commands/${q(cid)}`,
  };
}

/** Delete a database and everything that it could be restored from. */
export function deleteDatabase(id: string): Nothing {
  return {
    kind: "nothing",
    method: "DELETE",
    path: `/v1/databases/${q(id)}`,
  };
}

/** Delete a function with its code, deployments and variables. */
export function deleteFunction(id: string): Nothing {
  return {
    kind: "nothing",
    method: "DELETE",
    path: `/v1/functions/${q(id)}`,
  };
}

/** Remove an environment variable of a function. */
export function deleteFunctionEnv(id: string, key: string): Nothing {
  return {
    kind: "nothing",
    method: "DELETE",
    path: `/v1/functions/${q(id)}/env/${q(key)}`,
  };
}

/**
 * Disconnect an installation, and remove it from its account. Apps keep what they serve. Those of
 * private repositories cannot be deployed again.
 */
export function deleteGithubInstallation(id: string): Nothing {
  return {
    kind: "nothing",
    method: "DELETE",
    path: `/v1/github/installations/${q(id)}`,
  };
}

/**
 * Delete an organization that has nothing left. Its keys, webhook endpoints, connections to GitHub,
 * preview environments and memberships go with it.
 */
export function deleteOrg(id: string): Nothing {
  return {
    kind: "nothing",
    method: "DELETE",
    path: `/v1/orgs/${q(id)}`,
  };
}

/** Remove a variable of a repository's previews. */
export function deletePreviewVariable(repo: string, key: string): Nothing {
  return {
    kind: "nothing",
    method: "DELETE",
    path: `/v1/repos/${q(repo)}/preview-env/${q(key)}`,
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

/** Delete an endpoint and its deliveries, also those to come. */
export function deleteWebhookEndpoint(id: string): Nothing {
  return {
    kind: "nothing",
    method: "DELETE",
    path: `/v1/webhooks/endpoints/${q(id)}`,
  };
}

/**
 * Deploy an app. Clones `git_ref`, or takes an uploaded source, builds it in a virtual machine,
 * starts it and, once it answers on its port, sends the traffic there. What was live serves until
 * then, and goes on if it fails. One deployment of an app is made at a time; the next is `queued`,
 * and a newer one takes its place. What package managers and compilers keep in caches is there in
 * the app's next build; `clear_cache` deletes it first.
 */
export function deployApp(id: string, body: m.CreateDeployment, options: { idempotencyKey?: string | undefined } = {}): Call<m.Deployment> {
  return {
    kind: "call",
    method: "POST",
    path: `/v1/apps/${q(id)}/deploys`,
    json: body,
    idempotent: true,
    idempotencyKey: options.idempotencyKey,
  };
}

/**
 * Deploy the code of a function. Files as JSON, or a tar.gz of up to 50 MiB, with `handler.py`, or
 * `handler.mjs`, `handler.js` or `handler.cjs`, at its top. What `requirements.txt` or
 * `package.json` name is installed. The code that is live serves until the new one answers, and
 * goes on if it fails.
 */
export function deployFunction(id: string, body: m.DeployFunction, options: { idempotencyKey?: string | undefined } = {}): Call<m.Deployment> {
  return {
    kind: "call",
    method: "POST",
    path: `/v1/functions/${q(id)}/deploy`,
    json: body,
    idempotent: true,
    idempotencyKey: options.idempotencyKey,
  };
}

/**
 * Follow the log of a deployment, from its beginning, until it ends. Server-sent events: `stdout`
 * and `stderr` with a LogLine, then one `end` with the Deployment, or `error` with an Error when
 * the stream breaks off. The values of secret variables are left out. Of one that has ended, the
 * log is kept with it, at most the last 4 MiB.
 */
export function deploymentLogs(id: string, deploy: string): Stream {
  return {
    kind: "stream",
    method: "GET",
    path: `/v1/apps/${q(id)}/deploys/${q(deploy)}/logs`,
  };
}

/** Drain a host: place no new sandbox on it. What runs on it keeps running. */
export function drainAgent(id: string): Call<m.Agent> {
  return {
    kind: "call",
    method: "POST",
    path: `/v1/admin/agents/${q(id)}/drain`,
  };
}

/**
 * Evacuate a host: move its sandboxes, databases and apps to others. The host is drained. Its
 * sandboxes are hibernated, moved through the snapshot store under the same id, and those that ran
 * are woken there. The call returns at once; `evacuation` of the host says how far it has come, and
 * what stays and why. Again, it tries again what could not be moved; undrain gives it up.
 */
export function evacuateAgent(id: string, body: m.EvacuateAgent): Call<m.Agent> {
  return {
    kind: "call",
    method: "POST",
    path: `/v1/admin/agents/${q(id)}/evacuate`,
    json: body,
  };
}

/**
 * Read what happened to a sandbox, oldest first. With `follow`, server-sent events named `ev`, each
 * with an Event, its `id` the event's `ts`: pass it as `since`, or as Last-Event-ID, to go on from
 * there without a gap or a double. Without `follow`, a deleted sandbox's events, for 90 days.
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
 * Fail a database over: restore it on another host, from its archive. It keeps its id, its host
 * name and its credentials. With `force` also one that runs: what it wrote in the last minute may
 * be lost.
 */
export function failoverDatabase(id: string, body: m.FailoverDatabase): Call<m.DatabaseFailover> {
  return {
    kind: "call",
    method: "POST",
    path: `/v1/databases/${q(id)}/failover`,
    json: body,
  };
}

/**
 * Read what an app has written. Of each of its instances since it started, one after the other; of
 * several, each line begins with its instance in brackets. Text, or with `follow` server-sent
 * events named `stdout` or `stderr` with a LogLine, also of the instances that come later, until
 * none is left.
 */
export function followAppLogs(id: string, options: { tail?: number | undefined } = {}): Stream {
  return {
    kind: "stream",
    method: "GET",
    path: `/v1/apps/${q(id)}/runtime-logs`,
    query: { follow: true, tail: options.tail },
  };
}

/**
 * Read the latest requests to an app. Oldest first. Each replica keeps the latest 200 of an app in
 * memory; they are gone when it restarts. With `follow` server-sent events named `request`, also of
 * those that end from now on, about a second late.
 */
export function followAppRequests(id: string, options: { tail?: number | undefined } = {}): Stream {
  return {
    kind: "stream",
    method: "GET",
    path: `/v1/apps/${q(id)}/requests`,
    query: { follow: true, tail: options.tail },
  };
}

/**
 * Read what a command has written, and what it writes. Server-sent events: `stdout` and `stderr`
 * with a CommandOutput, `gap` with a CommandGap where what was asked for is not kept any more (the
 * last 8 MiB are), and a last `exit` with a CommandExit once the command has ended, or `error` with
 * an Error when the stream breaks off. The `id` of an event is the offset after it: pass it as
 * `since`, or as Last-Event-ID, to go on from there. A client that reads slowly does not slow the
 * command.
 */
export function followCommandOutput(id: string, cid: string, options: { since?: number | undefined } = {}): Stream {
  return {
    kind: "stream",
    method: "GET",
    path: `/v1/sandboxes/${q(id)}/commands/${q(cid)}/output`,
    query: { follow: true, since: options.since },
  };
}

/**
 * Read what a database's server has written. Text, or with `follow` server-sent events named
 * `stdout` or `stderr` with a LogLine.
 */
export function followDatabaseLogs(id: string, options: { tail?: number | undefined } = {}): Stream {
  return {
    kind: "stream",
    method: "GET",
    path: `/v1/databases/${q(id)}/logs`,
    query: { follow: true, tail: options.tail },
  };
}

/**
 * Read what happened to a sandbox, oldest first. With `follow`, server-sent events named `ev`, each
 * with an Event, its `id` the event's `ts`: pass it as `since`, or as Last-Event-ID, to go on from
 * there without a gap or a double. Without `follow`, a deleted sandbox's events, for 90 days.
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
 * Read what a function has written. What its handler wrote, a line for each invocation, and the
 * traces of its errors. Text, or with `follow` server-sent events named `stdout` with a LogLine.
 */
export function followFunctionLogs(id: string, options: { tail?: number | undefined } = {}): Stream {
  return {
    kind: "stream",
    method: "GET",
    path: `/v1/functions/${q(id)}/logs`,
    query: { follow: true, tail: options.tail },
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
 * Fork a running sandbox with its disk. Cold, the default: each child boots from a copy of the
 * disk. Warm, for a single child: it takes over the parent's memory, disk and address, and the
 * parent is paused until it is resumed. A child that fails to start is reported in `failed`; the
 * others live.
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
 * Fork a running sandbox with its disk and memory. Every process lives on in each child. The parent
 * is paused for `pause_ms`. A child that fails to start is reported in `failed`; the others live.
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

/**
 * Follow the log of a function's deployment, from its beginning, until it ends. Server-sent events,
 * as of an app's deployment.
 */
export function functionDeploymentLogs(id: string, deploy: string): Stream {
  return {
    kind: "stream",
    method: "GET",
    path: `/v1/functions/${q(id)}/deploys/${q(deploy)}/logs`,
  };
}

/**
 * Read what a function has written. What its handler wrote, a line for each invocation, and the
 * traces of its errors. Text, or with `follow` server-sent events named `stdout` with a LogLine.
 */
export function functionLogs(id: string, options: { tail?: number | undefined } = {}): Stream {
  return {
    kind: "stream",
    method: "GET",
    path: `/v1/functions/${q(id)}/logs`,
    query: { tail: options.tail },
  };
}

/**
 * Count and measure deployments and wakes of the workspace's functions, by time and function. The
 * newest first; what had no event in a day or an hour is not there. Events are kept for 90 days,
 * and counted a moment after they happen.
 */
export function functionMetrics(options: { from?: string | undefined; to?: string | undefined; bucket?: string | undefined; function?: string | undefined } = {}): Call<m.FunctionMetrics[]> {
  return {
    kind: "call",
    method: "GET",
    path: "/v1/metrics/functions",
    query: { from: options.from, to: options.to, bucket: options.bucket, function: options.function },
  };
}

/** Read a host, and how far it has been evacuated. */
export function getAgent(id: string): Call<m.Agent> {
  return {
    kind: "call",
    method: "GET",
    path: `/v1/admin/agents/${q(id)}`,
  };
}

/** Read one app. */
export function getApp(id: string): Call<m.App> {
  return {
    kind: "call",
    method: "GET",
    path: `/v1/apps/${q(id)}`,
  };
}

/** Read one domain of an app. */
export function getAppDomain(id: string, domain: string): Call<m.AppDomain> {
  return {
    kind: "call",
    method: "GET",
    path: `/v1/apps/${q(id)}/domains/${q(domain)}`,
  };
}

/**
 * Pass a GET on to an app. To any path, with any headers and body; also WebSockets. The answer is
 * the app's. An app that sleeps is woken, as by a request to its URL. The Authorization header is
 * not passed on.
 */
export function getAppRoot(id: string): Stream {
  return {
    kind: "stream",
    method: "GET",
    path: `/v1/apps/${q(id)}/proxy`,
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

/** Read one command. */
export function getCommand(id: string, cid: string): Call<m.SandboxCommand> {
  return {
    kind: "call",
    method: "GET",
    path: `/v1/sandboxes/${q(id)}/commands/${q(cid)}`,
  };
}

/** Read one database, with its credentials while it runs. */
export function getDatabase(id: string): Call<m.Database> {
  return {
    kind: "call",
    method: "GET",
    path: `/v1/databases/${q(id)}`,
  };
}

/** Read what a database can be restored from. */
export function getDatabaseArchive(id: string): Call<m.DatabaseArchive> {
  return {
    kind: "call",
    method: "GET",
    path: `/v1/databases/${q(id)}/archive`,
  };
}

/** Read how a database is reached, with its credentials while it runs. */
export function getDatabaseConnection(id: string): Call<m.DatabaseConnection> {
  return {
    kind: "call",
    method: "GET",
    path: `/v1/databases/${q(id)}/connection`,
  };
}

/** Read one deployment. */
export function getDeployment(id: string, deploy: string): Call<m.Deployment> {
  return {
    kind: "call",
    method: "GET",
    path: `/v1/apps/${q(id)}/deploys/${q(deploy)}`,
  };
}

/** Read one function. */
export function getFunction(id: string): Call<m.Function> {
  return {
    kind: "call",
    method: "GET",
    path: `/v1/functions/${q(id)}`,
  };
}

/** Read one deployment of a function. */
export function getFunctionDeployment(id: string, deploy: string): Call<m.Deployment> {
  return {
    kind: "call",
    method: "GET",
    path: `/v1/functions/${q(id)}/deploys/${q(deploy)}`,
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

/** Read an organization, its limits and what it uses. */
export function getOrg(id: string): Call<m.OrgDetails> {
  return {
    kind: "call",
    method: "GET",
    path: `/v1/orgs/${q(id)}`,
  };
}

/** Read how evenly hosts are filled, and how far a rebalancing has come. */
export function getRebalancing(): Call<m.Rebalancing> {
  return {
    kind: "call",
    method: "GET",
    path: "/v1/admin/rebalance",
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

/** Read one endpoint, without its secret. */
export function getWebhookEndpoint(id: string): Call<m.WebhookEndpoint> {
  return {
    kind: "call",
    method: "GET",
    path: `/v1/webhooks/endpoints/${q(id)}`,
  };
}

/** Check the health of this replica. It answers 200 even while no sandbox can be placed. */
export function healthz(): Call<m.Health> {
  return {
    kind: "call",
    method: "GET",
    path: "/healthz",
  };
}

/**
 * Hibernate a running sandbox: write its memory to its host's disk, and end its VM. It keeps its
 * disk and its network slot, but takes no memory and no CPU.
 */
export function hibernateSandbox(id: string): Call<m.Sandbox> {
  return {
    kind: "call",
    method: "POST",
    path: `/v1/sandboxes/${q(id)}/hibernate`,
  };
}

/**
 * Set the environment variables of a .env file. Others stay as they are. `secret` and `scope` are
 * of each of them. The answer has all variables of the app.
 */
export function importAppEnv(id: string, body: m.ImportAppEnv): Call<m.AppVariable[]> {
  return {
    kind: "call",
    method: "POST",
    path: `/v1/apps/${q(id)}/env/import`,
    json: body,
  };
}

/**
 * Invite a person by e-mail address. No mail is sent: pass the link on. It works once, for seven
 * days, for a JWT with that address.
 */
export function inviteMember(id: string, body: m.Invite, options: { idempotencyKey?: string | undefined } = {}): Call<m.NewInvitation> {
  return {
    kind: "call",
    method: "POST",
    path: `/v1/orgs/${q(id)}/members`,
    json: body,
    idempotent: true,
    idempotencyKey: options.idempotencyKey,
  };
}

/**
 * Invoke a function with a POST. The handler gets the method, the path after `invoke`, the query,
 * the headers, but the Authorization header and cookies, and the body, of up to 10 MiB. Its answer
 * is the answer. A function that sleeps is woken first. What fails in it is a 500, with the last
 * lines of its log as `log`.
 */
export function invokeFunction(id: string, content: Body): Stream {
  return {
    kind: "stream",
    method: "POST",
    path: `/v1/functions/${q(id)}/invoke`,
    content,
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

/** List the domains of an app, newest first. */
export function listAppDomains(id: string, options: { limit?: number | undefined; cursor?: string | undefined } = {}): Page<m.AppDomain> {
  return {
    kind: "page",
    method: "GET",
    path: `/v1/apps/${q(id)}/domains`,
    query: { limit: options.limit, cursor: options.cursor },
  };
}

/** List the environment variables of an app, with secret values masked. */
export function listAppEnv(id: string): Call<m.AppVariable[]> {
  return {
    kind: "call",
    method: "GET",
    path: `/v1/apps/${q(id)}/env`,
  };
}

/** List apps, newest first. */
export function listApps(options: { limit?: number | undefined; cursor?: string | undefined } = {}): Page<m.App> {
  return {
    kind: "page",
    method: "GET",
    path: "/v1/apps",
    query: { limit: options.limit, cursor: options.cursor },
  };
}

/**
 * List who did what in all workspaces, newest first. Each entry has the hash of the one before it
 * in its log, so that a changed or a missing one shows. Entries of the last second may have no
 * place yet.
 */
export function listAudit(options: { limit?: number | undefined; cursor?: string | undefined; workspace?: string | undefined; actor?: string | undefined; action?: string | undefined; outcome?: string | undefined; since?: string | undefined; until?: string | undefined } = {}): Page<m.AuditEntry> {
  return {
    kind: "page",
    method: "GET",
    path: "/v1/admin/audit",
    query: { limit: options.limit, cursor: options.cursor, workspace: options.workspace, actor: options.actor, action: options.action, outcome: options.outcome, since: options.since, until: options.until },
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

/**
 * List the commands that run and the last 100 that have ended, newest first. Wakes a hibernated
 * sandbox, whose commands are in its memory, as all routes of commands do.
 */
export function listCommands(id: string): Call<m.SandboxCommand[]> {
  return {
    kind: "call",
    method: "GET",
    path: `/v1/sandboxes/${q(id)}/commands`,
  };
}

/** List databases, newest first. Without passwords and broker tokens. */
export function listDatabases(options: { limit?: number | undefined; cursor?: string | undefined } = {}): Page<m.Database> {
  return {
    kind: "page",
    method: "GET",
    path: "/v1/databases",
    query: { limit: options.limit, cursor: options.cursor },
  };
}

/**
 * List the deployments of an app, newest first. Those that have not ended, and the latest 100 that
 * have.
 */
export function listDeployments(id: string, options: { limit?: number | undefined; cursor?: string | undefined } = {}): Page<m.Deployment> {
  return {
    kind: "page",
    method: "GET",
    path: `/v1/apps/${q(id)}/deploys`,
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

/** List the deployments of a function, newest first. */
export function listFunctionDeployments(id: string, options: { limit?: number | undefined; cursor?: string | undefined } = {}): Page<m.Deployment> {
  return {
    kind: "page",
    method: "GET",
    path: `/v1/functions/${q(id)}/deploys`,
    query: { limit: options.limit, cursor: options.cursor },
  };
}

/** List the environment variables of a function, with secret values masked. */
export function listFunctionEnv(id: string): Call<m.AppVariable[]> {
  return {
    kind: "call",
    method: "GET",
    path: `/v1/functions/${q(id)}/env`,
  };
}

/** List functions, newest first. */
export function listFunctions(options: { limit?: number | undefined; cursor?: string | undefined } = {}): Page<m.Function> {
  return {
    kind: "page",
    method: "GET",
    path: "/v1/functions",
    query: { limit: options.limit, cursor: options.cursor },
  };
}

/** List the installations that the workspace has connected, newest first. */
export function listGithubInstallations(options: { limit?: number | undefined; cursor?: string | undefined } = {}): Page<m.GitHubInstallation> {
  return {
    kind: "page",
    method: "GET",
    path: "/v1/github/installations",
    query: { limit: options.limit, cursor: options.cursor },
  };
}

/** List the repositories of an installation. A page has at most 100. */
export function listGithubRepos(options: { limit?: number | undefined; cursor?: string | undefined; installation_id?: string | undefined } = {}): Page<m.GitHubRepo> {
  return {
    kind: "page",
    method: "GET",
    path: "/v1/github/repos",
    query: { limit: options.limit, cursor: options.cursor, installation_id: options.installation_id },
  };
}

/** List the invitations that can still be accepted, newest first. */
export function listInvitations(id: string, options: { limit?: number | undefined; cursor?: string | undefined } = {}): Page<m.Invitation> {
  return {
    kind: "page",
    method: "GET",
    path: `/v1/orgs/${q(id)}/invitations`,
    query: { limit: options.limit, cursor: options.cursor },
  };
}

/** List an organization's people. */
export function listMembers(id: string, options: { limit?: number | undefined; cursor?: string | undefined } = {}): Page<m.Member> {
  return {
    kind: "page",
    method: "GET",
    path: `/v1/orgs/${q(id)}/members`,
    query: { limit: options.limit, cursor: options.cursor },
  };
}

/**
 * List who did what in an organization, newest first. Each entry has the hash of the one before it
 * in its log, so that a changed or a missing one shows. Entries of the last second may have no
 * place yet.
 */
export function listOrgAudit(id: string, options: { limit?: number | undefined; cursor?: string | undefined; actor?: string | undefined; action?: string | undefined; outcome?: string | undefined; since?: string | undefined; until?: string | undefined } = {}): Page<m.AuditEntry> {
  return {
    kind: "page",
    method: "GET",
    path: `/v1/orgs/${q(id)}/audit`,
    query: { limit: options.limit, cursor: options.cursor, actor: options.actor, action: options.action, outcome: options.outcome, since: options.since, until: options.until },
  };
}

/** List the organizations of which you are a member, newest first. */
export function listOrgs(options: { limit?: number | undefined; cursor?: string | undefined } = {}): Page<m.Org> {
  return {
    kind: "page",
    method: "GET",
    path: "/v1/orgs",
    query: { limit: options.limit, cursor: options.cursor },
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

/**
 * List the variables of a repository's previews. The id of a repository is GitHub's. The values of
 * secrets are masked.
 */
export function listPreviewEnv(repo: string): Call<m.RepoVariable[]> {
  return {
    kind: "call",
    method: "GET",
    path: `/v1/repos/${q(repo)}/preview-env`,
  };
}

/** List sandboxes, newest first. */
export function listSandboxes(options: { limit?: number | undefined; cursor?: string | undefined; metadata?: string | undefined } = {}): Page<m.Sandbox> {
  return {
    kind: "page",
    method: "GET",
    path: "/v1/sandboxes",
    query: { limit: options.limit, cursor: options.cursor, metadata: options.metadata },
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

/** List the tiers of workspaces by name, as they were read last. */
export function listTiers(): Call<m.Tier[]> {
  return {
    kind: "call",
    method: "GET",
    path: "/v1/admin/tiers",
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
 * List the deliveries to an endpoint, newest first. The latest 100 that have ended within 7 days,
 * and those that wait.
 */
export function listWebhookDeliveries(id: string, options: { limit?: number | undefined; cursor?: string | undefined } = {}): Page<m.WebhookDelivery> {
  return {
    kind: "page",
    method: "GET",
    path: `/v1/webhooks/endpoints/${q(id)}/deliveries`,
    query: { limit: options.limit, cursor: options.cursor },
  };
}

/** List endpoints, newest first, without their secrets. */
export function listWebhookEndpoints(options: { limit?: number | undefined; cursor?: string | undefined } = {}): Page<m.WebhookEndpoint> {
  return {
    kind: "page",
    method: "GET",
    path: "/v1/webhooks/endpoints",
    query: { limit: options.limit, cursor: options.cursor },
  };
}

/** List the types of events that there are. */
export function listWebhookEvents(): Call<m.WebhookEventType[]> {
  return {
    kind: "call",
    method: "GET",
    path: "/v1/webhooks/events",
  };
}

/** List the workspaces, their limits and what they use, newest first. */
export function listWorkspaces(options: { limit?: number | undefined; cursor?: string | undefined } = {}): Page<m.Workspace> {
  return {
    kind: "page",
    method: "GET",
    path: "/v1/admin/workspaces",
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
 * Change the settings of an app. What is absent stays as it is; null is the default. What runs goes
 * on as it was built until the next deployment. After a change of `framework`, `install_command`,
 * `build_command`, `start_command`, `root_directory`, `port` or `env`, the next wake builds the app
 * anew. A change of `git_url`, `framework`, `runtime` or `root_directory` deletes the caches of its
 * builds.
 */
export function patchApp(id: string, body: m.PatchApp): Call<m.App> {
  return {
    kind: "call",
    method: "PATCH",
    path: `/v1/apps/${q(id)}`,
    json: body,
  };
}

/** Change whether a database is put to sleep when it is idle. */
export function patchDatabase(id: string, body: m.PatchDatabase): Call<m.Database> {
  return {
    kind: "call",
    method: "PATCH",
    path: `/v1/databases/${q(id)}`,
    json: body,
  };
}

/**
 * Change the settings of a function. What is absent stays as it is; null is the default. What runs
 * goes on as it is until the next deployment, or the next wake.
 */
export function patchFunction(id: string, body: m.PatchFunction): Call<m.Function> {
  return {
    kind: "call",
    method: "PATCH",
    path: `/v1/functions/${q(id)}`,
    json: body,
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

/** Change a member's role. */
export function patchMember(id: string, user: string, body: m.PatchMember): Call<m.Member> {
  return {
    kind: "call",
    method: "PATCH",
    path: `/v1/orgs/${q(id)}/members/${q(user)}`,
    json: body,
  };
}

/** Rename an organization. */
export function patchOrg(id: string, body: m.PatchOrg): Call<m.Org> {
  return {
    kind: "call",
    method: "PATCH",
    path: `/v1/orgs/${q(id)}`,
    json: body,
  };
}

/** Change the URL or the events of an endpoint. What waits to be sent goes to the new URL. */
export function patchWebhookEndpoint(id: string, body: m.PatchWebhookEndpoint): Call<m.WebhookEndpoint> {
  return {
    kind: "call",
    method: "PATCH",
    path: `/v1/webhooks/endpoints/${q(id)}`,
    json: body,
  };
}

/** Change a workspace's limits, or suspend it. */
export function patchWorkspace(id: string, body: m.PatchWorkspace): Call<m.Workspace> {
  return {
    kind: "call",
    method: "PATCH",
    path: `/v1/admin/workspaces/${q(id)}`,
    json: body,
  };
}

/**
 * Pause a running sandbox: stop its CPUs. Its memory stays on the host, and its time to live keeps
 * counting.
 */
export function pauseSandbox(id: string): Call<m.Sandbox> {
  return {
    kind: "call",
    method: "POST",
    path: `/v1/sandboxes/${q(id)}/pause`,
  };
}

/**
 * Pass a POST on to an app. To any path, with any headers and body; also WebSockets. The answer is
 * the app's. An app that sleeps is woken, as by a request to its URL. The Authorization header is
 * not passed on.
 */
export function postToAppRoot(id: string, content: Body): Stream {
  return {
    kind: "stream",
    method: "POST",
    path: `/v1/apps/${q(id)}/proxy`,
    content,
  };
}

/**
 * Promote a child of a fork tree, and delete its siblings. The parent is not a sibling, and is
 * kept.
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
 * Set an environment variable of an app. Deployments from now on have it. A secret one is masked
 * when it is read, and left out of the logs of builds. Without `secret` and `scope`, one that
 * exists keeps its own.
 */
export function putAppEnv(id: string, key: string, body: m.PutAppVariable): Call<m.AppVariable> {
  return {
    kind: "call",
    method: "PUT",
    path: `/v1/apps/${q(id)}/env/${q(key)}`,
    json: body,
  };
}

/**
 * Upload the source of an app, a tar.gz of up to 512 MiB. Deploy it by its `source_id`. The latest
 * few are kept.
 */
export function putAppSource(id: string, content: Body): Call<m.SourceUpload> {
  return {
    kind: "call",
    method: "PUT",
    path: `/v1/apps/${q(id)}/source`,
    content,
  };
}

/**
 * Set an environment variable of a function. The next deployment or wake has it. A secret one is
 * masked when it is read, and in logs.
 */
export function putFunctionEnv(id: string, key: string, body: m.PutAppVariable): Call<m.AppVariable> {
  return {
    kind: "call",
    method: "PUT",
    path: `/v1/functions/${q(id)}/env/${q(key)}`,
    json: body,
  };
}

/**
 * Set a variable of a repository's previews. For the previews of pull requests of all the
 * workspace's apps of this repository, from their next deployment on. It takes the place of an
 * app's own variable of this name. Without `secret`, one that is secret stays so.
 */
export function putPreviewVariable(repo: string, key: string, body: m.PutRepoVariable): Call<m.RepoVariable> {
  return {
    kind: "call",
    method: "PUT",
    path: `/v1/repos/${q(repo)}/preview-env/${q(key)}`,
    json: body,
  };
}

/**
 * Run one SQL statement. A database that sleeps is woken. What PostgreSQL or the broker refuses has
 * a `sqlstate`. Rows over 10,000, or 8 MiB, are left out, and `truncated` is true. Whoever accepts
 * only `application/x-ndjson` gets all of them, a line each: first `{columns}`, then the rows, then
 * `{row_count, command}` or an error. A client that goes away ends the statement.
 */
export function queryDatabase(id: string, body: m.SQLQuery): Call<m.SQLResult> {
  return {
    kind: "call",
    method: "POST",
    path: `/v1/databases/${q(id)}/proxy/query`,
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

/**
 * Invoke a function with a GET. The handler gets the method, the path after `invoke`, the query,
 * the headers, but the Authorization header and cookies, and the body, of up to 10 MiB. Its answer
 * is the answer. A function that sleeps is woken first. What fails in it is a 500, with the last
 * lines of its log as `log`.
 */
export function readFunction(id: string): Stream {
  return {
    kind: "stream",
    method: "GET",
    path: `/v1/functions/${q(id)}/invoke`,
  };
}

/**
 * Check the readiness of this replica: whether it can serve requests now. For load balancers. It is
 * a member of the cluster that knows a leader and what was committed, and does not stop. The detail
 * names what is missing.
 */
export function readyz(): Call<m.Health> {
  return {
    kind: "call",
    method: "GET",
    path: "/readyz",
  };
}

/**
 * Rebalance hosts: move what sleeps on the fuller ones to the emptier ones. Sandboxes and databases
 * that sleep move through the snapshot store under the same id, until hosts differ by less than
 * `percent` of an even share of the disk that is reserved. What runs is never touched, nor are
 * hosts that are drained, have had trouble or have no snapshot store. With `dry_run` nothing moves,
 * and `moves` tells what would. The call returns at once; GET tells how far it has come. Again, it
 * tries again what could not be moved.
 */
export function rebalance(body: m.Rebalance): Call<m.Rebalancing> {
  return {
    kind: "call",
    method: "POST",
    path: "/v1/admin/rebalance",
    json: body,
  };
}

/** Remove a host that has no sandbox left. */
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

/**
 * Remove a member, or leave. It takes the role admin or owner, except to leave. The keys and
 * invitations that the person made for the organization end, too.
 */
export function removeMember(id: string, user: string): Nothing {
  return {
    kind: "nothing",
    method: "DELETE",
    path: `/v1/orgs/${q(id)}/members/${q(user)}`,
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

/**
 * Remove a PostgreSQL router, which is refused from now on. For ever: a router is known by its
 * certificate alone, so that one that is to come back needs another name. One that never was is
 * refused, too.
 */
export function removeRouter(name: string): Nothing {
  return {
    kind: "nothing",
    method: "DELETE",
    path: `/v1/admin/routers/${q(name)}`,
  };
}

/**
 * Replay a delivery. At once, and on the schedule of a new one, whether it has arrived, is dead or
 * waits for its next attempt.
 */
export function replayWebhookDelivery(id: string, delivery: string): Call<m.WebhookDelivery> {
  return {
    kind: "call",
    method: "POST",
    path: `/v1/webhooks/endpoints/${q(id)}/deliveries/${q(delivery)}/replay`,
  };
}

/**
 * Rotate the password and the broker token of a running database. Answers once a log-in with them
 * was made. Who was logged in with the old password is cut off. An error means that the old ones
 * are in force, or will be; after a 503 a read says which are.
 */
export function resetCredentials(id: string): Call<m.DatabaseConnection> {
  return {
    kind: "call",
    method: "POST",
    path: `/v1/databases/${q(id)}/reset-credentials`,
  };
}

/**
 * Restore the control store from a backup. A backup whose secrets need sealing keys that the
 * cluster has not is refused, unless they may be lost.
 */
export function restore(content: Body, options: { without_keys?: boolean | undefined } = {}): Nothing {
  return {
    kind: "nothing",
    method: "POST",
    path: "/v1/admin/raft/restore",
    query: { without_keys: options.without_keys },
    content,
  };
}

/**
 * Resume a paused sandbox. Also resumes the parent of a warm fork, which is left paused, and gets
 * memory and a network slot again.
 */
export function resumeSandbox(id: string): Call<m.Sandbox> {
  return {
    kind: "call",
    method: "POST",
    path: `/v1/sandboxes/${q(id)}/resume`,
  };
}

/** Withdraw an invitation. */
export function revokeInvitation(id: string, invitation: string): Nothing {
  return {
    kind: "nothing",
    method: "DELETE",
    path: `/v1/orgs/${q(id)}/invitations/${q(invitation)}`,
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
 * Roll back to an earlier deployment. The one that was live before, or the one that is named. The
 * answer is a new deployment, which builds nothing where the artifact of the earlier one is kept.
 * To repeat it is to go back to what it has replaced: use an Idempotency-Key, or name the
 * deployment.
 */
export function rollbackApp(id: string, body: m.RollBackApp, options: { idempotencyKey?: string | undefined } = {}): Call<m.Deployment> {
  return {
    kind: "call",
    method: "POST",
    path: `/v1/apps/${q(id)}/rollback`,
    json: body,
    idempotent: true,
    idempotencyKey: options.idempotencyKey,
  };
}

/** Roll back to an earlier deployment of a function. */
export function rollbackFunction(id: string, body: m.RollBackApp, options: { idempotencyKey?: string | undefined } = {}): Call<m.Deployment> {
  return {
    kind: "call",
    method: "POST",
    path: `/v1/functions/${q(id)}/rollback`,
    json: body,
    idempotent: true,
    idempotencyKey: options.idempotencyKey,
  };
}

/**
 * Rotate the signing secret of an endpoint. Every attempt from now on is signed with it. What the
 * receiver refuses until it knows the secret is sent again.
 */
export function rotateWebhookSecret(id: string): Call<m.NewWebhookEndpoint> {
  return {
    kind: "call",
    method: "POST",
    path: `/v1/webhooks/endpoints/${q(id)}/rotate`,
  };
}

/**
 * Count and measure the workspace's sandboxes by time and template. The newest first; what had no
 * event in a day or an hour is not there. Events are kept for 90 days, and counted a moment after
 * they happen.
 */
export function sandboxMetrics(options: { from?: string | undefined; to?: string | undefined; bucket?: string | undefined; template?: string | undefined } = {}): Call<m.SandboxMetrics[]> {
  return {
    kind: "call",
    method: "GET",
    path: "/v1/metrics/sandboxes",
    query: { from: options.from, to: options.to, bucket: options.bucket, template: options.template },
  };
}

/**
 * Measure what a sandbox uses and has used. In any status, and without waking it. The totals go on
 * over hibernations; the history has a sample every ten seconds while it runs, for an hour.
 */
export function sandboxUsage(id: string, options: { minutes?: number | undefined } = {}): Call<m.SandboxUsage> {
  return {
    kind: "call",
    method: "GET",
    path: `/v1/sandboxes/${q(id)}/metrics`,
    query: { minutes: options.minutes },
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

/** Signal a command's process group. */
export function signalCommand(id: string, cid: string, body: m.CommandSignal): Nothing {
  return {
    kind: "nothing",
    method: "POST",
    path: `/v1/sandboxes/${q(id)}/commands/${q(cid)}/signal`,
    json: body,
  };
}

/**
 * Start a command that belongs to the sandbox. Answers once the command has started. It goes on
 * without its caller, through hibernate and wake, and in each child of a fork that keeps memory. It
 * has no time-out unless `timeout_seconds` is given; time asleep does not count. Its input stays
 * open, unless `stdin` is given, which is then all of it. A program that is not there ends with
 * exit code 127. At most 64 run at once; of those that have ended the last 100 are kept, and their
 * Idempotency-Keys as long.
 */
export function startCommand(id: string, body: m.Exec, options: { idempotencyKey?: string | undefined } = {}): Call<m.SandboxCommand> {
  return {
    kind: "call",
    method: "POST",
    path: `/v1/sandboxes/${q(id)}/commands`,
    json: body,
    idempotent: true,
    idempotencyKey: options.idempotencyKey,
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

/** Stop a rebalancing. What is under way still arrives. */
export function stopRebalancing(): Nothing {
  return {
    kind: "nothing",
    method: "DELETE",
    path: "/v1/admin/rebalance",
  };
}

/**
 * Read the workspace's subscription from the provider of payments now. After an upgrade, so that a
 * paused workspace need not wait.
 */
export function syncBilling(): Call<m.BillingSync> {
  return {
    kind: "call",
    method: "POST",
    path: "/v1/billing/sync",
  };
}

/**
 * Send endpoint.test to an endpoint. Whatever it subscribes to. The answer is the delivery, before
 * its first attempt.
 */
export function testWebhookEndpoint(id: string): Call<m.WebhookDelivery> {
  return {
    kind: "call",
    method: "POST",
    path: `/v1/webhooks/endpoints/${q(id)}/test`,
  };
}

/**
 * Run SQL statements in one transaction. A database that sleeps is woken. What PostgreSQL or the
 * broker refuses has a `sqlstate`. If one fails nothing has happened, and the answer is its error,
 * with its number, from 0, in `failed`.
 */
export function transactDatabase(id: string, body: m.SQLQueries): Call<m.SQLBatchResults> {
  return {
    kind: "call",
    method: "POST",
    path: `/v1/databases/${q(id)}/proxy/transaction`,
    json: body,
  };
}

/** Transfer leadership to another replica. */
export function transferLeadership(body: m.TransferLeadership): Nothing {
  return {
    kind: "nothing",
    method: "POST",
    path: "/v1/admin/raft/transfer-leadership",
    json: body,
  };
}

/** Undrain a host: place sandboxes on it again. */
export function undrainAgent(id: string): Call<m.Agent> {
  return {
    kind: "call",
    method: "POST",
    path: `/v1/admin/agents/${q(id)}/undrain`,
  };
}

/**
 * Read what the workspace has used in a month, and what it cost. Hosts are asked once a minute: the
 * last minute is not in it.
 */
export function usage(options: { month?: string | undefined; format?: string | undefined } = {}): Call<m.Usage> {
  return {
    kind: "call",
    method: "GET",
    path: "/v1/usage",
    query: { month: options.month, format: options.format },
  };
}

/**
 * Verify a custom domain now, by its TXT record in DNS. A domain whose TXT record is not there
 * stays `pending`, and `error` says what was found. One that had failed is looked for again. Where
 * a certificate could not be had, it is soon ordered again.
 */
export function verifyAppDomain(id: string, domain: string): Call<m.AppDomain> {
  return {
    kind: "call",
    method: "POST",
    path: `/v1/apps/${q(id)}/domains/${q(domain)}/verify`,
  };
}

/** Read the version of this replica. */
export function version(): Call<m.VersionInfo> {
  return {
    kind: "call",
    method: "GET",
    path: "/version",
  };
}

/** Wake a database that hibernates. Whoever connects to one wakes it too. */
export function wakeDatabase(id: string): Call<m.DatabaseWake> {
  return {
    kind: "call",
    method: "POST",
    path: `/v1/databases/${q(id)}/wake`,
  };
}

/**
 * Wake a hibernated sandbox. A sandbox that already runs is returned as it is, so wakes at the same
 * time are one wake.
 */
export function wakeSandbox(id: string): Call<m.Sandbox> {
  return {
    kind: "call",
    method: "POST",
    path: `/v1/sandboxes/${q(id)}/wake`,
  };
}

/** Read what a workspace has used in a month, also after it was deleted. */
export function workspaceUsage(id: string, options: { month?: string | undefined; format?: string | undefined } = {}): Call<m.Usage> {
  return {
    kind: "call",
    method: "GET",
    path: `/v1/admin/workspaces/${q(id)}/usage`,
    query: { month: options.month, format: options.format },
  };
}

/**
 * Write to a command's input. Answers once the input is queued: all of it, or nothing. At most 1
 * MiB waits for a command that does not read it.
 */
export function writeCommand(id: string, cid: string, body: m.CommandInput): Nothing {
  return {
    kind: "nothing",
    method: "POST",
    path: `/v1/sandboxes/${q(id)}/commands/${q(cid)}/input`,
    json: body,
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
