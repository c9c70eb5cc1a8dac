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


def accept_invitation(token: str) -> Call[m.Org]:
    """Accept an invitation."""
    return Call(
        method="POST",
        path=f"/v1/invitations/{_q(token)}",
        decode=m.Org.from_json,
    )


def accept_restore() -> Nothing:
    """End the grace period after a restore. For an hour after a restore, nothing that hosts have
    and the backup does not know is deleted. This ends that hour.
    """
    return Nothing(
        method="DELETE",
        path="/v1/admin/raft/restore",
    )


def add_peer(body: m.AddPeer) -> Nothing:
    """Add a replica, which votes once it is stable. It gets every record. It votes once it has had
    them for a while and every other voter is there, or in the place of one that was silent for
    long. Of a member, it changes the address.
    """
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


def app_logs(id: str, *, tail: int | None = None) -> Stream:
    """Read what an app has written. Of each of its instances since it started, one after the
    other; of several, each line begins with its instance in brackets. Text, or with `follow`
    server-sent events named `stdout` or `stderr` with a LogLine, also of the instances that
    come later, until none is left.
    """
    return Stream(
        method="GET",
        path=f"/v1/apps/{_q(id)}/runtime-logs",
        query=query({
            "tail": tail,
        }),
    )


def app_metrics(id: str) -> Call[m.AppMetrics]:
    """Count and measure the requests to an app, and what its instances use. Counted by the
    replicas that serve them, each since it started, and added up. Nothing of it is stored: a
    replica that restarts begins anew.
    """
    return Call(
        method="GET",
        path=f"/v1/apps/{_q(id)}/metrics",
        decode=m.AppMetrics.from_json,
    )


def app_requests(id: str, *, tail: int | None = None) -> Call[list[m.AppRequest]]:
    """Read the latest requests to an app. Oldest first. Each replica keeps the latest 200 of an
    app in memory; they are gone when it restarts. With `follow` server-sent events named
    `request`, also of those that end from now on, about a second late.
    """
    return Call(
        method="GET",
        path=f"/v1/apps/{_q(id)}/requests",
        query=query({
            "tail": tail,
        }),
        decode=lambda raw: [m.AppRequest.from_json(e) for e in raw],
    )


def apps_metrics(*, from_: str | None = None, to: str | None = None, bucket: str | None = None, app: str | None = None) -> Call[list[m.AppsMetrics]]:
    """Count and measure deployments, wakes and requests of the workspace's apps, by time and app.
    The newest first; what had no event in a day or an hour is not there. Events are kept for 90
    days, and counted a moment after they happen. Requests are those of whole hours, a minute
    after they were answered at the latest.
    """
    return Call(
        method="GET",
        path="/v1/metrics/apps",
        query=query({
            "from": from_,
            "to": to,
            "bucket": bucket,
            "app": app,
        }),
        decode=lambda raw: [m.AppsMetrics.from_json(e) for e in raw],
    )


def backup() -> Stream:
    """Download a whole backup of the control store. It holds every workspace's records. Secrets in
    it stay sealed with the cluster's key, which is not in it.
    """
    return Stream(
        method="GET",
        path="/v1/admin/raft/snapshot",
    )


def batch_database(id: str, body: m.SQLQueries) -> Call[m.SQLBatchResults]:
    """Run SQL statements, each by itself. A database that sleeps is woken. What PostgreSQL or the
    broker refuses has a `sqlstate`. One that fails has its error in its place, and the next
    runs all the same. After one that was cut off, as by the time-out, none is run.
    """
    return Call(
        method="POST",
        path=f"/v1/databases/{_q(id)}/proxy/batch",
        json=body.to_json(),
        decode=m.SQLBatchResults.from_json,
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


def cancel_deployment(id: str, deploy: str) -> Call[m.Deployment]:
    """Cancel a deployment that has not ended. It has failed, with the error `cancelled`. What was
    live goes on.
    """
    return Call(
        method="POST",
        path=f"/v1/apps/{_q(id)}/deploys/{_q(deploy)}/cancel",
        decode=m.Deployment.from_json,
    )


def cancel_function_deployment(id: str, deploy: str) -> Call[m.Deployment]:
    """Cancel a deployment of a function that has not ended."""
    return Call(
        method="POST",
        path=f"/v1/functions/{_q(id)}/deploys/{_q(deploy)}/cancel",
        decode=m.Deployment.from_json,
    )


def clone_database(id: str, body: m.CloneDatabase, *, idempotency_key: str | None = None) -> Call[m.Database]:
    """Clone a database, as it is or as of a point in time. Of databases that run, hibernate or
    have failed. Answers at once, as a create does. Another `size` is how a database is resized.
    """
    return Call(
        method="POST",
        path=f"/v1/databases/{_q(id)}/clone",
        json=body.to_json(),
        idempotent=True,
        idempotency_key=idempotency_key,
        decode=m.Database.from_json,
    )


def command_output(id: str, cid: str, *, since: int | None = None) -> Stream:
    """Read what a command has written, and what it writes. Server-sent events: `stdout` and
    `stderr` with a CommandOutput, `gap` with a CommandGap where what was asked for is not kept
    any more (the last 8 MiB are), and a last `exit` with a CommandExit once the command has
    ended, or `error` with an Error when the stream breaks off. The `id` of an event is the
    offset after it: pass it as `since`, or as Last-Event-ID, to go on from there. A client that
    reads slowly does not slow the command.
    """
    return Stream(
        method="GET",
        path=f"/v1/sandboxes/{_q(id)}/commands/{_q(cid)}/output",
        query=query({
            "since": since,
        }),
    )


def connect_github() -> Call[m.GitHubConnect]:
    """Get the URL at which a person connects GitHub to the workspace. Open it in a browser within
    15 minutes, and install the GitHub App in the account that has the repositories.
    """
    return Call(
        method="GET",
        path="/v1/github/connect",
        decode=m.GitHubConnect.from_json,
    )


def create_app(body: m.CreateApp, *, idempotency_key: str | None = None) -> Call[m.App]:
    """Create an app. Stores the settings and builds nothing: deploy it next. With `source`
    "upload" there is no repository, and its source is uploaded. `cpu` and `memory_mb` are
    recorded and have no effect.
    """
    return Call(
        method="POST",
        path="/v1/apps",
        json=body.to_json(),
        idempotent=True,
        idempotency_key=idempotency_key,
        decode=m.App.from_json,
    )


def create_app_domain(id: str, body: m.CreateAppDomain, *, idempotency_key: str | None = None) -> Call[m.AppDomain]:
    """Add a custom domain to an app. The answer says in `dns` what to set: the TXT record proves
    the domain, the other record leads to the app. DNS is looked into by itself for a week, and
    by `verify` at once. At most 10 an app and 50 a workspace.
    """
    return Call(
        method="POST",
        path=f"/v1/apps/{_q(id)}/domains",
        json=body.to_json(),
        idempotent=True,
        idempotency_key=idempotency_key,
        decode=m.AppDomain.from_json,
    )


def create_database(body: m.CreateDatabase, *, idempotency_key: str | None = None) -> Call[m.Database]:
    """Create a PostgreSQL database. Answers at once with status `provisioning`: read it until it
    is `running`, or `failed`, and `error` says why. `cpu` and `memory_mb` are recorded and have
    no effect.
    """
    return Call(
        method="POST",
        path="/v1/databases",
        json=body.to_json(),
        idempotent=True,
        idempotency_key=idempotency_key,
        decode=m.Database.from_json,
    )


def create_function(body: m.CreateFunction, *, idempotency_key: str | None = None) -> Call[m.Function]:
    """Create a function. Stores the settings: deploy its code next."""
    return Call(
        method="POST",
        path="/v1/functions",
        json=body.to_json(),
        idempotent=True,
        idempotency_key=idempotency_key,
        decode=m.Function.from_json,
    )


def create_join_token(body: m.CreateJoinToken, *, idempotency_key: str | None = None) -> Call[m.JoinToken]:
    """Create a token with which one host can join."""
    return Call(
        method="POST",
        path="/v1/admin/join-tokens",
        json=body.to_json(),
        idempotent=True,
        idempotency_key=idempotency_key,
        decode=m.JoinToken.from_json,
    )


def create_org(body: m.CreateOrg, *, idempotency_key: str | None = None) -> Call[m.Org]:
    """Create an organization that you own."""
    return Call(
        method="POST",
        path="/v1/orgs",
        json=body.to_json(),
        idempotent=True,
        idempotency_key=idempotency_key,
        decode=m.Org.from_json,
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


def create_webhook_endpoint(body: m.CreateWebhookEndpoint, *, idempotency_key: str | None = None) -> Call[m.NewWebhookEndpoint]:
    """Register a URL that events are sent to. At most 10 a workspace. The answer has the secret
    that deliveries are signed with.
    """
    return Call(
        method="POST",
        path="/v1/webhooks/endpoints",
        json=body.to_json(),
        idempotent=True,
        idempotency_key=idempotency_key,
        decode=m.NewWebhookEndpoint.from_json,
    )


def create_workspace(body: m.CreateWorkspace, *, idempotency_key: str | None = None) -> Call[m.Workspace]:
    """Create a workspace."""
    return Call(
        method="POST",
        path="/v1/admin/workspaces",
        json=body.to_json(),
        idempotent=True,
        idempotency_key=idempotency_key,
        decode=m.Workspace.from_json,
    )


def create_workspace_token(id: str, body: m.CreateToken, *, idempotency_key: str | None = None) -> Call[m.NewToken]:
    """Create an API key of a workspace. So that a first key needs no identity provider. No
    member's leaving ends it.
    """
    return Call(
        method="POST",
        path=f"/v1/admin/workspaces/{_q(id)}/tokens",
        json=body.to_json(),
        idempotent=True,
        idempotency_key=idempotency_key,
        decode=m.NewToken.from_json,
    )


def database_logs(id: str, *, tail: int | None = None) -> Stream:
    """Read what a database's server has written. Text, or with `follow` server-sent events named
    `stdout` or `stderr` with a LogLine.
    """
    return Stream(
        method="GET",
        path=f"/v1/databases/{_q(id)}/logs",
        query=query({
            "tail": tail,
        }),
    )


def database_metrics(*, from_: str | None = None, to: str | None = None, bucket: str | None = None, database: str | None = None) -> Call[list[m.DatabaseMetrics]]:
    """Count and measure what the workspace's databases do, by time and database. The newest first;
    what had no event in a day or an hour is not there. Events are kept for 90 days, and counted
    a moment after they happen.
    """
    return Call(
        method="GET",
        path="/v1/metrics/databases",
        query=query({
            "from": from_,
            "to": to,
            "bucket": bucket,
            "database": database,
        }),
        decode=lambda raw: [m.DatabaseMetrics.from_json(e) for e in raw],
    )


def database_schema(id: str) -> Call[m.DatabaseSchema]:
    """Describe the tables of a database. A database that sleeps is woken. What PostgreSQL or the
    broker refuses has a `sqlstate`.
    """
    return Call(
        method="GET",
        path=f"/v1/databases/{_q(id)}/proxy/schema",
        decode=m.DatabaseSchema.from_json,
    )


def database_usage(id: str, *, minutes: int | None = None) -> Call[m.DatabaseUsage]:
    """Measure what a database uses and has used. In any status, and without waking it."""
    return Call(
        method="GET",
        path=f"/v1/databases/{_q(id)}/metrics",
        query=query({
            "minutes": minutes,
        }),
        decode=m.DatabaseUsage.from_json,
    )


def delete_app(id: str) -> Nothing:
    """Delete an app with its deployments, variables and uploaded sources."""
    return Nothing(
        method="DELETE",
        path=f"/v1/apps/{_q(id)}",
    )


def delete_app_domain(id: str, domain: str) -> Nothing:
    """Remove a custom domain of an app. It leads to the app no more, and its certificate is
    deleted.
    """
    return Nothing(
        method="DELETE",
        path=f"/v1/apps/{_q(id)}/domains/{_q(domain)}",
    )


def delete_app_env(id: str, key: str) -> Nothing:
    """Remove an environment variable of an app."""
    return Nothing(
        method="DELETE",
        path=f"/v1/apps/{_q(id)}/env/{_q(key)}",
    )


def delete_command(id: str, cid: str) -> Nothing:
    """Kill a command with everything it started, and forget it."""
    return Nothing(
        method="DELETE",
        path=f"/v1/sandboxes/{_q(id)}/commands/{_q(cid)}",
    )


def delete_database(id: str) -> Nothing:
    """Delete a database and everything that it could be restored from."""
    return Nothing(
        method="DELETE",
        path=f"/v1/databases/{_q(id)}",
    )


def delete_function(id: str) -> Nothing:
    """Delete a function with its code, deployments and variables."""
    return Nothing(
        method="DELETE",
        path=f"/v1/functions/{_q(id)}",
    )


def delete_function_env(id: str, key: str) -> Nothing:
    """Remove an environment variable of a function."""
    return Nothing(
        method="DELETE",
        path=f"/v1/functions/{_q(id)}/env/{_q(key)}",
    )


def delete_github_installation(id: str) -> Nothing:
    """Disconnect an installation, and remove it from its account. Apps keep what they serve. Those
    of private repositories cannot be deployed again.
    """
    return Nothing(
        method="DELETE",
        path=f"/v1/github/installations/{_q(id)}",
    )


def delete_org(id: str) -> Nothing:
    """Delete an organization that has nothing left. Its keys, webhook endpoints, connections to
    GitHub, preview environments and memberships go with it.
    """
    return Nothing(
        method="DELETE",
        path=f"/v1/orgs/{_q(id)}",
    )


def delete_preview_variable(repo: str, key: str) -> Nothing:
    """Remove a variable of a repository's previews."""
    return Nothing(
        method="DELETE",
        path=f"/v1/repos/{_q(repo)}/preview-env/{_q(key)}",
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


def delete_webhook_endpoint(id: str) -> Nothing:
    """Delete an endpoint and its deliveries, also those to come."""
    return Nothing(
        method="DELETE",
        path=f"/v1/webhooks/endpoints/{_q(id)}",
    )


def deploy_app(id: str, body: m.CreateDeployment, *, idempotency_key: str | None = None) -> Call[m.Deployment]:
    """Deploy an app. Clones `git_ref`, or takes an uploaded source, builds it in a virtual
    machine, starts it and, once it answers on its port, sends the traffic there. What was live
    serves until then, and goes on if it fails. One deployment of an app is made at a time; the
    next is `queued`, and a newer one takes its place. What package managers and compilers keep
    in caches is there in the app's next build; `clear_cache` deletes it first.
    """
    return Call(
        method="POST",
        path=f"/v1/apps/{_q(id)}/deploys",
        json=body.to_json(),
        idempotent=True,
        idempotency_key=idempotency_key,
        decode=m.Deployment.from_json,
    )


def deploy_function(id: str, body: m.DeployFunction, *, idempotency_key: str | None = None) -> Call[m.Deployment]:
    """Deploy the code of a function. Files as JSON, or a tar.gz of up to 50 MiB, with
    `handler.py`, or `handler.mjs`, `handler.js` or `handler.cjs`, at its top. What
    `requirements.txt` or `package.json` name is installed. The code that is live serves until
    the new one answers, and goes on if it fails.
    """
    return Call(
        method="POST",
        path=f"/v1/functions/{_q(id)}/deploy",
        json=body.to_json(),
        idempotent=True,
        idempotency_key=idempotency_key,
        decode=m.Deployment.from_json,
    )


def deployment_logs(id: str, deploy: str) -> Stream:
    """Follow the log of a deployment, from its beginning, until it ends. Server-sent events:
    `stdout` and `stderr` with a LogLine, then one `end` with the Deployment, or `error` with an
    Error when the stream breaks off. The values of secret variables are left out. Of one that
    has ended, the log is kept with it, at most the last 4 MiB.
    """
    return Stream(
        method="GET",
        path=f"/v1/apps/{_q(id)}/deploys/{_q(deploy)}/logs",
    )


def drain_agent(id: str) -> Call[m.Agent]:
    """Drain a host: place no new sandbox on it. What runs on it keeps running."""
    return Call(
        method="POST",
        path=f"/v1/admin/agents/{_q(id)}/drain",
        decode=m.Agent.from_json,
    )


def evacuate_agent(id: str, body: m.EvacuateAgent) -> Call[m.Agent]:
    """Evacuate a host: move its sandboxes, databases and apps to others. The host is drained. Its
    sandboxes are hibernated, moved through the snapshot store under the same id, and those that
    ran are woken there. The call returns at once; `evacuation` of the host says how far it has
    come, and what stays and why. Again, it tries again what could not be moved; undrain gives
    it up.
    """
    return Call(
        method="POST",
        path=f"/v1/admin/agents/{_q(id)}/evacuate",
        json=body.to_json(),
        decode=m.Agent.from_json,
    )


def events(id: str, *, tail: int | None = None, since: datetime | None = None) -> Call[list[m.Event]]:
    """Read what happened to a sandbox, oldest first. With `follow`, server-sent events named `ev`,
    each with an Event, its `id` the event's `ts`: pass it as `since`, or as Last-Event-ID, to
    go on from there without a gap or a double. Without `follow`, a deleted sandbox's events,
    for 90 days.
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


def failover_database(id: str, body: m.FailoverDatabase) -> Call[m.DatabaseFailover]:
    """Fail a database over: restore it on another host, from its archive. It keeps its id, its
    host name and its credentials. With `force` also one that runs: what it wrote in the last
    minute may be lost.
    """
    return Call(
        method="POST",
        path=f"/v1/databases/{_q(id)}/failover",
        json=body.to_json(),
        decode=m.DatabaseFailover.from_json,
    )


def follow_app_logs(id: str, *, tail: int | None = None) -> Stream:
    """Read what an app has written. Of each of its instances since it started, one after the
    other; of several, each line begins with its instance in brackets. Text, or with `follow`
    server-sent events named `stdout` or `stderr` with a LogLine, also of the instances that
    come later, until none is left.
    """
    return Stream(
        method="GET",
        path=f"/v1/apps/{_q(id)}/runtime-logs",
        query=query({
            "follow": True,
            "tail": tail,
        }),
    )


def follow_app_requests(id: str, *, tail: int | None = None) -> Stream:
    """Read the latest requests to an app. Oldest first. Each replica keeps the latest 200 of an
    app in memory; they are gone when it restarts. With `follow` server-sent events named
    `request`, also of those that end from now on, about a second late.
    """
    return Stream(
        method="GET",
        path=f"/v1/apps/{_q(id)}/requests",
        query=query({
            "follow": True,
            "tail": tail,
        }),
    )


def follow_command_output(id: str, cid: str, *, since: int | None = None) -> Stream:
    """Read what a command has written, and what it writes. Server-sent events: `stdout` and
    `stderr` with a CommandOutput, `gap` with a CommandGap where what was asked for is not kept
    any more (the last 8 MiB are), and a last `exit` with a CommandExit once the command has
    ended, or `error` with an Error when the stream breaks off. The `id` of an event is the
    offset after it: pass it as `since`, or as Last-Event-ID, to go on from there. A client that
    reads slowly does not slow the command.
    """
    return Stream(
        method="GET",
        path=f"/v1/sandboxes/{_q(id)}/commands/{_q(cid)}/output",
        query=query({
            "follow": True,
            "since": since,
        }),
    )


def follow_database_logs(id: str, *, tail: int | None = None) -> Stream:
    """Read what a database's server has written. Text, or with `follow` server-sent events named
    `stdout` or `stderr` with a LogLine.
    """
    return Stream(
        method="GET",
        path=f"/v1/databases/{_q(id)}/logs",
        query=query({
            "follow": True,
            "tail": tail,
        }),
    )


def follow_events(id: str, *, tail: int | None = None, since: datetime | None = None) -> Stream:
    """Read what happened to a sandbox, oldest first. With `follow`, server-sent events named `ev`,
    each with an Event, its `id` the event's `ts`: pass it as `since`, or as Last-Event-ID, to
    go on from there without a gap or a double. Without `follow`, a deleted sandbox's events,
    for 90 days.
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


def follow_function_logs(id: str, *, tail: int | None = None) -> Stream:
    """Read what a function has written. What its handler wrote, a line for each invocation, and
    the traces of its errors. Text, or with `follow` server-sent events named `stdout` with a
    LogLine.
    """
    return Stream(
        method="GET",
        path=f"/v1/functions/{_q(id)}/logs",
        query=query({
            "follow": True,
            "tail": tail,
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
    """Fork a running sandbox with its disk. Cold, the default: each child boots from a copy of the
    disk. Warm, for a single child: it takes over the parent's memory, disk and address, and the
    parent is paused until it is resumed. A child that fails to start is reported in `failed`;
    the others live.
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
    """Fork a running sandbox with its disk and memory. Every process lives on in each child. The
    parent is paused for `pause_ms`. A child that fails to start is reported in `failed`; the
    others live.
    """
    return Call(
        method="POST",
        path=f"/v1/sandboxes/{_q(id)}/fork-tree",
        json=body.to_json(),
        idempotent=True,
        idempotency_key=idempotency_key,
        decode=m.ForkedTree.from_json,
    )


def function_deployment_logs(id: str, deploy: str) -> Stream:
    """Follow the log of a function's deployment, from its beginning, until it ends. Server-sent
    events, as of an app's deployment.
    """
    return Stream(
        method="GET",
        path=f"/v1/functions/{_q(id)}/deploys/{_q(deploy)}/logs",
    )


def function_logs(id: str, *, tail: int | None = None) -> Stream:
    """Read what a function has written. What its handler wrote, a line for each invocation, and
    the traces of its errors. Text, or with `follow` server-sent events named `stdout` with a
    LogLine.
    """
    return Stream(
        method="GET",
        path=f"/v1/functions/{_q(id)}/logs",
        query=query({
            "tail": tail,
        }),
    )


def function_metrics(*, from_: str | None = None, to: str | None = None, bucket: str | None = None, function: str | None = None) -> Call[list[m.FunctionMetrics]]:
    """Count and measure deployments and wakes of the workspace's functions, by time and function.
    The newest first; what had no event in a day or an hour is not there. Events are kept for 90
    days, and counted a moment after they happen.
    """
    return Call(
        method="GET",
        path="/v1/metrics/functions",
        query=query({
            "from": from_,
            "to": to,
            "bucket": bucket,
            "function": function,
        }),
        decode=lambda raw: [m.FunctionMetrics.from_json(e) for e in raw],
    )


def get_agent(id: str) -> Call[m.Agent]:
    """Read a host, and how far it has been evacuated."""
    return Call(
        method="GET",
        path=f"/v1/admin/agents/{_q(id)}",
        decode=m.Agent.from_json,
    )


def get_app(id: str) -> Call[m.App]:
    """Read one app."""
    return Call(
        method="GET",
        path=f"/v1/apps/{_q(id)}",
        decode=m.App.from_json,
    )


def get_app_domain(id: str, domain: str) -> Call[m.AppDomain]:
    """Read one domain of an app."""
    return Call(
        method="GET",
        path=f"/v1/apps/{_q(id)}/domains/{_q(domain)}",
        decode=m.AppDomain.from_json,
    )


def get_app_root(id: str) -> Stream:
    """Pass a GET on to an app. To any path, with any headers and body; also WebSockets. The answer
    is the app's. An app that sleeps is woken, as by a request to its URL. The Authorization
    header is not passed on.
    """
    return Stream(
        method="GET",
        path=f"/v1/apps/{_q(id)}/proxy",
    )


def get_build(id: str) -> Call[m.Build]:
    """Read one build."""
    return Call(
        method="GET",
        path=f"/v1/builds/{_q(id)}",
        decode=m.Build.from_json,
    )


def get_command(id: str, cid: str) -> Call[m.SandboxCommand]:
    """Read one command."""
    return Call(
        method="GET",
        path=f"/v1/sandboxes/{_q(id)}/commands/{_q(cid)}",
        decode=m.SandboxCommand.from_json,
    )


def get_database(id: str) -> Call[m.Database]:
    """Read one database, with its credentials while it runs."""
    return Call(
        method="GET",
        path=f"/v1/databases/{_q(id)}",
        decode=m.Database.from_json,
    )


def get_database_archive(id: str) -> Call[m.DatabaseArchive]:
    """Read what a database can be restored from."""
    return Call(
        method="GET",
        path=f"/v1/databases/{_q(id)}/archive",
        decode=m.DatabaseArchive.from_json,
    )


def get_database_connection(id: str) -> Call[m.DatabaseConnection]:
    """Read how a database is reached, with its credentials while it runs."""
    return Call(
        method="GET",
        path=f"/v1/databases/{_q(id)}/connection",
        decode=m.DatabaseConnection.from_json,
    )


def get_deployment(id: str, deploy: str) -> Call[m.Deployment]:
    """Read one deployment."""
    return Call(
        method="GET",
        path=f"/v1/apps/{_q(id)}/deploys/{_q(deploy)}",
        decode=m.Deployment.from_json,
    )


def get_function(id: str) -> Call[m.Function]:
    """Read one function."""
    return Call(
        method="GET",
        path=f"/v1/functions/{_q(id)}",
        decode=m.Function.from_json,
    )


def get_function_deployment(id: str, deploy: str) -> Call[m.Deployment]:
    """Read one deployment of a function."""
    return Call(
        method="GET",
        path=f"/v1/functions/{_q(id)}/deploys/{_q(deploy)}",
        decode=m.Deployment.from_json,
    )


def get_lifecycle(id: str) -> Call[m.Lifecycle]:
    """Read how long a sandbox lives and what becomes of it then."""
    return Call(
        method="GET",
        path=f"/v1/sandboxes/{_q(id)}/lifecycle",
        decode=m.Lifecycle.from_json,
    )


def get_org(id: str) -> Call[m.OrgDetails]:
    """Read an organization, its limits and what it uses."""
    return Call(
        method="GET",
        path=f"/v1/orgs/{_q(id)}",
        decode=m.OrgDetails.from_json,
    )


def get_rebalancing() -> Call[m.Rebalancing]:
    """Read how evenly hosts are filled, and how far a rebalancing has come."""
    return Call(
        method="GET",
        path="/v1/admin/rebalance",
        decode=m.Rebalancing.from_json,
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


def get_webhook_endpoint(id: str) -> Call[m.WebhookEndpoint]:
    """Read one endpoint, without its secret."""
    return Call(
        method="GET",
        path=f"/v1/webhooks/endpoints/{_q(id)}",
        decode=m.WebhookEndpoint.from_json,
    )


def healthz() -> Call[m.Health]:
    """Check the health of this replica. It answers 200 even while no sandbox can be placed."""
    return Call(
        method="GET",
        path="/healthz",
        decode=m.Health.from_json,
    )


def hibernate_sandbox(id: str) -> Call[m.Sandbox]:
    """Hibernate a running sandbox: write its memory to its host's disk, and end its VM. It keeps
    its disk and its network slot, but takes no memory and no CPU.
    """
    return Call(
        method="POST",
        path=f"/v1/sandboxes/{_q(id)}/hibernate",
        decode=m.Sandbox.from_json,
    )


def import_app_env(id: str, body: m.ImportAppEnv) -> Call[list[m.AppVariable]]:
    """Set the environment variables of a .env file. Others stay as they are. `secret` and `scope`
    are of each of them. The answer has all variables of the app.
    """
    return Call(
        method="POST",
        path=f"/v1/apps/{_q(id)}/env/import",
        json=body.to_json(),
        decode=lambda raw: [m.AppVariable.from_json(e) for e in raw],
    )


def invite_member(id: str, body: m.Invite, *, idempotency_key: str | None = None) -> Call[m.NewInvitation]:
    """Invite a person by e-mail address. No mail is sent: pass the link on. It works once, for
    seven days, for a JWT with that address.
    """
    return Call(
        method="POST",
        path=f"/v1/orgs/{_q(id)}/members",
        json=body.to_json(),
        idempotent=True,
        idempotency_key=idempotency_key,
        decode=m.NewInvitation.from_json,
    )


def invoke_function(id: str, content: Body) -> Stream:
    """Invoke a function with a POST. The handler gets the method, the path after `invoke`, the
    query, the headers, but the Authorization header and cookies, and the body, of up to 10 MiB.
    Its answer is the answer. A function that sleeps is woken first. What fails in it is a 500,
    with the last lines of its log as `log`.
    """
    return Stream(
        method="POST",
        path=f"/v1/functions/{_q(id)}/invoke",
        content=content,
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


def list_app_domains(id: str, *, limit: int | None = None, cursor: str | None = None) -> Page[m.AppDomain]:
    """List the domains of an app, newest first."""
    return Page(
        method="GET",
        path=f"/v1/apps/{_q(id)}/domains",
        query=query({
            "limit": limit,
            "cursor": cursor,
        }),
        decode=m.AppDomain.from_json,
    )


def list_app_env(id: str) -> Call[list[m.AppVariable]]:
    """List the environment variables of an app, with secret values masked."""
    return Call(
        method="GET",
        path=f"/v1/apps/{_q(id)}/env",
        decode=lambda raw: [m.AppVariable.from_json(e) for e in raw],
    )


def list_apps(*, limit: int | None = None, cursor: str | None = None) -> Page[m.App]:
    """List apps, newest first."""
    return Page(
        method="GET",
        path="/v1/apps",
        query=query({
            "limit": limit,
            "cursor": cursor,
        }),
        decode=m.App.from_json,
    )


def list_audit(*, limit: int | None = None, cursor: str | None = None, workspace: str | None = None, actor: str | None = None, action: str | None = None, outcome: str | None = None, since: datetime | None = None, until: datetime | None = None) -> Page[m.AuditEntry]:
    """List who did what in all workspaces, newest first. Each entry has the hash of the one before
    it in its log, so that a changed or a missing one shows. Entries of the last second may have
    no place yet.
    """
    return Page(
        method="GET",
        path="/v1/admin/audit",
        query=query({
            "limit": limit,
            "cursor": cursor,
            "workspace": workspace,
            "actor": actor,
            "action": action,
            "outcome": outcome,
            "since": since,
            "until": until,
        }),
        decode=m.AuditEntry.from_json,
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


def list_commands(id: str) -> Call[list[m.SandboxCommand]]:
    """List the commands that run and the last 100 that have ended, newest first. Wakes a
    hibernated sandbox, whose commands are in its memory, as all routes of commands do.
    """
    return Call(
        method="GET",
        path=f"/v1/sandboxes/{_q(id)}/commands",
        decode=lambda raw: [m.SandboxCommand.from_json(e) for e in raw],
    )


def list_databases(*, limit: int | None = None, cursor: str | None = None) -> Page[m.Database]:
    """List databases, newest first. Without passwords and broker tokens."""
    return Page(
        method="GET",
        path="/v1/databases",
        query=query({
            "limit": limit,
            "cursor": cursor,
        }),
        decode=m.Database.from_json,
    )


def list_deployments(id: str, *, limit: int | None = None, cursor: str | None = None) -> Page[m.Deployment]:
    """List the deployments of an app, newest first. Those that have not ended, and the latest 100
    that have.
    """
    return Page(
        method="GET",
        path=f"/v1/apps/{_q(id)}/deploys",
        query=query({
            "limit": limit,
            "cursor": cursor,
        }),
        decode=m.Deployment.from_json,
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


def list_function_deployments(id: str, *, limit: int | None = None, cursor: str | None = None) -> Page[m.Deployment]:
    """List the deployments of a function, newest first."""
    return Page(
        method="GET",
        path=f"/v1/functions/{_q(id)}/deploys",
        query=query({
            "limit": limit,
            "cursor": cursor,
        }),
        decode=m.Deployment.from_json,
    )


def list_function_env(id: str) -> Call[list[m.AppVariable]]:
    """List the environment variables of a function, with secret values masked."""
    return Call(
        method="GET",
        path=f"/v1/functions/{_q(id)}/env",
        decode=lambda raw: [m.AppVariable.from_json(e) for e in raw],
    )


def list_functions(*, limit: int | None = None, cursor: str | None = None) -> Page[m.Function]:
    """List functions, newest first."""
    return Page(
        method="GET",
        path="/v1/functions",
        query=query({
            "limit": limit,
            "cursor": cursor,
        }),
        decode=m.Function.from_json,
    )


def list_github_installations(*, limit: int | None = None, cursor: str | None = None) -> Page[m.GitHubInstallation]:
    """List the installations that the workspace has connected, newest first."""
    return Page(
        method="GET",
        path="/v1/github/installations",
        query=query({
            "limit": limit,
            "cursor": cursor,
        }),
        decode=m.GitHubInstallation.from_json,
    )


def list_github_repos(*, limit: int | None = None, cursor: str | None = None, installation_id: str | None = None) -> Page[m.GitHubRepo]:
    """List the repositories of an installation. A page has at most 100."""
    return Page(
        method="GET",
        path="/v1/github/repos",
        query=query({
            "limit": limit,
            "cursor": cursor,
            "installation_id": installation_id,
        }),
        decode=m.GitHubRepo.from_json,
    )


def list_invitations(id: str, *, limit: int | None = None, cursor: str | None = None) -> Page[m.Invitation]:
    """List the invitations that can still be accepted, newest first."""
    return Page(
        method="GET",
        path=f"/v1/orgs/{_q(id)}/invitations",
        query=query({
            "limit": limit,
            "cursor": cursor,
        }),
        decode=m.Invitation.from_json,
    )


def list_members(id: str, *, limit: int | None = None, cursor: str | None = None) -> Page[m.Member]:
    """List an organization's people."""
    return Page(
        method="GET",
        path=f"/v1/orgs/{_q(id)}/members",
        query=query({
            "limit": limit,
            "cursor": cursor,
        }),
        decode=m.Member.from_json,
    )


def list_org_audit(id: str, *, limit: int | None = None, cursor: str | None = None, actor: str | None = None, action: str | None = None, outcome: str | None = None, since: datetime | None = None, until: datetime | None = None) -> Page[m.AuditEntry]:
    """List who did what in an organization, newest first. Each entry has the hash of the one
    before it in its log, so that a changed or a missing one shows. Entries of the last second
    may have no place yet.
    """
    return Page(
        method="GET",
        path=f"/v1/orgs/{_q(id)}/audit",
        query=query({
            "limit": limit,
            "cursor": cursor,
            "actor": actor,
            "action": action,
            "outcome": outcome,
            "since": since,
            "until": until,
        }),
        decode=m.AuditEntry.from_json,
    )


def list_orgs(*, limit: int | None = None, cursor: str | None = None) -> Page[m.Org]:
    """List the organizations of which you are a member, newest first."""
    return Page(
        method="GET",
        path="/v1/orgs",
        query=query({
            "limit": limit,
            "cursor": cursor,
        }),
        decode=m.Org.from_json,
    )


def list_ports(id: str) -> Call[list[m.Port]]:
    """List the ports that something listens on, and those that are registered."""
    return Call(
        method="GET",
        path=f"/v1/sandboxes/{_q(id)}/ports",
        decode=lambda raw: [m.Port.from_json(e) for e in raw],
    )


def list_preview_env(repo: str) -> Call[list[m.RepoVariable]]:
    """List the variables of a repository's previews. The id of a repository is GitHub's. The
    values of secrets are masked.
    """
    return Call(
        method="GET",
        path=f"/v1/repos/{_q(repo)}/preview-env",
        decode=lambda raw: [m.RepoVariable.from_json(e) for e in raw],
    )


def list_sandboxes(*, limit: int | None = None, cursor: str | None = None, metadata: str | None = None) -> Page[m.Sandbox]:
    """List sandboxes, newest first."""
    return Page(
        method="GET",
        path="/v1/sandboxes",
        query=query({
            "limit": limit,
            "cursor": cursor,
            "metadata": metadata,
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


def list_tiers() -> Call[list[m.Tier]]:
    """List the tiers of workspaces by name, as they were read last."""
    return Call(
        method="GET",
        path="/v1/admin/tiers",
        decode=lambda raw: [m.Tier.from_json(e) for e in raw],
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


def list_webhook_deliveries(id: str, *, limit: int | None = None, cursor: str | None = None) -> Page[m.WebhookDelivery]:
    """List the deliveries to an endpoint, newest first. The latest 100 that have ended within 7
    days, and those that wait.
    """
    return Page(
        method="GET",
        path=f"/v1/webhooks/endpoints/{_q(id)}/deliveries",
        query=query({
            "limit": limit,
            "cursor": cursor,
        }),
        decode=m.WebhookDelivery.from_json,
    )


def list_webhook_endpoints(*, limit: int | None = None, cursor: str | None = None) -> Page[m.WebhookEndpoint]:
    """List endpoints, newest first, without their secrets."""
    return Page(
        method="GET",
        path="/v1/webhooks/endpoints",
        query=query({
            "limit": limit,
            "cursor": cursor,
        }),
        decode=m.WebhookEndpoint.from_json,
    )


def list_webhook_events() -> Call[list[m.WebhookEventType]]:
    """List the types of events that there are."""
    return Call(
        method="GET",
        path="/v1/webhooks/events",
        decode=lambda raw: raw,
    )


def list_workspaces(*, limit: int | None = None, cursor: str | None = None) -> Page[m.Workspace]:
    """List the workspaces, their limits and what they use, newest first."""
    return Page(
        method="GET",
        path="/v1/admin/workspaces",
        query=query({
            "limit": limit,
            "cursor": cursor,
        }),
        decode=m.Workspace.from_json,
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


def patch_app(id: str, body: m.PatchApp) -> Call[m.App]:
    """Change the settings of an app. What is absent stays as it is; null is the default. What runs
    goes on as it was built until the next deployment. After a change of `framework`,
    `install_command`, `build_command`, `start_command`, `root_directory`, `port` or `env`, the
    next wake builds the app anew. A change of `git_url`, `framework`, `runtime` or
    `root_directory` deletes the caches of its builds.
    """
    return Call(
        method="PATCH",
        path=f"/v1/apps/{_q(id)}",
        json=body.to_json(),
        decode=m.App.from_json,
    )


def patch_database(id: str, body: m.PatchDatabase) -> Call[m.Database]:
    """Change whether a database is put to sleep when it is idle."""
    return Call(
        method="PATCH",
        path=f"/v1/databases/{_q(id)}",
        json=body.to_json(),
        decode=m.Database.from_json,
    )


def patch_function(id: str, body: m.PatchFunction) -> Call[m.Function]:
    """Change the settings of a function. What is absent stays as it is; null is the default. What
    runs goes on as it is until the next deployment, or the next wake.
    """
    return Call(
        method="PATCH",
        path=f"/v1/functions/{_q(id)}",
        json=body.to_json(),
        decode=m.Function.from_json,
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


def patch_member(id: str, user: str, body: m.PatchMember) -> Call[m.Member]:
    """Change a member's role."""
    return Call(
        method="PATCH",
        path=f"/v1/orgs/{_q(id)}/members/{_q(user)}",
        json=body.to_json(),
        decode=m.Member.from_json,
    )


def patch_org(id: str, body: m.PatchOrg) -> Call[m.Org]:
    """Rename an organization."""
    return Call(
        method="PATCH",
        path=f"/v1/orgs/{_q(id)}",
        json=body.to_json(),
        decode=m.Org.from_json,
    )


def patch_webhook_endpoint(id: str, body: m.PatchWebhookEndpoint) -> Call[m.WebhookEndpoint]:
    """Change the URL or the events of an endpoint. What waits to be sent goes to the new URL."""
    return Call(
        method="PATCH",
        path=f"/v1/webhooks/endpoints/{_q(id)}",
        json=body.to_json(),
        decode=m.WebhookEndpoint.from_json,
    )


def patch_workspace(id: str, body: m.PatchWorkspace) -> Call[m.Workspace]:
    """Change a workspace's limits, or suspend it."""
    return Call(
        method="PATCH",
        path=f"/v1/admin/workspaces/{_q(id)}",
        json=body.to_json(),
        decode=m.Workspace.from_json,
    )


def pause_sandbox(id: str) -> Call[m.Sandbox]:
    """Pause a running sandbox: stop its CPUs. Its memory stays on the host, and its time to live
    keeps counting.
    """
    return Call(
        method="POST",
        path=f"/v1/sandboxes/{_q(id)}/pause",
        decode=m.Sandbox.from_json,
    )


def post_to_app_root(id: str, content: Body) -> Stream:
    """Pass a POST on to an app. To any path, with any headers and body; also WebSockets. The
    answer is the app's. An app that sleeps is woken, as by a request to its URL. The
    Authorization header is not passed on.
    """
    return Stream(
        method="POST",
        path=f"/v1/apps/{_q(id)}/proxy",
        content=content,
    )


def promote(id: str, body: m.Promote) -> Call[m.Promoted]:
    """Promote a child of a fork tree, and delete its siblings. The parent is not a sibling, and is
    kept.
    """
    return Call(
        method="POST",
        path=f"/v1/sandboxes/{_q(id)}/promote",
        json=body.to_json(),
        decode=m.Promoted.from_json,
    )


def put_app_env(id: str, key: str, body: m.PutAppVariable) -> Call[m.AppVariable]:
    """Set an environment variable of an app. Deployments from now on have it. A secret one is
    masked when it is read, and left out of the logs of builds. Without `secret` and `scope`,
    one that exists keeps its own.
    """
    return Call(
        method="PUT",
        path=f"/v1/apps/{_q(id)}/env/{_q(key)}",
        json=body.to_json(),
        decode=m.AppVariable.from_json,
    )


def put_app_source(id: str, content: Body) -> Call[m.SourceUpload]:
    """Upload the source of an app, a tar.gz of up to 512 MiB. Deploy it by its `source_id`. The
    latest few are kept.
    """
    return Call(
        method="PUT",
        path=f"/v1/apps/{_q(id)}/source",
        content=content,
        decode=m.SourceUpload.from_json,
    )


def put_function_env(id: str, key: str, body: m.PutAppVariable) -> Call[m.AppVariable]:
    """Set an environment variable of a function. The next deployment or wake has it. A secret one
    is masked when it is read, and in logs.
    """
    return Call(
        method="PUT",
        path=f"/v1/functions/{_q(id)}/env/{_q(key)}",
        json=body.to_json(),
        decode=m.AppVariable.from_json,
    )


def put_preview_variable(repo: str, key: str, body: m.PutRepoVariable) -> Call[m.RepoVariable]:
    """Set a variable of a repository's previews. For the previews of pull requests of all the
    workspace's apps of this repository, from their next deployment on. It takes the place of an
    app's own variable of this name. Without `secret`, one that is secret stays so.
    """
    return Call(
        method="PUT",
        path=f"/v1/repos/{_q(repo)}/preview-env/{_q(key)}",
        json=body.to_json(),
        decode=m.RepoVariable.from_json,
    )


def query_database(id: str, body: m.SQLQuery) -> Call[m.SQLResult]:
    """Run one SQL statement. A database that sleeps is woken. What PostgreSQL or the broker
    refuses has a `sqlstate`. Rows over 10,000, or 8 MiB, are left out, and `truncated` is true.
    Whoever accepts only `application/x-ndjson` gets all of them, a line each: first
    `{columns}`, then the rows, then `{row_count, command}` or an error. A client that goes away
    ends the statement.
    """
    return Call(
        method="POST",
        path=f"/v1/databases/{_q(id)}/proxy/query",
        json=body.to_json(),
        decode=m.SQLResult.from_json,
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


def read_function(id: str) -> Stream:
    """Invoke a function with a GET. The handler gets the method, the path after `invoke`, the
    query, the headers, but the Authorization header and cookies, and the body, of up to 10 MiB.
    Its answer is the answer. A function that sleeps is woken first. What fails in it is a 500,
    with the last lines of its log as `log`.
    """
    return Stream(
        method="GET",
        path=f"/v1/functions/{_q(id)}/invoke",
    )


def readyz() -> Call[m.Health]:
    """Check the readiness of this replica: whether it can serve requests now. For load balancers.
    It is a member of the cluster that knows a leader and what was committed, and does not stop.
    The detail names what is missing.
    """
    return Call(
        method="GET",
        path="/readyz",
        decode=m.Health.from_json,
    )


def rebalance(body: m.Rebalance) -> Call[m.Rebalancing]:
    """Rebalance hosts: move what sleeps on the fuller ones to the emptier ones. Sandboxes and
    databases that sleep move through the snapshot store under the same id, until hosts differ
    by less than `percent` of an even share of the disk that is reserved. What runs is never
    touched, nor are hosts that are drained, have had trouble or have no snapshot store. With
    `dry_run` nothing moves, and `moves` tells what would. The call returns at once; GET tells
    how far it has come. Again, it tries again what could not be moved.
    """
    return Call(
        method="POST",
        path="/v1/admin/rebalance",
        json=body.to_json(),
        decode=m.Rebalancing.from_json,
    )


def remove_agent(id: str) -> Nothing:
    """Remove a host that has no sandbox left."""
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


def remove_member(id: str, user: str) -> Nothing:
    """Remove a member, or leave. It takes the role admin or owner, except to leave. The keys and
    invitations that the person made for the organization end, too.
    """
    return Nothing(
        method="DELETE",
        path=f"/v1/orgs/{_q(id)}/members/{_q(user)}",
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


def remove_router(name: str) -> Nothing:
    """Remove a PostgreSQL router, which is refused from now on. For ever: a router is known by its
    certificate alone, so that one that is to come back needs another name. One that never was
    is refused, too.
    """
    return Nothing(
        method="DELETE",
        path=f"/v1/admin/routers/{_q(name)}",
    )


def replay_webhook_delivery(id: str, delivery: str) -> Call[m.WebhookDelivery]:
    """Replay a delivery. At once, and on the schedule of a new one, whether it has arrived, is
    dead or waits for its next attempt.
    """
    return Call(
        method="POST",
        path=f"/v1/webhooks/endpoints/{_q(id)}/deliveries/{_q(delivery)}/replay",
        decode=m.WebhookDelivery.from_json,
    )


def reset_credentials(id: str) -> Call[m.DatabaseConnection]:
    """Rotate the password and the broker token of a running database. Answers once a log-in with
    them was made. Who was logged in with the old password is cut off. An error means that the
    old ones are in force, or will be; after a 503 a read says which are.
    """
    return Call(
        method="POST",
        path=f"/v1/databases/{_q(id)}/reset-credentials",
        decode=m.DatabaseConnection.from_json,
    )


def restore(content: Body, *, without_keys: bool | None = None) -> Nothing:
    """Restore the control store from a backup. A backup whose secrets need sealing keys that the
    cluster has not is refused, unless they may be lost.
    """
    return Nothing(
        method="POST",
        path="/v1/admin/raft/restore",
        query=query({
            "without_keys": without_keys,
        }),
        content=content,
    )


def resume_sandbox(id: str) -> Call[m.Sandbox]:
    """Resume a paused sandbox. Also resumes the parent of a warm fork, which is left paused, and
    gets memory and a network slot again.
    """
    return Call(
        method="POST",
        path=f"/v1/sandboxes/{_q(id)}/resume",
        decode=m.Sandbox.from_json,
    )


def revoke_invitation(id: str, invitation: str) -> Nothing:
    """Withdraw an invitation."""
    return Nothing(
        method="DELETE",
        path=f"/v1/orgs/{_q(id)}/invitations/{_q(invitation)}",
    )


def revoke_token(prefix: str) -> Nothing:
    """Revoke an API key by its prefix."""
    return Nothing(
        method="DELETE",
        path=f"/v1/me/tokens/{_q(prefix)}",
    )


def rollback_app(id: str, body: m.RollBackApp, *, idempotency_key: str | None = None) -> Call[m.Deployment]:
    """Roll back to an earlier deployment. The one that was live before, or the one that is named.
    The answer is a new deployment, which builds nothing where the artifact of the earlier one
    is kept. To repeat it is to go back to what it has replaced: use an Idempotency-Key, or name
    the deployment.
    """
    return Call(
        method="POST",
        path=f"/v1/apps/{_q(id)}/rollback",
        json=body.to_json(),
        idempotent=True,
        idempotency_key=idempotency_key,
        decode=m.Deployment.from_json,
    )


def rollback_function(id: str, body: m.RollBackApp, *, idempotency_key: str | None = None) -> Call[m.Deployment]:
    """Roll back to an earlier deployment of a function."""
    return Call(
        method="POST",
        path=f"/v1/functions/{_q(id)}/rollback",
        json=body.to_json(),
        idempotent=True,
        idempotency_key=idempotency_key,
        decode=m.Deployment.from_json,
    )


def rotate_webhook_secret(id: str) -> Call[m.NewWebhookEndpoint]:
    """Rotate the signing secret of an endpoint. Every attempt from now on is signed with it. What
    the receiver refuses until it knows the secret is sent again.
    """
    return Call(
        method="POST",
        path=f"/v1/webhooks/endpoints/{_q(id)}/rotate",
        decode=m.NewWebhookEndpoint.from_json,
    )


def sandbox_metrics(*, from_: str | None = None, to: str | None = None, bucket: str | None = None, template: str | None = None) -> Call[list[m.SandboxMetrics]]:
    """Count and measure the workspace's sandboxes by time and template. The newest first; what had
    no event in a day or an hour is not there. Events are kept for 90 days, and counted a moment
    after they happen.
    """
    return Call(
        method="GET",
        path="/v1/metrics/sandboxes",
        query=query({
            "from": from_,
            "to": to,
            "bucket": bucket,
            "template": template,
        }),
        decode=lambda raw: [m.SandboxMetrics.from_json(e) for e in raw],
    )


def sandbox_usage(id: str, *, minutes: int | None = None) -> Call[m.SandboxUsage]:
    """Measure what a sandbox uses and has used. In any status, and without waking it. The totals
    go on over hibernations; the history has a sample every ten seconds while it runs, for an
    hour.
    """
    return Call(
        method="GET",
        path=f"/v1/sandboxes/{_q(id)}/metrics",
        query=query({
            "minutes": minutes,
        }),
        decode=m.SandboxUsage.from_json,
    )


def set_current_org(body: m.SetCurrentOrg) -> Call[m.Me]:
    """Choose the organization in which the JWT acts from now on."""
    return Call(
        method="POST",
        path="/v1/me/current-org",
        json=body.to_json(),
        decode=m.Me.from_json,
    )


def signal_command(id: str, cid: str, body: m.CommandSignal) -> Nothing:
    """Signal a command's process group."""
    return Nothing(
        method="POST",
        path=f"/v1/sandboxes/{_q(id)}/commands/{_q(cid)}/signal",
        json=body.to_json(),
    )


def start_command(id: str, body: m.Exec, *, idempotency_key: str | None = None) -> Call[m.SandboxCommand]:
    """Start a command that belongs to the sandbox. Answers once the command has started. It goes
    on without its caller, through hibernate and wake, and in each child of a fork that keeps
    memory. It has no time-out unless `timeout_seconds` is given; time asleep does not count.
    Its input stays open, unless `stdin` is given, which is then all of it. A program that is
    not there ends with exit code 127. At most 64 run at once; of those that have ended the last
    100 are kept, and their Idempotency-Keys as long.
    """
    return Call(
        method="POST",
        path=f"/v1/sandboxes/{_q(id)}/commands",
        json=body.to_json(),
        idempotent=True,
        idempotency_key=idempotency_key,
        decode=m.SandboxCommand.from_json,
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


def stop_rebalancing() -> Nothing:
    """Stop a rebalancing. What is under way still arrives."""
    return Nothing(
        method="DELETE",
        path="/v1/admin/rebalance",
    )


def sync_billing() -> Call[m.BillingSync]:
    """Read the workspace's subscription from the provider of payments now. After an upgrade, so
    that a paused workspace need not wait.
    """
    return Call(
        method="POST",
        path="/v1/billing/sync",
        decode=m.BillingSync.from_json,
    )


def test_webhook_endpoint(id: str) -> Call[m.WebhookDelivery]:
    """Send endpoint.test to an endpoint. Whatever it subscribes to. The answer is the delivery,
    before its first attempt.
    """
    return Call(
        method="POST",
        path=f"/v1/webhooks/endpoints/{_q(id)}/test",
        decode=m.WebhookDelivery.from_json,
    )


def transact_database(id: str, body: m.SQLQueries) -> Call[m.SQLBatchResults]:
    """Run SQL statements in one transaction. A database that sleeps is woken. What PostgreSQL or
    the broker refuses has a `sqlstate`. If one fails nothing has happened, and the answer is
    its error, with its number, from 0, in `failed`.
    """
    return Call(
        method="POST",
        path=f"/v1/databases/{_q(id)}/proxy/transaction",
        json=body.to_json(),
        decode=m.SQLBatchResults.from_json,
    )


def transfer_leadership(body: m.TransferLeadership) -> Nothing:
    """Transfer leadership to another replica."""
    return Nothing(
        method="POST",
        path="/v1/admin/raft/transfer-leadership",
        json=body.to_json(),
    )


def undrain_agent(id: str) -> Call[m.Agent]:
    """Undrain a host: place sandboxes on it again."""
    return Call(
        method="POST",
        path=f"/v1/admin/agents/{_q(id)}/undrain",
        decode=m.Agent.from_json,
    )


def usage(*, month: str | None = None, format: str | None = None) -> Call[m.Usage]:
    """Read what the workspace has used in a month, and what it cost. Hosts are asked once a
    minute: the last minute is not in it.
    """
    return Call(
        method="GET",
        path="/v1/usage",
        query=query({
            "month": month,
            "format": format,
        }),
        decode=m.Usage.from_json,
    )


def verify_app_domain(id: str, domain: str) -> Call[m.AppDomain]:
    """Verify a custom domain now, by its TXT record in DNS. A domain whose TXT record is not there
    stays `pending`, and `error` says what was found. One that had failed is looked for again.
    Where a certificate could not be had, it is soon ordered again.
    """
    return Call(
        method="POST",
        path=f"/v1/apps/{_q(id)}/domains/{_q(domain)}/verify",
        decode=m.AppDomain.from_json,
    )


def version() -> Call[m.VersionInfo]:
    """Read the version of this replica."""
    return Call(
        method="GET",
        path="/version",
        decode=m.VersionInfo.from_json,
    )


def wake_database(id: str) -> Call[m.DatabaseWake]:
    """Wake a database that hibernates. Whoever connects to one wakes it too."""
    return Call(
        method="POST",
        path=f"/v1/databases/{_q(id)}/wake",
        decode=m.DatabaseWake.from_json,
    )


def wake_sandbox(id: str) -> Call[m.Sandbox]:
    """Wake a hibernated sandbox. A sandbox that already runs is returned as it is, so wakes at the
    same time are one wake.
    """
    return Call(
        method="POST",
        path=f"/v1/sandboxes/{_q(id)}/wake",
        decode=m.Sandbox.from_json,
    )


def workspace_usage(id: str, *, month: str | None = None, format: str | None = None) -> Call[m.Usage]:
    """Read what a workspace has used in a month, also after it was deleted."""
    return Call(
        method="GET",
        path=f"/v1/admin/workspaces/{_q(id)}/usage",
        query=query({
            "month": month,
            "format": format,
        }),
        decode=m.Usage.from_json,
    )


def write_command(id: str, cid: str, body: m.CommandInput) -> Nothing:
    """Write to a command's input. Answers once the input is queued: all of it, or nothing. At most
    1 MiB waits for a command that does not read it.
    """
    return Nothing(
        method="POST",
        path=f"/v1/sandboxes/{_q(id)}/commands/{_q(cid)}/input",
        json=body.to_json(),
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
