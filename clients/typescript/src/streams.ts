// Streams of a sandbox: output of commands, events, lines of logs.
import { backoff } from "./attempts.js";
import type { Stream } from "./call.js";
import { ConnectionFailed, NotFound, StreamBroken } from "./errors.js";
import type * as m from "./models.js";
import * as op from "./operations.js";
import { messages, said, type Message } from "./sse.js";
import { why, type Transport } from "./transport.js";
import { commandOutputOf, outputOf, type CommandOutput, type LogLine, type Output } from "./types.js";

/** The bytes of an answer. Leaving the loop closes the answer. */
export async function* bytes(response: Response): AsyncGenerator<Uint8Array> {
  const reader = response.body?.getReader();
  if (reader === undefined) {
    return;
  }
  try {
    for (;;) {
      const { done, value } = await reader.read().catch((e: unknown) => {
        throw new ConnectionFailed(`the stream broke off: ${why(e)}`, { cause: e });
      });
      if (done) {
        return;
      }
      yield value;
    }
  } finally {
    await reader.cancel().catch(() => undefined);
  }
}

async function* open(transport: Transport, call: Stream, alive?: () => void): AsyncGenerator<Message> {
  for await (const message of messages(bytes(await transport.stream(call)), alive)) {
    if (message.event === "error") {
      throw new StreamBroken(said(message.json));
    }
    yield message;
  }
}

/** The output of a command and its end. Leaving the iteration kills it. */
export async function* execOutput(transport: Transport, id: string, body: m.Exec): AsyncGenerator<Output> {
  for await (const message of open(transport, op.execStream(id, body))) {
    const output = outputOf(message.event, message.json);
    if (output !== undefined) {
      yield output;
    }
    if (output?.type === "exit") {
      return;
    }
  }
  throw new StreamBroken("the stream ended before the command");
}

/** What a detached command has written since an offset. */
export async function* commandOutput(transport: Transport, call: Stream, alive?: () => void): AsyncGenerator<CommandOutput> {
  for await (const message of open(transport, call, alive)) {
    const output = commandOutputOf(message.event, message.json);
    if (output !== undefined) {
      yield output;
    }
    if (output?.type === "exit") {
      return;
    }
  }
}

/**
 * The same, and then what it writes until its end. A broken connection is replaced, unless
 * the sandbox was stopped: to follow again would wake it.
 */
export async function* commandFeed(transport: Transport, id: string, command: string, since: number): AsyncGenerator<CommandOutput> {
  let failures = 0;
  const alive = (): void => void (failures = 0);
  for (;;) {
    try {
      for await (const output of commandOutput(transport, op.followCommandOutput(id, command, { since }), alive)) {
        if (output.type === "exit") {
          yield output;
          return;
        }
        since = output.type === "gap" ? output.offset : output.offset + output.data.length;
        failures = 0;
        yield output;
      }
    } catch (e) {
      if (!(e instanceof ConnectionFailed || e instanceof StreamBroken) || failures >= transport.retries) {
        throw e;
      }
    }
    await transport.sleep(backoff(failures++));
    const { status } = await transport.call(op.getSandbox(id));
    if (status === "hibernated" || status === "paused") {
      throw new StreamBroken(`the sandbox is ${status}: its commands go on when it does`);
    }
  }
}

/** Events until the sandbox is deleted. A broken connection is replaced. */
export async function* eventFeed(
  transport: Transport,
  id: string,
  options: { since?: string | undefined; tail?: number | undefined },
): AsyncGenerator<m.Event> {
  let { since, tail } = options;
  let began = false;
  let failures = 0;
  const alive = (): void => void (failures = 0);
  for (;;) {
    try {
      const response = await transport.stream(op.followEvents(id, { since, tail }));
      began = true;
      const date = Date.parse(response.headers.get("date") ?? "");
      if (since === undefined && tail === 0 && !Number.isNaN(date)) {
        // Where another connection continues.
        since = new Date(date).toISOString();
        tail = undefined;
      }
      for await (const message of messages(bytes(response), alive)) {
        if (message.event === "error") {
          throw new StreamBroken(said(message.json));
        }
        if (message.event !== "ev") {
          continue;
        }
        const event = message.json as unknown as m.Event;
        since = event.ts;
        tail = undefined;
        failures = 0;
        yield event;
        if (event.type === "sandbox.deleted") {
          return;
        }
      }
    } catch (e) {
      if (e instanceof NotFound && began) {
        return; // gone in the meantime
      }
      if (!(e instanceof ConnectionFailed || e instanceof StreamBroken) || ++failures > transport.retries) {
        throw e;
      }
    }
    await transport.sleep(backoff(failures));
  }
}

/** Existing lines of a log, and then new ones. */
export async function* logFeed(transport: Transport, call: Stream): AsyncGenerator<LogLine> {
  for await (const { event, json } of open(transport, call)) {
    if (typeof json["line"] === "string") {
      const ts = json["ts"];
      yield {
        stream: event,
        line: json["line"],
        partial: json["partial"] === true,
        ...(typeof json["instance"] === "string" ? { instance: json["instance"] } : {}),
        ...(typeof ts === "string" ? { ts } : {}),
      };
    }
  }
}

/** The log of a build until it ends. */
export async function* buildFeed(transport: Transport, id: string): AsyncGenerator<string> {
  for await (const { event, json } of open(transport, op.buildLogs(id))) {
    if (event === "end") {
      return;
    }
    if (event === "log") {
      yield String(json["line"]);
    }
  }
  throw new StreamBroken("the log ended before the build");
}
