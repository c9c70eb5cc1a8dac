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
  id: string;
  /** last heartbeat; null when none since the leader changed (RFC 3339) */
  last_seen_at: string | null;
  /** heard of, and its inventory is complete */
  ready: boolean;
  /** placed on it */
  sandboxes: number;
  /** "up" or "lost" */
  state: string;
  templates: AgentTemplate[];
  versions: AgentVersions;
}

/** AgentCapacity is what a host may give and what is given. */
export interface AgentCapacity {
  cpus: number;
  disk_free_bytes: number;
  memory_mb: number;
  /** worst case of all sandboxes on it */
  reserved_mb: number;
  /** network slots: the most sandboxes it can hold */
  slots: number;
  slots_used: number;
}

/** AgentTemplate is one template on one host. */
export interface AgentTemplate {
  /** digest of everything it was built from */
  build_id: string;
  /** why it failed */
  error: string | null;
  name: string;
  /** "building", "ready" or "failed" */
  status: string;
}

/** AgentVersions are what a host's stored states are bound to. */
export interface AgentVersions {
  engine: string;
  hostd: string;
  kernel: string;
}

/** Boot says how a new sandbox comes to life. */
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
  /** of run, start and every exec */
  env?: Record<string, string>;
  /** absolute path to content, before run */
  files?: Record<string, string>;
  memory_mb?: number;
  /** what must hold before the guest is stored */
  ready?: TemplateCheck;
  /** shell commands, in the guest, one after the other */
  run?: string[];
  /** shell command that runs as long as the guest does */
  start?: string;
}

/** CreateJoinToken is the body of POST /v1/admin/join-tokens. */
export interface CreateJoinToken {
  /** default one hour, at most 24 hours */
  ttl_seconds?: number;
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
  /** in the environment of every later exec */
  env?: Record<string, string>;
  /** id of a snapshot of the same template */
  from_snapshot?: string;
  /** any object; kept and returned as it is */
  metadata?: Record<string, unknown>;
  /** when its time ends it hibernates instead of being deleted */
  persistent?: boolean;
  /** default public */
  preview?: PreviewMode;
  /** default: it lives until it is deleted */
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
  /** from then on the key is refused; default: never (RFC 3339) */
  expires_at?: string;
  /** for people; need not be unique */
  name?: string;
  /** there are none yet: a key may do all that its workspace may */
  scopes?: string[];
}

/** CreateVolume is the body of POST /v1/volumes. */
export interface CreateVolume {
  name: string;
  /** default 256, at most 65536 */
  size_mb?: number;
}

/** Directory is what a directory holds, sorted by name. */
export interface Directory {
  entries: FileStat[];
  path: string;
}

/**
 * ErrorBody is the JSON of every response of status 400 and above, except 411, which has no body.
 * Quota errors carry more fields beside these two.
 */
export interface ErrorBody {
  error: string;
  detail?: string;
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

/** EventCode is how grave an event is. */
export type EventCode = "ok" | "error" | "warn";

/** Exec is the body of POST /v1/sandboxes/{id}/exec. */
export interface Exec {
  /** a string runs under sh -c, an array is an argv */
  cmd: string | string[];
  /** default: the user's home */
  cwd?: string;
  /** over the sandbox's own */
  env?: Record<string, string>;
  /** text */
  stdin?: string;
  /** instead of stdin, for any bytes (base64) */
  stdin_base64?: string;
  /** default 60, at most 3600 */
  timeout_seconds?: number;
  /** name or uid[:gid]; default root */
  user?: string;
}

/** ExecResult is the end of an exec with what it wrote, up to 8 MiB a stream. */
export interface ExecResult {
  /** in the guest */
  duration_ms: number;
  /** 128+n when signal n ended it */
  exit_code: number;
  stderr: string;
  stdout: string;
  /** timeout_seconds passed and the process group was killed */
  timed_out: boolean;
  /** a stream went past 8 MiB and the rest was dropped */
  truncated: boolean;
  /** the exact bytes, where stderr is not UTF-8 (base64) */
  stderr_base64?: string;
  /** the exact bytes, where stdout is not UTF-8 (base64) */
  stdout_base64?: string;
}

/** FailedFork is a child that did not come to life. */
export interface FailedFork {
  error: string;
  index: number;
}

/**
 * FileStat is one entry of a sandbox's file system. A link is described itself, not what it points
 * to.
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

/** FileType is what an entry is. */
export type FileType = "file" | "dir" | "symlink" | "other";

/** Fork is the body of POST /v1/sandboxes/{id}/fork. */
export interface Fork {
  /** 1 to 16, default 1; warm allows 1 alone */
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
  /** of every child, with the fork's own keys */
  metadata?: Record<string, unknown>;
}

/** Forked is the answer of a fork. */
export interface Forked {
  children: Sandbox[];
  failed: FailedFork[];
  mode: ForkMode;
  parent_id: string;
  /** how long the parent stood still */
  pause_ms: number;
}

/**
 * ForkedTree is the answer of a fork-tree: children with the parent's disk and memory. One child
 * that fails does not fail the call.
 */
export interface ForkedTree {
  children: Sandbox[];
  failed: FailedFork[];
  parent_id: string;
  /** how long the parent stood still */
  pause_ms: number;
  tree_id: string;
}

/** Health is the answer of GET /healthz. */
export interface Health {
  /** "ok" */
  status: string;
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

/** Lifecycle is how long a sandbox lives and what becomes of it then. */
export interface Lifecycle {
  /** null: it lives until it is deleted (RFC 3339) */
  expires_at: string | null;
  /** at its end it hibernates instead of being deleted */
  persistent: boolean;
  status: SandboxStatus;
  ttl_seconds: number | null;
}

/** Me is the answer of GET /v1/me: the person behind a JWT. */
export interface Me {
  /** in which the JWT acts; null for a member of none */
  current_org: Org | null;
  /** empty where the issuer does not tell it */
  email: string;
  id: string;
  orgs: Org[];
}

/** NewToken is the answer of POST /v1/me/tokens. The key is shown this once. */
export interface NewToken {
  /** (RFC 3339) */
  created_at: string;
  /** (RFC 3339) */
  expires_at: string | null;
  name: string;
  prefix: string;
  /** the whole key, brt_<prefix>_<secret> */
  token: string;
}

/** Org is a workspace as its members see it. */
export interface Org {
  /** (RFC 3339) */
  created_at: string;
  id: string;
  name: string;
  /** creates are refused with 403 */
  suspended: boolean;
}

/** Owner is the app or database that manages a sandbox. */
export interface Owner {
  id: string;
  /** "app" or "database" */
  type: string;
}

/**
 * PatchLifecycle is the body of PATCH /v1/sandboxes/{id}/lifecycle. What is absent stays as it is.
 */
export interface PatchLifecycle {
  persistent?: boolean;
  /** counted from now; null: no end */
  ttl_seconds?: number | null;
}

/**
 * Port is a port of a sandbox: one that something listens on, one that the client registered, or
 * both.
 */
export interface Port {
  /** as registered */
  label: string;
  port: number;
  /** that listens; empty where none does, or it is not known */
  process: string;
  /** "tcp" or "udp" */
  protocol: string;
  /** its preview; empty for udp */
  url: string;
}

/**
 * PreviewAccess is a token for the preview URLs of one sandbox, to be sent once as the query
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

/** RaftPeer is one member of the control store. */
export interface RaftPeer {
  /** host:port of its peer port */
  address: string;
  /** 0 where the answering replica does not know */
  applied_index: number;
  healthy: boolean;
  id: string;
  /** -1 where the answering replica does not know */
  last_contact_ms: number;
  voter: boolean;
}

/** RaftStatus is the control store as one replica sees it. */
export interface RaftStatus {
  applied_index: number;
  commit_index: number;
  /** since the leader was heard; 0 on the leader, -1 never */
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
  /** null: it lives until it is deleted (RFC 3339) */
  expires_at: string | null;
  /** id of the sandbox it was forked from */
  forked_from: string | null;
  /** id of the snapshot it was made from */
  from_snapshot: string | null;
  /** 26 characters of lower-case base32 */
  id: string;
  memory_mb: number;
  /** the client's own object; {} when none was given */
  metadata: Record<string, unknown>;
  /** the app or database that manages it */
  owner: Owner | null;
  /** when its time ends it hibernates instead of being deleted */
  persistent: boolean;
  preview: PreviewMode;
  /** a pattern: replace {port} */
  preview_url: string;
  /** when it first ran (RFC 3339) */
  started_at: string | null;
  status: SandboxStatus;
  /** its name */
  template: string;
  /** as asked for at the create */
  ttl_seconds: number | null;
  volumes: VolumeMount[];
}

/** SandboxMetrics is one row of GET /v1/metrics/sandboxes: one template on one day. */
export interface SandboxMetrics {
  boot_ms: Summary;
  /** UTC, 2006-01-02 */
  day: string;
  deaths: number;
  /** children that came to life */
  forks: number;
  /** that had an event */
  sandboxes: number;
  /** sandbox.running */
  starts: number;
  template: string;
  wake_ms: Summary;
  wakes: number;
}

/** SandboxStatus is where a sandbox stands. */
export type SandboxStatus = "starting" | "running" | "paused" | "hibernated" | "failed" | "deleting";

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
  /** how long the sandbox stood still for it */
  pause_ms: number;
  sandbox_id: string;
  /** on the host's disk: memory_bytes + disk_bytes */
  size_bytes: number;
  /** SnapshotStatus is where a snapshot stands. */
  status: string;
  /** it is in the snapshot store and can be restored on any host */
  stored: boolean;
  template: string;
}

/** Summary is a distribution in milliseconds; all zero where nothing was measured. */
export interface Summary {
  count: number;
  max: number;
  p50: number;
  p90: number;
  p99: number;
}

/** Template is what sandboxes are made from. */
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

/** TemplateCheck is when a new guest is ready; all that is given must hold. */
export interface TemplateCheck {
  /** exits 0 */
  cmd?: string;
  /** accepts a TCP connection */
  port?: number;
  timeout_seconds?: number;
}

/** TemplateStatus is where a template or a build of it stands. */
export type TemplateStatus = "unbuilt" | "queued" | "building" | "ready" | "failed";

/** Token is an API key as lists show it. */
export interface Token {
  /** (RFC 3339) */
  created_at: string;
  /** null: it is good until it is revoked (RFC 3339) */
  expires_at: string | null;
  name: string;
  /** 8 characters: the key is brt_<prefix>_<secret> */
  prefix: string;
}

/** TransferLeadership is the body of POST /v1/admin/raft/transfer-leadership. */
export interface TransferLeadership {
  /** a peer's id; default: the most up to date */
  to?: string;
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
