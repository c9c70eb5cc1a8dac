// What a request sends.
import type { Body } from "./call.js";

/** Whether a body can be sent a second time. */
export function replayable(body: Body | undefined): body is undefined | string | Uint8Array | Blob {
  return body === undefined || typeof body === "string" || body instanceof Uint8Array || body instanceof Blob;
}

/** How many pieces are kept. Node takes one or two before it is connected. */
const KEPT = 4;

/**
 * The body of a request. The beginning of one in pieces is kept, so that another
 * replica can have it if the first cannot be reached.
 */
export class Content {
  private readonly pieces: AsyncIterator<Uint8Array> | undefined;
  private readonly kept: Promise<IteratorResult<Uint8Array>>[] = [];
  private passed = false;
  private ended = false;

  constructor(private readonly given: Body | undefined) {
    if (!replayable(given)) {
      this.pieces = Symbol.asyncIterator in given ? given[Symbol.asyncIterator]() : read(given);
    }
  }

  get inPieces(): boolean {
    return this.pieces !== undefined;
  }

  /** Whether its beginning is still there. */
  get whole(): boolean {
    return !this.passed;
  }

  /** The body for one attempt. */
  body(): BodyInit {
    const { pieces } = this;
    if (pieces === undefined) {
      return this.given as BodyInit;
    }
    let at = 0;
    return new ReadableStream<Uint8Array>(
      {
        pull: async (to) => {
          const { value, done } = await this.piece(pieces, at++);
          if (done) {
            this.ended = true;
            to.close();
          } else {
            to.enqueue(value);
          }
        },
      },
      { highWaterMark: 0 },
    );
  }

  private piece(from: AsyncIterator<Uint8Array>, at: number): Promise<IteratorResult<Uint8Array>> {
    if (at < KEPT) {
      return (this.kept[at] ??= from.next());
    }
    this.passed = true;
    this.kept.length = 0;
    return from.next();
  }

  /** Tells the source that no more is read. It may be waiting, so this does not. */
  release(): void {
    if (!this.ended) {
      this.pieces?.return?.().catch(() => undefined);
    }
  }
}

/** Where a stream is not iterable. */
async function* read(stream: ReadableStream<Uint8Array>): AsyncGenerator<Uint8Array> {
  const reader = stream.getReader();
  try {
    for (let next = await reader.read(); !next.done; next = await reader.read()) {
      yield next.value;
    }
  } finally {
    await reader.cancel();
  }
}
