// WebSockets of the platform or, if it has none, of the package ws.
import { ConnectionFailed, StreamBroken, TimeoutError, type Refusal } from "./errors.js";

/** An answer that refuses a WebSocket. */
export class Refused extends Error {
  constructor(readonly refusal: Refusal) {
    super(`status ${refusal.status}`);
  }
}

/** A WebSocket that the platform could not open; it does not say why. */
export class Unexplained extends Error {}

/** A socket. Only ws can pause; the platform's keeps in memory what nobody has received. */
type Channel = Pick<WebSocket, "send" | "close"> & { pause?(): void; resume?(): void };

/**
 * Bytes that wait for who receives them, before no more are read. Many, because then the
 * pings of the service are not answered either.
 */
const WAITING = 8 << 20;

/** One connection, with messages in both directions. */
export class Connection {
  private readonly queue: (string | Uint8Array)[] = [];
  private waiting = 0;
  private closed: string | undefined;
  private leaving = false;
  private wake: () => void = () => undefined;

  constructor(private readonly socket: Channel) {}

  /** Called for each message. */
  push(message: string | Uint8Array): void {
    this.queue.push(message);
    this.waiting += message.length;
    if (this.waiting >= WAITING && !this.leaving) {
      this.socket.pause?.();
    }
    this.wake();
  }

  /** Called at the end. */
  end(reason: string): void {
    this.closed ??= reason ? `the connection was closed: ${reason}` : "the connection was closed";
    this.wake();
  }

  send(message: string | Uint8Array): void {
    if (this.closed !== undefined) {
      throw new StreamBroken(this.closed);
    }
    this.socket.send(message as string);
  }

  close(): void {
    this.leaving = true;
    this.socket.resume?.(); // the other end's close comes after what it has sent
    this.socket.close();
  }

  /** The next message; TimeoutError if none comes in time. */
  async receive(timeoutSeconds?: number): Promise<string | Uint8Array> {
    if (this.queue.length === 0 && this.closed === undefined) {
      let timer: ReturnType<typeof setTimeout> | undefined;
      await new Promise<void>((done) => {
        this.wake = done;
        if (timeoutSeconds !== undefined) {
          timer = setTimeout(done, timeoutSeconds * 1000);
        }
      });
      clearTimeout(timer);
    }
    const message = this.queue.shift();
    if (message !== undefined) {
      this.waiting -= message.length;
      if (this.waiting < WAITING / 2) {
        this.socket.resume?.();
      }
      return message;
    }
    if (this.closed !== undefined) {
      throw new StreamBroken(this.closed);
    }
    throw new TimeoutError(`nothing came in ${timeoutSeconds} seconds`);
  }
}

/**
 * Seconds in which nothing comes, not even one of the pings that the service sends every
 * 20, before a connection is ended: the other end may be gone without a word.
 */
const SILENCE = 300;

/** Opens a WebSocket. */
export async function connect(url: string, token: string, silence = SILENCE): Promise<Connection> {
  const ws = await import("ws").then(
    (m) => m.WebSocket,
    () => undefined,
  );
  if (ws !== undefined) {
    return connectWS(ws, url, token, silence);
  }
  if (typeof WebSocket === "undefined") {
    throw new ConnectionFailed("there is no WebSocket here: install the package ws");
  }
  return connectPlatform(WebSocket, url, token);
}

/** ws can set a header and shows the body of a refusal. */
function connectWS(WS: typeof import("ws").WebSocket, url: string, token: string, silence: number): Promise<Connection> {
  return new Promise((done, fail) => {
    const socket = new WS(url, { headers: { authorization: `Bearer ${token}` }, perMessageDeflate: false });
    const connection = new Connection(socket as unknown as Channel);
    const watch = setTimeout(() => {
      if (socket.isPaused) {
        watch.refresh(); // we do not listen
        return;
      }
      connection.end("the service is silent");
      socket.terminate();
    }, silence * 1000);
    watch.unref(); // it keeps no program alive
    socket.on("open", () => done(connection));
    socket.on("ping", () => watch.refresh());
    socket.on("message", (data, binary) => {
      watch.refresh();
      const bytes = data as Buffer;
      connection.push(binary ? new Uint8Array(bytes) : bytes.toString());
    });
    socket.on("error", (e) => {
      fail(e);
      connection.end(e.message);
    });
    socket.on("close", (_, reason) => {
      clearTimeout(watch);
      connection.end(reason.toString());
    });
    socket.on("unexpected-response", (_, response) => {
      clearTimeout(watch);
      const { socket: below } = response;
      const chunks: Buffer[] = [];
      response.on("data", (chunk: Buffer) => chunks.push(chunk));
      response.on("error", fail);
      response.on("end", () => {
        const header = (name: string): string | null => {
          const value = response.headers[name];
          return typeof value === "string" ? value : null;
        };
        below.destroy(); // otherwise the connection keeps the program alive
        fail(new Refused({ status: response.statusCode ?? 0, header, body: Buffer.concat(chunks).toString() }));
      });
    });
  });
}

/** The platform's WebSocket cannot set a header, so the credential is sent as a subprotocol. */
export function connectPlatform(WS: typeof WebSocket, url: string, token: string): Promise<Connection> {
  return new Promise((done, fail) => {
    const socket = new WS(url, ["berth.v1", `bearer.${token}`]);
    socket.binaryType = "arraybuffer";
    const connection = new Connection(socket);
    socket.onopen = () => done(connection);
    socket.onmessage = ({ data }: MessageEvent<string | ArrayBuffer>) =>
      connection.push(typeof data === "string" ? data : new Uint8Array(data));
    socket.onerror = () => fail(new Unexplained("the WebSocket was refused; the platform does not say why"));
    socket.onclose = ({ reason }) => {
      fail(new Unexplained("the WebSocket was closed before it was open"));
      connection.end(reason);
    };
  });
}
