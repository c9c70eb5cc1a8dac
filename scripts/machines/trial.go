package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/berth-cloud/berth/controlplane/api"
)

// trial is one run.
type trial struct {
	*fleet
	options
	dir string // the operator's

	replicas []*machine // a, b, c
	host     *machine
	urls     []string
	admin    string
}

// limit is how long a state may take to come on machines as slow as these.
const limit = 5 * time.Minute

// Commands of docs/operations.md, which a test looks for there. What differs are
// addresses and names.
const (
	installReplica = "apt-get install ./berth-controlplane_*.deb"
	makePKI        = "install -d -o berth -g berth -m 0700 /etc/berth/pki"
	startReplica   = "systemctl enable --now berth-controlplane"
	installHost    = "apt-get install ./berth-hostd_*.deb"
	loadSettings   = "set -a; . /etc/berth/hostd.env; set +a"
	doctor         = "/usr/lib/berth/hostd doctor"
	startHost      = "systemctl enable --now berth-hostd"
	joinHost       = "/usr/lib/berth/hostd join --peer"
	initCluster    = "/usr/lib/berth/controlplane init --dir pki"
	removeReplica  = "apt-get remove berth-controlplane"
	purgeReplica   = "apt-get purge berth-controlplane"
	reload         = "systemctl reload berth-controlplane"
)

var documented = []string{installReplica, makePKI, startReplica, installHost, loadSettings, doctor, startHost, joinHost, initCluster, removeReplica, purgeReplica, reload,
	"berth raft status", "berth join-token create", "berth agents ls"}

// apt installs without asking; what is only recommended is not on these machines.
func apt(command string) string {
	return "cd /root/packages && DEBIAN_FRONTEND=noninteractive " + strings.Replace(command, "apt-get ", "apt-get -q -y --no-install-recommends -o Dpkg::Use-Pty=0 ", 1)
}

func (t *trial) all(ctx context.Context) error {
	for _, step := range []struct {
		name string
		do   func(context.Context) error
	}{
		{"boot four machines", t.bootAll},
		{"install the replicas' package", t.installReplicas},
		{"start three replicas", t.startReplicas},
		{"sign in as operator", t.signIn},
		{"install and join a host", t.joinHost},
		{"kill the leader's machine", t.killLeader},
		{"boot it again", t.bootAgain},
		{"hang a replica: its watchdog", t.hang},
		{"upgrade a replica and the host", t.upgrade},
		{"remove and purge a replica", t.remove},
	} {
		began := time.Now()
		if err := step.do(ctx); err != nil {
			if cause := context.Cause(ctx); cause != nil {
				err = errors.Join(cause, err)
			}
			return fmt.Errorf("%s: %w", step.name, err)
		}
		fmt.Printf("ok  %7.1fs  %s\n", time.Since(began).Seconds(), step.name)
	}
	fmt.Printf("all of it in %s\n", time.Since(t.began).Round(time.Second))
	return nil
}

func (t *trial) bootAll(ctx context.Context) error {
	if err := errors.Join(os.RemoveAll(t.dir), os.MkdirAll(t.dir, 0o700)); err != nil {
		return err
	}
	for i, name := range []string{"a", "b", "c", "h1"} {
		number, memory := 11+i, 768
		if name == "h1" {
			number, memory = 21, 2048
		}
		m, err := t.add(ctx, name, number, memory)
		if err != nil {
			return err
		}
		_ = os.Remove(m.file("console")) // of an earlier run
		if err := m.boot(); err != nil {
			return err
		}
		if name == "h1" {
			t.host = m
			continue
		}
		t.replicas = append(t.replicas, m)
		t.urls = append(t.urls, "http://"+m.address()+":8443")
	}
	return t.each(t.machines, func(m *machine) error { return m.up(ctx) })
}

// each does something on several machines at once.
func (t *trial) each(machines []*machine, do func(*machine) error) error {
	var g errgroup.Group
	for _, m := range machines {
		g.Go(func() error { return do(m) })
	}
	return g.Wait()
}

// debs are the packages' files with this name.
func (t *trial) debs(name string) ([]string, error) {
	files, err := filepath.Glob(filepath.Join(t.packages, name+"_*_amd64.deb"))
	if err == nil && len(files) != 1 {
		err = fmt.Errorf("%s has %d packages %s for amd64, want one: make packages", t.packages, len(files), name)
	}
	return files, err
}

func (t *trial) installReplicas(ctx context.Context) error {
	files, err := t.debs("berth-controlplane")
	if err != nil {
		return err
	}
	return t.each(t.replicas, func(m *machine) error {
		if err := m.put(ctx, "/root/packages", files...); err != nil {
			return err
		}
		if _, err := m.sh(ctx, apt(installReplica), nil); err != nil {
			return err
		}
		return m.is(ctx, map[string]string{
			"systemctl is-enabled berth-controlplane":        "enabled",
			"systemctl is-active berth-controlplane || true": "inactive", // nothing was started
			"stat -c '%U %a' /etc/berth/pki":                 "berth 700",
			"stat -c '%U %a' /etc/berth/controlplane.env":    "root 600",
			"getent passwd berth | cut -d: -f6":              "/var/lib/berth",
		})
	})
}

// is compares what commands print.
func (m *machine) is(ctx context.Context, want map[string]string) error {
	for script, w := range want {
		got, err := m.sh(ctx, script, nil)
		if err != nil {
			return err
		}
		if got != w {
			return fmt.Errorf("%s: %s prints %q, want %q", m.name, script, got, w)
		}
	}
	return nil
}

func (t *trial) startReplicas(ctx context.Context) error {
	pki := filepath.Join(t.dir, "pki")
	args := []string{"init", "--dir", pki}
	for _, m := range t.replicas {
		args = append(args, "--replica", m.name+"="+m.address()+":7001")
	}
	if err := command(ctx, filepath.Join(t.programs, "controlplane"), args...); err != nil {
		return err
	}
	t.admin = "an-operator-of-these-machines"
	return t.each(t.replicas, func(m *machine) error {
		var files []string
		entries, err := os.ReadDir(filepath.Join(pki, m.name))
		if err != nil {
			return err
		}
		for _, e := range entries {
			files = append(files, filepath.Join(pki, m.name, e.Name()))
		}
		if _, err := m.sh(ctx, makePKI, nil); err != nil {
			return err
		}
		if err := m.put(ctx, "/etc/berth/pki", files...); err != nil {
			return err
		}
		if _, err := m.sh(ctx, "chown -R berth:berth /etc/berth/pki && cat >>/etc/berth/controlplane.env", strings.NewReader(
			fmt.Sprintf("\nBERTH_ADMIN_TOKEN=%s\nBERTH_TIME_SCALE=%d\nBERTH_TIERS=/etc/berth/tiers.yaml\n", t.admin, t.slowness))); err != nil {
			return err
		}
		if _, err := m.sh(ctx, "cat >/etc/berth/tiers.yaml", strings.NewReader("small:\n  sandboxes: 1\n")); err != nil {
			return err
		}
		// It returns when the replica has said that it is ready.
		if _, err := m.sh(ctx, startReplica, nil); err != nil {
			return err
		}
		return m.is(ctx, map[string]string{
			"systemctl is-active berth-controlplane":          "active",
			"systemctl show -P StatusText berth-controlplane": "Serving the API on [::]:8443",
			"systemctl show -P NRestarts berth-controlplane":  "0",
			"stat -c '%U %a' /var/lib/berth":                  "berth 700",
		})
	})
}

// berth runs the client of the operator's. It prints to the returned string.
func (t *trial) berth(ctx context.Context, stdin string, args ...string) (string, error) {
	cmd := t.here(ctx, filepath.Join(t.programs, "berth"), args...)
	cmd.Env = []string{"HOME=" + t.dir, "PATH=" + os.Getenv("PATH")}
	cmd.Stdin = strings.NewReader(stdin)
	var out, said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &said
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("berth %s: %w: %s", strings.Join(args, " "), err, said.String())
	}
	return strings.TrimSpace(out.String()), nil
}

// ask runs berth --json and decodes its answer.
func ask[T any](ctx context.Context, t *trial, args ...string) (out T, err error) {
	text, err := t.berth(ctx, "", append([]string{"--json"}, args...)...)
	if err != nil {
		return out, err
	}
	err = json.Unmarshal([]byte(text), &out)
	return out, err
}

// healthy waits for a leader and so many healthy members, and returns the leader.
func (t *trial) healthy(ctx context.Context, n int) (leader string, err error) {
	err = await(ctx, limit, fmt.Sprintf("%d replicas are healthy", n), func() error {
		st, err := ask[api.RaftStatus](ctx, t, "raft", "status")
		if err != nil {
			return err
		}
		well := 0
		for _, p := range st.Peers {
			if p.Healthy {
				well++
			}
		}
		if leader = st.LeaderID; leader == "" || well != n {
			return fmt.Errorf("the leader is %q, and %d of %d are healthy", leader, well, len(st.Peers))
		}
		return nil
	})
	return leader, err
}

func (t *trial) signIn(ctx context.Context) error {
	args := []string{"login", "--operator", "--context", "machines"}
	for _, u := range t.urls {
		args = append(args, "--url", u)
	}
	if err := await(ctx, limit, "there is a leader", func() error {
		_, err := t.berth(ctx, t.admin+"\n", args...)
		return err
	}); err != nil {
		return err
	}
	if _, err := t.healthy(ctx, 3); err != nil {
		return err
	}
	return t.write(ctx, "first")
}

// write is a write through whichever replica, which is read again.
func (t *trial) write(ctx context.Context, name string) error {
	var id string
	err := await(ctx, limit, "a write is taken", func() (err error) {
		id, err = t.berth(ctx, "", "admin", "workspaces", "create", name)
		return err
	})
	if err != nil {
		return err
	}
	list, err := t.berth(ctx, "", "admin", "workspaces", "ls")
	if err == nil && !strings.Contains(list, id) {
		err = fmt.Errorf("the workspace %s is not listed:\n%s", id, list)
	}
	return err
}

func (t *trial) joinHost(ctx context.Context) error {
	files, err := t.debs("berth-hostd")
	if err != nil {
		return err
	}
	if err := t.host.put(ctx, "/root/packages", files...); err != nil {
		return err
	}
	if _, err := t.host.sh(ctx, apt(installHost), nil); err != nil {
		return err
	}
	if err := t.host.is(ctx, map[string]string{
		"systemctl is-enabled berth-hostd":        "enabled",
		"systemctl is-active berth-hostd || true": "inactive",
		"stat -c '%U %a' /etc/berth/pki":          "root 700",
	}); err != nil {
		return err
	}
	token, err := ask[struct {
		Token    string   `json:"token"`
		CASHA256 string   `json:"ca_sha256"`
		Peers    []string `json:"peers"`
	}](ctx, t, "join-token", "create")
	if err != nil {
		return err
	}
	if _, err := t.host.sh(ctx, fmt.Sprintf("%s %s --token %s --ca-sha256 %s --id h1", joinHost, strings.Join(token.Peers, " --peer "), token.Token, token.CASHA256), nil); err != nil {
		return err
	}
	// The kernel is the machine's own cloud kernel, which fetch-kernel would fetch from a
	// mirror. No template is built ahead: that takes a mirror, too.
	if _, err := t.host.sh(ctx, "cat >>/etc/berth/hostd.env", strings.NewReader(fmt.Sprintf(
		"\nBERTH_ADVERTISE=%s:7443\nBERTH_KERNEL=/var/lib/berth-hostd/kernel/vmlinux\nBERTH_TIME_SCALE=%d\nBERTH_TEMPLATES_AHEAD=\nBERTH_TEMPLATE_SOURCES=\nBERTH_DISK_HEADROOM_MB=256\n", t.host.address(), t.slowness))); err != nil {
		return err
	}
	kernel, err := t.kernel()
	if err != nil {
		return err
	}
	if err := t.host.put(ctx, "/var/lib/berth-hostd", kernel); err != nil {
		return err
	}
	if out, err := t.host.sh(ctx, loadSettings+"; "+doctor, nil); err != nil {
		return fmt.Errorf("%w\n%s", err, out)
	}
	if _, err := t.host.sh(ctx, startHost, nil); err != nil {
		return err
	}
	if err := t.host.is(ctx, map[string]string{
		"systemctl show -P StatusText berth-hostd": "Serving as host h1 on [::]:7443",
	}); err != nil {
		return err
	}
	return t.heard(ctx, time.Now())
}

// whole finds what a later step would miss.
func (t *trial) whole() error {
	for _, name := range []string{"berth-controlplane", "berth-hostd"} {
		if _, err := t.debs(name); err != nil {
			return err
		}
	}
	for _, name := range []string{"controlplane", "berth"} {
		if _, err := os.Stat(filepath.Join(t.programs, name)); err != nil {
			return fmt.Errorf("%w: make packages builds it", err)
		}
	}
	_, err := t.kernel()
	return err
}

// kernel is the directory with the guests' kernel that make up and the tests use.
func (t *trial) kernel() (string, error) {
	dir := filepath.Join(filepath.Dir(t.fleet.dir), "kernel")
	if _, err := os.Stat(filepath.Join(dir, "vmlinux")); err != nil {
		return "", fmt.Errorf("%w: scripts/fetch-kernel %s makes it", err, dir)
	}
	return dir, nil
}

// heard waits until the host is up and was heard after a time, by this machine's clock.
func (t *trial) heard(ctx context.Context, after time.Time) error {
	return await(ctx, limit, "the host is heard", func() error {
		agents, err := ask[[]api.Agent](ctx, t, "agents", "ls")
		if err != nil {
			return err
		}
		if len(agents) != 1 || agents[0].ID != "h1" || agents[0].State != "up" || !agents[0].Ready || agents[0].LastSeenAt == nil || agents[0].LastSeenAt.Before(after) {
			return fmt.Errorf("hosts: %+v", agents)
		}
		return nil
	})
}

func (t *trial) replica(id string) *machine {
	i := slices.IndexFunc(t.replicas, func(m *machine) bool { return m.name == id })
	return t.replicas[i]
}

func (t *trial) killLeader(ctx context.Context) error {
	leader, err := t.healthy(ctx, 3)
	if err != nil {
		return err
	}
	t.replica(leader).kill()
	killed := time.Now()
	if err := t.write(ctx, "after the leader"); err != nil {
		return err
	}
	fmt.Printf("    %s was the leader; a write was taken %.1f s after its machine was gone\n", leader, time.Since(killed).Seconds())
	next, err := t.healthy(ctx, 2)
	if err == nil && next == leader {
		err = fmt.Errorf("%s leads, and is gone", next)
	}
	return errors.Join(err, t.heard(ctx, killed))
}

func (t *trial) bootAgain(ctx context.Context) error {
	for _, m := range t.replicas {
		select {
		case <-m.done:
		default:
			continue
		}
		if err := m.boot(); err != nil {
			return err
		}
		if err := m.up(ctx); err != nil {
			return err
		}
		// Enabled at the installation, it starts with the machine.
		if err := m.is(ctx, map[string]string{"systemctl is-active berth-controlplane": "active"}); err != nil {
			return err
		}
	}
	_, err := t.healthy(ctx, 3)
	return err
}

// follower is a replica that does not lead.
func (t *trial) follower(ctx context.Context) (*machine, error) {
	leader, err := t.healthy(ctx, 3)
	if err != nil {
		return nil, err
	}
	for _, m := range t.replicas {
		if m.name != leader {
			return m, nil
		}
	}
	return nil, errors.New("all replicas lead")
}

func (t *trial) hang(ctx context.Context) error {
	m, err := t.follower(ctx)
	if err != nil {
		return err
	}
	// A shorter one than the unit's, by a drop-in as systemctl edit writes. BERTH_TIME_SCALE
	// multiplies it.
	if _, err := m.sh(ctx, "mkdir -p /etc/systemd/system/berth-controlplane.service.d && "+
		"printf '[Service]\\nWatchdogSec=4\\nTimeoutStopSec=5\\n' >/etc/systemd/system/berth-controlplane.service.d/quick.conf && "+
		"systemctl daemon-reload && systemctl restart berth-controlplane && systemctl kill --signal=STOP --kill-whom=main berth-controlplane", nil); err != nil {
		return err
	}
	if err := await(ctx, limit, "systemd has started the replica again", func() error {
		return m.is(ctx, map[string]string{
			"systemctl show -P NRestarts berth-controlplane":                           "1",
			"systemctl is-active berth-controlplane":                                   "active",
			"journalctl -q -u berth-controlplane | grep -c 'Watchdog timeout' || true": "1",
		})
	}); err != nil {
		return err
	}
	// Tiers are read again, and the replica is not another.
	pid, err := m.sh(ctx, "systemctl show -P MainPID berth-controlplane", nil)
	if err != nil {
		return err
	}
	if _, err := m.sh(ctx, "printf 'large:\\n  sandboxes: 99\\n' >/etc/berth/tiers.yaml && "+reload, nil); err != nil {
		return err
	}
	if err := await(ctx, limit, "the tiers were read again", func() error {
		return m.is(ctx, map[string]string{
			"systemctl show -P MainPID berth-controlplane":                                       pid,
			"journalctl -q -u berth-controlplane | grep -c 'tiers were read again.*large'; true": "1",
		})
	}); err != nil {
		return err
	}
	_, err = t.healthy(ctx, 3)
	return err
}

// upgrade installs the packages once more, which is what an upgrade does.
func (t *trial) upgrade(ctx context.Context) error {
	m, err := t.follower(ctx)
	if err != nil {
		return err
	}
	for unit, on := range map[string]*machine{"berth-controlplane": m, "berth-hostd": t.host} {
		settings := "/etc/berth/" + strings.TrimPrefix(unit, "berth-") + ".env"
		state := "systemctl show -P MainPID " + unit
		before, err := on.sh(ctx, state+"; sha256sum "+settings, nil)
		if err != nil {
			return err
		}
		install := installReplica
		if on == t.host {
			install = installHost
		}
		if _, err := on.sh(ctx, apt(install+" --reinstall"), nil); err != nil {
			return err
		}
		after, err := on.sh(ctx, state+"; sha256sum "+settings, nil)
		if err != nil {
			return err
		}
		pid, sum, _ := strings.Cut(before, "\n")
		pidAfter, sumAfter, _ := strings.Cut(after, "\n")
		if pid == pidAfter || sum != sumAfter {
			return fmt.Errorf("%s: after an upgrade the process and the settings are\n%s\nbefore\n%s", unit, after, before)
		}
		if err := on.is(ctx, map[string]string{"systemctl is-active " + unit: "active"}); err != nil {
			return err
		}
	}
	if _, err := t.healthy(ctx, 3); err != nil {
		return err
	}
	return t.heard(ctx, time.Now())
}

func (t *trial) remove(ctx context.Context) error {
	m, err := t.follower(ctx)
	if err != nil {
		return err
	}
	if _, err := m.sh(ctx, apt(removeReplica), nil); err != nil {
		return err
	}
	if err := m.is(ctx, map[string]string{
		"systemctl is-active berth-controlplane || true":          "inactive",
		"ls /usr/lib/berth/controlplane 2>/dev/null || echo gone": "gone",
		"stat -c %a /etc/berth/controlplane.env":                  "600",
		"ls /etc/berth/pki/node.crt":                              "/etc/berth/pki/node.crt",
	}); err != nil {
		return err
	}
	// Two of three go on; installed again, the third is as it was.
	if err := t.write(ctx, "without a third"); err != nil {
		return err
	}
	if _, err := m.sh(ctx, apt(installReplica)+" && "+startReplica, nil); err != nil {
		return err
	}
	if _, err := t.healthy(ctx, 3); err != nil {
		return err
	}
	if _, err := m.sh(ctx, apt(purgeReplica), nil); err != nil {
		return err
	}
	return m.is(ctx, map[string]string{
		"ls /etc/berth/controlplane.env 2>/dev/null || echo gone":                               "gone",
		"ls /etc/systemd/system/multi-user.target.wants | grep berth-controlplane || echo gone": "gone",
		"ls -d /etc/berth/pki/node.crt /var/lib/berth/raft":                                     "/etc/berth/pki/node.crt\n/var/lib/berth/raft",
	})
}
