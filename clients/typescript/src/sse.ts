// Parses server-sent events from a stream of bytes.

/** One event. */
export interface Message {
  event: string;
  /** The data of an event of the service, which is a JSON object. */
  json: Record<string, unknown>;
}

/** The events in an answer's body. Each comment, such as a ping, calls alive. Leaving the loop closes the answer. */
export async function* messages(body: AsyncIterable<Uint8Array>, alive: () => void = () => undefined): AsyncGenerator<Message> {
  const decoder = new TextDecoder();
  let rest = "";
  let event = "";
  let data: string[] = [];
  for await (const chunk of body) {
    const lines = (rest + decoder.decode(chunk, { stream: true })).split("\n");
    rest = lines.pop() ?? "";
    for (const raw of lines) {
      const line = raw.endsWith("\r") ? raw.slice(0, -1) : raw;
      if (line === "") {
        if (data.length > 0) {
          const value: unknown = JSON.parse(data.join("\n"));
          yield { event: event || "message", json: typeof value === "object" && value !== null ? { ...value } : {} };
        }
        event = "";
        data = [];
        continue;
      }
      const at = line.indexOf(":");
      const name = at < 0 ? line : line.slice(0, at);
      const value = at < 0 ? "" : line.slice(line[at + 1] === " " ? at + 2 : at + 1);
      if (name === "event") {
        event = value;
      } else if (name === "data") {
        data.push(value);
      } else if (name === "") {
        alive();
      }
    }
  }
}

/** What an event named error says. */
export function said(raw: Record<string, unknown>): string {
  const error = typeof raw["error"] === "string" ? raw["error"] : "the stream broke off";
  return typeof raw["detail"] === "string" ? `${error}: ${raw["detail"]}` : error;
}
