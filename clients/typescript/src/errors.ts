// What can go wrong. Everything that the package throws by itself is a BerthError.
import type { ExecResult } from "./types.js";

/** Of everything that this package throws. */
export class BerthError extends Error {
  override get name(): string {
    return this.constructor.name;
  }
}

/** No replica could be reached, or the connection broke off. */
export class ConnectionFailed extends BerthError {}

/** A stream ended before its end. What it came from may go on. */
export class StreamBroken extends BerthError {}

/** Nothing came in the time that there was. */
export class TimeoutError extends BerthError {}

/** A template could not be built; the message says why. */
export class BuildFailed extends BerthError {}

/** A command that was to succeed did not. */
export class CommandFailed extends BerthError {
  constructor(readonly result: ExecResult) {
    const how = result.timedOut ? "timed out" : `ended with code ${result.exitCode}`;
    const said = result.stderr.slice(-500).trim();
    super(`the command ${how}${said ? `: ${said}` : ""}`);
  }
}

/** The service refused. Branch on the class or on status: texts may change. */
export class APIError extends BerthError {
  constructor(
    readonly status: number,
    readonly error: string,
    readonly detail?: string,
    /** Quote it when you ask for help. */
    readonly requestId?: string,
    /** Seconds that the service asks to wait. */
    readonly retryAfter?: number,
    /** What else the body had, such as max and active of a quota. */
    readonly fields: Record<string, unknown> = {},
  ) {
    super(
      error + (detail ? `: ${detail}` : "") + ` (status ${status}` + (requestId ? `, request ${requestId})` : ")"),
    );
  }
}

/** 400: the request is wrong; the same again will be refused again. */
export class BadRequest extends APIError {}
/** 401: no credential, or not a valid one. */
export class Unauthorized extends APIError {}
/** 402: the workspace's credit or subscription has ended. */
export class PaymentRequired extends APIError {}
/** 403: the credential is not for this. */
export class Forbidden extends APIError {}
/** 404: there is none, or it belongs to somebody else. */
export class NotFound extends APIError {}
/** 409: not in the state that it is in now. */
export class Conflict extends APIError {}
/** 429: a rate limit (then there is retryAfter) or a quota (then there are fields). */
export class LimitExceeded extends APIError {}
/** 500 and above: not the caller's fault. */
export class ServerError extends APIError {}
/** 502: no host could take it, or the host did not answer. */
export class Unreachable extends ServerError {}
/** 503: the service cannot decide now, as while a leader is elected. */
export class Unavailable extends ServerError {}
/** 507: no room on the hosts. */
export class InsufficientCapacity extends ServerError {}

const classes: Record<number, typeof APIError> = {
  400: BadRequest,
  401: Unauthorized,
  402: PaymentRequired,
  403: Forbidden,
  404: NotFound,
  409: Conflict,
  429: LimitExceeded,
  502: Unreachable,
  503: Unavailable,
  507: InsufficientCapacity,
};

/** What of an answer an error is made from. */
export interface Refusal {
  status: number;
  header(name: string): string | null;
  body: string;
}

/** The error for an answer that is not a success, whoever wrote it. */
export function errorOf(r: Refusal): APIError {
  let fields: Record<string, unknown> = {};
  try {
    const parsed: unknown = JSON.parse(r.body);
    if (typeof parsed === "object" && parsed !== null && !Array.isArray(parsed)) {
      fields = { ...parsed };
    }
  } catch {
    // Not ours: told by its status.
  }
  const { error, detail, ...rest } = fields;
  const of = classes[r.status] ?? (r.status >= 500 ? ServerError : APIError);
  return new of(
    r.status,
    typeof error === "string" && error ? error : `status ${r.status}`,
    typeof detail === "string" ? detail : undefined,
    r.header("x-request-id") ?? undefined,
    retryAfter(r),
    rest,
  );
}

/** The seconds of a Retry-After header; its other form, a date, is not used here. */
export function retryAfter(r: Pick<Refusal, "header">): number | undefined {
  const text = r.header("retry-after");
  return text !== null && /^\d{1,6}$/.test(text) ? Number(text) : undefined;
}
