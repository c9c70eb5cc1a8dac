package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/scripts/devstack/stack"
)

const (
	sequential = 30 // creates one after the other
	atOnce     = 16
	coldBoots  = 8
	execs      = 100
	residents  = 8 // sandboxes whose memory is measured
)

// made is one create: how long the caller waited, and the host's stages of it.
type made struct {
	sandbox *api.Sandbox
	took    time.Duration
	stages  []hostapi.Stage
}

// ours is what the engine did not use of the caller's wait.
func (m made) ours() time.Duration {
	d := m.took
	for _, s := range m.stages {
		if s.Engine {
			d -= s.Duration
		}
	}
	return d
}

func measureSandboxes(ctx context.Context, s *stack.Stack, r *results) error {
	c, err := s.Client()
	if err != nil {
		return err
	}
	defer c.Close()

	progress("%d creates, one after the other", sequential)
	restored, err := createSequential(ctx, s, c, sequential, api.BootRestore)
	if err != nil {
		return fmt.Errorf("create: %w", err)
	}
	progress("%d cold boots", coldBoots)
	cold, err := createSequential(ctx, s, c, coldBoots, api.BootCold)
	if err != nil {
		return fmt.Errorf("create by cold boot: %w", err)
	}
	r.addLatency("create_restored", waits(restored))
	r.addLatency("create_cold_booted", waits(cold))
	r.want("create_cold_over_restored", float64(quantile(waits(cold), 0.5))/float64(quantile(waits(restored), 0.5)), "times", atLeast, 5)
	own := make([]time.Duration, len(restored))
	for i, m := range restored {
		own[i] = m.ours()
	}
	r.want("create_our_share_p50", ms(quantile(own, 0.5)), "ms", atMost, 60)
	r.add("create_our_share_p95", ms(quantile(own, 0.95)), "ms")
	addStages(r, restored)

	progress("%d creates at once", atOnce)
	if err := createAtOnce(ctx, s, c, r); err != nil {
		return err
	}
	progress("%d execs of true", execs)
	if err := measureExec(ctx, c, r); err != nil {
		return fmt.Errorf("exec: %w", err)
	}
	progress("memory of %d sandboxes", residents)
	if err := measureMemory(ctx, s, c, r); err != nil {
		return fmt.Errorf("memory: %w", err)
	}
	return nil
}

func waits(all []made) []time.Duration {
	out := make([]time.Duration, len(all))
	for i, m := range all {
		out[i] = m.took
	}
	return out
}

// createOne makes a sandbox and asks its host for the stages.
func createOne(ctx context.Context, s *stack.Stack, c *api.Client, boot api.Boot) (made, error) {
	began := time.Now()
	sandbox, err := c.CreateSandbox(ctx, api.CreateSandbox{Template: stack.BaseTemplate, Boot: boot}, "")
	if err != nil {
		return made{}, err
	}
	m := made{sandbox: sandbox, took: time.Since(began)}
	host, err := s.HostClient(sandbox.AgentID)
	if err != nil {
		return made{}, err
	}
	defer host.Close()
	box, err := host.Get(ctx, hostapi.Call{}, sandbox.ID)
	if err != nil {
		return made{}, err
	}
	m.stages = box.Stages
	return m, nil
}

// createSequential makes sandboxes one at a time, and deletes each before the
// next, so that every one meets the same machine.
func createSequential(ctx context.Context, s *stack.Stack, c *api.Client, n int, boot api.Boot) ([]made, error) {
	var all []made
	for range n + 1 {
		m, err := createOne(ctx, s, c, boot)
		if err != nil {
			return nil, err
		}
		if err := c.DeleteSandbox(ctx, m.sandbox.ID); err != nil {
			return nil, err
		}
		all = append(all, m)
	}
	return all[1:], nil // the first one warms caches and connections
}

// addStages adds the median of each stage, in the order of a create. What the
// host's stages do not cover is the control plane's and the wires'.
func addStages(r *results, all []made) {
	var names []string
	of := map[string][]time.Duration{}
	engine := map[string]bool{}
	var rest []time.Duration
	for _, m := range all {
		left := m.took
		for _, s := range m.stages {
			if of[s.Name] == nil {
				names = append(names, s.Name)
			}
			of[s.Name] = append(of[s.Name], s.Duration)
			engine[s.Name] = s.Engine
			left -= s.Duration
		}
		rest = append(rest, left)
	}
	for _, name := range names {
		whose := "ours"
		if engine[name] {
			whose = "engine"
		}
		r.add(fmt.Sprintf("create_stage_%s_%s_p50", whose, name), ms(quantile(of[name], 0.5)), "ms")
	}
	r.add("create_stage_ours_control_plane_p50", ms(quantile(rest, 0.5)), "ms")
}

func createAtOnce(ctx context.Context, s *stack.Stack, c *api.Client, r *results) error {
	all := make([]made, atOnce)
	errs := make([]error, atOnce)
	began := time.Now()
	var group sync.WaitGroup
	for i := range all {
		group.Go(func() { all[i], errs[i] = createOne(ctx, s, c, api.BootRestore) })
	}
	group.Wait()
	whole := time.Since(began)
	failed := 0
	var took []time.Duration
	for i, err := range errs {
		if err != nil {
			failed++
			fmt.Fprintf(os.Stderr, "  create %d at once: %v\n", i+1, err)
			continue
		}
		took = append(took, all[i].took)
	}
	r.want("create_16_at_once_errors", float64(failed), "", atMost, 0)
	r.addLatency("create_16_at_once", took)
	r.add("create_16_at_once_all", ms(whole), "ms")
	for _, m := range all {
		if m.sandbox != nil {
			group.Go(func() {
				if err := c.DeleteSandbox(ctx, m.sandbox.ID); err != nil {
					fmt.Fprintf(os.Stderr, "  delete: %v\n", err)
				}
			})
		}
	}
	group.Wait()
	return nil
}

func measureExec(ctx context.Context, c *api.Client, r *results) error {
	sandbox, err := c.CreateSandbox(ctx, api.CreateSandbox{Template: stack.BaseTemplate}, "")
	if err != nil {
		return err
	}
	var took []time.Duration
	pace := time.NewTicker(50 * time.Millisecond) // below the rate limit of a workspace
	defer pace.Stop()
	for i := range execs + 5 {
		<-pace.C
		began := time.Now()
		result, err := c.Exec(ctx, sandbox.ID, api.Exec{Cmd: api.Argv("true")})
		if err != nil {
			return err
		}
		if result.ExitCode != 0 {
			return errors.New("true ended with an error")
		}
		if i >= 5 {
			took = append(took, time.Since(began))
		}
	}
	r.addLatency("exec_true", took)
	return c.DeleteSandbox(ctx, sandbox.ID)
}

// measureMemory is the proportional set size of the VMMs and their children: a
// page that n processes share counts a n-th for each.
func measureMemory(ctx context.Context, s *stack.Stack, c *api.Client, r *results) error {
	var ids []string
	var roots []int
	for range residents {
		m, err := createOne(ctx, s, c, api.BootRestore)
		if err != nil {
			return err
		}
		ids = append(ids, m.sandbox.ID)
		if _, err := c.Exec(ctx, m.sandbox.ID, api.Exec{Cmd: api.Shell("python3 -c 'print(6*7)'")}); err != nil {
			return err
		}
		host, err := s.HostClient(m.sandbox.AgentID)
		if err != nil {
			return err
		}
		box, err := host.Get(ctx, hostapi.Call{}, m.sandbox.ID)
		host.Close()
		if err != nil {
			return err
		}
		roots = append(roots, box.VMMPID)
	}
	total, err := pssKB(roots)
	if err != nil {
		return err
	}
	r.add("memory_of_a_sandbox_pss", float64(total)/1024/residents, "MB")
	for _, id := range ids {
		if err := c.DeleteSandbox(ctx, id); err != nil {
			return err
		}
	}
	return nil
}

// pssKB sums over processes and all their descendants.
func pssKB(roots []int) (int, error) {
	total := 0
	for len(roots) > 0 {
		pid := roots[0]
		roots = roots[1:]
		proc := "/proc/" + strconv.Itoa(pid)
		b, err := os.ReadFile(proc + "/smaps_rollup")
		if err != nil {
			return 0, err
		}
		for line := range strings.Lines(string(b)) {
			if kb, ok := strings.CutPrefix(line, "Pss:"); ok {
				n, err := strconv.Atoi(strings.TrimSuffix(strings.TrimSpace(kb), " kB"))
				if err != nil {
					return 0, fmt.Errorf("%s/smaps_rollup: %w", proc, err)
				}
				total += n
			}
		}
		// A VMM has many threads, and each may have started a child.
		tasks, err := os.ReadDir(proc + "/task")
		if err != nil {
			return 0, err
		}
		for _, task := range tasks {
			children, err := os.ReadFile(proc + "/task/" + task.Name() + "/children")
			if err != nil {
				return 0, err
			}
			for _, child := range strings.Fields(string(children)) {
				n, err := strconv.Atoi(child)
				if err != nil {
					return 0, err
				}
				roots = append(roots, n)
			}
		}
	}
	return total, nil
}
