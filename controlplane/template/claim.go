package template

import (
	"strings"

	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
)

// Stored returns what reports whether something in the snapshot store is the product
// of a build that somebody wants there.
func (f *Flows) Stored(r raftstore.Reader) func(id string) bool {
	wanted := f.storedBuilds(r)
	return func(id string) bool {
		digest, build := strings.CutPrefix(id, hostapi.StoredBuild(""))
		return build && wanted[digest]
	}
}

// storedBuilds are the products of builds, by their digests, that are in the
// store for somebody: a template means one, its row says that it is there and so
// is yet to be removed, or a host would put it there again.
func (f *Flows) storedBuilds(view raftstore.Reader) map[string]bool {
	wanted, current := map[string]bool{}, map[string]bool{}
	for _, t := range raftstore.All(view, record.Templates) {
		current[t.BuildID] = true
	}
	for _, b := range raftstore.All(view, record.Builds) {
		for _, p := range b.Products {
			if p.Stored || current[b.ID] {
				wanted[p.Digest] = true
			}
		}
	}
	for _, s := range f.Hosts.Sessions() {
		for _, t := range s.Heartbeat.Templates {
			wanted[t.BuildID] = true
		}
	}
	return wanted
}
