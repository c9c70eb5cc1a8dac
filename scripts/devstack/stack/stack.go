package stack

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/scripts/devstack/preflight"
	"github.com/berth-cloud/berth/timescale"
)

// Stack is a running Berth.
type Stack struct {
	Options

	URLs       []string // public API, one a replica
	Token      string   // an API key
	JWT        string   // of the same user
	AdminToken string

	Replicas []*Process // "r1", "r2", …
	HostProc []*Process // "h1", "h2", …

	secrets secrets
	lock    *os.File

	stopSupervising context.CancelFunc
	supervised      sync.WaitGroup
}

// Start starts a stack with an empty control store and empty hosts, and returns
// when every replica and every host is healthy. Whatever an earlier stack of
// the same directory left is taken down first. On an error nothing is left.
func Start(ctx context.Context, o Options) (_ *Stack, err error) {
	o, err = o.withDefaults()
	if err != nil {
		return nil, err
	}
	if err := o.preflight(preflight.This); err != nil {
		return nil, err
	}
	lock, err := o.takeLock()
	if err != nil {
		return nil, err
	}
	s := &Stack{Options: o, lock: lock, secrets: newSecrets()}
	s.AdminToken = s.secrets.adminToken
	defer func() {
		if err != nil {
			// The caller's context may be what ended us; cleaning up may not.
			err = errors.Join(err, s.Stop(context.WithoutCancel(ctx)))
		}
	}()
	if err := o.takeDown(ctx); err != nil {
		return nil, fmt.Errorf("clean up after the last run: %w", err)
	}
	if err := o.checkPorts(); err != nil {
		return nil, err
	}
	if s.HostMemoryMB == 0 {
		free, err := preflight.AvailableMemoryMB()
		if err != nil {
			return nil, err
		}
		s.HostMemoryMB = (free - 1024) / s.Hosts
	}
	// VMMs run as users of their own, and pass through data/ to their disks.
	for _, dir := range []string{s.Dir, s.dataDir(""), s.Logs} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return nil, err
		}
	}
	// The rows of an earlier run's snapshots are gone with its Dir, and so is whom
	// the store belonged to. What they share stays; chunks that nobody has go with
	// the hosts' sweep.
	for _, name := range []string{"snapshots", "owner"} {
		if err := os.RemoveAll(filepath.Join(s.Snapshots, name)); err != nil {
			return nil, err
		}
	}
	if err := s.makeMachines(); err != nil {
		return nil, err
	}
	if err := s.startReplicas(ctx); err != nil {
		return nil, err
	}
	if err := s.startHosts(ctx); err != nil {
		return nil, err
	}
	if err := s.WaitHealthy(ctx); err != nil {
		return nil, err
	}
	s.JWT, s.Token, err = s.NewToken(ctx, devSubject)
	if err != nil {
		return nil, err
	}
	s.startSupervising()
	return s, nil
}

// IsRefusal reports whether err is one sentence for a person, to be shown
// without more.
func IsRefusal(err error) bool { return preflight.IsRefusal(err) }

// CheckFree refuses when a stack runs in the directory, or when the machine is
// not fit for one: what Start would refuse, before the work that comes first.
func CheckFree(o Options) error {
	o, err := o.withDefaults()
	if err != nil {
		return err
	}
	if err := o.preflight(preflight.This); err != nil {
		return err
	}
	lock, err := o.takeLock()
	if err != nil {
		return err
	}
	defer lock.Close()
	// What an earlier stack left may have the ports, and goes before they are
	// wanted.
	if _, err := os.Stat(o.Dir); err == nil {
		return nil
	}
	return o.checkPorts()
}

// takeLock holds the stack's directory for this process. The kernel lets go of
// it when we die, however we die.
func (o Options) takeLock() (*os.File, error) {
	if err := os.MkdirAll(filepath.Dir(o.Dir), 0o755); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(o.Dir+".lock", os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		defer f.Close()
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("lock %s: %w", f.Name(), err)
		}
		holder, _ := os.ReadFile(f.Name())
		return nil, preflight.Refusef("a stack already runs here (pid %s): use it with .berth/dev.env, or end it with make down", strings.TrimSpace(string(holder)))
	}
	if err := errors.Join(f.Truncate(0), writeAt(f, fmt.Sprintln(os.Getpid()))); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

func writeAt(f *os.File, s string) error {
	_, err := f.WriteAt([]byte(s), 0)
	return err
}

func (s *Stack) newProcess(id, program string, args, env []string) *Process {
	return &Process{
		ID: id, Path: s.bin(program), Args: args, Env: env,
		wrap:    s.onMachine(id),
		logFile: s.logFile(id),
		record:  filepath.Join(s.recordDir(), id+".json"),
	}
}

func (s *Stack) startReplicas(ctx context.Context) error {
	if out, err := exec.CommandContext(ctx, s.bin("controlplane"), s.initArgs()...).CombinedOutput(); err != nil {
		return fmt.Errorf("controlplane init: %w: %s", err, strings.TrimSpace(string(out)))
	}
	for i := range s.Options.Replicas {
		id := s.replicaID(i)
		s.URLs = append(s.URLs, "http://"+s.address(id, s.apiPort(i)))
		p := s.newProcess(id, "controlplane", replicaArgs, s.replicaEnv(i, s.secrets))
		// Guests weigh less than daemons (hostd/cgroup), but what else runs on a
		// developer's machine does not, and a leader that is late by half a second
		// is replaced. Elsewhere replicas have a weight in systemd's unit.
		p.Nice = -10
		s.Replicas = append(s.Replicas, p)
		if err := p.Start(); err != nil {
			return err
		}
	}
	return s.WaitLeader(ctx)
}

func (s *Stack) startHosts(ctx context.Context) error {
	admin, err := s.Admin()
	if err != nil {
		return err
	}
	defer admin.Close()
	for i := range s.Options.Hosts {
		id := s.hostID(i)
		token, err := admin.CreateJoinToken(ctx, api.CreateJoinToken{TTLSeconds: new(int64(600))})
		if err != nil {
			return fmt.Errorf("make a join token for %s: %w", id, err)
		}
		join := s.command(ctx, id, append([]string{s.bin("hostd")}, s.joinArgs(i, token.Token, token.CASHA256)...)...)
		join.Env = s.hostEnv(i)
		if out, err := join.CombinedOutput(); err != nil {
			return fmt.Errorf("join %s to the cluster: %w: %s", id, err, strings.TrimSpace(string(out)))
		}
		p := s.newProcess(id, "hostd", hostArgs, s.hostEnv(i))
		s.HostProc = append(s.HostProc, p)
		if err := p.Start(); err != nil {
			return err
		}
	}
	return nil
}

// Process finds a replica or a host by its id.
func (s *Stack) Process(id string) *Process {
	for _, p := range append(append([]*Process(nil), s.Replicas...), s.HostProc...) {
		if p.ID == id {
			return p
		}
	}
	return nil
}

// DataDir is where a replica or a host keeps its state.
func (s *Stack) DataDir(id string) string { return s.dataDir(id) }

// Leader asks the replicas who leads; nil while nobody does.
func (s *Stack) Leader(ctx context.Context) *Process {
	for _, u := range s.URLs {
		client, err := api.NewClient(nil, s.AdminToken, u)
		if err != nil {
			return nil
		}
		ask, cancel := context.WithTimeout(ctx, time.Second)
		status, err := client.RaftStatus(ask)
		cancel()
		client.Close()
		if err == nil && status.State == "leader" {
			return s.Process(status.NodeID)
		}
	}
	return nil
}

// startSupervising begins to restart what ends by itself, where that was asked for.
func (s *Stack) startSupervising() {
	if !s.Supervise {
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	s.stopSupervising = cancel
	for _, p := range append(append([]*Process(nil), s.Replicas...), s.HostProc...) {
		s.supervised.Go(func() { p.supervise(ctx, s.Notify) })
	}
}

// Stop ends everything and checks that the kernel holds nothing of it any
// more; what is left is in the error.
func (s *Stack) Stop(ctx context.Context) error {
	if s.stopSupervising != nil {
		s.stopSupervising()
		s.supervised.Wait()
	}
	ctx, cancel := context.WithTimeout(ctx, timescale.Limit(2*time.Minute))
	defer cancel()
	err := s.stopProcesses(ctx)
	err = errors.Join(err, s.takeDown(ctx))
	if s.lock != nil {
		err = errors.Join(err, s.lock.Close())
	}
	return err
}

// Abandon lets go of the stack as our death would: its processes run on, and
// the next Start or Down of its directory ends them.
func (s *Stack) Abandon() {
	if s.stopSupervising != nil {
		s.stopSupervising()
		s.supervised.Wait()
	}
	s.lock.Close()
}

// stopProcesses asks the hosts to end first, so that they can still tell the
// control plane, then the replicas. Each kind ends together.
func (s *Stack) stopProcesses(ctx context.Context) error {
	patience := timescale.Limit(10 * time.Second)
	var failed error
	for _, kind := range [][]*Process{s.HostProc, s.Replicas} {
		ctx, cancel := context.WithTimeout(ctx, patience)
		errs := make([]error, len(kind))
		var all sync.WaitGroup
		for i, p := range kind {
			all.Go(func() { errs[i] = p.Stop(ctx) })
		}
		all.Wait()
		cancel()
		failed = errors.Join(failed, errors.Join(errs...))
	}
	return failed
}
