// Terminals, commands with their input open, and language servers: over WebSockets.
import { StreamBroken } from "./errors.js";
import { said } from "./sse.js";
import { base64, outputOf, utf8, type Exit, type Output } from "./types.js";
import type { Connection } from "./websocket.js";

/** What is at the other end ends with close, or with `await using`. */
abstract class Session {
  constructor(protected readonly connection: Connection) {}

  close(): void {
    this.connection.close();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.close();
  }

  protected say(frame: Record<string, unknown>): void {
    this.connection.send(JSON.stringify(frame));
  }
}

/** A program on a terminal in a sandbox. Iterate over what it shows. */
export class Pty extends Session {
  /** Set once the program has ended. */
  exitCode: number | undefined;

  /** Types something. A line ends with \r or \n; Ctrl-C is "\x03". */
  send(data: string | Uint8Array): void {
    this.connection.send(typeof data === "string" ? utf8(data) : data);
  }

  /** Tells the program that the terminal has another size. */
  resize(cols: number, rows: number): void {
    this.say({ type: "resize", cols, rows });
  }

  /** Sends a signal, such as "TERM". */
  signal(name: string): void {
    this.say({ type: "signal", signal: name });
  }

  /** What the program shows next; undefined once it has ended. TimeoutError where nothing comes in time. */
  async recv(timeoutSeconds?: number): Promise<Uint8Array | undefined> {
    while (this.exitCode === undefined) {
      const message = await this.connection.receive(timeoutSeconds);
      if (typeof message !== "string") {
        if (message.length > 0) {
          return message;
        }
        continue;
      }
      const frame = frameOf(message);
      if (frame["type"] === "exit") {
        this.exitCode = Number(frame["exit_code"]);
      }
    }
    return undefined;
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<Uint8Array> {
    for (let data = await this.recv(); data !== undefined; data = await this.recv()) {
      yield data;
    }
  }
}

/** A command that runs in a sandbox, with its input open. Iterate over what it writes and its end. */
export class Process extends Session {
  /** Set once it has ended. */
  exit: Exit | undefined;

  /** Gives the command input. */
  write(data: string | Uint8Array): void {
    this.say(typeof data === "string" ? { type: "stdin", data } : { type: "stdin", data: base64(data), encoding: "base64" });
  }

  /** Ends its input. */
  closeStdin(): void {
    this.say({ type: "eof" });
  }

  /** Sends it a signal, such as "INT". */
  signal(name: string): void {
    this.say({ type: "signal", signal: name });
  }

  /** What comes next, at last an Exit. TimeoutError where nothing comes in time. */
  async recv(timeoutSeconds?: number): Promise<Output> {
    while (this.exit === undefined) {
      const frame = frameOf(await this.connection.receive(timeoutSeconds));
      const output = outputOf(String(frame["type"]), frame);
      if (output?.type === "exit") {
        this.exit = output;
      }
      if (output !== undefined) {
        return output;
      }
    }
    return this.exit;
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<Output> {
    while (this.exit === undefined) {
      yield await this.recv();
    }
  }
}

/** A language server of a sandbox. It speaks JSON-RPC, whose messages are objects here. */
export class LanguageServer extends Session {
  send(message: Record<string, unknown>): void {
    this.say(message);
  }

  /** The next message. TimeoutError where none comes in time. */
  async recv(timeoutSeconds?: number): Promise<Record<string, unknown>> {
    return objectOf(await this.connection.receive(timeoutSeconds));
  }
}

function objectOf(message: string | Uint8Array): Record<string, unknown> {
  const value: unknown = JSON.parse(typeof message === "string" ? message : new TextDecoder().decode(message));
  return typeof value === "object" && value !== null ? { ...value } : {};
}

function frameOf(message: string | Uint8Array): Record<string, unknown> {
  const frame = objectOf(message);
  if (frame["type"] === "error") {
    throw new StreamBroken(said(frame));
  }
  return frame;
}
