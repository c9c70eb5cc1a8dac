package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/scripts/devstack/stack"
	"github.com/berth-cloud/berth/timescale"
)

// run is one pass over all operations of a sandbox.
type run struct {
	stack  *stack.Stack
	client *api.Client
	parent *api.Sandbox
}

// perform runs the operations of a sandbox.
func perform(ctx context.Context, s *stack.Stack, t *table) error {
	client, err := s.Client()
	if err != nil {
		return err
	}
	defer client.Close()
	r := &run{stack: s, client: client}
	return t.perform(ctx, []operation{
		{"create", r.create},
		{"exec", func(ctx context.Context) (string, error) { return "", r.says(ctx, r.parent.ID, "echo $((6*7))", "42") }},
		{"write and read a file", r.files},
		{"pause and resume", r.pause},
		{"hibernate", r.hibernate},
		{"wake, with its memory", r.wake},
		{"preview", r.preview},
		{"snapshot, and a sandbox from it", r.snapshot},
		{"fork-tree of 4, with memory", r.forkTree},
		{"warm fork", r.warmFork},
		{"a sandbox with a volume, twice", r.volume},
		{"kill -9 of hostd, and adoption", r.killHostd},
		{"kill -9 of the VMM: failed", r.killVMM},
		{"the guest reboots: failed", r.guestReboots},
		{"delete", r.remove},
	})
}

func (r *run) make(ctx context.Context, in api.CreateSandbox) (*api.Sandbox, error) {
	in.Template = stack.BaseTemplate
	return r.client.CreateSandbox(ctx, in, "")
}

// says runs a shell command that must succeed and print something.
func (r *run) says(ctx context.Context, id, script, want string) error {
	got, err := r.client.Exec(ctx, id, api.Exec{Cmd: api.Shell(script), TimeoutSeconds: new(int64(1200))})
	switch {
	case err != nil:
		return err
	case got.ExitCode != 0 || strings.TrimSpace(got.Stdout) != want:
		return fmt.Errorf("%q wrote %q and %q, exit code %d; want %q", script, got.Stdout, got.Stderr, got.ExitCode, want)
	}
	return nil
}

// becomes checks the answer of a transition.
func becomes(want api.SandboxStatus) func(*api.Sandbox, error) error {
	return func(s *api.Sandbox, err error) error {
		if err == nil && s.Status != want {
			err = fmt.Errorf("it is %s, want %s", s.Status, want)
		}
		return err
	}
}

// box returns a sandbox as its host sees it.
func (r *run) box(ctx context.Context, id string) (hostapi.Box, error) {
	hosts, err := r.stack.Boxes(ctx)
	if err != nil {
		return hostapi.Box{}, err
	}
	for _, boxes := range hosts {
		for _, b := range boxes {
			if b.ID == id {
				return b, nil
			}
		}
	}
	return hostapi.Box{}, errors.New("no host has it")
}

var errNoSandbox = errors.New("it has no sandbox")

// vmmOf returns the process of the VMM of an app or a database.
func (r *run) vmmOf(ctx context.Context, owner string) (int, error) {
	for s, err := range r.client.Sandboxes(ctx) {
		if err != nil {
			return 0, err
		}
		if s.Owner != nil && s.Owner.ID == owner {
			b, err := r.box(ctx, s.ID)
			return b.VMMPID, err
		}
	}
	return 0, errNoSandbox
}

func (r *run) create(ctx context.Context) (string, error) {
	s, err := r.make(ctx, api.CreateSandbox{})
	if err != nil {
		return "", err
	}
	r.parent = s
	b, err := r.box(ctx, s.ID)
	if err != nil {
		return "", err
	}
	var stages []string
	for _, stage := range b.Stages {
		if stage.Engine {
			stages = append(stages, fmt.Sprintf("%s %.1f", stage.Name, stage.Duration.Seconds()))
		}
	}
	return "the engine: " + strings.Join(stages, ", "), nil
}

func (r *run) files(ctx context.Context) (string, error) {
	want := bytes.Repeat([]byte("berth\n"), 100_000)
	if _, err := r.client.WriteFile(ctx, r.parent.ID, "/root/file", "0644", bytes.NewReader(want), int64(len(want))); err != nil {
		return "", err
	}
	body, err := r.client.ReadFile(ctx, r.parent.ID, "/root/file")
	if err != nil {
		return "", err
	}
	defer body.Close()
	got, err := io.ReadAll(body)
	if err == nil && !bytes.Equal(got, want) {
		err = errors.New("what was read is not what was written")
	}
	return "", err
}

func (r *run) pause(ctx context.Context) (string, error) {
	return "", errors.Join(
		becomes(api.SandboxPaused)(r.client.PauseSandbox(ctx, r.parent.ID)),
		becomes(api.SandboxRunning)(r.client.ResumeSandbox(ctx, r.parent.ID)),
	)
}

// remember stores something only in the guest's memory.
const (
	remember = "echo remembered | tee /dev/shm/it"
	recall   = "cat /dev/shm/it"
	it       = "remembered"
)

func (r *run) hibernate(ctx context.Context) (string, error) {
	if err := r.says(ctx, r.parent.ID, remember, it); err != nil {
		return "", err
	}
	return "", becomes(api.SandboxHibernated)(r.client.HibernateSandbox(ctx, r.parent.ID))
}

func (r *run) wake(ctx context.Context) (string, error) {
	if err := becomes(api.SandboxRunning)(r.client.WakeSandbox(ctx, r.parent.ID)); err != nil {
		return "", err
	}
	return "", r.says(ctx, r.parent.ID, recall, it)
}

func (r *run) preview(ctx context.Context) (string, error) {
	const serve = "cd /root && echo seen >page && (setsid python3 -m http.server 3000 --bind 0.0.0.0 </dev/null >/dev/null 2>&1 &) && echo yes"
	if err := r.says(ctx, r.parent.ID, serve, "yes"); err != nil {
		return "", err
	}
	url := strings.Replace(r.parent.PreviewURL, "{port}", "3000", 1) + "/page"
	return "", await(ctx, "the page is seen", func(ctx context.Context) error { return sees(ctx, url, "seen\n") })
}

// sees gets a page of the stack's, which must have a text.
func sees(ctx context.Context, url, want string) error {
	// Browsers resolve names below .localhost; not every resolver does.
	transport := &http.Transport{DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
		_, port, err := net.SplitHostPort(addr)
		if err != nil {
			return nil, err
		}
		return (&net.Dialer{}).DialContext(ctx, network, net.JoinHostPort("127.0.0.1", port))
	}}
	defer transport.CloseIdleConnections()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return err
	}
	resp, err := (&http.Client{Transport: transport}).Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if body, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<10)); string(body) != want {
		return fmt.Errorf("%s, %q", resp.Status, body)
	}
	return nil
}

func (r *run) snapshot(ctx context.Context) (string, error) {
	snap, err := r.client.CreateSnapshot(ctx, r.parent.ID, api.CreateSnapshot{}, "")
	if err != nil {
		return "", err
	}
	s, err := r.make(ctx, api.CreateSandbox{FromSnapshot: snap.ID})
	if err != nil {
		return "", err
	}
	return "", errors.Join(
		r.says(ctx, s.ID, "head -1 /root/file", "berth"),
		r.client.DeleteSandbox(ctx, s.ID), r.client.DeleteSnapshot(ctx, snap.ID),
	)
}

func (r *run) forkTree(ctx context.Context) (string, error) {
	tree, err := r.client.ForkTree(ctx, r.parent.ID, api.ForkTree{Count: new(4)}, "")
	if err != nil {
		return "", err
	}
	if len(tree.Children) != 4 {
		return "", fmt.Errorf("%d children; failed: %+v", len(tree.Children), tree.Failed)
	}
	names := map[string]bool{}
	for _, c := range tree.Children {
		err = errors.Join(err, r.says(ctx, c.ID, recall, it))
		got, execErr := r.client.Exec(ctx, c.ID, api.Exec{Cmd: api.Shell("cat /etc/hostname /etc/machine-id")})
		if execErr == nil {
			names[got.Stdout] = true
		}
		err = errors.Join(err, execErr, r.client.DeleteSandbox(ctx, c.ID))
	}
	if err == nil && len(names) != 4 {
		err = fmt.Errorf("the children have %d identities", len(names))
	}
	return fmt.Sprintf("the parent paused for %.1f s", float64(tree.PauseMS)/1000), err
}

func (r *run) warmFork(ctx context.Context) (string, error) {
	s, err := r.make(ctx, api.CreateSandbox{})
	if err != nil {
		return "", err
	}
	if err := r.says(ctx, s.ID, remember, it); err != nil {
		return "", err
	}
	forked, err := r.client.Fork(ctx, s.ID, api.Fork{Mode: new(api.ForkWarm)}, "")
	if err != nil {
		return "", err
	}
	if len(forked.Children) != 1 {
		return "", fmt.Errorf("failed: %+v", forked.Failed)
	}
	child := forked.Children[0].ID
	return fmt.Sprintf("the parent paused for %.1f s", float64(forked.PauseMS)/1000), errors.Join(
		r.says(ctx, child, recall, it),
		r.client.DeleteSandbox(ctx, child), r.client.DeleteSandbox(ctx, s.ID),
	)
}

func (r *run) volume(ctx context.Context) (string, error) {
	if _, err := r.client.CreateVolume(ctx, api.CreateVolume{Name: "kept", SizeMB: new(64)}, ""); err != nil {
		return "", err
	}
	for _, step := range []string{"echo kept >/mnt/v/f; sync; cat /mnt/v/f", "cat /mnt/v/f"} {
		s, err := r.make(ctx, api.CreateSandbox{Volumes: []api.VolumeMount{{Name: "kept", MountPath: "/mnt/v"}}})
		if err != nil {
			return "", err
		}
		if err := errors.Join(r.says(ctx, s.ID, step, "kept"), r.client.DeleteSandbox(ctx, s.ID)); err != nil {
			return "", err
		}
	}
	return "", r.client.DeleteVolume(ctx, "kept")
}

func (r *run) killHostd(ctx context.Context) (string, error) {
	before, err := r.box(ctx, r.parent.ID)
	if err != nil {
		return "", err
	}
	host := r.stack.HostProc[0]
	if err := errors.Join(host.Kill9(), host.Restart(ctx), r.stack.WaitHosts(ctx)); err != nil {
		return "", err
	}
	after, err := r.box(ctx, r.parent.ID)
	if err == nil && after.VMMPID != before.VMMPID {
		err = fmt.Errorf("its VMM was process %d and is %d", before.VMMPID, after.VMMPID)
	}
	return "", errors.Join(err, r.says(ctx, r.parent.ID, recall, it))
}

// failed waits until a sandbox is failed with an error that contains the word.
func (r *run) failed(ctx context.Context, id, word string) error {
	return await(ctx, "the sandbox is failed", func(ctx context.Context) error {
		s, err := r.client.GetSandbox(ctx, id)
		if err == nil && (s.Status != api.SandboxFailed || s.Error == nil || !strings.Contains(*s.Error, word)) {
			err = fmt.Errorf("it is %s", s.Status)
		}
		return err
	})
}

func (r *run) killVMM(ctx context.Context) (string, error) {
	s, err := r.make(ctx, api.CreateSandbox{})
	if err != nil {
		return "", err
	}
	b, err := r.box(ctx, s.ID)
	if err != nil {
		return "", err
	}
	return "", errors.Join(unix.Kill(b.VMMPID, unix.SIGKILL), r.failed(ctx, s.ID, "VMM died"), r.client.DeleteSandbox(ctx, s.ID))
}

func (r *run) guestReboots(ctx context.Context) (string, error) {
	s, err := r.make(ctx, api.CreateSandbox{})
	if err != nil {
		return "", err
	}
	// The command is interrupted with its guest.
	_, _ = r.client.Exec(ctx, s.ID, api.Exec{Cmd: api.Shell("echo b >/proc/sysrq-trigger; sleep 1000"), TimeoutSeconds: new(int64(1200))})
	return "", errors.Join(r.failed(ctx, s.ID, "rebooted"), r.client.DeleteSandbox(ctx, s.ID))
}

func (r *run) remove(ctx context.Context) (string, error) {
	return "", r.client.DeleteSandbox(ctx, r.parent.ID)
}

func await(ctx context.Context, what string, check func(context.Context) error) error {
	return stack.Await(ctx, timescale.Limit(30*time.Second), time.Second, what, check)
}
