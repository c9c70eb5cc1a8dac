package stack

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/timescale"
)

// BaseTemplate is the template that every stack has.
const BaseTemplate = "base"

// healthTimeout bounds each wait of a start. A replica is up within a second
// and a host within three; a loaded machine of two cores may take ten times that.
var healthTimeout = timescale.Limit(60 * time.Second)

// Await calls check until it returns nil. When the time is up, the error says
// what was waited for and why check refused last.
func Await(ctx context.Context, most, every time.Duration, what string, check func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	tick := time.NewTicker(every)
	defer tick.Stop()
	var last error
	for {
		err := check(ctx)
		if err == nil {
			return nil
		}
		// A check that ctx cut short tells less than the one before it.
		if ctx.Err() == nil || last == nil {
			last = err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waited until %s, in vain: %w", what, last)
		case <-tick.C:
		}
	}
}

// WaitLeader waits until a leader is known to every replica that was not ended on purpose.
func (s *Stack) WaitLeader(ctx context.Context) error {
	return s.await(ctx, "the replicas have a leader", s.Replicas, func(ctx context.Context) error {
		for i, p := range s.Replicas {
			if !p.Wanted() {
				continue
			}
			client, err := api.NewClient(nil, s.AdminToken, s.URLs[i])
			if err != nil {
				return err
			}
			status, err := client.RaftStatus(ctx)
			client.Close()
			if err != nil {
				return fmt.Errorf("replica %s: %w", p.ID, err)
			}
			if status.LeaderID == "" {
				return fmt.Errorf("replica %s knows no leader", p.ID)
			}
		}
		return nil
	})
}

// WaitHosts waits until every host that was not ended on purpose says that it
// is ready, and the leader knows it to be up, with a complete inventory and the
// base template ready. The leader alone may not have noticed a restart.
func (s *Stack) WaitHosts(ctx context.Context) error {
	admin, err := s.Admin()
	if err != nil {
		return err
	}
	defer admin.Close()
	return s.await(ctx, "every host is ready", s.HostProc, func(ctx context.Context) error {
		for _, p := range s.HostProc {
			if p.Wanted() {
				if err := s.AskHost(ctx, p.ID); err != nil {
					return err
				}
			}
		}
		agents, _, err := admin.ListAgents(ctx, api.Page{})
		if err != nil {
			return err
		}
		for _, p := range s.HostProc {
			if !p.Wanted() {
				continue
			}
			at := slices.IndexFunc(agents, func(a api.Agent) bool { return a.ID == p.ID })
			switch {
			case at < 0:
				return fmt.Errorf("host %s has not joined", p.ID)
			case agents[at].State != "up" || !agents[at].Ready:
				return fmt.Errorf("host %s is %s, ready: %t", p.ID, agents[at].State, agents[at].Ready)
			case !slices.ContainsFunc(agents[at].Templates, isReadyBase):
				return fmt.Errorf("host %s has no template %s", p.ID, BaseTemplate)
			}
		}
		return nil
	})
}

// AskHost wants a host itself to say that it is ready.
func (s *Stack) AskHost(ctx context.Context, id string) error {
	host, err := s.HostClient(id)
	if err != nil {
		return err
	}
	defer host.Close()
	ctx, cancel := context.WithTimeout(ctx, timescale.Limit(2*time.Second))
	defer cancel()
	info, err := host.Info(ctx)
	switch {
	case err != nil:
		return fmt.Errorf("host %s: %w", id, err)
	case !info.Ready:
		return fmt.Errorf("host %s is taking over what runs on it", id)
	}
	return nil
}

func isReadyBase(t api.AgentTemplate) bool { return t.Name == BaseTemplate && t.Status == "ready" }

// WaitHealthy waits for the leader and then for the hosts.
func (s *Stack) WaitHealthy(ctx context.Context) error {
	if err := s.WaitLeader(ctx); err != nil {
		return err
	}
	return s.WaitHosts(ctx)
}

// await gives up early, with the end of its log, when one of the processes that
// are waited for has died.
func (s *Stack) await(ctx context.Context, what string, procs []*Process, check func(context.Context) error) error {
	dead := errors.New("a process ended")
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	err := Await(ctx, healthTimeout, 50*time.Millisecond, what, func(ctx context.Context) error {
		for _, p := range procs {
			if p.Wanted() && !p.Running() && !s.Supervise {
				err := fmt.Errorf("%w: %s (%s); the end of its log:\n%s", dead, p.ID, describeExit(p.Exit()), tail(p.logFile, 12))
				cancel(err)
				return err
			}
		}
		return check(ctx)
	})
	if cause := context.Cause(ctx); errors.Is(cause, dead) {
		return cause
	}
	return err
}

// tail returns the last lines of a file, as they are.
func tail(path string, lines int) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	all := strings.Split(strings.TrimRight(string(b), "\n"), "\n")
	return "  " + strings.Join(all[max(0, len(all)-lines):], "\n  ")
}
