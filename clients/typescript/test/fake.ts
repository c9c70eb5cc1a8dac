// A small service that gives scripted answers and records requests.
import { createServer, type Server } from "node:http";
import type { AddressInfo, Socket } from "node:net";
import { WebSocketServer } from "ws";
import { Berth, type Options, type Sandbox } from "../src/index.js";

export const SANDBOX = {
  id: "k7q2mz4tn6vxb3jw5yr8acdefg",
  status: "running",
  template: "base",
  metadata: {},
  created_at: "2026-11-20T13:05:09.412Z",
  preview_url: "http://{port}-k7q2mz4tn6vxb3jw5yr8acdefg.preview.localhost",
};

export interface Asked {
  method: string;
  path: string;
  headers: NodeJS.Dict<string | string[]>;
  body: Buffer;
}

export interface Answer {
  status?: number;
  json?: unknown;
  body?: string | Uint8Array;
  headers?: Record<string, string>;
  chunks?: (string | Uint8Array)[];
  /** Breaks the connection: at once, or after the chunks. */
  cut?: boolean;
}

export class Fake {
  readonly asked: Asked[] = [];
  readonly waits: number[] = [];
  /** The connections with requests. */
  readonly peers = new Set<Socket>();
  url = "";
  private answers: (Answer | ((asked: Asked) => Answer))[] = [];
  private server: Server | undefined;

  /** The next answers in order; the last one repeats. */
  say(...answers: (Answer | ((asked: Asked) => Answer))[]): void {
    this.answers = answers;
  }

  async start(): Promise<this> {
    this.server = createServer((request, response) => {
      this.peers.add(request.socket);
      const chunks: Buffer[] = [];
      request.on("data", (chunk: Buffer) => chunks.push(chunk));
      request.on("end", () => {
        const asked = {
          method: request.method ?? "",
          path: request.url ?? "",
          headers: request.headers,
          body: Buffer.concat(chunks),
        };
        this.asked.push(asked);
        const next = this.answers.length > 1 ? this.answers.shift()! : this.answers[0]!;
        const a = typeof next === "function" ? next(asked) : next;
        if (a.cut && a.chunks === undefined) {
          request.socket.destroy();
          return;
        }
        response.writeHead(a.status ?? 200, a.headers);
        if (a.chunks === undefined) {
          response.end(a.json === undefined ? a.body : JSON.stringify(a.json));
          return;
        }
        for (const chunk of a.chunks) {
          response.write(chunk);
        }
        // Written data must be sent before the connection ends.
        if (a.cut) {
          setTimeout(() => request.socket.destroy(), 20);
        } else {
          response.end();
        }
      });
    });
    await new Promise<void>((done) => this.server!.listen(0, "127.0.0.1", done));
    this.url = `http://127.0.0.1:${(this.server.address() as AddressInfo).port}`;
    return this;
  }

  stop(): void {
    this.server?.closeAllConnections();
    this.server?.close();
  }

  /** Pauses are recorded instead of waited for. */
  client(options: Options = {}): Berth {
    const sleep = (seconds: number): Promise<void> => {
      this.waits.push(seconds);
      return Promise.resolve();
    };
    return new Berth({ url: this.url, token: "brt_test_key", sleep, ...options });
  }

  async sandbox(): Promise<Sandbox> {
    this.say({ status: 201, json: SANDBOX });
    const sandbox = await this.client().sandboxes.create();
    this.asked.length = 0;
    return sandbox;
  }
}

/** An address that refuses connections. */
export async function refusing(): Promise<string> {
  const gone = createServer();
  await new Promise<void>((done) => gone.listen(0, "127.0.0.1", done));
  const url = `http://127.0.0.1:${(gone.address() as AddressInfo).port}`;
  await new Promise((done) => gone.close(done));
  return url;
}

/** A terminal or command that echoes its input until it is told to end. */
export async function sockets(): Promise<{ url: string; protocols: string[]; stop: () => void }> {
  const protocols: string[] = [];
  const server = new WebSocketServer({
    port: 0,
    host: "127.0.0.1",
    maxPayload: 1 << 20, // as the service
    handleProtocols: (offered) => {
      protocols.push(...offered);
      return "berth.v1";
    },
  });
  server.on("connection", (socket, request) => {
    let first = request.url?.includes("/exec/ws") ?? false;
    socket.on("message", (data: Buffer, binary) => {
      if (binary) {
        socket.send(data, { binary: true });
        return;
      }
      if (first) {
        first = false;
        socket.send(JSON.stringify({ type: "stdout", data: data.toString() }));
        return;
      }
      const frame = JSON.parse(data.toString()) as Record<string, string>;
      if (frame["type"] === "eof" || frame["signal"] === "TERM") {
        socket.send(JSON.stringify({ type: "exit", exit_code: 143, duration_ms: 1 }));
      } else if (frame["signal"] === "INT") {
        socket.send(JSON.stringify({ type: "error", error: "agent unreachable" }));
      } else if (frame["signal"] === "KILL") {
        socket.close(1011, "the guest is gone");
      } else if (frame["type"] === "stdin") {
        socket.send(JSON.stringify({ ...frame, type: "stderr" }));
      }
    });
  });
  await new Promise((done) => server.once("listening", done));
  const url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
  return {
    url,
    protocols,
    stop: () => {
      server.clients.forEach((c) => c.terminate());
      server.close();
    },
  };
}
