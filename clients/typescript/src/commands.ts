// Detached commands of a sandbox.
import type * as m from "./models.js";
import * as op from "./operations.js";
import { StreamBroken } from "./errors.js";
import { commandFeed, commandOutput } from "./streams.js";
import type { Transport } from "./transport.js";
import { base64, execOf, type Command, type CommandOutput, type ExecOptions, type Exit } from "./types.js";

/**
 * The commands that belong to a sandbox and not to who started them. They go on through
 * hibernation and wake, and in the children of a fork tree. Asking for them wakes a
 * hibernated sandbox.
 */
export class Commands {
  constructor(
    private readonly transport: Transport,
    private readonly sandboxId: string,
  ) {}

  /**
   * Starts a command. It has no timeout unless one is given. Its input stays open, unless
   * stdin is given, which is then all of it.
   */
  async start(cmd: Command, options: ExecOptions & { idempotencyKey?: string } = {}): Promise<DetachedCommand> {
    const { idempotencyKey, ...exec } = options;
    return this.of(await this.transport.call(op.startCommand(this.sandboxId, execOf(cmd, exec), { idempotencyKey })));
  }

  /** Finds a command by its id. */
  async get(id: string): Promise<DetachedCommand> {
    return this.of(await this.transport.call(op.getCommand(this.sandboxId, id)));
  }

  /** Lists the commands that run and the last 100 that have ended, newest first. */
  async list(): Promise<DetachedCommand[]> {
    return (await this.transport.call(op.listCommands(this.sandboxId))).map((info) => this.of(info));
  }

  private of(info: m.SandboxCommand): DetachedCommand {
    return new DetachedCommand(this.transport, this.sandboxId, info);
  }
}

/** A command that goes on without its caller. */
export class DetachedCommand {
  constructor(
    private readonly transport: Transport,
    private readonly sandboxId: string,
    /** Its last known record; see refresh. */
    public info: m.SandboxCommand,
  ) {}

  get id(): string {
    return this.info.id;
  }

  get status(): m.SandboxCommand["status"] {
    return this.info.status;
  }

  /** null while it runs; 128+n when signal n ended it. */
  get exitCode(): number | null {
    return this.info.exit_code;
  }

  /** Reads its record again. */
  async refresh(): Promise<this> {
    this.info = await this.transport.call(op.getCommand(this.sandboxId, this.id));
    return this;
  }

  /**
   * Iterates over what it has written since an offset, with a Gap where output is not kept
   * any more, and its Exit if it has ended.
   */
  output(options: { since?: number } = {}): AsyncGenerator<CommandOutput> {
    return commandOutput(this.transport, op.commandOutput(this.sandboxId, this.id, { since: options.since }));
  }

  /**
   * Iterates over what it has written since an offset and what it writes, until its Exit. A
   * broken connection is replaced, without gaps or duplicates, unless the sandbox was
   * stopped: to follow again would wake it. Leaving the loop does not end the command.
   */
  follow(options: { since?: number } = {}): AsyncGenerator<CommandOutput> {
    return commandFeed(this.transport, this.sandboxId, this.id, options.since ?? 0);
  }

  /** Waits for its end. A code other than 0 is no error. */
  async wait(): Promise<Exit> {
    await this.refresh();
    for await (const output of this.follow({ since: this.info.output_bytes })) {
      if (output.type === "exit") {
        await this.refresh();
        return output;
      }
    }
    throw new StreamBroken("the stream ended before the command");
  }

  /** Writes to its input. With eof nothing follows. */
  input(data: string | Uint8Array, options: { eof?: boolean } = {}): Promise<void> {
    const text = typeof data === "string" ? { data } : { data: base64(data), encoding: "base64" };
    return this.transport.nothing(op.writeCommand(this.sandboxId, this.id, { ...text, eof: options.eof ?? false }));
  }

  /** Sends a signal, such as "INT", to its process group. */
  signal(name: string): Promise<void> {
    return this.transport.nothing(op.signalCommand(this.sandboxId, this.id, { signal: name }));
  }

  /** Kills it with everything it started, and forgets it. */
  delete(): Promise<void> {
    return this.transport.nothing(op.deleteCommand(this.sandboxId, this.id));
  }
}
