package template

import (
	"strings"

	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
)

// Stored returns a function that reports whether an object in the snapshot store is
// the product of a build that is needed there.
func (f *Flows) Stored(r raftstore.Reader) func(id string) bool {
	wanted := f.storedBuilds(r)
	return func(id string) bool {
		digest, build := strings.CutPrefix(id, hostapi.StoredBuild(""))
		return build && wanted[digest]
	}
}

// storedBuilds returns the digests of the products that are needed in the store:
// those of a template's current build, those whose row says that they are stored,
// because they are yet to be removed, and those that hosts have and would store
// again.
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
	for _, hb := range kinds(f.Hosts.Sessions()) {
		for _, t := range hb.Templates {
			wanted[t.BuildID] = true
		}
	}
	return wanted
}
