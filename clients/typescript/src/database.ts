// Managed PostgreSQL databases.
import { backoff } from "./attempts.js";
import { BerthError, DatabaseFailed, NotFound } from "./errors.js";
import type * as m from "./models.js";
import * as op from "./operations.js";
import { given } from "./sandbox.js";
import { bytes, logFeed } from "./streams.js";
import type { Transport } from "./transport.js";
import type { LogLine } from "./types.js";

/** How a database is created. */
export interface CreateDatabaseOptions {
  label?: string;
  /** Default: 1g. */
  size?: m.DatabaseSize;
  alwaysOn?: boolean;
  /** Default: true, until it runs. */
  wait?: boolean;
  idempotencyKey?: string;
}

/** How a database is cloned. */
export interface CloneOptions {
  /** As of when; default: the latest that is archived. */
  at?: Date | string;
  label?: string;
  size?: m.DatabaseSize;
  /** Default: true, until it runs. */
  wait?: boolean;
  idempotencyKey?: string;
}

/** A statement and its parameters, for $1 and on. */
export type Statement = string | [sql: string, ...params: unknown[]];

/** The workspace's databases. */
export class Databases {
  constructor(private readonly transport: Transport) {}

  /** Creates a database and, unless told not to, waits until it runs. */
  async create(options: CreateDatabaseOptions = {}): Promise<Database> {
    const body = given({ label: options.label, size: options.size, always_on: options.alwaysOn });
    const call = op.createDatabase(body, { idempotencyKey: options.idempotencyKey });
    const database = new Database(this.transport, await this.transport.call(call));
    return options.wait === false ? database : database.wait();
  }

  async get(id: string): Promise<Database> {
    return new Database(this.transport, await this.transport.call(op.getDatabase(id)));
  }

  /** Iterates over all, newest first and without credentials; see refresh. */
  async *list(): AsyncGenerator<Database> {
    for await (const info of this.transport.pages(op.listDatabases())) {
      yield new Database(this.transport, info);
    }
  }
}

/** PostgreSQL 16 in a microVM, which sleeps when nobody is connected. */
export class Database {
  constructor(
    private readonly transport: Transport,
    /** Its last known record; see refresh. */
    public info: m.Database,
  ) {}

  get id(): string {
    return this.info.id;
  }

  get status(): m.DatabaseStatus {
    return this.info.status;
  }

  /** With the password, as of the last refresh; only while it runs. It says nothing of sslmode. */
  get connectionUrl(): string {
    if (!this.info.connection_url) {
      throw new BerthError(`the database is ${this.info.status}: it has a URL while it runs`);
    }
    return this.info.connection_url;
  }

  /** Reads its record again. */
  async refresh(): Promise<this> {
    this.info = await this.transport.call(op.getDatabase(this.id));
    return this;
  }

  /**
   * Waits until it runs; DatabaseFailed if it cannot. The very first database waits
   * until its template is built.
   */
  async wait(options: { timeoutSeconds?: number } = {}): Promise<this> {
    const seconds = options.timeoutSeconds ?? 900;
    const deadline = Date.now() + seconds * 1000;
    for (let polls = 0; this.info.status !== "running"; polls++) {
      if (this.info.status === "failed") {
        throw new DatabaseFailed(this.info.error ?? "the database failed");
      }
      if (this.info.status === "hibernated" && this.info.error) {
        throw new BerthError(`the database is hibernated: ${this.info.error}`); // a wake has failed
      }
      if (Date.now() > deadline) {
        throw new BerthError(`the database is ${this.info.status} after ${seconds} seconds`);
      }
      await this.transport.sleep(Math.min(backoff(polls), 2));
      try {
        await this.refresh();
      } catch (e) {
        // While it is restored there is, for a moment, none.
        if (!(e instanceof NotFound && this.info.status === "restoring")) {
          throw e;
        }
      }
    }
    return this;
  }

  /** Wakes it and waits until it runs. There is no need to: whoever connects wakes it. */
  async wake(): Promise<this> {
    await this.transport.call(op.wakeDatabase(this.id));
    this.info = { ...this.info, status: "waking" }; // of one that runs, the credentials are yet to be read
    return this.wait();
  }

  /** Says whether it may be put to sleep. */
  async setAlwaysOn(on: boolean): Promise<this> {
    this.info = await this.transport.call(op.patchDatabase(this.id, { always_on: on }));
    return this;
  }

  /** Changes its password and broker token. Clients with the old ones are cut off. */
  async rotate(): Promise<this> {
    await this.transport.call(op.resetCredentials(this.id));
    return this.refresh();
  }

  /** Makes a database of what is archived of this one: all, or what was there at a moment. */
  async clone(options: CloneOptions = {}): Promise<Database> {
    const at = options.at instanceof Date ? options.at.toISOString() : options.at;
    const body = given({ label: options.label, size: options.size, target_time: at });
    const call = op.cloneDatabase(this.id, body, { idempotencyKey: options.idempotencyKey });
    const clone = new Database(this.transport, await this.transport.call(call));
    return options.wait === false ? clone : clone.wait();
  }

  /**
   * Restores it on another host from its archive; with force also one that runs. What
   * is lost is in info.error until it runs again.
   */
  async failover(options: { force?: boolean; wait?: boolean } = {}): Promise<this> {
    const answer = await this.transport.call(op.failoverDatabase(this.id, given({ force: options.force })));
    this.info = { ...this.info, status: answer.status, error: answer.error };
    return options.wait === false ? this : this.wait();
  }

  /** Reads what it can be restored from. */
  archive(): Promise<m.DatabaseArchive> {
    return this.transport.call(op.getDatabaseArchive(this.id));
  }

  /** Deletes it with its data and its archive, for good. */
  delete(): Promise<void> {
    return this.transport.nothing(op.deleteDatabase(this.id));
  }

  /** Reads PostgreSQL's log. */
  async logs(options: { tail?: number } = {}): Promise<string> {
    const decoder = new TextDecoder();
    let text = "";
    for await (const chunk of bytes(await this.transport.stream(op.databaseLogs(this.id, options)))) {
      text += decoder.decode(chunk, { stream: true });
    }
    return text + decoder.decode();
  }

  /** Iterates over existing lines and then new ones. */
  followLogs(options: { tail?: number } = {}): AsyncGenerator<LogLine> {
    return logFeed(this.transport, op.followDatabaseLogs(this.id, options));
  }

  // SQL over HTTP, by the broker, which wakes the database.

  /**
   * Runs one statement, with its parameters for $1 and on. PostgreSQL's refusal is an
   * APIError with its sqlstate in fields. int8 and numeric come as strings.
   */
  async query(sql: string, ...params: unknown[]): Promise<m.SQLResult> {
    return (await this.broker()).call(op.queryDatabase(this.id, queryOf([sql, ...params])));
  }

  /** Runs statements one by one; the error of one is in its place. */
  async batch(...statements: Statement[]): Promise<m.SQLBatchResult[]> {
    const call = op.batchDatabase(this.id, { queries: statements.map(queryOf) });
    return (await (await this.broker()).call(call)).results;
  }

  /** Runs statements: all of them, or none. */
  async transaction(...statements: Statement[]): Promise<m.SQLBatchResult[]> {
    const call = op.transactDatabase(this.id, { queries: statements.map(queryOf) });
    return (await (await this.broker()).call(call)).results;
  }

  /** Describes its tables. */
  async schema(): Promise<m.DatabaseSchema> {
    return (await this.broker()).call(op.databaseSchema(this.id));
  }

  private async broker(): Promise<Transport> {
    if (!this.info.broker_token) {
      await this.refresh(); // it slept, or comes from a list
      if (this.info.status === "hibernated") {
        await this.wake();
      }
    }
    if (!this.info.broker_token) {
      throw new BerthError(`the database is ${this.info.status}`);
    }
    return this.transport.withToken(this.info.broker_token);
  }
}

function queryOf(statement: Statement): m.SQLQuery {
  if (typeof statement === "string") {
    return { sql: statement };
  }
  const [sql, ...params] = statement;
  return params.length > 0 ? { sql, params } : { sql };
}
