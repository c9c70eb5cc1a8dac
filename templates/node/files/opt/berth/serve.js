// Runs the server in /app and starts it anew when its code changes. What it
// starts is package.json's "main", else server.js or index.js. It waits for the
// kernel to tell of changes and does nothing else while there are none.
'use strict';

const { spawn } = require('child_process');
const fs = require('fs');
const path = require('path');

const root = process.env.APP_DIR || '/app';
const settle = 150; // ms: a checkout or an unpacked archive is one change
const patience = 3000; // ms that a server has to end by itself
const ignored = new Set(['node_modules', '.git']);
const maxDirectories = 2000;

let child = null;
let failures = 0;
let timer = null;
const watchers = new Map(); // directory → watcher

const say = (text) => console.error(`serve: ${text}`);

function entry() {
  const candidates = ['server.js', 'index.js', 'server.mjs', 'index.mjs'];
  try {
    const main = JSON.parse(fs.readFileSync(path.join(root, 'package.json'), 'utf8')).main;
    if (typeof main === 'string') candidates.unshift(main);
  } catch { /* there need not be one */ }
  return candidates.map((name) => path.resolve(root, name)).find((file) => fs.existsSync(file));
}

// watch follows every directory below root; those that are new are found when
// their parent tells of a change.
function watch(directory) {
  if (watchers.has(directory) || watchers.size >= maxDirectories) return;
  try {
    const watcher = fs.watch(directory, (event, name) => {
      if (!ignored.has(name)) changed();
    });
    const forget = () => { watcher.close(); watchers.delete(directory); };
    watcher.on('error', forget);
    watchers.set(directory, watcher);
    for (const e of fs.readdirSync(directory, { withFileTypes: true })) {
      if (e.isDirectory() && !ignored.has(e.name)) watch(path.join(directory, e.name));
    }
  } catch (error) {
    if (error.code !== 'ENOENT') say(`cannot watch ${directory}: ${error.message}`);
  }
}

function changed() {
  clearTimeout(timer);
  timer = setTimeout(() => {
    for (const [directory, watcher] of watchers) {
      if (!fs.existsSync(directory)) { watcher.close(); watchers.delete(directory); }
    }
    watch(root);
    rescan(root);
    failures = 0;
    restart();
  }, settle);
}

function rescan(directory) {
  for (const e of fs.readdirSync(directory, { withFileTypes: true })) {
    if (!e.isDirectory() || ignored.has(e.name)) continue;
    watch(path.join(directory, e.name));
    rescan(path.join(directory, e.name));
  }
}

function restart() {
  if (!child) return start();
  const old = child;
  const kill = setTimeout(() => old.kill('SIGKILL'), patience);
  old.restart = true;
  old.once('exit', () => clearTimeout(kill));
  old.kill('SIGTERM');
}

function start() {
  const file = entry();
  if (!file) return say(`nothing to run in ${root} yet: no server.js, index.js or package.json with "main"`);
  const own = spawn(process.execPath, [file], {
    cwd: root, stdio: ['ignore', 'inherit', 'inherit'], env: { PORT: '3000', ...process.env },
  });
  child = own;
  own.on('error', (error) => say(`cannot run ${file}: ${error.message}`));
  own.on('exit', (code, signal) => {
    child = null;
    if (own.restart) return start();
    say(`${path.relative(root, file)} ended (${signal || `exit code ${code}`})`);
    if (code === 0) return; // until its code changes
    failures += 1;
    const again = Math.min(1000 * 2 ** (failures - 1), 30000);
    clearTimeout(timer);
    timer = setTimeout(() => { if (!child) start(); }, again);
  });
}

for (const signal of ['SIGTERM', 'SIGINT']) {
  process.on(signal, () => { if (child) child.kill(signal); process.exit(0); });
}
fs.mkdirSync(root, { recursive: true });
watch(root);
start();
// While neither a server nor a timer is there, watchers keep the process alive.
