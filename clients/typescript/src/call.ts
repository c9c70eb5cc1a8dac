// Calls as data: what to send and how to read the answer.

/** Bytes to send: at once or in pieces. */
export type Body = Uint8Array | string | Blob | ReadableStream<Uint8Array> | AsyncIterable<Uint8Array>;

export type QueryValue = string | number | boolean | undefined;

/** One HTTP request, without address and credential. */
export interface Request {
  method: string;
  path: string;
  query?: Record<string, QueryValue>;
  json?: unknown;
  content?: Body;
  /** The operation takes an Idempotency-Key. */
  idempotent?: boolean;
  idempotencyKey?: string | undefined;
}

declare const answer: unique symbol;

/** A request whose answer is one JSON value. */
export interface Call<T> extends Request {
  kind: "call";
  readonly [answer]?: T;
}

/** A request for one page of a list. */
export interface Page<T> extends Request {
  kind: "page";
  readonly [answer]?: T;
}

/** A request whose answer has no body. */
export interface Nothing extends Request {
  kind: "nothing";
}

/** A request whose answer is a stream. */
export interface Stream extends Request {
  kind: "stream";
}

/** A request to open a WebSocket. */
export interface Socket extends Request {
  kind: "socket";
}
