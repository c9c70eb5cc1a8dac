// Whether, where and when a call is tried again.
import type { Request } from "./call.js";
import { replayable } from "./content.js";
import { retryAfter, type Refusal } from "./errors.js";

/** The longest time in seconds that a call waits because an answer says so. Its caller knows better what to do in an hour. */
const PATIENCE = 120;

/** Where and when a call is tried again, until it is given up.
 *
 * After a refused connection the next replica is tried at once: nothing was sent.
 * A call that is safe to repeat is also tried again after a broken connection,
 * 502, 507, and 503 with Retry-After. After a rate limit (429 with Retry-After)
 * every call waits and is repeated, because it had no effect. A quota is an error,
 * because waiting does not help, and so is what asks for more than two minutes.
 */
export class Attempts {
  private failed = 0;

  constructor(
    private readonly urls: readonly string[],
    private readonly retries: number,
    private readonly request: Request,
    public at: number,
  ) {}

  get url(): string {
    return this.urls[this.at]!;
  }

  private get replayable(): boolean {
    return replayable(this.request.content);
  }

  private get safe(): boolean {
    const once = ["GET", "HEAD", "PUT", "DELETE"].includes(this.request.method) || this.request.idempotencyKey !== undefined;
    return once && this.replayable;
  }

  /** Seconds to wait after a failed connection; undefined: give up. */
  afterBreak(sent: boolean): number | undefined {
    return sent && !this.safe ? undefined : this.next(undefined);
  }

  /** Seconds to wait after a refusal; undefined: the refusal is the answer. */
  afterAnswer(r: Pick<Refusal, "status" | "header">): number | undefined {
    const wait = retryAfter(r);
    const again =
      r.status === 429
        ? wait !== undefined && this.replayable
        : r.status === 503
          ? wait !== undefined && this.safe
          : (r.status === 502 || r.status === 507) && this.safe;
    return again && (wait ?? 0) <= PATIENCE ? this.next(wait) : undefined;
  }

  private next(wait: number | undefined): number | undefined {
    this.failed++;
    if (this.failed > Math.max(this.retries, wait === undefined ? this.urls.length - 1 : 0)) {
      return undefined;
    }
    this.at = (this.at + 1) % this.urls.length;
    if (wait !== undefined) {
      return wait + Math.random() / 4;
    }
    return this.failed < this.urls.length ? 0 : backoff(this.failed - this.urls.length);
  }
}

/** Seconds to wait after that many failures: half a second, doubled up to 8, with jitter. */
export function backoff(failures: number): number {
  return Math.min(0.5 * 2 ** Math.max(failures, 0), 8) * (0.75 + Math.random() / 2);
}
