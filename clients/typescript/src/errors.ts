// Errors. Everything that the package itself throws is a BerthError.
import type { ExecResult } from "./types.js";

/** Base class of all errors of this package. */
export class BerthError extends Error {
  override get name(): string {
    return this.constructor.name;
  }
}

/** No replica could be reached, or the connection broke. */
export class ConnectionFailed extends BerthError {}

/** A stream broke off. The command or build behind it may continue. */
export class StreamBroken extends BerthError {}

/** Nothing came in time. */
export class TimeoutError extends BerthError {}

/** A template could not be built; the message says why. */
export class BuildFailed extends BerthError {}

/** A database could not be made, restored or woken; the message says why. */
export class DatabaseFailed extends BerthError {}

/** A version of an app could not be brought into service; the message says why. */
export class DeploymentFailed extends BerthError {}

/** A checked command failed. */
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
    /** Quote it in a problem report. */
    readonly requestId?: string,
    /** Seconds to wait, according to the service. */
    readonly retryAfter?: number,
    /** Other members of the body, such as max and active of a quota. */
    readonly fields: Record<string, unknown> = {},
  ) {
    super(
      error + (detail ? `: ${detail}` : "") + ` (status ${status}` + (requestId ? `, request ${requestId})` : ")"),
    );
  }
}

/** 400: the request is wrong; do not repeat it unchanged. */
export class BadRequest extends APIError {}
/** 401: no credential, or not a valid one. */
export class Unauthorized extends APIError {}
/** 402: the workspace's credit or subscription has ended. */
export class PaymentRequired extends APIError {}
/** 403: the credential does not permit this. */
export class Forbidden extends APIError {}
/** 404: it does not exist, or belongs to another workspace. */
export class NotFound extends APIError {}
/** 409: its current state does not allow this. */
export class Conflict extends APIError {}
/** 429: a rate limit (with retryAfter) or a quota (with fields). */
export class LimitExceeded extends APIError {}
/** 500 and above: not the caller's fault. */
export class ServerError extends APIError {}
/** 502: no host could take the request, or the host did not answer. */
export class Unreachable extends ServerError {}
/** 503: temporarily unavailable, for example while a leader is elected. */
export class Unavailable extends ServerError {}
/** 507: the hosts lack memory or storage. */
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

/** The parts of an answer that make up an error. */
export interface Refusal {
  status: number;
  header(name: string): string | null;
  body: string;
}

/** The error for an answer that is not a success, from the service or a proxy. */
export function errorOf(r: Refusal): APIError {
  let fields: Record<string, unknown> = {};
  try {
    const parsed: unknown = JSON.parse(r.body);
    if (typeof parsed === "object" && parsed !== null && !Array.isArray(parsed)) {
      fields = { ...parsed };
    }
  } catch {
    // Not the service's: only the status is known.
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
