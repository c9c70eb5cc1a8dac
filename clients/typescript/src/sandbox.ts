// One sandbox and its forks.
import { Commands } from "./commands.js";
import { NotFound } from "./errors.js";
import { Files } from "./files.js";
import type * as m from "./models.js";
import * as op from "./operations.js";
import { LanguageServer, Process, Pty } from "./sockets.js";
import { bytes, eventFeed, execOutput, logFeed } from "./streams.js";
import type { Transport } from "./transport.js";
import { collect, execOf, ExecResult, given, type Command, type ExecOptions, type LogLine, type Output } from "./types.js";

export { given, type ExecOptions } from "./types.js";

export type LogStream = "stdout" | "stderr" | "both" | "console";

/**
 * Seconds to wait for the first byte of an answer. fetch waits at most five
 * minutes and has no setting for it, so a command that may take longer is
 * streamed.
 */
const patience = 240;

/** A microVM. With `await using` it is deleted at the end of the block. */
export class Sandbox {
  readonly commands: Commands;
  readonly files: Files;
  readonly ports: Ports;

  constructor(
    private readonly transport: Transport,
    /** Its last known record; see refresh. */
    public info: m.Sandbox,
  ) {
    this.commands = new Commands(transport, info.id);
    this.files = new Files(transport, info.id);
    this.ports = new Ports(transport, info.id);
  }

  /** A credential: anyone who has it can reach the sandbox's public ports. */
  get id(): string {
    return this.info.id;
  }

  get status(): m.SandboxStatus {
    return this.info.status;
  }

  get metadata(): Record<string, unknown> {
    return this.info.metadata;
  }

  /** Reads its record again. */
  async refresh(): Promise<this> {
    this.info = await this.transport.call(op.getSandbox(this.id));
    return this;
  }

  /** Deletes it, with its memory and its disk. */
  delete(): Promise<void> {
    return this.transport.nothing(op.deleteSandbox(this.id));
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await gone(this.delete());
  }

  // Commands.

  /** Runs a command and waits for its end. With check, a command that fails raises CommandFailed. */
  async exec(cmd: Command, options: ExecOptions & { check?: boolean } = {}): Promise<ExecResult> {
    const body = execOf(cmd, options);
    const raw =
      (options.timeoutSeconds ?? 0) > patience
        ? await collect(execOutput(this.transport, this.id, body))
        : await this.transport.call(op.exec(this.id, body));
    const result = new ExecResult(raw);
    return options.check ? result.check() : result;
  }

  /** Runs a command and iterates over its output and then its Exit. Leaving the loop kills it. */
  stream(cmd: Command, options: ExecOptions = {}): AsyncGenerator<Output> {
    return execOutput(this.transport, this.id, execOf(cmd, options));
  }

  /** Runs a command whose input stays open. */
  async process(cmd: Command, options: Omit<ExecOptions, "stdin"> = {}): Promise<Process> {
    const connection = await this.transport.socket(op.execSocket(this.id));
    connection.send(JSON.stringify(execOf(cmd, options)));
    return new Process(connection);
  }

  /** Opens a terminal with a shell or another program. */
  async pty(options: { cmd?: string; cols?: number; rows?: number; cwd?: string; user?: string } = {}): Promise<Pty> {
    return new Pty(await this.transport.socket(op.openTerminal(this.id, options)));
  }

  /** Connects to the template's language server for lang. */
  async languageServer(lang: string): Promise<LanguageServer> {
    return new LanguageServer(await this.transport.socket(op.openLanguageServer(this.id, lang)));
  }

  // Logs and events.

  /** Reads the output of the template's start command or, with stream "console", of the guest's console. */
  async logs(options: { stream?: LogStream; tail?: number } = {}): Promise<string> {
    const decoder = new TextDecoder();
    let text = "";
    for await (const chunk of bytes(await this.transport.stream(op.logs(this.id, options)))) {
      text += decoder.decode(chunk, { stream: true });
    }
    return text + decoder.decode();
  }

  /** Iterates over existing lines and then new ones. */
  followLogs(options: { stream?: LogStream; tail?: number } = {}): AsyncGenerator<LogLine> {
    return logFeed(this.transport, op.followLogs(this.id, options));
  }

  /** Reads its events, oldest first. */
  events(options: { tail?: number; since?: string } = {}): Promise<m.Event[]> {
    return this.transport.call(op.events(this.id, options));
  }

  /**
   * Iterates over existing events and then new ones, until the sandbox is deleted. A
   * broken connection is replaced, without gaps or duplicates.
   */
  followEvents(options: { tail?: number; since?: string } = {}): AsyncGenerator<m.Event> {
    return eventFeed(this.transport, this.id, options);
  }

  // Lifecycle.

  /** Stops its CPUs and keeps its memory. */
  async pause(): Promise<this> {
    this.info = await this.transport.call(op.pauseSandbox(this.id));
    return this;
  }

  /** Resumes it after a pause, or after a warm fork of it. */
  async resume(): Promise<this> {
    this.info = await this.transport.call(op.resumeSandbox(this.id));
    return this;
  }

  /** Writes its memory to disk and frees it. The next command wakes it. */
  async hibernate(): Promise<this> {
    this.info = await this.transport.call(op.hibernateSandbox(this.id));
    return this;
  }

  /** Wakes it from hibernation. */
  async wake(): Promise<this> {
    this.info = await this.transport.call(op.wakeSandbox(this.id));
    return this;
  }

  /** Reads when it expires, and what happens then. */
  lifecycle(): Promise<m.Lifecycle> {
    return this.transport.call(op.getLifecycle(this.id));
  }

  /** Changes when it expires. ttlSeconds counts from now; null means never. */
  setLifecycle(options: { ttlSeconds?: number | null; persistent?: boolean }): Promise<m.Lifecycle> {
    return this.transport.call(
      op.patchLifecycle(this.id, given({ ttl_seconds: options.ttlSeconds, persistent: options.persistent })),
    );
  }

  // Snapshots and forks.

  /** Saves its memory and disk as they are now; see fromSnapshot of create. */
  snapshot(name?: string): Promise<m.Snapshot> {
    return this.transport.call(op.createSnapshot(this.id, given({ name })));
  }

  /**
   * Creates children with its disk, freshly booted. Returns those that run; the
   * others are in `failed`. Warm: creates one child that also has its memory, in
   * its place on the network. This sandbox is then paused until it is resumed.
   */
  async fork(count = 1, options: { mode?: m.ForkMode } = {}): Promise<Fork> {
    const forked = await this.transport.call(op.forkSandbox(this.id, given({ count, mode: options.mode })));
    const children = forked.children.map((info) => new Sandbox(this.transport, info));
    return Object.assign(children, { failed: forked.failed, pauseMs: forked.pause_ms });
  }

  /** Creates children with its disk and its memory, in which its processes continue. */
  async forkTree(count = 2, options: { metadata?: Record<string, unknown> } = {}): Promise<ForkTree> {
    const forked = await this.transport.call(op.forkTree(this.id, given({ count, metadata: options.metadata })));
    return new ForkTree(
      this.transport,
      forked,
      forked.children.map((info) => new Sandbox(this.transport, info)),
    );
  }

  // Ports.

  /** Returns the URL of one of its ports. */
  previewUrl(port: number): string {
    return this.info.preview_url.replace("{port}", String(port));
  }

  /** Creates a token for the previews of a sandbox created with preview "token": for one port, or for all. */
  previewToken(options: { port?: number; ttlSeconds?: number } = {}): Promise<m.PreviewAccess> {
    return this.transport.call(
      op.createPreviewToken(this.id, given({ port: options.port, ttl_seconds: options.ttlSeconds })),
    );
  }
}

/** The children of a fork: those that run and those that failed. */
export type Fork = Sandbox[] & {
  /** Children that failed to start. */
  readonly failed: m.FailedFork[];
  /** How long the parent was paused. */
  readonly pauseMs: number;
};

/**
 * Children that continue where their parent was, independently of each other. With `await
 * using` they are deleted at the end of the block, but for the one that was
 * promoted.
 */
export class ForkTree {
  readonly treeId: string;
  readonly parentId: string;
  /** Children that failed to start. */
  readonly failed: m.FailedFork[];
  /** How long the parent was paused. */
  readonly pauseMs: number;
  /** Whether the capture is in the snapshot store. */
  readonly stored: boolean;
  promoted: Sandbox | undefined;

  constructor(
    private readonly transport: Transport,
    forked: m.ForkedTree,
    public children: Sandbox[],
  ) {
    this.treeId = forked.tree_id;
    this.parentId = forked.parent_id;
    this.failed = forked.failed;
    this.pauseMs = forked.pause_ms;
    this.stored = forked.stored;
  }

  /** Keeps the child and, with `cleanupSiblings`, deletes the others at once. */
  async promote(child: Sandbox, options: { cleanupSiblings?: boolean } = {}): Promise<Sandbox> {
    const answer = await this.transport.call(
      op.promote(child.id, { tree_id: this.treeId, cleanup_siblings: options.cleanupSiblings ?? false }),
    );
    child.info = answer.promoted;
    this.promoted = child;
    this.children = this.children.filter((c) => !answer.deleted.includes(c.id));
    return child;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await Promise.all(this.children.filter((c) => c !== this.promoted).map((c) => gone(c.delete())));
  }
}

/** The ports of a sandbox. Every port is reachable, registered or not. */
export class Ports {
  constructor(
    private readonly transport: Transport,
    private readonly id: string,
  ) {}

  /** Registers a port with a label. */
  add(port: number, label?: string): Promise<m.Port> {
    return this.transport.call(op.addPort(this.id, given({ port, label })));
  }

  /** Unregisters a port. */
  remove(port: number): Promise<void> {
    return this.transport.nothing(op.removePort(this.id, { port }));
  }

  /** Lists listening and registered ports. */
  list(): Promise<m.Port[]> {
    return this.transport.call(op.listPorts(this.id));
  }
}

async function gone(deleted: Promise<void>): Promise<void> {
  try {
    await deleted;
  } catch (e) {
    if (!(e instanceof NotFound)) {
      throw e;
    }
  }
}
