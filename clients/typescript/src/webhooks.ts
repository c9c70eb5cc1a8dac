// Verification of the webhooks that Berth sends.
import { BerthError } from "./errors.js";
import type { WebhookEvent } from "./models.js";

/** A webhook that is not from the service, or not of now. Refuse it. */
export class InvalidSignature extends BerthError {}

/** Seconds that the time of a signature may be from the receiver's. */
export const WEBHOOK_TOLERANCE = 300;

/** Headers of a request: those of fetch, or those of node:http. */
export type WebhookHeaders =
  | { get(name: string): string | null }
  | Readonly<Record<string, string | readonly string[] | undefined>>;

/**
 * Reads a webhook whose signature is right and at most 5 minutes old. The body is the
 * request's, byte for byte, before anything has parsed it. The id of the event is the
 * same at each attempt: keep those that were acted on. Rejects with InvalidSignature.
 */
export async function verifyWebhook(
  secret: string,
  headers: WebhookHeaders,
  body: Uint8Array | string,
  options: { /** Unix seconds; default: those of now. */ now?: number } = {},
): Promise<WebhookEvent> {
  if (!secret) {
    throw new BerthError("no secret");
  }
  const { time, signatures } = parse(headerOf(headers));
  if (!/^-?\d+$/.test(time) || signatures.length === 0) {
    throw new InvalidSignature("want t=<unix seconds>,v1=<hex>");
  }
  if (Math.abs((options.now ?? Date.now() / 1000) - Number(time)) > WEBHOOK_TOLERANCE) {
    throw new InvalidSignature("it is of another time");
  }
  const encoder = new TextEncoder();
  const bytes = typeof body === "string" ? encoder.encode(body) : body;
  const signed = concat(encoder.encode(`${time}.`), bytes);
  // Node.js 18 has it only as a module.
  const subtle = globalThis.crypto?.subtle ?? (await import("node:crypto")).webcrypto.subtle;
  const key = await subtle.importKey("raw", encoder.encode(secret), { name: "HMAC", hash: "SHA-256" }, false, [
    "verify",
  ]);
  let valid = false;
  for (const signature of signatures) {
    const mac = fromHex(signature);
    valid = (mac !== undefined && (await subtle.verify("HMAC", key, mac, signed))) || valid;
  }
  if (!valid) {
    throw new InvalidSignature("it does not match");
  }
  return JSON.parse(new TextDecoder().decode(bytes)) as WebhookEvent;
}

function headerOf(headers: WebhookHeaders): string {
  if (typeof headers.get === "function") {
    return headers.get("x-service-signature") ?? "";
  }
  for (const [name, value] of Object.entries(headers)) {
    if (name.toLowerCase() === "x-service-signature") {
      return typeof value === "string" ? value : "";
    }
  }
  return "";
}

/** The time and the signatures of version 1. */
function parse(header: string): { time: string; signatures: string[] } {
  let time = "";
  const signatures: string[] = [];
  for (const part of header.split(",")) {
    const [name, value = ""] = part.trim().split("=", 2);
    if (name === "t") {
      time = value;
    } else if (name === "v1") {
      signatures.push(value);
    }
  }
  return { time, signatures };
}

function concat(a: Uint8Array, b: Uint8Array): Uint8Array<ArrayBuffer> {
  const out = new Uint8Array(a.length + b.length);
  out.set(a);
  out.set(b, a.length);
  return out;
}

function fromHex(text: string): Uint8Array<ArrayBuffer> | undefined {
  if (!/^(?:[0-9a-f]{2})+$/i.test(text)) {
    return undefined;
  }
  const out = new Uint8Array(text.length / 2);
  for (let i = 0; i < out.length; i++) {
    out[i] = Number.parseInt(text.slice(2 * i, 2 * i + 2), 16);
  }
  return out;
}
