package placement

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func host(id string, freeMB int, change ...func(*Host)) Host {
	h := Host{ID: id, Accepting: true, FreeMB: freeMB, FreeSlots: 8, OverheadMB: 50,
		Templates: map[string]Template{"base": {Ready: true, CPU: 1, MemoryMB: 512}}}
	for _, c := range change {
		c(&h)
	}
	return h
}

func TestChoose(t *testing.T) {
	draining := func(h *Host) { h.Accepting = false }
	store := func(h *Host) { h.Store = true }
	noSlots := func(h *Host) { h.FreeSlots = 0 }
	building := func(h *Host) { h.Templates = map[string]Template{"base": {}} }
	for _, c := range []struct {
		name   string
		hosts  []Host
		req    Request
		want   string
		reason Reason
	}{
		{"most free memory wins", []Host{host("a", 1000), host("b", 2000)}, Request{Template: "base"}, "b", 0},
		{"a tie goes to the fewer boxes", []Host{host("a", 2000, func(h *Host) { h.Boxes = 3 }), host("b", 2000)}, Request{Template: "base"}, "b", 0},
		{"a full tie goes to the first id", []Host{host("b", 2000), host("a", 2000)}, Request{Template: "base"}, "a", 0},
		{"the overhead counts", []Host{host("a", 561)}, Request{Template: "base"}, "", NoCapacity},
		{"an exact fit is a fit", []Host{host("a", 562)}, Request{Template: "base"}, "a", 0},
		{"a draining host takes nothing", []Host{host("a", 9000, draining), host("b", 600)}, Request{Template: "base"}, "b", 0},
		{"only draining hosts", []Host{host("a", 9000, draining)}, Request{Template: "base"}, "", NoHost},
		{"no hosts", nil, Request{Template: "base"}, "", NoHost},
		{"no slot", []Host{host("a", 9000, noSlots)}, Request{Template: "base"}, "", NoCapacity},
		{"template unknown", []Host{host("a", 9000)}, Request{Template: "other"}, "", UnknownTemplate},
		{"template building", []Host{host("a", 9000, building)}, Request{Template: "base"}, "", TemplateUnready},
		{"ready elsewhere", []Host{host("a", 9000, building), host("b", 600)}, Request{Template: "base"}, "b", 0},
		{"one tried", []Host{host("a", 9000), host("b", 600)}, Request{Template: "base", Exclude: []string{"a"}}, "b", 0},
		{"all tried", []Host{host("a", 9000), host("b", 600)}, Request{Template: "base", Exclude: []string{"a", "b"}}, "", Excluded},
		{"only one will do", []Host{host("a", 9000), host("b", 600)}, Request{Template: "base", Only: "b"}, "b", 0},
		{"the one that will do is full", []Host{host("a", 9000), host("b", 60)}, Request{Template: "base", Only: "b"}, "", NoCapacity},
		{"the one that will do is gone", []Host{host("a", 9000)}, Request{Template: "base", Only: "b"}, "", HostGone},
		{"the one that will do drains", []Host{host("a", 9000), host("b", 600, draining)}, Request{Template: "base", Only: "b"}, "", HostGone},
		{"one preferred", []Host{host("a", 9000), host("b", 600)}, Request{Template: "base", Prefer: "b"}, "b", 0},
		{"the preferred one is full", []Host{host("a", 9000), host("b", 60)}, Request{Template: "base", Prefer: "b"}, "a", 0},
		{"a store is needed", []Host{host("a", 9000), host("b", 600, store)}, Request{Template: "base", Stored: true}, "b", 0},
		{"the preferred one needs no store", []Host{host("a", 9000), host("b", 600, store)}, Request{Template: "base", Prefer: "a", Stored: true}, "a", 0},
		{"no host has a store", []Host{host("a", 9000)}, Request{Template: "base", Stored: true}, "", HostGone},
		{"size brought along", []Host{host("a", 9000)}, Request{Template: "unheard-of", Size: &Template{MemoryMB: 512}}, "a", 0},
		{"size brought along, too large", []Host{host("a", 560)}, Request{Template: "base", Size: &Template{MemoryMB: 512}}, "", NoCapacity},
		{"one tried, the other full", []Host{host("a", 9000), host("b", 6)}, Request{Template: "base", Exclude: []string{"a"}}, "", Excluded},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := Choose(c.hosts, c.req)
			var none *Error
			switch {
			case c.want != "" && (err != nil || got.HostID != c.want):
				t.Fatalf("%+v, %v; want %s", got, err, c.want)
			case c.want == "" && (!errors.As(err, &none) || none.Reason != c.reason):
				t.Fatalf("%+v, %v; want reason %q", got, err, c.reason)
			}
		})
	}
}

func TestErrorListsTheTemplates(t *testing.T) {
	a, b := host("a", 9000), host("b", 9000, func(h *Host) { h.Templates = map[string]Template{"node": {}} })
	hidden := host("c", 9000, func(h *Host) { h.Accepting = false; h.Templates = map[string]Template{"x": {}} })
	_, err := Choose([]Host{b, a, hidden}, Request{Template: "nope"})
	var none *Error
	if !errors.As(err, &none) || !slices.Equal(none.Templates, []string{"base", "node"}) {
		t.Fatalf("%+v", err)
	}
}

func genHosts(t *rapid.T) []Host {
	n := rapid.IntRange(0, 8).Draw(t, "hosts")
	var hosts []Host
	for i := range n {
		h := Host{
			ID:         fmt.Sprintf("h%d", i),
			Accepting:  rapid.Bool().Draw(t, "accepting"),
			FreeMB:     rapid.IntRange(-500, 4000).Draw(t, "free"),
			FreeSlots:  rapid.IntRange(-1, 3).Draw(t, "slots"),
			OverheadMB: rapid.IntRange(0, 100).Draw(t, "overhead"),
			Boxes:      rapid.IntRange(0, 3).Draw(t, "boxes"),
			Templates:  map[string]Template{},
		}
		for _, name := range []string{"base", "node"} {
			if rapid.Bool().Draw(t, "has "+name) {
				h.Templates[name] = Template{Ready: rapid.Bool().Draw(t, "ready"), MemoryMB: rapid.IntRange(64, 2048).Draw(t, "memory")}
			}
		}
		hosts = append(hosts, h)
	}
	return hosts
}

func TestChoiceProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		hosts := genHosts(t)
		req := Request{
			Template: rapid.SampledFrom([]string{"base", "node", "other"}).Draw(t, "template"),
			Exclude:  rapid.SliceOf(rapid.SampledFrom([]string{"h0", "h1", "h2"})).Draw(t, "exclude"),
			Only:     rapid.SampledFrom([]string{"", "", "h0", "h3"}).Draw(t, "only"),
			Prefer:   rapid.SampledFrom([]string{"", "h1", "h4"}).Draw(t, "prefer"),
		}
		choice := func(h Host) Choice {
			tpl := h.Templates[req.Template]
			return Choice{HostID: h.ID, Template: tpl, NeedMB: tpl.MemoryMB + h.OverheadMB}
		}
		fits := func(h Host) bool {
			tpl := h.Templates[req.Template]
			return h.Accepting && tpl.Ready && h.FreeSlots > 0 && h.FreeMB >= tpl.MemoryMB+h.OverheadMB && !slices.Contains(req.Exclude, h.ID) &&
				(req.Only == "" || req.Only == h.ID)
		}
		got, err := Choose(hosts, req)
		if (err == nil) != slices.ContainsFunc(hosts, fits) {
			t.Fatalf("choice %+v, error %v; a fitting host: %v", got, err, slices.ContainsFunc(hosts, fits))
		}
		if err == nil {
			i := slices.IndexFunc(hosts, func(h Host) bool { return h.ID == got.HostID })
			if !fits(hosts[i]) {
				t.Fatalf("chose %+v, which does not fit", hosts[i])
			}
			for _, h := range hosts {
				if fits(h) && better(&h, choice(h), &hosts[i], got, req.Prefer) {
					t.Fatalf("chose %+v over %+v", hosts[i], h)
				}
			}
		}
		// The order in which hosts are listed makes no difference.
		shuffled := rapid.Permutation(hosts).Draw(t, "order")
		again, err2 := Choose(shuffled, req)
		if again != got || (err == nil) != (err2 == nil) {
			t.Fatalf("%+v, %v in one order; %+v, %v in another", got, err, again, err2)
		}
	})
}

// Placing until nothing fits never exceeds a host's memory.
func TestPlacingNeverOvercommits(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		hosts := genHosts(t)
		free := map[string]int{}
		for _, h := range hosts {
			free[h.ID] = h.FreeMB
		}
		for {
			c, err := Choose(hosts, Request{Template: "base"})
			if err != nil {
				return
			}
			i := slices.IndexFunc(hosts, func(h Host) bool { return h.ID == c.HostID })
			hosts[i].FreeMB -= c.NeedMB
			hosts[i].FreeSlots--
			hosts[i].Boxes++
			if free[c.HostID] -= c.NeedMB; free[c.HostID] < 0 {
				t.Fatalf("host %s is %d MB over", c.HostID, -free[c.HostID])
			}
		}
	})
}

func TestChooseForVolume(t *testing.T) {
	disk := func(mb int64) func(*Host) { return func(h *Host) { h.DiskFreeMB = mb } }
	draining := func(h *Host) { h.Accepting = false }
	for name, c := range map[string]struct {
		hosts   []Host
		exclude []string
		want    string
		reason  Reason
	}{
		"most free disk":           {[]Host{host("a", 1, disk(500)), host("b", 1, disk(900))}, nil, "b", 0},
		"a tie, by id":             {[]Host{host("b", 1, disk(900)), host("a", 1, disk(900))}, nil, "a", 0},
		"full":                     {[]Host{host("a", 1, disk(255))}, nil, "", NoCapacity},
		"an exact fit":             {[]Host{host("a", 1, disk(256))}, nil, "a", 0},
		"draining":                 {[]Host{host("a", 1, disk(900), draining)}, nil, "", NoHost},
		"the larger one was tried": {[]Host{host("a", 1, disk(900)), host("b", 1, disk(500))}, []string{"a"}, "b", 0},
		"all were tried":           {[]Host{host("a", 1, disk(900))}, []string{"a"}, "", Excluded},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := ChooseForVolume(c.hosts, 256, c.exclude)
			var none *Error
			if got != c.want || c.want == "" && (!errors.As(err, &none) || none.Reason != c.reason) {
				t.Fatalf("%q, %v; want %q, %q", got, err, c.want, c.reason)
			}
		})
	}
}
