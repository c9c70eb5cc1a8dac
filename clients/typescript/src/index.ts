// Client of Berth: sandboxes that start in a moment and can be forked with their memory.
export * from "./app.js";
export * from "./client.js";
export { Commands, DetachedCommand } from "./commands.js";
export * from "./database.js";
export * from "./errors.js";
export { Files } from "./files.js";
export type * as models from "./models.js";
export * as operations from "./operations.js";
export { ForkTree, Ports, Sandbox, type ExecOptions, type Fork, type LogStream } from "./sandbox.js";
export { LanguageServer, Process, Pty } from "./sockets.js";
export { VERSION, type Options } from "./transport.js";
export {
  ExecResult, type Command, type CommandOutput, type CommandPiece, type Exit, type Gap, type LogLine, type Output, type OutputPiece, type Progress } from "./types.js";
export type { Body } from "./call.js";
export { InvalidSignature, WEBHOOK_TOLERANCE, verifyWebhook, type WebhookHeaders } from "./webhooks.js";
