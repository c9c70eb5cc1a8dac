// The service's types. Generated from the service's OpenAPI document by `make clients`. Do not edit.

/** AddPeer is the body of POST /v1/admin/raft/peers. */
export interface AddPeer {
  /** host:port of its peer port */
  address: string;
  id: string;
}

/** AddPort is the body of POST /v1/sandboxes/{id}/ports. */
export interface AddPort {
  port: number;
  label?: string;
}

/** Agent is one host with its capacity and health. */
export interface Agent {
  /** host:port of its HTTPS API */
  address: string;
  capacity: AgentCapacity;
  /** (RFC 3339) */
  created_at: string;
  draining: boolean;
  evacuation: AgentEvacuation | null;
  id: string;
  /** last heartbeat; null if the current leader has received none (RFC 3339) */
  last_seen_at: string | null;
  /** it has sent a heartbeat, and its inventory is complete */
  ready: boolean;
  /** placed on it */
  sandboxes: number;
  /** "up" or "lost" */
  state: string;
  templates: AgentTemplate[];
  versions: AgentVersions;
}

/** AgentCapacity is a host's capacity, and how much of it is in use. */
export interface AgentCapacity {
  cpus: number;
  disk_free_bytes: number;
  memory_mb: number;
  /** the most that all its sandboxes may use */
  reserved_mb: number;
  /** network slots: the most sandboxes it can hold */
  slots: number;
  slots_used: number;
}

/** AgentEvacuation is how far a host has been emptied. */
export interface AgentEvacuation {
  at_once: number;
  /** (RFC 3339) */
  began_at: string;
  /** nothing moves or waits any more; what stays is in Stays */
  done: boolean;
  /** sandboxes that are on other hosts now */
  moved: number;
  /** sandboxes under way */
  moving: number;
  /** what does not move */
  staying: number;
  stays: AgentStay[];
  /** sandboxes whose turn has not come, or that are being created or deleted */
  waiting: number;
}

/** AgentStay is something that stays on a host that is evacuated. */
export interface AgentStay {
  /** of a sandbox its beginning, because the whole is a credential */
  id: string;
  /** "sandbox", "volume" or "snapshot" */
  kind: string;
  reason: string;
  workspace_id: string;
}

/** AgentTemplate is one template on one host. */
export interface AgentTemplate {
  /** digest of all inputs of the build */
  build_id: string;
  /** why it failed */
  error: string | null;
  name: string;
  /** "building", "ready" or "failed" */
  status: string;
}

/** AgentVersions are the versions that a host's stored states depend on. */
export interface AgentVersions {
  engine: string;
  hostd: string;
  kernel: string;
}

/** App is a program that is built from a repository and served at a stable URL. */
export interface App {
  auto_deploy: boolean;
  auto_hibernate: boolean;
  /** (RFC 3339) */
  created_at: string;
  /** the one that is served; "": none yet */
  deployment_id: string;
  /** secret values are masked */
  env: Record<string, string>;
  /** those from forks too, without secrets */
  fork_previews: boolean;
  git_url: string;
  id: string;
  idle_timeout_seconds: number;
  /** that serve now */
  instances: number;
  /** null: none yet (RFC 3339) */
  last_request_at: string | null;
  max_instances: number;
  name: string;
  /** that the app binds, as PORT says */
  port: number;
  /** pull requests of its repository get one */
  previews: boolean;
  /** "" while it hibernates */
  sandbox_id: string;
  status: AppStatus;
  /** (RFC 3339) */
  updated_at: string;
  url: string;
  build_command?: string;
  /** as requested; has no effect */
  cpu?: number;
  /** why it is failed, or not what it was deployed as */
  error?: string;
  /** "": detected by each build */
  framework?: string;
  /** "": the repository's default branch */
  git_branch?: string;
  install_command?: string;
  /** as requested; has no effect */
  memory_mb?: number;
  root_directory?: string;
  runtime?: string;
  start_command?: string;
}

/** AppDomain is a host name of its workspace's own at which an app is served. */
export interface AppDomain {
  app_id: string;
  certificate: DomainCertificate;
  /** null: not yet (RFC 3339) */
  checked_at: string | null;
  /** (RFC 3339) */
  created_at: string;
  /** what has to be in DNS */
  dns: DNSRecord[];
  /** in its ASCII form */
  domain: string;
  /** null: nobody looks again by himself (RFC 3339) */
  next_check_at: string | null;
  /** DomainStatus is whether a domain has been proven to be its workspace's. */
  status: string;
  /** where the app is, once it is verified */
  url: string;
  /** (RFC 3339) */
  verified_at: string | null;
  /** what is amiss in DNS */
  error?: string;
}

/**
 * AppMetrics is the answer of GET /v1/apps/{id}/metrics: what all replicas together have counted of
 * the requests to an app since each of them started.
 */
export interface AppMetrics {
  app_id: string;
  instances: InstanceUsage[];
  /** of the last hour, oldest first; those with a request */
  minutes: AppMinute[];
  /** replicas that did not answer */
  missing: string[];
  /** in progress, with those that wait for a wake */
  open_requests: number;
  /** whose counts these are */
  replicas: string[];
  requests: RequestCounts;
  /** when the first of them began to count; null: none has seen a request (RFC 3339) */
  since: string | null;
  status: AppStatus;
  /** that requests have waited for */
  wakes: number;
}

/** AppMinute is one minute of an app's requests. */
export interface AppMinute {
  /** its beginning (RFC 3339) */
  at: string;
  /** of them, with a status from 500 */
  errors: number;
  p50_ms: number;
  p95_ms: number;
  received_bytes: number;
  requests: number;
  sent_bytes: number;
}

/** AppRequest is a request to an app that has ended. */
export interface AppRequest {
  /** when it began (RFC 3339) */
  at: string;
  class: string;
  duration_ms: number;
  first_byte_ms: number;
  method: string;
  /** escaped as in a URL, without the query */
  path: string;
  received_bytes: number;
  /** that has served it */
  replica: string;
  /** of its X-Request-Id */
  request_id: string;
  sent_bytes: number;
  /** 0: the client left before an answer */
  status: number;
  /** it waited while the app woke */
  held?: boolean;
  /** it was longer */
  path_cut?: boolean;
}

/** AppSource is where an app's source comes from. */
export type AppSource = "git" | "upload";

/** AppStatus is the status of an app. */
export type AppStatus = "created" | "running" | "hibernated" | "waking" | "failed";

/** AppVariable is one environment variable of an app. */
export interface AppVariable {
  key: string;
  /** "": none */
  scope: string;
  secret: boolean;
  /** (RFC 3339) */
  updated_at: string;
  /** masked if it is secret */
  value: string;
}

/** AppsMetrics is one row of GET /v1/metrics/apps: one app in one bucket of time. */
export interface AppsMetrics {
  app_id: string;
  /** (RFC 3339) */
  at: string;
  /** of instances */
  deaths: number;
  /** of those that went live, from the start of the build */
  deploy_ms: Summary;
  /** that ended */
  deployments: number;
  /** of them */
  failed_deployments: number;
  requests: AppsRequests;
  wake_ms: Summary;
  /** instances that were started for requests */
  wakes: number;
}

/**
 * AppsRequests are the requests to one app in one bucket of time, as all replicas have counted
 * them. Times are until the answer began.
 */
export interface AppsRequests {
  count: number;
  p50_ms: number;
  p95_ms: number;
  p99_ms: number;
  statuses: StatusCounts;
}

/** AuditEntry tells who did what, and what came of it. */
export interface AuditEntry {
  /**
   * the request's operationId, or signUp, signIn, firstUseOfToken, moreActs, joinAgent, promotePeer
   */
  action: string;
  /** what actor_id is the id of */
  actor_type: string;
  /**
   * ok: done, or begun; refused: nothing was done; failed: not or not completely done, or unknown
   */
  outcome: string;
  /** (RFC 3339) */
  time: string;
  /**
   * a user's id, a key's prefix, a replica's or a host's id, or the name in an operator's
   * certificate; absent: the operators' token
   */
  actor_id?: string;
  /** the error that was answered */
  error?: string;
  /** hex SHA-256 of all of the above, which docs/operations.md describes */
  hash?: string;
  /** the hash of the entry before it; absent in the first */
  previous?: string;
  /** the request's X-Request-Id */
  request_id?: string;
  /** such as databases/<id>; of a sandbox only the beginning of its id */
  resource?: string;
  /**
   * counts the entries of one log from 1; absent for a moment, as previous and hash, until the
   * entry has its place
   */
  sequence?: number;
  /** whose log it is in; absent: the operators' */
  workspace_id?: string;
}

/** BillingSync is the answer to a sync with the provider of payments. */
export interface BillingSync {
  paused: boolean;
  /** active, trialing, past_due, canceled; empty: there is no subscription */
  subscription_status: string;
  tier: string;
}

/** Boot says how a new sandbox starts. */
export type Boot = "restore" | "cold";

/** Build is one build of a template. */
export interface Build {
  /** (RFC 3339) */
  created_at: string;
  error: string | null;
  /** (RFC 3339) */
  finished_at: string | null;
  id: string;
  status: TemplateStatus;
  template: string;
}

/** BuildTemplate is the body of POST /v1/templates/build. */
export interface BuildTemplate {
  /** a template, or an OCI image reference */
  from: string;
  name: string;
  cpu?: number;
  disk_mb?: number;
  /** environment of run, start and every exec */
  env?: Record<string, string>;
  /** absolute path to content, written before run */
  files?: Record<string, string>;
  memory_mb?: number;
  /** what must hold before the guest is stored */
  ready?: TemplateCheck;
  /** shell commands, run in the guest in sequence */
  run?: string[];
  /** shell command that runs as long as the guest */
  start?: string;
}

/** ClassCount counts requests of one class: real, served, quiet or monitor. */
export interface ClassCount {
  class: string;
  count: number;
}

/** CloneDatabase is the body of POST /v1/databases/{id}/clone. */
export interface CloneDatabase {
  /** default: the source's, with " (clone)" */
  label?: string;
  /** default: the source's */
  size?: DatabaseSize;
  /** RFC 3339, for point-in-time recovery; default: the latest that is archived */
  target_time?: string;
}

/** CommandExit is how a detached command ended: the data of the server-sent event exit. */
export interface CommandExit {
  duration_ms: number;
  /** 128+n when signal n ended it */
  exit_code: number;
  /** of the end of the output */
  offset: number;
  timed_out: boolean;
}

/**
 * CommandGap says that output which was asked for is not kept: the data of the server-sent event
 * gap.
 */
export interface CommandGap {
  /** where the output goes on */
  offset: number;
}

/** CommandInput is the body of POST /v1/sandboxes/{id}/commands/{cid}/input. */
export interface CommandInput {
  data?: string;
  /** "base64" if data is base64 */
  encoding?: string;
  /** nothing follows: the command reads the end of its input */
  eof?: boolean;
}

/**
 * CommandOutput is a piece of a detached command's output: the data of the server-sent events
 * stdout and stderr.
 */
export interface CommandOutput {
  data: string;
  /** of its first byte, in the bytes of both streams */
  offset: number;
  /** "base64" if the bytes are not UTF-8 */
  encoding?: string;
}

/** CommandSignal is the body of POST /v1/sandboxes/{id}/commands/{cid}/signal. */
export interface CommandSignal {
  /** a name such as INT, with or without SIG */
  signal: string;
}

/** CreateApp is the body of POST /v1/apps. It stores the settings and builds nothing. */
export interface CreateApp {
  name: string;
  auto_deploy?: boolean;
  /** default true */
  auto_hibernate?: boolean;
  build_command?: string;
  cpu?: number;
  env?: Record<string, string>;
  /** pull requests from forks get one too, without secrets */
  fork_previews?: boolean;
  framework?: string;
  git_branch?: string;
  /** https; required unless source is "upload" */
  git_url?: string;
  /** default 900 */
  idle_timeout_seconds?: number;
  install_command?: string;
  /** default 1 */
  max_instances?: number;
  memory_mb?: number;
  /** default 3000 */
  port?: number;
  /** default: as auto_deploy */
  previews?: boolean;
  root_directory?: string;
  runtime?: string;
  /** default "git" */
  source?: AppSource;
  start_command?: string;
}

/**
 * CreateAppDomain is the body of POST /v1/apps/{id}/domains. An internationalized name may be in
 * either form.
 */
export interface CreateAppDomain {
  domain: string;
}

/**
 * CreateDatabase is the body of POST /v1/databases. cpu and memory_mb are recorded and have no
 * effect.
 */
export interface CreateDatabase {
  always_on?: boolean;
  cpu?: number;
  label?: string;
  memory_mb?: number;
  /** default 1g */
  size?: DatabaseSize;
}

/** CreateDeployment is the body of POST /v1/apps/{id}/deploys. */
export interface CreateDeployment {
  clear_cache?: boolean;
  /** branch, tag or commit; default: git_branch */
  git_ref?: string;
  /** of an uploaded source */
  source_id?: string;
}

/** CreateFunction is the body of POST /v1/functions. */
export interface CreateFunction {
  name: string;
  runtime: FunctionRuntime;
  env?: Record<string, string>;
  /** default 30 */
  timeout_seconds?: number;
}

/** CreateJoinToken is the body of POST /v1/admin/join-tokens. */
export interface CreateJoinToken {
  /** default one hour, at most 24 hours */
  ttl_seconds?: number;
}

/** CreateOrg is the body of POST /v1/orgs. */
export interface CreateOrg {
  name: string;
}

/** CreatePreviewToken is the body of POST /v1/sandboxes/{id}/preview-tokens. */
export interface CreatePreviewToken {
  /** default: every port */
  port?: number;
  /** default 3600, at most 604800 */
  ttl_seconds?: number;
}

/**
 * CreateSandbox is the body of POST /v1/sandboxes. CPU and memory come from the template; cpu and
 * memory_mb are ignored if sent.
 */
export interface CreateSandbox {
  /** its name, such as "base" */
  template: string;
  /** default restore */
  boot?: Boot;
  /** environment of every later exec */
  env?: Record<string, string>;
  /** id of a snapshot of the same template */
  from_snapshot?: string;
  /** any object; returned unchanged */
  metadata?: Record<string, unknown>;
  /** at expires_at it hibernates instead of being deleted */
  persistent?: boolean;
  /** default public */
  preview?: PreviewMode;
  /** default: it never expires */
  ttl_seconds?: number;
  /** at most 8 */
  volumes?: VolumeMount[];
}

/** CreateSnapshot is the body of POST /v1/sandboxes/{id}/snapshots. */
export interface CreateSnapshot {
  name?: string;
}

/** CreateToken is the body of POST /v1/me/tokens. */
export interface CreateToken {
  /** need not be unique */
  name: string;
  /** the key is refused from then on; default: never (RFC 3339) */
  expires_at?: string;
  /**
   * "all", "read-only", "sandboxes", "databases", "apps", "volumes", "webhooks", or "app:" and an
   * id; the key may do what any one allows; default: "all"
   */
  scopes?: string[];
}

/** CreateVolume is the body of POST /v1/volumes. */
export interface CreateVolume {
  name: string;
  /** default 256, at most 65536 */
  size_mb?: number;
}

/** CreateWebhookEndpoint is the body of POST /v1/webhooks/endpoints. */
export interface CreateWebhookEndpoint {
  /** https, of a host on the public internet */
  url: string;
  /** default and empty: all */
  events?: WebhookEventType[];
}

/** CreateWorkspace is the body of POST /v1/admin/workspaces. */
export interface CreateWorkspace {
  name: string;
  quotas?: Quotas;
  /** default: the default tier */
  tier?: string;
}

/**
 * DNSRecord is what a domain's owner sets in DNS. A TXT record proves the domain; the other one
 * leads to the app. It is an ALIAS for a domain at which DNS allows no CNAME: providers call it so,
 * or ANAME, or flatten a CNAME.
 */
export interface DNSRecord {
  name: string;
  /** "TXT", "CNAME" or "ALIAS" */
  type: string;
  value: string;
}

/** Database is a managed PostgreSQL database. Lists omit its credentials. */
export interface Database {
  /** it never sleeps */
  always_on: boolean;
  /** accepts SQL over HTTP */
  broker_url: string;
  /** (RFC 3339) */
  created_at: string;
  /** for PostgreSQL clients, with TLS */
  host: string;
  /** a UUID */
  id: string;
  port: number;
  size: DatabaseSize;
  status: DatabaseStatus;
  /** "postgres-16" */
  template: string;
  /** while it runs; the bearer token of broker_url */
  broker_token?: string;
  /** id of the database that it was cloned from */
  cloned_from?: string;
  /** while it runs; does not set sslmode */
  connection_url?: string;
  /** as requested; has no effect */
  cpu?: number;
  /** while it runs */
  database?: string;
  /** details of the error */
  detail?: string;
  /** why it has this status */
  error?: string;
  /** while it is failed */
  failover_available?: boolean;
  /** while it is failed */
  failover_eta_seconds?: number;
  /** while it is failed: why a failover is possible or not */
  failover_reason?: string;
  label?: string;
  /** as requested; has no effect */
  memory_mb?: number;
  /** while it runs */
  password?: string;
  /** the point in time of the source that was cloned, if one was given (RFC 3339) */
  target_time?: string;
  /** while it runs */
  username?: string;
}

/** DatabaseArchive describes what a database can be restored from. */
export interface DatabaseArchive {
  /** oldest first */
  base_backups: DatabaseBaseBackup[];
  /** why it fails */
  error: string | null;
  /** (RFC 3339) */
  failing_since: string | null;
  /** null: nothing yet (RFC 3339) */
  first_restorable: string | null;
  /** age of the oldest write that may not be archived */
  lag_seconds: number;
  last_archived_lsn: string | null;
  /** (RFC 3339) */
  last_restorable: string | null;
  /** in the bucket */
  size_bytes: number;
}

/** DatabaseBaseBackup is a base backup, the start of a restore. */
export interface DatabaseBaseBackup {
  id: string;
  size_bytes: number;
  /** (RFC 3339) */
  started_at: string;
}

/** DatabaseColumn is a column of a table. */
export interface DatabaseColumn {
  name: string;
  nullable: boolean;
  primary_key: boolean;
  /** as in SQL: "character varying(20)" */
  type: string;
  default?: string;
}

/** DatabaseConnection contains how clients connect to a database. */
export interface DatabaseConnection {
  broker_url: string;
  host: string;
  port: number;
  status: DatabaseStatus;
  /** while it runs */
  broker_token?: string;
  /** while it runs */
  connection_url?: string;
  /** while it runs */
  database?: string;
  /** why it has this status */
  error?: string;
  /** while it runs */
  password?: string;
  /** while it runs */
  username?: string;
}

/** DatabaseFailover is the answer to a failover, which continues after it. */
export interface DatabaseFailover {
  /** where the archive ends, and what is lost */
  error: string;
  id: string;
  status: DatabaseStatus;
}

/** DatabaseMetrics is one row of GET /v1/metrics/databases: one database in one bucket of time. */
export interface DatabaseMetrics {
  /** (RFC 3339) */
  at: string;
  boot_ms: Summary;
  database_id: string;
  deaths: number;
  hibernate_ms: Summary;
  hibernations: number;
  /** of its virtual machine: its create, and failovers */
  starts: number;
  wake_ms: Summary;
  wakes: number;
}

/** DatabaseSchema contains the tables that the database's role can see. */
export interface DatabaseSchema {
  tables: DatabaseTable[];
  truncated: boolean;
}

/** DatabaseSize is the memory of a database. */
export type DatabaseSize = "1g" | "4g" | "16g";

/** DatabaseStatus is the status of a database. */
export type DatabaseStatus = "provisioning" | "running" | "hibernated" | "waking" | "failed" | "restoring";

/** DatabaseTable is a table, a view or another relation with columns. */
export interface DatabaseTable {
  columns: DatabaseColumn[];
  /** -1: PostgreSQL has no estimate yet */
  estimated_rows: number;
  /** "table", "partitioned table", "view", "materialized view", "foreign table" */
  kind: string;
  name: string;
  schema: string;
}

/**
 * DatabaseUsage is the answer of GET /v1/databases/{id}/metrics. A database without a virtual
 * machine has no usage.
 */
export interface DatabaseUsage {
  /** age of the oldest write that may not be archived, while it runs */
  archive_lag_seconds: number | null;
  /** clients' sessions, while it runs */
  clients: number | null;
  database_id: string;
  status: DatabaseStatus;
  usage: ResourceUsage | null;
}

/** DatabaseWake is the answer to a wake. */
export interface DatabaseWake {
  detail: string;
  status: DatabaseStatus;
}

/**
 * DeployFunction is the body of POST /v1/functions/{id}/deploy, where it is JSON. What does not
 * fit, or is no text, is sent as a tar.gz.
 */
export interface DeployFunction {
  /** texts by name, 8 MiB together */
  files: Record<string, string>;
}

/** Deployment is one attempt to bring a version of an app into service. */
export interface Deployment {
  app_id: string;
  /** (RFC 3339) */
  created_at: string;
  /** it is the one that is served */
  current: boolean;
  /** why it failed; "": it has not */
  error: string;
  /** (RFC 3339) */
  finished_at: string | null;
  git_author: string;
  /** "" until it is cloned */
  git_commit: string;
  git_message: string;
  git_ref: string;
  id: string;
  /** that have ended */
  phases: DeploymentPhase[];
  source: AppSource;
  /** (RFC 3339) */
  started_at: string | null;
  status: DeploymentStatus;
  trigger: DeploymentTrigger;
  /** as built */
  framework?: string;
  /** the deployment whose artifact it serves */
  rollback_to?: string;
  runtime?: string;
  source_id?: string;
  start_command?: string;
}

/** DeploymentPhase is a part of a deployment that has ended. */
export interface DeploymentPhase {
  duration_ms: number;
  /** queue, sandbox, source, detect, runtimes, install, build, start, artifact */
  name: string;
}

/** DeploymentStatus is how far a deployment has come. */
export type DeploymentStatus = "queued" | "building" | "deploying" | "live" | "failed";

/** DeploymentTrigger is what began a deployment. */
export type DeploymentTrigger = "api" | "push" | "wake" | "rollback" | "pull_request";

/** Directory is the content of a directory, sorted by name. */
export interface Directory {
  entries: FileStat[];
  path: string;
}

/** DomainCertificate is the state of a domain's certificate. */
export interface DomainCertificate {
  /** null: there is none (RFC 3339) */
  expires_at: string | null;
  /** CertificateStatus is how it stands with the certificate of a domain. */
  status: string;
  error?: string;
}

/**
 * ErrorBody is the JSON of every response with status 400 or above, except 411, which has no body.
 * Errors about quotas have more fields.
 */
export interface ErrorBody {
  error: string;
  detail?: string;
}

/** EvacuateAgent is the body of POST /v1/admin/agents/{id}/evacuate. */
export interface EvacuateAgent {
  /** sandboxes that move at a time; default 4 */
  at_once?: number;
}

/** Event is one thing that happened to a sandbox. */
export interface Event {
  agent_id: string;
  code: EventCode;
  message: string;
  metadata: Record<string, unknown>;
  sandbox_id: string;
  /** (RFC 3339) */
  ts: string;
  type: string;
}

/** EventCode is the severity of an event. */
export type EventCode = "ok" | "error" | "warn";

/** Exec is the body of POST /v1/sandboxes/{id}/exec. */
export interface Exec {
  /** a string runs under sh -c, an array is an argv */
  cmd: string | string[];
  /** default: the user's home */
  cwd?: string;
  /** added to the sandbox's own */
  env?: Record<string, string>;
  /** the command's input, as text */
  stdin?: string;
  /** instead of stdin, for arbitrary bytes (base64) */
  stdin_base64?: string;
  /** default 60, at most 3600 */
  timeout_seconds?: number;
  /** name or uid[:gid]; default root */
  user?: string;
}

/** ExecResult is the result of an exec, with up to 8 MiB of each output stream. */
export interface ExecResult {
  /** in the guest */
  duration_ms: number;
  /** 128+n when signal n ended it */
  exit_code: number;
  stderr: string;
  stdout: string;
  /** timeout_seconds passed and the process group was killed */
  timed_out: boolean;
  /** output was dropped: a stream exceeded 8 MiB, or the host's memory for outputs was full */
  truncated: boolean;
  /** the exact bytes, if stderr is not UTF-8 (base64) */
  stderr_base64?: string;
  /** the exact bytes, if stdout is not UTF-8 (base64) */
  stdout_base64?: string;
}

/** FailedFork is a child that did not start. */
export interface FailedFork {
  error: string;
  index: number;
}

/** FailoverDatabase is the body of POST /v1/databases/{id}/failover. */
export interface FailoverDatabase {
  /** fail over even if the database runs */
  force?: boolean;
}

/**
 * FileStat is one entry of a sandbox's file system. It describes a symbolic link itself, not its
 * target.
 */
export interface FileStat {
  gid: number;
  /** octal permissions: "0644" */
  mode: string;
  /** (RFC 3339) */
  modified_at: string;
  name: string;
  path: string;
  size_bytes: number;
  type: FileType;
  uid: number;
  /** of a symlink */
  target?: string;
}

/** FileType is the type of an entry. */
export type FileType = "file" | "dir" | "symlink" | "other";

/** Fork is the body of POST /v1/sandboxes/{id}/fork. */
export interface Fork {
  /** 1 to 16, default 1; at most 1 if warm */
  count?: number;
  /** default cold */
  mode?: ForkMode;
}

/** ForkMode says what a fork's children inherit. */
export type ForkMode = "cold" | "warm";

/** ForkTree is the body of POST /v1/sandboxes/{id}/fork-tree. */
export interface ForkTree {
  /** 1 to 16, default 2 */
  count?: number;
  /** of every child, combined with the fork's own keys */
  metadata?: Record<string, unknown>;
}

/** Forked is the answer to a fork. */
export interface Forked {
  children: Sandbox[];
  failed: FailedFork[];
  mode: ForkMode;
  parent_id: string;
  /** how long the parent was paused */
  pause_ms: number;
}

/**
 * ForkedTree is the answer to a fork-tree: children with the parent's disk and memory. The call
 * succeeds even if some children fail.
 */
export interface ForkedTree {
  children: Sandbox[];
  failed: FailedFork[];
  parent_id: string;
  /** how long the parent was paused */
  pause_ms: number;
  /** the capture is in the snapshot store; an upload that failed is repeated */
  stored: boolean;
  tree_id: string;
}

/** Function is a handler that is called by requests, and runs only while there are some. */
export interface Function {
  /** (RFC 3339) */
  created_at: string;
  /** the one that is served; "": none yet */
  deployment_id: string;
  /** secret values are masked */
  env: Record<string, string>;
  id: string;
  /** that serve now; 0 while it hibernates */
  instances: number;
  /** to the minute; null: not yet (RFC 3339) */
  last_invoked_at: string | null;
  /** that no other function of the workspace has */
  name: string;
  runtime: FunctionRuntime;
  /** created until its first deployment is live */
  status: AppStatus;
  /** that an invocation may take */
  timeout_seconds: number;
  /** (RFC 3339) */
  updated_at: string;
  /** why it is failed */
  error?: string;
}

/** FunctionMetrics is one row of GET /v1/metrics/functions: one function in one bucket of time. */
export interface FunctionMetrics {
  /** (RFC 3339) */
  at: string;
  /** of instances */
  deaths: number;
  /** of those that went live, from the start of the build */
  deploy_ms: Summary;
  /** that ended */
  deployments: number;
  /** of them */
  failed_deployments: number;
  function_id: string;
  wake_ms: Summary;
  /** instances that were started for invocations */
  wakes: number;
}

/** FunctionRuntime is what runs a function's handler. */
export type FunctionRuntime = "python" | "node";

/** GitHubConnect is the answer to GET /v1/github/connect. */
export interface GitHubConnect {
  /** (RFC 3339) */
  expires_at: string;
  /** where a person installs the GitHub App */
  url: string;
}

/** GitHubInstallation is an installation of the GitHub App that a workspace has connected. */
export interface GitHubInstallation {
  /** login of the user or the organization */
  account: string;
  account_type: string;
  /** when it was connected (RFC 3339) */
  created_at: string;
  /** GitHub's */
  id: string;
  /** all or selected */
  repository_selection: string;
  suspended: boolean;
}

/** GitHubRepo is a repository of an installation. */
export interface GitHubRepo {
  clone_url: string;
  default_branch: string;
  full_name: string;
  /** GitHub's */
  id: string;
  private: boolean;
}

/** Health is the answer of GET /healthz and GET /readyz. */
export interface Health {
  /** "ok" */
  status: string;
}

/**
 * ImportAppEnv is the body of POST /v1/apps/{id}/env/import. secret and scope are as in
 * PutAppVariable, for all of its variables.
 */
export interface ImportAppEnv {
  /** the text of a .env file */
  dotenv: string;
  scope?: string;
  secret?: boolean;
}

/** InstanceUsage is what one instance of an app uses, or why that is not known. */
export interface InstanceUsage {
  deployment_id: string;
  sandbox_id: string;
  usage: ResourceUsage | null;
  error?: string;
}

/** Invitation is one that has not been accepted yet. */
export interface Invitation {
  /** (RFC 3339) */
  created_at: string;
  email: string;
  /** (RFC 3339) */
  expires_at: string;
  id: string;
  org_id: string;
  /** Role says what a member may do in an organization. */
  role: string;
}

/** Invite is the body of POST /v1/orgs/{id}/members. */
export interface Invite {
  email: string;
  /** default: member */
  role?: string;
}

/** JoinToken lets one host join the cluster, once. */
export interface JoinToken {
  /** fingerprint of the cluster's CA, hex */
  ca_sha256: string;
  /** (RFC 3339) */
  expires_at: string;
  /** host:port of each replica's peer port */
  peers: string[];
  token: string;
}

/** Latency is how long it took until answers began. */
export interface Latency {
  /** by rising bounds, which never change */
  buckets: LatencyBucket[];
  /** estimated from the buckets, as the other two */
  p50_ms: number;
  p95_ms: number;
  p99_ms: number;
  sum_ms: number;
}

/** LatencyBucket counts what took longer than the bucket before has, and up to its bound. */
export interface LatencyBucket {
  count: number;
  /** null: no bound */
  up_to_ms: number | null;
}

/** Lifecycle describes when a sandbox expires, and what happens then. */
export interface Lifecycle {
  /** null: never (RFC 3339) */
  expires_at: string | null;
  /** at expires_at it hibernates instead of being deleted */
  persistent: boolean;
  status: SandboxStatus;
  ttl_seconds: number | null;
}

/** Me is the answer to GET /v1/me: the user of a JWT. */
export interface Me {
  /** the workspace in which the JWT acts; null if the user is a member of none */
  current_org: Org | null;
  /** empty if the issuer does not provide it */
  email: string;
  id: string;
  orgs: Org[];
}

/** Member is a person in an organization. */
export interface Member {
  /** empty if the issuer does not provide it */
  email: string;
  /** Role says what a member may do in an organization. */
  role: string;
  user_id: string;
}

/**
 * NewInvitation is the answer to POST /v1/orgs/{id}/members. The link is shown only once, and works
 * once.
 */
export interface NewInvitation {
  /** (RFC 3339) */
  created_at: string;
  email: string;
  /** (RFC 3339) */
  expires_at: string;
  id: string;
  /** where the invited person sends a POST with a JWT */
  link: string;
  org_id: string;
  /** Role says what a member may do in an organization. */
  role: string;
  /** what the link contains */
  token: string;
}

/** NewToken is the answer to POST /v1/me/tokens. The key is shown only once. */
export interface NewToken {
  /** (RFC 3339) */
  created_at: string;
  /** (RFC 3339) */
  expires_at: string | null;
  /** (RFC 3339) */
  last_used_at: string | null;
  name: string;
  prefix: string;
  scopes: string[];
  /** the complete key, brt_<prefix>_<secret> */
  token: string;
}

/**
 * NewWebhookEndpoint is an endpoint with its signing secret, which is shown when it is made and
 * when it is changed.
 */
export interface NewWebhookEndpoint {
  /** (RFC 3339) */
  created_at: string;
  events: WebhookEventType[];
  id: string;
  /** whsec_… */
  secret: string;
  url: string;
}

/** Org is a workspace as its members see it. */
export interface Org {
  /** (RFC 3339) */
  created_at: string;
  id: string;
  name: string;
  /** of whom it is shown to */
  role: string;
  /** creates are refused with 403 */
  suspended: boolean;
  /** names its limits */
  tier: string;
}

/** OrgDetails is the answer to GET /v1/orgs/{id}. */
export interface OrgDetails {
  /** (RFC 3339) */
  created_at: string;
  id: string;
  /** those that apply; absent: no limit */
  limits: Quotas;
  name: string;
  /** Role says what a member may do in an organization. */
  role: string;
  suspended: boolean;
  tier: string;
  usage: WorkspaceUsage;
}

/** Owner is the app or database that manages a sandbox. */
export interface Owner {
  id: string;
  /** "app" or "database" */
  type: string;
}

/**
 * PatchApp is the body of PATCH /v1/apps/{id}. What is absent stays as it is; null is the default.
 * A change of framework, install_command, build_command, start_command, root_directory, port or env
 * makes the next wake build the app anew.
 */
export interface PatchApp {
  auto_deploy?: boolean | null;
  auto_hibernate?: boolean | null;
  build_command?: string | null;
  cpu?: number | null;
  /** replaces all variables */
  env?: Record<string, string> | null;
  fork_previews?: boolean | null;
  framework?: string | null;
  git_branch?: string | null;
  git_url?: string | null;
  idle_timeout_seconds?: number | null;
  install_command?: string | null;
  max_instances?: number | null;
  memory_mb?: number | null;
  name?: string | null;
  port?: number | null;
  /** null: as auto_deploy */
  previews?: boolean | null;
  root_directory?: string | null;
  runtime?: string | null;
  start_command?: string | null;
}

/** PatchDatabase is the body of PATCH /v1/databases/{id}. */
export interface PatchDatabase {
  always_on: boolean;
}

/**
 * PatchFunction is the body of PATCH /v1/functions/{id}. What is absent stays as it is; null is the
 * default. A change of env or timeout_seconds makes the next wake build the function anew.
 */
export interface PatchFunction {
  /** replaces all variables */
  env?: Record<string, string> | null;
  name?: string | null;
  timeout_seconds?: number | null;
}

/**
 * PatchLifecycle is the body of PATCH /v1/sandboxes/{id}/lifecycle. Absent members stay unchanged.
 */
export interface PatchLifecycle {
  persistent?: boolean;
  /** from now; null: it never expires */
  ttl_seconds?: number | null;
}

/** PatchMember is the body of PATCH /v1/orgs/{id}/members/{user}. */
export interface PatchMember {
  /** Role says what a member may do in an organization. */
  role: string;
}

/** PatchOrg is the body of PATCH /v1/orgs/{id}. */
export interface PatchOrg {
  name: string;
}

/**
 * PatchWebhookEndpoint is the body of PATCH /v1/webhooks/endpoints/{id}. What is absent stays as it
 * is.
 */
export interface PatchWebhookEndpoint {
  /** empty: all */
  events?: string[];
  url?: string;
}

/** PatchWorkspace is the body of PATCH /v1/admin/workspaces/{id}. What is absent stays. */
export interface PatchWorkspace {
  /** all of its own */
  quotas?: Quotas;
  subscription_status?: string;
  suspended?: boolean;
  /** empty: the default tier */
  tier?: string;
}

/** Port is a port of a sandbox on which something listens, which was registered, or both. */
export interface Port {
  /** as registered */
  label: string;
  port: number;
  /** that listens; empty if there is none or it is unknown */
  process: string;
  /** "tcp" or "udp" */
  protocol: string;
  /** its preview; empty for udp */
  url: string;
}

/**
 * PreviewAccess is a token for the preview URLs of one sandbox. A client sends it once as the query
 * parameter berth_token, which sets a cookie, or with each request as the header
 * Berth-Preview-Token.
 */
export interface PreviewAccess {
  /** (RFC 3339) */
  expires_at: string;
  token: string;
  /** with the token; a pattern unless a port was given */
  url: string;
}

/** PreviewMode says who may see a sandbox's ports by their preview URLs. */
export type PreviewMode = "public" | "token";

/** Promote is the body of POST /v1/sandboxes/{id}/promote, on the chosen child. */
export interface Promote {
  tree_id: string;
  /** delete the other children of the tree */
  cleanup_siblings?: boolean;
}

/** Promoted is the chosen child, and the siblings that were deleted. */
export interface Promoted {
  deleted: string[];
  promoted: Sandbox;
}

/**
 * PutAppVariable is the body of PUT /v1/apps/{id}/env/{key}. Without secret and scope a variable
 * that exists keeps its own, and a new one has none.
 */
export interface PutAppVariable {
  value: string;
  /** "production" keeps it out of previews */
  scope?: string;
  /** masked when read, and redacted from build logs */
  secret?: boolean;
}

/**
 * PutRepoVariable is the body of PUT /v1/repos/{repoID}/preview-env/{key}. Without secret a
 * variable that exists stays what it is, and a new one is not secret.
 */
export interface PutRepoVariable {
  value: string;
  /** masked when read, and redacted from build logs */
  secret?: boolean;
}

/**
 * Quotas limit what a workspace has; docs/limits.md says what each counts. Absent: as the tier
 * says; -1: no limit.
 */
export interface Quotas {
  /** of one app at once, whatever its max_instances */
  app_instances?: number;
  apps?: number;
  /** at once */
  builds?: number;
  /** of sandboxes that are not hibernated */
  cpu?: number;
  /** of sandboxes, also of those that are gone */
  creates_per_hour?: number;
  databases?: number;
  /** of sandboxes, databases, snapshots and volumes together */
  disk_mb?: number;
  keys?: number;
  members?: number;
  /** likewise */
  memory_mb?: number;
  /** that may be used at all, likewise */
  monthly_budget_cents?: number;
  /** processor time that is used */
  monthly_cpu_seconds?: number;
  /** that may be used without a subscription, in cents of USD */
  monthly_credit_cents?: number;
  /** that an owner of this one may own */
  orgs?: number;
  requests_burst?: number;
  requests_per_second?: number;
  sandboxes?: number;
  snapshots?: number;
  templates?: number;
  volume_mb?: number;
}

/** RaftPeer is one member of the control store. */
export interface RaftPeer {
  /** host:port of its peer port */
  address: string;
  /** 0 if the answering replica does not know */
  applied_index: number;
  healthy: boolean;
  id: string;
  /** -1 if the answering replica does not know */
  last_contact_ms: number;
  voter: boolean;
}

/** RaftStatus is the control store as one replica sees it. */
export interface RaftStatus {
  applied_index: number;
  commit_index: number;
  /** since the leader was last heard; 0 on the leader, -1 if never */
  last_contact_ms: number;
  last_log_index: number;
  last_snapshot_index: number;
  leader_address: string;
  leader_id: string;
  /** of the replica that answered */
  node_id: string;
  peers: RaftPeer[];
  /** "leader", "follower", "candidate" or "shutdown" */
  state: string;
  term: number;
}

/** Rebalance is the body of POST /v1/admin/rebalance. */
export interface Rebalance {
  /** sandboxes that move at a time, of all hosts; default 4 */
  at_once?: number;
  /** only tell what would move */
  dry_run?: boolean;
  /** hosts may differ by less than this, of an even share; default 20 */
  percent?: number;
}

/** RebalanceMove is a move to another host. */
export interface RebalanceMove {
  disk_mb: number;
  from: string;
  /** of a sandbox its beginning, because the whole is a credential */
  id: string;
  /** "sandbox" or "database" */
  kind: string;
  /** "moving" or "waiting" */
  state: string;
  to: string;
  workspace_id: string;
}

/**
 * RebalancedHost is how full a host is that takes part in a rebalancing. A sandbox that is under
 * way counts where it arrives.
 */
export interface RebalancedHost {
  /** reserved by sandboxes, their saved memory and volumes */
  disk_mb: number;
  id: string;
  sandboxes: number;
  /** in percent of an even share, by the hosts' memory */
  share: number;
  /** once what waits has moved */
  share_after: number;
}

/** Rebalancing is how even hosts are, and how far the last rebalancing has come. */
export interface Rebalancing {
  at_once: number;
  /** null if there was none, or it was given up (RFC 3339) */
  began_at: string | null;
  /** nothing moves or waits any more */
  done: boolean;
  dry_run: boolean;
  /** (RFC 3339) */
  ended_at: string | null;
  /** sandboxes that could not be moved */
  failed: number;
  hosts: RebalancedHost[];
  /** sandboxes that are on other hosts now */
  moved: number;
  moves: RebalanceMove[];
  /** sandboxes under way */
  moving: number;
  percent: number;
  /** sandboxes to be moved, as it was when it began */
  planned: number;
  stays: AgentStay[];
  /** sandboxes whose turn has not come */
  waiting: number;
}

/** RepoVariable is a variable of the previews of a repository's pull requests. */
export interface RepoVariable {
  key: string;
  secret: boolean;
  /** (RFC 3339) */
  updated_at: string;
  /** masked if it is secret */
  value: string;
}

/** RequestCounts are requests that have ended. */
export interface RequestCounts {
  classes: ClassCount[];
  count: number;
  /** waited while the app woke */
  held: number;
  latency: Latency;
  /** of bodies */
  received_bytes: number;
  /** of bodies; not those of a WebSocket */
  sent_bytes: number;
  statuses: StatusCounts;
}

/** ResourceUsage is what a virtual machine uses and has used, as its host measures it. */
export interface ResourceUsage {
  /** when it was measured (RFC 3339) */
  at: string;
  /** virtual CPUs */
  cpu: number;
  /** total, of all CPUs, with the virtual machine monitor's own */
  cpu_seconds: number;
  /** that its disk takes on the host */
  disk_bytes: number;
  disk_limit_bytes: number;
  /** oldest first; begins anew when the host's daemon restarts */
  history: UsageSample[];
  /** of the history */
  interval_seconds: number;
  memory_bytes: number;
  memory_limit_bytes: number;
  /** total */
  network_received_bytes: number;
  /** total */
  network_sent_bytes: number;
  /** when the totals were zero: its create, or a restart of the host's machine (RFC 3339) */
  since: string;
}

/** RollBackApp is the body of POST /v1/apps/{id}/rollback. */
export interface RollBackApp {
  /** default: the one that was live before */
  deployment_id?: string;
}

/** SQLBatchResult is the result of one statement of a batch, or its error. */
export interface SQLBatchResult {
  columns?: SQLColumn[];
  command?: string;
  detail?: string;
  error?: string;
  row_count?: number;
  rows?: unknown[][];
  sqlstate?: string;
  truncated?: boolean;
}

/** SQLBatchResults has a result for each statement. */
export interface SQLBatchResults {
  results: SQLBatchResult[];
}

/** SQLColumn is a column of a result. */
export interface SQLColumn {
  name: string;
  /** as PostgreSQL names it: "int4", "text", "_int4" for an array */
  type: string;
}

/** SQLQueries are statements that run in sequence. */
export interface SQLQueries {
  queries: SQLQuery[];
  /** for all statements together; default 30, at most 600 */
  timeout_seconds?: number;
}

/** SQLQuery is one SQL statement with its parameters ($1, $2, …). */
export interface SQLQuery {
  sql: string;
  params?: unknown[];
  /** default 30, at most 600; without effect in a batch or a transaction */
  timeout_seconds?: number;
}

/** SQLResult is what a statement returned. */
export interface SQLResult {
  columns: SQLColumn[];
  /** "SELECT", "INSERT" */
  command: string;
  /** rows returned, or rows affected if the statement returns none */
  row_count: number;
  rows: unknown[][];
  /** rows were left out because the answer is limited */
  truncated: boolean;
}

/**
 * Sandbox is one microVM. Its id is a bearer credential: whoever has it reaches the sandbox's ports
 * through the preview URL.
 */
export interface Sandbox {
  /** the host; empty until one is chosen */
  agent_id: string;
  /** virtual CPUs, from the template */
  cpu: number;
  /** (RFC 3339) */
  created_at: string;
  disk_mb: number;
  /** why it failed */
  error: string | null;
  /** null: never (RFC 3339) */
  expires_at: string | null;
  /** id of the sandbox it was forked from */
  forked_from: string | null;
  /** id of the snapshot it was made from */
  from_snapshot: string | null;
  /** 26 characters of lower-case base32 */
  id: string;
  memory_mb: number;
  /** the client's own object; {} if it gave none */
  metadata: Record<string, unknown>;
  /** the app or database that manages it */
  owner: Owner | null;
  /** at expires_at it hibernates instead of being deleted */
  persistent: boolean;
  preview: PreviewMode;
  /** a pattern: replace {port} */
  preview_url: string;
  /** when it first ran (RFC 3339) */
  started_at: string | null;
  status: SandboxStatus;
  /** its name */
  template: string;
  /** as requested */
  ttl_seconds: number | null;
  volumes: VolumeMount[];
}

/**
 * SandboxCommand is a detached command: it belongs to the sandbox and not to the request that
 * started it.
 */
export interface SandboxCommand {
  /** of a long one, its beginning */
  cmd: string | string[];
  /** null while it runs (RFC 3339) */
  ended_at: string | null;
  /** null while it runs; 128+n when signal n ended it */
  exit_code: number | null;
  id: string;
  /** that it has written: the offset of what it writes next */
  output_bytes: number;
  /** (RFC 3339) */
  started_at: string;
  /** CommandStatus says whether a detached command has ended. */
  status: string;
  /** timeout_seconds passed and the process group was killed */
  timed_out: boolean;
}

/** SandboxMetrics is one row of GET /v1/metrics/sandboxes: one template in one bucket of time. */
export interface SandboxMetrics {
  /** the beginning of the bucket (RFC 3339) */
  at: string;
  boot_ms: Summary;
  /** its day in UTC, 2006-01-02 */
  day: string;
  /** failures: VMs that ended by themselves, or were lost */
  deaths: number;
  /** children that started */
  forks: number;
  hibernate_ms: Summary;
  hibernations: number;
  /** that had an event */
  sandboxes: number;
  /** sandbox.running */
  starts: number;
  template: string;
  wake_ms: Summary;
  wakes: number;
}

/** SandboxStatus is the status of a sandbox. */
export type SandboxStatus = "starting" | "running" | "paused" | "hibernated" | "failed" | "deleting";

/** SandboxUsage is the answer of GET /v1/sandboxes/{id}/metrics. */
export interface SandboxUsage {
  sandbox_id: string;
  status: SandboxStatus;
  usage: ResourceUsage;
}

/** SetCurrentOrg is the body of POST /v1/me/current-org. */
export interface SetCurrentOrg {
  org_id: string;
}

/** Snapshot is a sandbox's memory, device state and disk at one moment. */
export interface Snapshot {
  /** the host that has it */
  agent_id: string;
  /** (RFC 3339) */
  created_at: string;
  disk_bytes: number;
  id: string;
  memory_bytes: number;
  name: string;
  /** how long the sandbox was paused for it */
  pause_ms: number;
  sandbox_id: string;
  /** on the host's disk: memory_bytes + disk_bytes */
  size_bytes: number;
  /** SnapshotStatus is the status of a snapshot. */
  status: string;
  /** it is in the snapshot store and can be restored on any host */
  stored: boolean;
  template: string;
}

/** SourceUpload is the answer to PUT /v1/apps/{id}/source. */
export interface SourceUpload {
  size_bytes: number;
  source_id: string;
}

/** StatusCounts counts requests by the first digit of their status. */
export interface StatusCounts {
  /** upgraded, to a WebSocket */
  "1xx": number;
  "2xx": number;
  "3xx": number;
  "4xx": number;
  "5xx": number;
  /** the client left before an answer */
  none: number;
}

/** Summary is a distribution in milliseconds; all zero if nothing was measured. */
export interface Summary {
  count: number;
  max: number;
  p50: number;
  p90: number;
  p99: number;
}

/** Template is what sandboxes are created from. */
export interface Template {
  /** of the build in use */
  build_id: string;
  cpu: number;
  /** (RFC 3339) */
  created_at: string;
  disk_mb: number;
  memory_mb: number;
  name: string;
  /** on a host's disk */
  size_bytes: number;
  status: TemplateStatus;
  /** (RFC 3339) */
  updated_at: string;
}

/** TemplateCheck says when a new guest is ready; all given conditions must hold. */
export interface TemplateCheck {
  /** exits 0 */
  cmd?: string;
  /** accepts a TCP connection */
  port?: number;
  timeout_seconds?: number;
}

/** TemplateStatus is the status of a template or of one of its builds. */
export type TemplateStatus = "unbuilt" | "queued" | "building" | "ready" | "failed";

/** Tier is a row of the table of tiers that the operator edits. */
export interface Tier {
  /** of the workspaces that have none */
  default: boolean;
  name: string;
  quotas: Quotas;
}

/** Token is an API key as lists show it. */
export interface Token {
  /** (RFC 3339) */
  created_at: string;
  /** null: valid until it is revoked (RFC 3339) */
  expires_at: string | null;
  /** to the hour; null: it was never used (RFC 3339) */
  last_used_at: string | null;
  name: string;
  /** 8 characters: the key is brt_<prefix>_<secret> */
  prefix: string;
  scopes: string[];
}

/** TransferLeadership is the body of POST /v1/admin/raft/transfer-leadership. */
export interface TransferLeadership {
  /** a peer's id; default: the most up-to-date one */
  to?: string;
}

/**
 * Usage is what a workspace has used in a month of UTC. What hosts have not told yet, about a
 * minute's, is not in it.
 */
export interface Usage {
  /** (RFC 3339) */
  begins: string;
  cost_microusd: number;
  /** (RFC 3339) */
  ends: string;
  /** by product and resource */
  lines: UsageLine[];
  /** YYYY-MM */
  month: string;
  paused: boolean;
  workspace_id: string;
  budget_microusd?: number;
  credit_microusd?: number;
}

/** UsageLine is one resource of one product. */
export interface UsageLine {
  /** by the prices of its time, in millionths of a USD */
  cost_microusd: number;
  /** sandbox, database, app */
  product: string;
  /** in the unit that the resource names, to the millisecond */
  quantity: number;
  resource: string;
}

/** UsageSample is what was used in the seconds before a moment. */
export interface UsageSample {
  /** (RFC 3339) */
  at: string;
  cpu_seconds: number;
  /** at the moment */
  disk_bytes: number;
  /** at the moment */
  memory_bytes: number;
  network_received_bytes: number;
  network_sent_bytes: number;
  seconds: number;
}

/** VersionInfo is the answer of GET /version. */
export interface VersionInfo {
  /** "v1" */
  api: string;
  /** of the source it was built from */
  commit: string;
  /** that built it */
  go_version: string;
  /** of the control plane, "v0.1.0" or "devel" */
  version: string;
}

/** Volume is a file system that outlives sandboxes. */
export interface Volume {
  agent_id: string;
  /** id of the sandbox */
  attached_to: string | null;
  /** (RFC 3339) */
  created_at: string;
  name: string;
  size_mb: number;
  used_bytes: number;
}

/** VolumeMount attaches a volume to a sandbox. */
export interface VolumeMount {
  /** absolute path in the guest */
  mount_path: string;
  name: string;
}

/** WebhookAttempt is one request to an endpoint. */
export interface WebhookAttempt {
  /** (RFC 3339) */
  at: string;
  /** null: it is under way, or was interrupted */
  duration_ms: number | null;
  /** why it was no success */
  error: string | null;
  /** null: there was no answer */
  status_code: number | null;
}

/** WebhookDelivery is one event on its way to one endpoint. */
export interface WebhookDelivery {
  /** oldest first, of them the last 20 */
  attempts: WebhookAttempt[];
  /** (RFC 3339) */
  created_at: string;
  /** why it is dead without another attempt */
  error: string | null;
  /** wd_…, the id of the event */
  id: string;
  /** null: there is none to come (RFC 3339) */
  next_attempt_at: string | null;
  status: WebhookStatus;
  type: WebhookEventType;
}

/**
 * WebhookDeployment is the data of deployment.building, deployment.succeeded and deployment.failed.
 */
export interface WebhookDeployment {
  app_id: string;
  deployment_id: string;
  git_commit: string;
  /** building, live or failed */
  status: string;
  /** of deployment.failed */
  error?: string;
}

/** WebhookEndpoint is a URL that events of a workspace are sent to. */
export interface WebhookEndpoint {
  /** (RFC 3339) */
  created_at: string;
  /** that are sent; empty: all */
  events: WebhookEventType[];
  id: string;
  url: string;
}

/** WebhookEvent is the body of a delivery. */
export interface WebhookEvent {
  /** (RFC 3339) */
  created_at: string;
  /** of the type that its event has */
  data: Record<string, unknown>;
  /** the same at each attempt: an event that was received already has a known one */
  id: string;
  type: WebhookEventType;
  /** id of the workspace in which it happened */
  workspace: string;
}

/** WebhookEventType is what a webhook tells of. */
export type WebhookEventType = "deployment.building" | "deployment.succeeded" | "deployment.failed" | "database.failover.started" | "database.failover.completed" | "quota.warning" | "quota.exhausted" | "endpoint.test";

/** WebhookFailover is the data of database.failover.started and database.failover.completed. */
export interface WebhookFailover {
  database_id: string;
  /** it was running, and was stopped for it */
  forced: boolean;
  label: string;
  /** restoring, then running */
  status: DatabaseStatus;
  /** of what is completed: the host that it is on now */
  agent_id?: string;
  /** of what is started: what it is restored from, and what is lost */
  detail?: string;
}

/** WebhookQuota is the data of quota.warning and quota.exhausted. */
export interface WebhookQuota {
  /** so far */
  cost_usd_used: number;
  /** included in a month */
  credit_usd: number;
  /** when the next month's credit begins (RFC 3339) */
  period_end: string;
}

/** WebhookStatus is where a delivery stands. */
export type WebhookStatus = "pending" | "delivered" | "failed" | "dead";

/** WebhookTest is the data of endpoint.test. */
export interface WebhookTest {
  endpoint_id: string;
}

/** Workspace is an organization as an operator sees it. */
export interface Workspace {
  /** (RFC 3339) */
  created_at: string;
  id: string;
  /** those that apply */
  limits: Quotas;
  name: string;
  /** its own, which take the place of the tier's */
  quotas: Quotas;
  /**
   * empty, "active", "trialing", "past_due" or "canceled"; creates are refused with 402 for the
   * last two
   */
  subscription_status: string;
  /** creates are refused with 403 */
  suspended: boolean;
  tier: string;
  usage: WorkspaceUsage;
  /** since when its compute is stopped, because the month's free credit is spent (RFC 3339) */
  paused_at?: string;
}

/** WorkspaceUsage is what a workspace has now, by the names of the quotas that limit it. */
export interface WorkspaceUsage {
  /** and functions */
  apps: number;
  /** of those that are not hibernated */
  cpu: number;
  /** of sandboxes in the last hour; 0 where no quota has them counted */
  creates_per_hour: number;
  databases: number;
  /** of sandboxes, databases, snapshots and volumes together */
  disk_mb: number;
  /** that have not expired */
  keys: number;
  members: number;
  /** likewise */
  memory_mb: number;
  /** without those of apps and databases */
  sandboxes: number;
  snapshots: number;
  templates: number;
  volume_mb: number;
}
