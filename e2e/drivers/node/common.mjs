// What the drivers are told, by the environment and by lines.
import { readFileSync } from 'node:fs'
import { createInterface } from 'node:readline'

const at = process.env.DRIVER_ADDR.lastIndexOf(':')

// config is of a connection to the address at which the database's name would lead:
// the name is sent and verified, and not looked up.
export function config(mode, of = process.env.DRIVER_URL) {
  const url = new URL(of)
  const ssl = { servername: url.hostname }
  if (mode === 'require') ssl.rejectUnauthorized = false
  else ssl.ca = readFileSync(process.env.DRIVER_CA, 'utf8')
  return {
    host: process.env.DRIVER_ADDR.slice(0, at),
    port: Number(process.env.DRIVER_ADDR.slice(at + 1)),
    user: decodeURIComponent(url.username),
    password: decodeURIComponent(url.password),
    database: url.pathname.slice(1),
    connectionTimeoutMillis: 60_000,
    enableChannelBinding: mode !== 'require',
    ssl,
  }
}

export const ok = (step) => console.log('ok:', step)

// ready waits for what happens to the database in the middle: see the type driver in
// drivers_test.go.
let answers
export async function ready(step) {
  answers ??= createInterface({ input: process.stdin })[Symbol.asyncIterator]()
  console.log('ready:', step)
  return (await answers.next()).value
}
