package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/hostd/hostapi"
)

// measureAll fills a cell and measures it: while it is filled, at rest, at work, and
// when its leader dies.
func measureAll(ctx context.Context, o options, c *cell, r *results) error {
	lead, err := c.leader(ctx)
	if err != nil {
		return err
	}
	say("%s leads; %d hosts join", lead.id, o.hosts)
	hctx, stopHosts := context.WithCancel(ctx)
	defer stopHosts()
	f, err := startFleet(hctx, o, c)
	if err != nil {
		return err
	}
	defer func() {
		stopHosts()
		f.wg.Wait()
	}()
	t, err := newTenants(ctx, o, c)
	if err != nil {
		return err
	}
	say("filling the cell")
	if err := measureFill(ctx, c, t, r); err != nil {
		return err
	}
	r.add("Inventory of a host, in a whole heartbeat", float64(size(f.hosts[0].Report())), "bytes")
	say("watching it at rest")
	if err := measureIdle(ctx, o, c, f, r); err != nil {
		return err
	}
	say("at work")
	if err := measureWork(ctx, c, f, t, r); err != nil {
		return err
	}
	say("snapshots")
	if err := measureSnapshot(ctx, c, r); err != nil {
		return err
	}
	return measureKills(ctx, o, c, t, r)
}

func size(hb hostapi.Heartbeat) int {
	b, err := json.Marshal(hb)
	if err != nil {
		return 0
	}
	return len(b)
}

func measureFill(ctx context.Context, c *cell, t *tenants, r *results) error {
	lead, err := c.leader(ctx)
	if err != nil {
		return err
	}
	var calls recorder
	cpu, begin := cpuOf(lead), time.Now()
	before := scrape(ctx, lead)
	err = t.fill(ctx, &calls)
	took := time.Since(begin)
	ok, failed := calls.count()
	if err != nil {
		return err
	}
	now, err := c.leader(ctx)
	if err != nil {
		return err
	}
	r.add("Filling: creates a second", float64(ok)/took.Seconds(), "/s")
	r.latency("Filling: create", &calls)
	r.add("Filling: creates that were refused and repeated", float64(failed), "")
	for text, n := range calls.failed {
		say("%d times: %s", n, text)
	}
	if now == lead {
		r.placement("Filling: placement", before, scrape(ctx, lead))
		r.add("Filling: CPU of the leader", (cpuOf(lead)-cpu).Seconds()/took.Seconds(), "cores")
	} else {
		say("leadership moved while the cell was filled")
	}
	return nil
}

// measureIdle is what heartbeats and the leader's loops cost.
func measureIdle(ctx context.Context, o options, c *cell, f *fleet, r *results) error {
	if o.idle == 0 {
		return nil
	}
	pause(ctx, 3*time.Second) // what the last creates have begun
	lead, err := c.leader(ctx)
	if err != nil {
		return err
	}
	beats, cpu, begin, own := f.heartbeats.Load(), cpuOf(lead), time.Now(), cpuOfPID(os.Getpid())
	if !pause(ctx, o.idle) {
		return ctx.Err()
	}
	took := time.Since(begin).Seconds()
	n := float64(f.heartbeats.Load() - beats)
	used := (cpuOf(lead) - cpu).Seconds()
	r.add("At rest: heartbeats a second", n/took, "/s")
	r.add("At rest: CPU of the leader", used/took, "cores")
	if n > 0 {
		r.add("At rest: CPU of the leader for each heartbeat", used/n*1e6, "µs")
	}
	r.add("At rest: CPU of the simulated hosts", (cpuOfPID(os.Getpid())-own).Seconds()/took, "cores")
	r.memory("At rest", c, lead)
	return nil
}

func measureWork(ctx context.Context, c *cell, f *fleet, t *tenants, r *results) error {
	lead, err := c.leader(ctx)
	if err != nil {
		return err
	}
	var m mix
	before, cpu, begin, events, own := scrape(ctx, lead), cpuOf(lead), time.Now(), f.delivered.Load(), cpuOfPID(os.Getpid())
	t.work(ctx, &m)
	took := time.Since(begin)
	creates, _ := m.create.count()
	removes, _ := m.remove.count()
	gets, _ := m.get.count()
	lists, _ := m.list.count()
	r.add("At work: creates a second", float64(creates)/took.Seconds(), "/s")
	r.add("At work: deletes a second", float64(removes)/took.Seconds(), "/s")
	r.add("At work: reads a second", float64(gets+lists)/took.Seconds(), "/s")
	for _, k := range []struct {
		name string
		rec  *recorder
	}{{"create", &m.create}, {"get", &m.get}, {"list of 100", &m.list}, {"delete", &m.remove}} {
		r.latency("At work: "+k.name, k.rec)
		for text, n := range k.rec.failed {
			say("%s failed %d times: %s", k.name, n, text)
		}
		_, failed := k.rec.count()
		r.add("At work: "+k.name+", failed", float64(failed), "")
	}
	if now, err := c.leader(ctx); err == nil && now == lead {
		r.placement("At work: placement", before, scrape(ctx, lead))
		r.add("At work: CPU of the leader", (cpuOf(lead)-cpu).Seconds()/took.Seconds(), "cores")
	}
	r.add("At work: CPU of this program, hosts and clients", (cpuOfPID(os.Getpid())-own).Seconds()/took.Seconds(), "cores")
	r.add("At work: events taken a second, by all replicas", float64(f.delivered.Load()-events)/took.Seconds(), "/s")
	r.memory("At work", c, lead)
	return nil
}

// measureSnapshot reads the size of a backup, which has what a snapshot has, and how
// long the replicas' own snapshots took.
func measureSnapshot(ctx context.Context, c *cell, r *results) error {
	lead, err := c.leader(ctx)
	if err != nil {
		return err
	}
	begin := time.Now()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, lead.url+"/v1/admin/raft/snapshot", nil)
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer "+c.admin)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	n, err := io.Copy(io.Discard, resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		return errors.Join(err, fmt.Errorf("backup: %s", resp.Status))
	}
	r.add("Backup of the control store", float64(n)/1e6, "MB")
	r.add("Time of a backup", time.Since(begin).Seconds(), "s")
	if size, took, ok := lastSnapshot(lead.dir); ok {
		r.add("Snapshot of Raft, the leader's last", float64(size)/1e6, "MB")
		r.add("Time of that snapshot", took.Seconds(), "s")
	}
	return nil
}

// lastSnapshot finds a replica's latest snapshot. Its directory is named after term,
// index and the time, in milliseconds, at which it was begun.
func lastSnapshot(dir string) (size int64, took time.Duration, ok bool) {
	files, err := filepath.Glob(filepath.Join(dir, "raft", "snapshots", "*", "state.bin"))
	if err != nil {
		return 0, 0, false
	}
	var latest int64
	for _, file := range files {
		name := filepath.Base(filepath.Dir(file))
		began, err := strconv.ParseInt(name[strings.LastIndexByte(name, '-')+1:], 10, 64)
		info, err2 := os.Stat(file)
		if err != nil || err2 != nil || began < latest { // one under way ends in .tmp
			continue
		}
		latest, size, took, ok = began, info.Size(), info.ModTime().Sub(time.UnixMilli(began)), true
	}
	return size, took, ok
}

// measureKills kills the leader and waits for the next write that is acknowledged, the
// next sandbox, and the replica's return.
func measureKills(ctx context.Context, o options, c *cell, t *tenants, r *results) error {
	var write, create, back recorder
	for n := range o.kills {
		lead, err := c.leader(ctx)
		if err != nil {
			return err
		}
		var urls []string
		for _, other := range c.replicas {
			if other != lead {
				urls = append(urls, other.url)
			}
		}
		say("killing %s", lead.id)
		lead.kill()
		died := time.Now()
		created := make(chan error, 1)
		go func() {
			created <- t.untilCreated(ctx, n)
			create.add(time.Since(died), nil)
		}()
		if err := untilWritten(ctx, c.admin, urls); err != nil {
			return err
		}
		write.add(time.Since(died), nil)
		if err := <-created; err != nil {
			return err
		}
		again := time.Now()
		if err := lead.start(); err != nil {
			return err
		}
		if err := c.caughtUp(ctx, lead); err != nil {
			return err
		}
		back.add(time.Since(again), nil)
		pause(ctx, 5*time.Second)
	}
	if o.kills > 0 {
		r.times("kill -9 of the leader → next acknowledged write", &write)
		r.times("kill -9 of the leader → next sandbox that runs", &create)
		r.times("Start of a replica with this state → caught up", &back)
	}
	return nil
}

// untilWritten makes a write again and again until it is acknowledged: a token, by
// which a host may join.
func untilWritten(ctx context.Context, admin string, urls []string) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	client, err := api.NewClient(nil, admin, urls...)
	if err != nil {
		return err
	}
	defer client.Close()
	for {
		call, cancel := context.WithTimeout(ctx, time.Second)
		_, err := client.CreateJoinToken(call, api.CreateJoinToken{TTLSeconds: new(int64(60))})
		cancel()
		if err == nil {
			return nil
		}
		if !pause(ctx, 5*time.Millisecond) {
			return fmt.Errorf("no write is acknowledged: %w", err)
		}
	}
}

func (t *tenants) untilCreated(ctx context.Context, n int) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	for {
		_, err := t.clients[n%t.o.workspaces].CreateSandbox(ctx, api.CreateSandbox{Template: templateName(0)}, fmt.Sprintf("after-kill-%d", n))
		if err == nil {
			return nil
		}
		if !pause(ctx, 5*time.Millisecond) {
			return fmt.Errorf("no sandbox can be created: %w", err)
		}
	}
}

// caughtUp waits until a replica has applied what the leader had committed.
func (c *cell) caughtUp(ctx context.Context, r *replica) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	lead, err := c.leader(ctx)
	if err != nil {
		return err
	}
	want, err := c.status(ctx, lead)
	if err != nil {
		return err
	}
	for {
		if st, err := c.status(ctx, r); err == nil && st.AppliedIndex >= want.CommitIndex {
			return nil
		}
		if !pause(ctx, 20*time.Millisecond) {
			return fmt.Errorf("%s does not catch up", r.id)
		}
	}
}

// scrape reads a replica's metrics by their names with labels; one that does not answer
// has none.
func scrape(ctx context.Context, r *replica) map[string]float64 {
	out := map[string]float64{}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, r.url+"/metrics", nil)
	if err != nil {
		return out
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return out
	}
	defer resp.Body.Close()
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		name, value, ok := strings.Cut(lines.Text(), "} ")
		if v, err := strconv.ParseFloat(value, 64); ok && err == nil {
			out[name+"}"] = v
		}
	}
	return out
}

// clockTick is the unit of /proc/<pid>/stat, which is the same on every Linux that Go
// runs on.
const clockTick = 10 * time.Millisecond

func cpuOf(r *replica) time.Duration { return cpuOfPID(r.cmd.Process.Pid) }

// cpuOfPID is the processor time that a process has used.
func cpuOfPID(pid int) time.Duration {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	// The name, in parentheses, may contain anything.
	fields := strings.Fields(string(raw[strings.LastIndexByte(string(raw), ')')+1:]))
	if len(fields) < 13 {
		return 0
	}
	user, err1 := strconv.ParseInt(fields[11], 10, 64)
	system, err2 := strconv.ParseInt(fields[12], 10, 64)
	if err1 != nil || err2 != nil {
		return 0
	}
	return time.Duration(user+system) * clockTick
}

// residentMB are the resident memory of a process, and the most that it was.
func residentMB(pid int) (now, peak float64) {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, 0
	}
	for line := range strings.Lines(string(raw)) {
		fields := strings.Fields(line)
		if len(fields) < 2 {
			continue
		}
		kb, _ := strconv.ParseFloat(fields[1], 64)
		switch fields[0] {
		case "VmRSS:":
			now = kb / 1024
		case "VmHWM:":
			peak = kb / 1024
		}
	}
	return now, peak
}
