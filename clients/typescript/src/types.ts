// Results of streams and commands, in addition to the types in models.ts.
import { CommandFailed } from "./errors.js";
import type * as m from "./models.js";

/** A string runs under sh -c; an array is a program with its arguments. */
export type Command = string | string[];

/** How a command is run. */
export interface ExecOptions {
  cwd?: string;
  env?: Record<string, string>;
  user?: string;
  stdin?: string | Uint8Array;
  timeoutSeconds?: number;
}

/** Called with the bytes transferred and, if known, their total. */
export type Progress = (done: number, total: number | undefined) => void;

/** A piece of a command's output. */
export interface OutputPiece {
  type: "stdout" | "stderr";
  data: Uint8Array;
  text: string;
}

/** How a command ended; always last. */
export interface Exit {
  type: "exit";
  /** 128+n when signal n ended it. */
  exitCode: number;
  durationMs: number;
  timedOut: boolean;
}

export type Output = OutputPiece | Exit;

/** A piece of a detached command's output. */
export interface CommandPiece extends OutputPiece {
  /** Of its first byte, in the bytes of both streams. */
  offset: number;
}

/** Output of a detached command that is not kept any more. */
export interface Gap {
  type: "gap";
  /** Where the output goes on. */
  offset: number;
}

export type CommandOutput = CommandPiece | Gap | Exit;

/** One line of a log. */
export interface LogLine {
  /** stdout, stderr or console. */
  stream: string;
  line: string;
  /** When it was written, if known. */
  ts?: string;
  /** The line is very long and continues in the next one. */
  partial: boolean;
  /** The app's instance that wrote it; empty in other logs. */
  instance?: string;
}

/** A command's end and its output, up to 8 MiB per stream. */
export class ExecResult {
  /** 128+n when signal n ended it. */
  readonly exitCode: number;
  readonly stdout: string;
  readonly stderr: string;
  readonly stdoutBytes: Uint8Array;
  readonly stderrBytes: Uint8Array;
  readonly durationMs: number;
  readonly timedOut: boolean;
  /** A stream exceeded 8 MiB and the rest was dropped. */
  readonly truncated: boolean;

  constructor(raw: m.ExecResult) {
    this.exitCode = raw.exit_code;
    this.stdout = raw.stdout;
    this.stderr = raw.stderr;
    this.stdoutBytes = raw.stdout_base64 ? unbase64(raw.stdout_base64) : utf8(raw.stdout);
    this.stderrBytes = raw.stderr_base64 ? unbase64(raw.stderr_base64) : utf8(raw.stderr);
    this.durationMs = raw.duration_ms;
    this.timedOut = raw.timed_out;
    this.truncated = raw.truncated;
  }

  get ok(): boolean {
    return this.exitCode === 0 && !this.timedOut;
  }

  /** Returns this result, or throws CommandFailed if the command failed. */
  check(): this {
    if (!this.ok) {
      throw new CommandFailed(this);
    }
    return this;
  }
}

/** How much the service keeps of each stream of a command that is not streamed. */
const keptBytes = 8 << 20;

/** Assembles a command's result from its output, as the service would. */
export async function collect(output: AsyncIterable<Output>): Promise<m.ExecResult> {
  const kept = { stdout: new Uint8Array(keptBytes), stderr: new Uint8Array(keptBytes) };
  const sizes = { stdout: 0, stderr: 0 };
  const result: m.ExecResult = { exit_code: 0, stdout: "", stderr: "", duration_ms: 0, timed_out: false, truncated: false };
  for await (const piece of output) {
    if (piece.type === "exit") {
      result.exit_code = piece.exitCode;
      result.duration_ms = piece.durationMs;
      result.timed_out = piece.timedOut;
      continue;
    }
    const room = piece.data.subarray(0, keptBytes - sizes[piece.type]);
    result.truncated ||= room.length < piece.data.length;
    kept[piece.type].set(room, sizes[piece.type]);
    sizes[piece.type] += room.length;
  }
  for (const stream of ["stdout", "stderr"] as const) {
    const data = kept[stream].subarray(0, sizes[stream]);
    result[stream] = new TextDecoder("utf-8", { ignoreBOM: true }).decode(data);
    if (result[stream].includes("\ufffd")) {
      result[`${stream}_base64`] = base64(data);
    }
  }
  return result;
}

/** A frame or event of a command; undefined for an unknown kind. */
export function outputOf(type: string, raw: Record<string, unknown>): Output | undefined {
  if (type === "exit") {
    return {
      type,
      exitCode: Number(raw["exit_code"]),
      durationMs: Number(raw["duration_ms"] ?? 0),
      timedOut: raw["timed_out"] === true,
    };
  }
  if (type !== "stdout" && type !== "stderr") {
    return undefined;
  }
  const text = String(raw["data"] ?? "");
  if (raw["encoding"] !== "base64") {
    return { type, data: utf8(text), text };
  }
  const data = unbase64(text);
  return { type, data, text: new TextDecoder().decode(data) };
}

/** An event of a detached command's output; undefined for an unknown kind. */
export function commandOutputOf(type: string, raw: Record<string, unknown>): CommandOutput | undefined {
  const offset = Number(raw["offset"]);
  if (type === "gap") {
    return { type, offset };
  }
  const output = outputOf(type, raw);
  return output === undefined || output.type === "exit" ? output : { ...output, offset };
}

export function utf8(text: string): Uint8Array<ArrayBuffer> {
  return new TextEncoder().encode(text);
}

export function base64(data: Uint8Array): string {
  let text = "";
  for (let i = 0; i < data.length; i += 0x8000) {
    text += String.fromCharCode(...data.subarray(i, i + 0x8000));
  }
  return btoa(text);
}

export function unbase64(text: string): Uint8Array<ArrayBuffer> {
  return Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
}

/** The body of a command. */
export function execOf(cmd: Command, options: ExecOptions): m.Exec {
  const { cwd, env, user, stdin, timeoutSeconds } = options;
  return given({
    cmd,
    cwd,
    env,
    user,
    stdin: typeof stdin === "string" ? stdin : undefined,
    stdin_base64: stdin instanceof Uint8Array ? base64(stdin) : undefined,
    timeout_seconds: timeoutSeconds,
  });
}

type Given<T> = { [K in keyof T as undefined extends T[K] ? never : K]: T[K] } & {
  [K in keyof T as undefined extends T[K] ? K : never]?: Exclude<T[K], undefined>;
};

/** Removes undefined members from an object. */
export function given<T extends object>(all: T): Given<T> {
  return Object.fromEntries(Object.entries(all).filter(([, v]) => v !== undefined)) as Given<T>;
}
