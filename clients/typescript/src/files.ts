// The files of a sandbox.
import type { Body } from "./call.js";
import { NotFound, StreamBroken } from "./errors.js";
import type * as m from "./models.js";
import * as op from "./operations.js";
import { bytes } from "./streams.js";
import type { Transport } from "./transport.js";
import type { Progress } from "./types.js";

/** Paths are absolute. */
export class Files {
  constructor(
    private readonly transport: Transport,
    private readonly id: string,
  ) {}

  /** Reads a complete file; for a large one use stream or download. */
  async read(path: string): Promise<Uint8Array> {
    const response = await this.transport.stream(op.readFile(this.id, { path }));
    const chunks: Uint8Array[] = [];
    for await (const chunk of bytes(response)) {
      chunks.push(chunk);
    }
    const out = new Uint8Array(chunks.reduce((n, c) => n + c.length, 0));
    chunks.reduce((at, c) => (out.set(c, at), at + c.length), 0);
    return out;
  }

  /** Reads a complete file as UTF-8 text. */
  async readText(path: string): Promise<string> {
    return new TextDecoder().decode(await this.read(path));
  }

  /** Reads a file in pieces. */
  async *stream(path: string): AsyncGenerator<Uint8Array> {
    yield* bytes(await this.transport.stream(op.readFile(this.id, { path })));
  }

  /** Copies a file of the sandbox to a local file, which appears once complete. Returns the number of bytes. Only in Node. */
  async download(path: string, to: string, options: { progress?: Progress } = {}): Promise<number> {
    const { open, rename, rm } = await import("node:fs/promises");
    const part = `${to}.part`;
    const response = await this.transport.stream(op.readFile(this.id, { path }));
    const length = response.headers.get("content-length");
    const total = length === null ? undefined : Number(length);
    let done = 0;
    try {
      const file = await open(part, "w");
      try {
        for await (const chunk of bytes(response)) {
          await file.writeFile(chunk);
          done += chunk.length;
          options.progress?.(done, total);
        }
      } finally {
        await file.close();
      }
      if (total !== undefined && done !== total) {
        throw new StreamBroken(`${done} of ${total} bytes came`);
      }
      await rename(part, to);
    } finally {
      await rm(part, { force: true });
    }
    return done;
  }

  /** Writes a file, also from pieces. Creates parent directories. mode is octal, by default "0644". */
  write(path: string, data: Body, options: { mode?: string } = {}): Promise<void> {
    return this.transport.nothing(op.writeFile(this.id, data, { path, mode: options.mode }));
  }

  /** Copies a local file into the sandbox, where it appears when it is complete. Returns the number of bytes. Only in Node. */
  async upload(local: string, path: string, options: { mode?: string; progress?: Progress } = {}): Promise<number> {
    const { open } = await import("node:fs/promises");
    const file = await open(local);
    try {
      const { size } = await file.stat();
      const pieces = async function* (): AsyncGenerator<Uint8Array> {
        let done = 0;
        for await (const chunk of file.createReadStream({ autoClose: false, highWaterMark: 256 << 10 })) {
          yield chunk as Uint8Array;
          done += (chunk as Uint8Array).length;
          options.progress?.(done, size);
        }
      };
      await this.write(path, pieces(), options);
      return size;
    } finally {
      await file.close();
    }
  }

  /** Describes what is at a path; a link is described itself. */
  stat(path: string): Promise<m.FileStat> {
    return this.transport.call(op.statFile(this.id, { path }));
  }

  async exists(path: string): Promise<boolean> {
    try {
      await this.stat(path);
      return true;
    } catch (e) {
      if (e instanceof NotFound && e.error === "no such file or directory") {
        return false;
      }
      throw e;
    }
  }

  /** Deletes a file or a directory; with recursive, also one that is not empty. */
  delete(path: string, options: { recursive?: boolean } = {}): Promise<void> {
    return this.transport.nothing(op.removeFile(this.id, { path, recursive: options.recursive || undefined }));
  }

  /** Creates a directory and its parents. */
  mkdir(path: string): Promise<void> {
    return this.transport.nothing(op.makeDir(this.id, { path }));
  }

  /** Lists a directory, sorted by name. */
  async list(path: string): Promise<m.FileStat[]> {
    return (await this.transport.call(op.listDir(this.id, { path }))).entries;
  }
}
