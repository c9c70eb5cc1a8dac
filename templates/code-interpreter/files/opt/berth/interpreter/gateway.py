"""HTTP and WebSocket in front of one Jupyter kernel, which is started with it.

  GET  /                           how the kernel stands
  POST /execute                    {"code", "timeout_seconds"?}: the cell's outputs
  GET  /api/kernels                Jupyter's list of kernels, of one
  GET  /api/kernels/ID/channels    WebSocket, Jupyter's messages
  POST /api/kernels/ID/interrupt   stop the running cell
  POST /api/kernels/ID/restart     a new kernel

Whoever reaches the port may run code: it is the sandbox's own, and its preview
URL is a credential. The kernel is reached by unix sockets, and nothing here
wakes up while there is nothing to do.
"""

import asyncio
import json
import os
import shutil
import signal

import tornado.httpserver
import tornado.web
import tornado.websocket
from jupyter_client.manager import AsyncKernelManager

PORT = int(os.environ.get("INTERPRETER_PORT", "8888"))
HERE = os.path.dirname(os.path.abspath(__file__))
STATE = "/run/berth-interpreter"
PID_FILE = os.path.join(STATE, "kernel.pid")
KERNEL_ID = "default"
DEFAULT_TIMEOUT, MAX_TIMEOUT = 60, 3600
MAX_BODY = 8 << 20
MAX_OUTPUT = 8 << 20  # of one cell, in bytes of JSON


class Kernel:
    """The one kernel."""

    def __init__(self):
        self.manager = None
        self.turn = asyncio.Lock()  # of cells by /execute

    async def start(self):
        self.manager = AsyncKernelManager(
            kernel_name="python3", transport="ipc", ip=os.path.join(STATE, "kernel"),
            connection_file=os.path.join(STATE, "kernel.json"),
        )
        await self.manager.start_kernel(
            # Without a parent to look after: it would do so every second.
            independent=True, cwd=os.environ.get("HOME", "/root"),
            env={**os.environ, "PYTHONPATH": HERE},
            extra_arguments=["--HistoryManager.enabled=False", "--InteractiveShellApp.extensions=berth_reseed"],
        )
        with open(PID_FILE, "w", encoding="ascii") as f:
            f.write(str(self.manager.provisioner.pid))
        client = self.client()
        try:
            await client.wait_for_ready(timeout=300)
        finally:
            client.stop_channels()

    def client(self):
        client = self.manager.client()
        client.start_channels(hb=False)
        return client

    async def alive(self):
        return await self.manager.is_alive()

    async def restart(self):
        await self.manager.shutdown_kernel(now=True)
        await self.start()

    async def execute(self, code, timeout):
        async with self.turn:
            if not await self.alive():
                await self.restart()
            cell = Cell(self, code)
            try:
                await asyncio.wait_for(cell.run(), timeout)
            except asyncio.TimeoutError:
                await self.manager.interrupt_kernel()
                cell.status = "timeout"
            finally:
                cell.client.stop_channels()
            if not await self.alive():
                cell.status = "died"
                await self.restart()
            return {"status": cell.status, "execution_count": cell.count, "outputs": cell.outputs, "truncated": cell.truncated}


class Cell:
    """One run of code, and what came of it, as a notebook has it."""

    def __init__(self, kernel, code):
        self.kernel, self.code, self.client = kernel, code, kernel.client()
        self.status, self.count, self.outputs, self.size, self.truncated = "died", None, [], 0, False

    async def run(self):
        await self.client.wait_for_ready(timeout=60)
        message = self.client.execute(self.code, allow_stdin=False, store_history=True)
        while True:
            try:
                got = await self.client.get_iopub_msg(timeout=1)
            except Exception:  # queue.Empty: nothing was printed for a second
                if not await self.kernel.alive():
                    return
                continue
            if got["parent_header"].get("msg_id") == message and self.take(got["msg_type"], got["content"]):
                break
        reply = await self.client.get_shell_msg()
        while reply["parent_header"].get("msg_id") != message:
            reply = await self.client.get_shell_msg()
        self.status, self.count = reply["content"]["status"], reply["content"].get("execution_count")

    def take(self, kind, content):
        """Take one message; True after the last."""
        if kind == "status":
            return content["execution_state"] == "idle"
        if kind == "clear_output":
            self.outputs, self.size = [], 0
        elif kind in ("stream", "display_data", "execute_result", "error"):
            self.add({"output_type": kind, **{k: v for k, v in content.items() if k != "transient"}})
        return False

    def add(self, output):
        self.size += len(json.dumps(output))
        if self.size > MAX_OUTPUT:
            self.truncated = True
            return
        last = self.outputs[-1] if self.outputs else {}
        if output["output_type"] == "stream" == last.get("output_type") and output["name"] == last["name"]:
            last["text"] += output["text"]
        else:
            self.outputs.append(output)


class Handler(tornado.web.RequestHandler):
    def initialize(self, kernel):
        self.kernel = kernel

    def write_error(self, status_code, **kwargs):
        reason = getattr(kwargs.get("exc_info", (None, None))[1], "log_message", None) or self._reason
        self.finish({"error": reason})

    def model(self):
        return {"id": KERNEL_ID, "name": "python3", "connections": 0}


class Status(Handler):
    async def get(self):
        self.write({"kernel": "alive" if await self.kernel.alive() else "dead", "busy": self.kernel.turn.locked()})


class Execute(Handler):
    async def post(self):
        try:
            body = json.loads(self.request.body)
            code, timeout = body["code"], body.get("timeout_seconds", DEFAULT_TIMEOUT)
            if not isinstance(code, str) or isinstance(timeout, bool) or not 0 < timeout <= MAX_TIMEOUT:
                raise ValueError
        except (ValueError, TypeError, KeyError, AttributeError):
            raise tornado.web.HTTPError(400, 'want {"code": string, "timeout_seconds"?: 1 to %d}' % MAX_TIMEOUT) from None
        self.write(await self.kernel.execute(code, timeout))


class Kernels(Handler):
    def get(self):
        self.set_header("Content-Type", "application/json")
        self.write(json.dumps([self.model()]))


class Act(Handler):
    async def post(self, action):
        if action == "interrupt":
            await self.kernel.manager.interrupt_kernel()
            self.set_status(204)
            return
        await self.kernel.restart()
        self.write(self.model())


class Channels(tornado.websocket.WebSocketHandler):
    """Jupyter's messages as JSON, each with its channel, both ways."""

    def initialize(self, kernel):
        self.kernel, self.client, self.pumps = kernel, None, []

    def check_origin(self, origin):
        return True  # the host name is the credential, whoever's page it is

    async def open(self):
        self.client = self.kernel.client()
        for name in ("shell", "iopub", "stdin", "control"):
            self.pumps.append(asyncio.create_task(self.pump(name)))

    async def pump(self, name):
        channel = getattr(self.client, name + "_channel")
        while True:
            message = await channel.get_msg(timeout=None)
            message.pop("buffers", None)
            try:
                await self.write_message(json.dumps({**message, "channel": name}, default=str))
            except tornado.websocket.WebSocketClosedError:
                return

    def on_message(self, raw):
        try:
            message = json.loads(raw)
            channel = getattr(self.client, {"shell": "shell", "stdin": "stdin", "control": "control"}[message["channel"]] + "_channel")
            message["header"]["session"] = self.client.session.session
            channel.send({k: message[k] for k in ("header", "parent_header", "metadata", "content")} | {
                "msg_type": message["header"]["msg_type"], "msg_id": message["header"]["msg_id"]})
        except (ValueError, TypeError, KeyError):
            self.close(1003, "want a message of Jupyter's protocol with its channel")

    def on_close(self):
        for pump in self.pumps:
            pump.cancel()
        if self.client:
            self.client.stop_channels()


def clear():
    """End a kernel that outlived another gateway, and remove its sockets."""
    try:
        with open(PID_FILE, encoding="ascii") as f:
            pid = int(f.read())
        with open(f"/proc/{pid}/cmdline", "rb") as f:
            if b"ipykernel_launcher" in f.read():
                os.kill(pid, signal.SIGKILL)
    except (OSError, ValueError):
        pass
    shutil.rmtree(STATE, ignore_errors=True)
    os.mkdir(STATE, 0o700)


async def main():
    clear()
    kernel = Kernel()
    await kernel.start()
    given = {"kernel": kernel}
    app = tornado.web.Application([
        (r"/", Status, given), (r"/execute", Execute, given), (r"/api/kernels", Kernels, given),
        (rf"/api/kernels/{KERNEL_ID}/channels", Channels, given),
        (rf"/api/kernels/{KERNEL_ID}/(interrupt|restart)", Act, given),
    ], websocket_max_message_size=MAX_BODY)
    server = tornado.httpserver.HTTPServer(app, max_body_size=MAX_BODY)
    server.listen(PORT, "0.0.0.0")
    print(f"the kernel is ready, port {PORT}", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
