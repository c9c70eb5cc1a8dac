package image

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/berth-cloud/berth/guest/guestapi"
	"github.com/berth-cloud/berth/guest/guestclient"
	"github.com/berth-cloud/berth/timescale"
	"github.com/berth-cloud/berth/vmm"
)

// vmDir is the VMM's runtime directory in a work directory. The name is short:
// a socket's path may have 107 bytes.
const vmDir = "vm"

var stopTime = timescale.Limit(30 * time.Second)

var bootTime = timescale.Limit(2 * time.Minute)

var errNoLease = errors.New("this store was opened for reading: it has no network for a guest")

// buildVM is a guest that a build uses.
type buildVM struct {
	process *vmm.Process
	lease   Lease
	guest   *guestclient.Client
	serial  string
}

// bootVM boots a guest from the kernel and waits until guestd answers. The disk
// and the RAM file become the VMM's.
func (s *Store) bootVM(ctx context.Context, dir string, t Template, vm VM) (_ *buildVM, err error) {
	if s.cfg.Lease == nil {
		return nil, errNoLease
	}
	lease, err := s.cfg.Lease(ctx, Guest{CPU: t.CPU, MemoryMB: t.MemoryMB, DiskMB: t.DiskMB})
	if err != nil {
		return nil, fmt.Errorf("network for the guest: %w", err)
	}
	b := &buildVM{lease: lease, serial: vmm.SerialPath(filepath.Join(dir, vmDir))}
	b.guest = guestclient.New(func(ctx context.Context) (net.Conn, error) { return lease.Dial(ctx, guestapi.Port) })
	defer func() {
		if err != nil {
			b.kill()
		}
	}()
	for _, path := range []string{vm.Overlay, vm.RAM} {
		if err := os.Chown(path, lease.UID, lease.GID); err != nil {
			return nil, err
		}
	}
	b.process, err = vmm.Start(ctx, vmm.Launch{
		Engine: s.cfg.Engine, Dir: filepath.Join(dir, vmDir), NetNS: lease.NetNS,
		UID: lease.UID, GID: lease.GID, Groups: lease.Groups, Cgroup: lease.Cgroup, Isolated: true,
		MaxFile: vmm.MaxFile(t.DiskMB, t.MemoryMB),
	})
	if err != nil {
		return nil, err
	}
	b.process.Supervise()
	vm.Serial = b.serial
	if err := b.process.Create(ctx, t.VMConfig(vm)); err != nil {
		return nil, err
	}
	if err := b.process.Client().Boot(ctx); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, bootTime, fmt.Errorf("no answer within %s", bootTime))
	defer cancel()
	return b, b.alive(ctx, func(ctx context.Context) error {
		_, err := b.guest.Await(ctx)
		return err
	})
}

var (
	errDied     = errors.New("the guest ended")
	errRebooted = errors.New("the guest rebooted, or its kernel crashed")
)

// alive runs fn, and ends it if the VM ends first. Its error contains the end of the
// console.
func (b *buildVM) alive(ctx context.Context, fn func(context.Context) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stop := make(chan struct{})
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		select {
		case <-b.process.Done():
			if b.process.Rebooted() {
				cancel(errRebooted)
			} else {
				cancel(errDied)
			}
		case <-stop:
		}
	}()
	err := fn(ctx)
	close(stop)
	<-watched
	if err != nil {
		if console := b.console(); console != "" {
			return fmt.Errorf("%w; its console ends: %s", err, console)
		}
	}
	return err
}

const consoleBytes = 4 << 10

func (b *buildVM) console() string {
	if b.process.Rebooted() {
		return tail(b.process.LastConsole())
	}
	return tail(vmm.LogEnd(b.serial, consoleBytes))
}

// stop powers off the guest and waits for the VM to end, so that its disk is clean.
func (b *buildVM) stop(ctx context.Context) error {
	defer b.kill()
	ctx, cancel := context.WithTimeoutCause(ctx, stopTime, fmt.Errorf("the guest did not power off within %s", stopTime))
	defer cancel()
	if err := b.guest.Shutdown(ctx); err != nil {
		return err
	}
	for {
		select {
		case <-b.process.Done():
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(20 * time.Millisecond):
		}
		// A VMM may outlive its guest.
		info, err := b.process.Client().Info(ctx)
		if err == nil && (info.State == vmm.StateShutdown || info.State == vmm.StateCreated) {
			return nil
		}
	}
}

// kill ends the VM in any state and releases the network.
func (b *buildVM) kill() {
	if b.process != nil {
		ctx, cancel := context.WithTimeout(context.Background(), stopTime)
		defer cancel()
		_ = b.process.Kill(ctx)
	}
	if b.lease.Release != nil {
		b.lease.Release()
		b.lease.Release = nil
	}
}

// identity gives a build's guest an identity: its clock is right, its generation is
// 0, and the next identity replaces all of it.
func (b *buildVM) identity(ctx context.Context, name string, env map[string]string) error {
	random := make([]byte, 80)
	if _, err := rand.Read(random); err != nil {
		return err
	}
	_, err := b.guest.Identity(ctx, guestapi.Identity{
		Entropy: random[:64], Hostname: hostname(name), MachineID: hex.EncodeToString(random[64:]), Env: env,
		Nameservers: []string{guestapi.GatewayAddr}, SSHHostKeys: []guestapi.SSHHostKey{noHostKey},
	})
	return err
}

// The guest stays frozen while it waits for its first sandbox's identity, for this
// long by its own clock, less the time until it is stored.
var (
	freezeWait = timescale.Limit(time.Second)
	freezeHold = min(timescale.Limit(30*time.Second), 10*time.Minute)
)

// freeze stops everything except the agent. In each sandbox it continues with an
// identity and random numbers of its own.
func (b *buildVM) freeze(ctx context.Context) error {
	_, err := b.guest.Freeze(ctx, guestapi.Freeze{
		NotAfter: time.Now().Add(freezeHold).UnixNano(), HoldMS: freezeHold.Milliseconds(), WaitMS: freezeWait.Milliseconds(),
	})
	return err
}

// noHostKey is a placeholder for each sandbox's host key. It is invalid, so an sshd
// of the template refuses it. With it, the template's disk has the link to its file,
// and a create writes nothing there.
var noHostKey = guestapi.SSHHostKey{
	Type:    "ed25519",
	Private: "each sandbox is given a host key of its own",
	Public:  "# each sandbox is given a host key of its own",
}

// hostname converts a template's name to a host name.
func hostname(name string) string {
	return strings.Trim(strings.ReplaceAll(name, "_", "-"), "-.")
}

// run runs a command and reports its lines. Its error contains the end of the
// output.
func (b *buildVM) run(ctx context.Context, argv []string, timeout time.Duration, tell func(line string)) error {
	out := &lineWriter{tell: tell}
	exit, err := b.guest.Exec(ctx, guestapi.ExecRequest{Argv: argv, Cwd: "/", Timeout: timeout},
		guestclient.Streams{Stdout: out, Stderr: out})
	out.end()
	switch {
	case err != nil:
		return err
	case exit.TimedOut:
		return fmt.Errorf("still running after %s: %s", timeout, tail(out.last.String()))
	case exit.ExitCode != 0:
		return fmt.Errorf("exit code %d: %s", exit.ExitCode, tail(out.last.String()))
	}
	return nil
}

// lineWriter reports complete lines and keeps the end of the output. Frames arrive
// one at a time, so it needs no lock.
type lineWriter struct {
	tell func(string)
	line []byte
	last bytes.Buffer
}

func (w *lineWriter) Write(b []byte) (int, error) {
	if w.last.Len() > 8*tailBytes {
		kept := append([]byte(nil), w.last.Bytes()[w.last.Len()-2*tailBytes:]...)
		w.last.Reset()
		w.last.Write(kept)
	}
	w.last.Write(b)
	w.line = append(w.line, b...)
	for {
		i := bytes.IndexByte(w.line, '\n')
		if i < 0 && len(w.line) > tailBytes {
			i = tailBytes // a very long line is reported in pieces
		}
		if i < 0 {
			return len(b), nil
		}
		w.say(w.line[:i])
		w.line = bytes.TrimPrefix(w.line[i:], []byte("\n"))
	}
}

// end reports a last line without a line end.
func (w *lineWriter) end() {
	if len(w.line) > 0 {
		w.say(w.line)
	}
	w.line = nil
}

// say reports a line. If carriage returns overwrote it, it reports its last state.
func (w *lineWriter) say(line []byte) {
	if w.tell == nil {
		return
	}
	line = bytes.TrimRight(line, "\r")
	line = line[bytes.LastIndexByte(line, '\r')+1:]
	w.tell(strings.ToValidUTF8(strings.TrimRight(string(line), " \t"), "?"))
}
