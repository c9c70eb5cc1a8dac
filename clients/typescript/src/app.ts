// Apps: programs that are built from a repository, or an upload, and served at a URL.
import { backoff } from "./attempts.js";
import type { Body } from "./call.js";
import { BerthError, ConnectionFailed, DeploymentFailed, StreamBroken } from "./errors.js";
import type * as m from "./models.js";
import * as op from "./operations.js";
import { given } from "./sandbox.js";
import { messages, said } from "./sse.js";
import { bytes, logFeed } from "./streams.js";
import type { Transport } from "./transport.js";
import type { LogLine } from "./types.js";

/** How a deployment is waited for. */
export interface FollowOptions {
  /** Default: true, until it is live. */
  wait?: boolean;
  /** Called with each line of the deployment's log, as it is written. */
  log?: (line: LogLine) => void;
}

/** How an app is deployed. */
export interface DeployOptions extends FollowOptions {
  /** A branch, tag or commit. */
  gitRef?: string;
  /** Whether it is built without the caches of earlier builds. */
  clearCache?: boolean;
  /** A tar.gz, which is uploaded. */
  source?: Body;
  idempotencyKey?: string;
}

/** The workspace's apps. */
export class Apps {
  constructor(private readonly transport: Transport) {}

  /** Stores the settings of an app, which builds nothing: deploy it next. Without git_url its source is uploaded. */
  async create(settings: m.CreateApp, options: { idempotencyKey?: string } = {}): Promise<App> {
    const body: m.CreateApp = settings.git_url === undefined ? { source: "upload", ...settings } : settings;
    const call = op.createApp(body, { idempotencyKey: options.idempotencyKey });
    return new App(this.transport, await this.transport.call(call));
  }

  async get(id: string): Promise<App> {
    return new App(this.transport, await this.transport.call(op.getApp(id)));
  }

  /** Iterates over all, newest first. */
  async *list(): AsyncGenerator<App> {
    for await (const info of this.transport.pages(op.listApps())) {
      yield new App(this.transport, info);
    }
  }
}

/** A program at a stable URL, which sleeps when nobody looks. */
export class App {
  constructor(
    private readonly transport: Transport,
    /** Its last known record; see refresh. */
    public info: m.App,
  ) {}

  get id(): string {
    return this.info.id;
  }

  get status(): m.AppStatus {
    return this.info.status;
  }

  get url(): string {
    return this.info.url;
  }

  /** Reads its record again. */
  async refresh(): Promise<this> {
    this.info = await this.transport.call(op.getApp(this.id));
    return this;
  }

  /** Changes settings; null is the default of one. */
  async update(settings: m.PatchApp): Promise<this> {
    this.info = await this.transport.call(op.patchApp(this.id, settings));
    return this;
  }

  /** Deletes it with its deployments, variables and uploaded sources. */
  delete(): Promise<void> {
    return this.transport.nothing(op.deleteApp(this.id));
  }

  /** Deploys it and, unless told not to, waits until it is live; DeploymentFailed if it fails. */
  async deploy(options: DeployOptions = {}): Promise<Deployment> {
    const source = options.source === undefined ? undefined : (await this.upload(options.source)).source_id;
    const body = given({ git_ref: options.gitRef, source_id: source, clear_cache: options.clearCache });
    const call = op.deployApp(this.id, body, { idempotencyKey: options.idempotencyKey });
    return this.begun(await this.transport.call(call), options);
  }

  /** Uploads a tar.gz of its source, to be deployed later. */
  upload(source: Body): Promise<m.SourceUpload> {
    return this.transport.call(op.putAppSource(this.id, source));
  }

  /** Serves an earlier deployment again, by default the one that was live before. */
  async rollback(options: FollowOptions & { deploymentId?: string } = {}): Promise<Deployment> {
    const call = op.rollbackApp(this.id, given({ deployment_id: options.deploymentId }));
    return this.begun(await this.transport.call(call), options);
  }

  async deployment(id: string): Promise<Deployment> {
    return new Deployment(this.transport, await this.transport.call(op.getDeployment(this.id, id)));
  }

  /** Iterates over all, newest first. */
  async *deployments(): AsyncGenerator<Deployment> {
    for await (const info of this.transport.pages(op.listDeployments(this.id))) {
      yield new Deployment(this.transport, info);
    }
  }

  /** Reads what it has written since it started. */
  async logs(options: { tail?: number } = {}): Promise<string> {
    const decoder = new TextDecoder();
    let text = "";
    for await (const chunk of bytes(await this.transport.stream(op.appLogs(this.id, options)))) {
      text += decoder.decode(chunk, { stream: true });
    }
    return text + decoder.decode();
  }

  /** Iterates over existing lines and then new ones. */
  followLogs(options: { tail?: number } = {}): AsyncGenerator<LogLine> {
    return logFeed(this.transport, op.followAppLogs(this.id, options));
  }

  /** Lists its variables, with secret values masked. */
  env(): Promise<m.AppVariable[]> {
    return this.transport.call(op.listAppEnv(this.id));
  }

  /** Sets a variable, from the next deployment on. */
  setEnv(key: string, value: string, options: { secret?: boolean; scope?: string } = {}): Promise<m.AppVariable> {
    return this.transport.call(op.putAppEnv(this.id, key, { value, ...options }));
  }

  deleteEnv(key: string): Promise<void> {
    return this.transport.nothing(op.deleteAppEnv(this.id, key));
  }

  /** Sets the variables of a .env file, and returns all. */
  importEnv(dotenv: string, options: { secret?: boolean; scope?: string } = {}): Promise<m.AppVariable[]> {
    return this.transport.call(op.importAppEnv(this.id, { dotenv, ...options }));
  }

  /** Claims a domain of yours; its dns says what to set there. */
  addDomain(domain: string, options: { idempotencyKey?: string } = {}): Promise<m.AppDomain> {
    return this.transport.call(op.createAppDomain(this.id, { domain }, { idempotencyKey: options.idempotencyKey }));
  }

  /** Iterates over its domains, newest first. */
  domains(): AsyncGenerator<m.AppDomain> {
    return this.transport.pages(op.listAppDomains(this.id));
  }

  domain(domain: string): Promise<m.AppDomain> {
    return this.transport.call(op.getAppDomain(this.id, domain));
  }

  /** Looks into DNS now; a domain whose record is not there is still pending. */
  verifyDomain(domain: string): Promise<m.AppDomain> {
    return this.transport.call(op.verifyAppDomain(this.id, domain));
  }

  removeDomain(domain: string): Promise<void> {
    return this.transport.nothing(op.deleteAppDomain(this.id, domain));
  }

  private begun(info: m.Deployment, options: FollowOptions): Promise<Deployment> | Deployment {
    const deployment = new Deployment(this.transport, info);
    return options.wait === false ? deployment : deployment.wait(options.log === undefined ? {} : { log: options.log });
  }
}

/** One attempt to bring a version of an app into service. */
export class Deployment {
  constructor(
    private readonly transport: Transport,
    /** Its last known record; see refresh. */
    public info: m.Deployment,
  ) {}

  get id(): string {
    return this.info.id;
  }

  get status(): m.DeploymentStatus {
    return this.info.status;
  }

  /** Reads its record again. */
  async refresh(): Promise<this> {
    this.info = await this.transport.call(op.getDeployment(this.info.app_id, this.id));
    return this;
  }

  /** Ends it; it has then failed. */
  async cancel(): Promise<this> {
    this.info = await this.transport.call(op.cancelDeployment(this.info.app_id, this.id));
    return this;
  }

  /** Waits until it is live; DeploymentFailed if it fails. The timeout holds without a log alone. */
  async wait(options: { timeoutSeconds?: number; log?: (line: LogLine) => void } = {}): Promise<this> {
    if (options.log !== undefined) {
      for await (const line of this.logs()) {
        options.log(line);
      }
    }
    const deadline = options.timeoutSeconds === undefined ? Infinity : Date.now() + options.timeoutSeconds * 1000;
    for (let polls = 0; this.info.status !== "live" && this.info.status !== "failed"; polls++) {
      if (Date.now() > deadline) {
        throw new BerthError(`the deployment is ${this.info.status} after ${options.timeoutSeconds} seconds`);
      }
      await this.transport.sleep(Math.min(backoff(polls), 2));
      await this.refresh();
    }
    if (this.info.status === "failed") {
      throw new DeploymentFailed(this.info.error ?? "the deployment failed");
    }
    return this;
  }

  /**
   * Iterates over its log from the beginning, until it ends. A connection that breaks
   * is replaced; every one begins with the first line.
   */
  async *logs(): AsyncGenerator<LogLine> {
    // The lines that were delivered. A deployment that began again on another host
    // has others, from the first that differs.
    const delivered: string[] = [];
    for (let failures = 0; ; ) {
      let at = 0;
      try {
        const response = await this.transport.stream(op.deploymentLogs(this.info.app_id, this.id));
        for await (const { event, json } of messages(bytes(response))) {
          if (event === "error") {
            throw new StreamBroken(said(json));
          }
          if (event === "end") {
            this.info = json as unknown as m.Deployment;
            return;
          }
          if (event !== "stdout" && event !== "stderr") {
            continue;
          }
          const line = String(json["line"]);
          if (delivered[at] === line) {
            at++;
            continue;
          }
          delivered.splice(at++, Infinity, line);
          failures = 0;
          const ts = json["ts"];
          yield {
            stream: event,
            line,
            partial: json["partial"] === true,
            ...(typeof ts === "string" ? { ts } : {}),
          };
        }
        throw new StreamBroken("the log ended before the deployment");
      } catch (e) {
        if (!(e instanceof ConnectionFailed || e instanceof StreamBroken) || ++failures > this.transport.retries) {
          throw e;
        }
      }
      await this.transport.sleep(backoff(failures));
    }
  }
}
