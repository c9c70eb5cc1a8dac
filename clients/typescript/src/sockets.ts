// Terminals, commands with open input, and language servers, over WebSockets.
import { StreamBroken } from "./errors.js";
import { said } from "./sse.js";
import { base64, outputOf, utf8, type Exit, type Output } from "./types.js";
import type { Connection } from "./websocket.js";

/** close, or the end of `await using`, ends the program at the other end. */
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

/** A program on a terminal in a sandbox. Iterate over its output. */
export class Pty extends Session {
  /** Set when the program has ended. */
  exitCode: number | undefined;

  /** Sends input. A line ends with \r or \n; Ctrl-C is "\x03". */
  send(data: string | Uint8Array): void {
    for (const piece of pieces(typeof data === "string" ? utf8(data) : data)) {
      this.connection.send(piece);
    }
  }

  /** Changes the size of the terminal. */
  resize(cols: number, rows: number): void {
    this.say({ type: "resize", cols, rows });
  }

  /** Sends a signal, such as "TERM". */
  signal(name: string): void {
    this.say({ type: "signal", signal: name });
  }

  /** The next output of the program; undefined when it has ended. TimeoutError if nothing comes in time. */
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

/** A running command with open input. Iterate over its output and its end. */
export class Process extends Session {
  /** Set when it has ended. */
  exit: Exit | undefined;

  /** Sends input to the command. */
  write(data: string | Uint8Array): void {
    for (const piece of pieces(data)) {
      this.say(typeof piece === "string" ? { type: "stdin", data: piece } : { type: "stdin", data: base64(piece), encoding: "base64" });
    }
  }

  /** Ends its input. */
  closeStdin(): void {
    this.say({ type: "eof" });
  }

  /** Sends it a signal, such as "INT". */
  signal(name: string): void {
    this.say({ type: "signal", signal: name });
  }

  /** The next output, at the end an Exit. TimeoutError if nothing comes in time. */
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

/** A language server of a sandbox. Its JSON-RPC messages are objects here. */
export class LanguageServer extends Session {
  send(message: Record<string, unknown>): void {
    this.say(message);
  }

  /** The next message. TimeoutError if none comes in time. */
  async recv(timeoutSeconds?: number): Promise<Record<string, unknown>> {
    return objectOf(await this.connection.receive(timeoutSeconds));
  }
}

/** Bytes of input in one message; as JSON well below the service's limit, 1 MiB, whatever they are. */
const MESSAGE = 48 << 10;

/** Input in pieces that fit into a message; the code points of a text stay whole. */
function* pieces<T extends string | Uint8Array>(data: T): Generator<T> {
  for (let at = 0; at < data.length; ) {
    let end = Math.min(at + (typeof data === "string" ? MESSAGE / 4 : MESSAGE), data.length);
    if (typeof data === "string" && end < data.length && (data.codePointAt(end - 1) ?? 0) > 0xffff) {
      end--; // between the halves of a surrogate pair
    }
    yield (typeof data === "string" ? data.slice(at, end) : data.subarray(at, end)) as T;
    at = end;
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
