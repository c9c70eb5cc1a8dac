// The client, the entry point of the package.
import { Apps } from "./app.js";
import { backoff } from "./attempts.js";
import type { Call, Nothing, Page, Stream } from "./call.js";
import { Databases } from "./database.js";
import { BerthError, BuildFailed } from "./errors.js";
import type * as m from "./models.js";
import * as op from "./operations.js";
import { given, Sandbox } from "./sandbox.js";
import { buildFeed } from "./streams.js";
import { Transport, type Options } from "./transport.js";

/**
 * A client of the service, with one URL or one per replica. Without options it
 * reads BERTH_URLS or BERTH_URL, and BERTH_TOKEN. If a replica does not answer,
 * the next is called; the README says what is tried again.
 */
export class Berth {
  readonly sandboxes: Sandboxes;
  readonly snapshots: Snapshots;
  readonly templates: Templates;
  readonly volumes: Volumes;
  readonly databases: Databases;
  readonly apps: Apps;
  private readonly transport: Transport;

  constructor(options: Options = {}) {
    this.transport = new Transport(options);
    this.sandboxes = new Sandboxes(this.transport);
    this.snapshots = new Snapshots(this.transport);
    this.templates = new Templates(this.transport);
    this.volumes = new Volumes(this.transport);
    this.databases = new Databases(this.transport);
    this.apps = new Apps(this.transport);
  }

  /** Returns the version of a replica. */
  version(): Promise<m.VersionInfo> {
    return this.call(op.version());
  }

  // Calls of any operation of the module operations.

  /** Makes any call that answers with JSON. */
  call<T>(call: Call<T>): Promise<T> {
    return this.transport.call(call);
  }

  /** Makes any call that answers without a body. */
  run(call: Nothing): Promise<void> {
    return this.transport.nothing(call);
  }

  /** Iterates over every element of any list. */
  pages<T>(call: Page<T>): AsyncGenerator<T> {
    return this.transport.pages(call);
  }

  /** Opens any call whose answer is a stream. */
  stream(call: Stream): Promise<Response> {
    return this.transport.stream(call);
  }
}

/** How a sandbox is created. */
export interface CreateOptions {
  /** Default: base, or that of the Snapshot. */
  template?: string;
  ttlSeconds?: number;
  metadata?: Record<string, unknown>;
  env?: Record<string, string>;
  fromSnapshot?: string | m.Snapshot;
  /** Mount paths by name of the volume. */
  volumes?: Record<string, string>;
  persistent?: boolean;
  preview?: m.PreviewMode;
  boot?: m.Boot;
  idempotencyKey?: string;
}

/** The workspace's sandboxes. */
export class Sandboxes {
  constructor(private readonly transport: Transport) {}

  /** Creates a sandbox and waits until it runs. */
  async create(options: CreateOptions = {}): Promise<Sandbox> {
    const from = options.fromSnapshot;
    const body = given({
      template: options.template ?? (typeof from === "object" ? from.template : "base"),
      ttl_seconds: options.ttlSeconds,
      metadata: options.metadata,
      env: options.env,
      from_snapshot: typeof from === "object" ? from.id : from,
      volumes: options.volumes && Object.entries(options.volumes).map(([name, mount_path]) => ({ name, mount_path })),
      persistent: options.persistent,
      preview: options.preview,
      boot: options.boot,
    });
    const call = op.createSandbox(body, { idempotencyKey: options.idempotencyKey });
    return new Sandbox(this.transport, await this.transport.call(call));
  }

  async get(id: string): Promise<Sandbox> {
    return new Sandbox(this.transport, await this.transport.call(op.getSandbox(id)));
  }

  /** Iterates over all, newest first. */
  async *list(): AsyncGenerator<Sandbox> {
    for await (const info of this.transport.pages(op.listSandboxes())) {
      yield new Sandbox(this.transport, info);
    }
  }
}

/** The workspace's snapshots. */
export class Snapshots {
  constructor(private readonly transport: Transport) {}

  get(id: string): Promise<m.Snapshot> {
    return this.transport.call(op.getSnapshot(id));
  }

  delete(id: string): Promise<void> {
    return this.transport.nothing(op.deleteSnapshot(id));
  }

  /** Iterates over all, or over those of one sandbox, newest first. */
  list(options: { sandboxId?: string } = {}): AsyncGenerator<m.Snapshot> {
    return this.transport.pages(op.listSnapshots({ sandbox_id: options.sandboxId }));
  }
}

/** The workspace's volumes. */
export class Volumes {
  constructor(private readonly transport: Transport) {}

  create(name: string, options: { sizeMb?: number } = {}): Promise<m.Volume> {
    return this.transport.call(op.createVolume(given({ name, size_mb: options.sizeMb })));
  }

  get(name: string): Promise<m.Volume> {
    return this.transport.call(op.getVolume(name));
  }

  delete(name: string): Promise<void> {
    return this.transport.nothing(op.deleteVolume(name));
  }

  /** Iterates over all, newest first. */
  list(): AsyncGenerator<m.Volume> {
    return this.transport.pages(op.listVolumes());
  }
}

/** The workspace's templates, from which sandboxes are created. */
export class Templates {
  constructor(private readonly transport: Transport) {}

  /** Starts to build a template from another template or from an OCI image; use logs and wait of the returned build. */
  async build(body: m.BuildTemplate): Promise<Build> {
    return new Build(this.transport, await this.transport.call(op.buildTemplate(body)));
  }

  get(name: string): Promise<m.Template> {
    return this.transport.call(op.getTemplate(name));
  }

  delete(name: string): Promise<void> {
    return this.transport.nothing(op.deleteTemplate(name));
  }

  /** The builds of a template, newest first. */
  builds(name: string): AsyncGenerator<m.Build> {
    return this.transport.pages(op.listBuilds(name));
  }

  list(): AsyncGenerator<m.Template> {
    return this.transport.pages(op.listTemplates());
  }
}

/** One build of a template. */
export class Build {
  constructor(
    private readonly transport: Transport,
    public info: m.Build,
  ) {}

  get id(): string {
    return this.info.id;
  }

  /** Iterates over the lines of the build's log until the build ends. */
  logs(): AsyncGenerator<string> {
    return buildFeed(this.transport, this.id);
  }

  /** Waits until the template is built and returns it; BuildFailed if the build fails. */
  async wait(options: { timeoutSeconds?: number } = {}): Promise<m.Template> {
    const deadline = Date.now() + (options.timeoutSeconds ?? 1800) * 1000;
    for (let polls = 0; this.info.status !== "ready" && this.info.status !== "failed"; polls++) {
      if (Date.now() > deadline) {
        throw new BerthError("the build took longer than it may");
      }
      await this.transport.sleep(Math.min(backoff(polls), 2));
      this.info = await this.transport.call(op.getBuild(this.id));
    }
    if (this.info.status === "failed") {
      throw new BuildFailed(this.info.error ?? "the build failed");
    }
    return this.transport.call(op.getTemplate(this.info.template));
  }
}
