package sandbox_test

import (
	"crypto/tls"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/controlplane/flow"
	"github.com/berth-cloud/berth/controlplane/hosts"
	"github.com/berth-cloud/berth/controlplane/internal/testcluster"
	"github.com/berth-cloud/berth/controlplane/loops"
	"github.com/berth-cloud/berth/controlplane/sandbox"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
)

// The leader's loops with a thousand hosts and a hundred thousand sandboxes, of which
// every tenth has a time to live, at rest.
func BenchmarkLoops(b *testing.B) {
	const fleet, boxes = 1000, 100
	store := testcluster.New(b, 1).Leader().Store
	clients := hosts.NewClients(func(_, address string) *hostapi.Client {
		return hostapi.NewClient(address, &tls.Config{MinVersion: tls.VersionTLS13})
	})
	b.Cleanup(clients.Close)
	registry := hosts.NewRegistry(hosts.Config{Store: store, Clients: clients, Interval: time.Second, Lease: time.Hour, Clock: time.Now, Logger: testcluster.Log()})
	registry.Lead(1)
	for h := range fleet {
		hb := hostapi.Heartbeat{HostID: fmt.Sprintf("h%04d", h), Address: "127.0.0.1:1", BootID: "b", Sequence: 1, Ready: true}
		err := store.Update(b.Context(), func(tx *raftstore.Tx) error {
			raftstore.Put(tx, record.Hosts, &record.Host{Meta: record.Meta{ID: hb.HostID}, State: record.HostUp, Address: hb.Address})
			for i := range boxes {
				row := &record.Sandbox{
					Meta: record.Meta{ID: fmt.Sprintf("%s%022d", hb.HostID[1:], i)}, WorkspaceID: fmt.Sprintf("ws%d", i), HostID: hb.HostID, Generation: 1,
					Status: record.SandboxRunning, Template: "base", HostSeq: 1,
				}
				if i%10 == 0 {
					row.ExpiresAt = time.Now().Add(time.Hour)
				}
				testcluster.PutSandbox(tx, row)
			}
			return nil
		})
		if err != nil {
			b.Fatal(err)
		}
		for i := range boxes {
			hb.Boxes = append(hb.Boxes, hostapi.BoxState{ID: fmt.Sprintf("%s%022d", hb.HostID[1:], i), Generation: 1, Status: hostapi.StatusRunning, Seq: 1, Persistent: new(false)})
		}
		if _, err := registry.Heartbeat(b.Context(), hb); err != nil {
			b.Fatal(err)
		}
	}
	c := core.New(core.Core{
		Store: store, Hosts: registry, Clock: time.Now, Logger: testcluster.Log(),
		Engine: flow.NewEngine(flow.Config{Store: store, Clock: time.Now, Logger: testcluster.Log()}),
	})
	all := sandbox.New(c, sandbox.Config{}).Loops(loops.NewTerm(loops.Config{Store: store, Clock: time.Now, Logger: testcluster.Log(), OrphanGrace: time.Minute}))
	for _, name := range []string{"sandbox inventory", "unreachable sandboxes", "sandbox ttl", "persistent sandboxes", "stray sandboxes"} {
		i := slices.IndexFunc(all, func(l loops.Loop) bool { return l.Name == name })
		if i < 0 {
			b.Fatalf("no loop %q", name)
		}
		b.Run(name, func(b *testing.B) {
			all[i].Pass(b.Context()) // the first looks at everything
			for b.Loop() {
				all[i].Pass(b.Context())
			}
		})
	}
}
