package hosts

import (
	"slices"
	"unique"

	"github.com/berth-cloud/berth/controlplane/placement"
	"github.com/berth-cloud/berth/hostd/hostapi"
)

// shelf is a set of templates as placement looks them up. Every host gets every template,
// so a fleet has few different ones, which its sessions share: made for each placement, or
// even for each host, they would be most of the leader's time and memory.
type shelf struct {
	id        uint64
	of        []hostapi.TemplateState
	templates map[string]placement.Template // by name
	builds    map[string]placement.Template // those that are ready, by digest
	sessions  int
}

// shelve returns the shelf of a host's templates, and has the host's strings be those of
// the other hosts. The caller holds the lock.
func (r *Registry) shelve(of []hostapi.TemplateState) *shelf {
	for i := range of {
		for _, text := range []*string{&of[i].Name, &of[i].BuildID, &of[i].Build, &of[i].Status} {
			*text = unique.Make(*text).Value()
		}
	}
	for _, s := range r.shelves {
		if slices.EqualFunc(s.of, of, alike) {
			s.sessions++
			return s
		}
	}
	s := &shelf{id: r.version, of: of, sessions: 1, templates: make(map[string]placement.Template, len(of)), builds: make(map[string]placement.Template, len(of))}
	for _, t := range of {
		as := placement.Template{Ready: t.Status == "ready", CPU: t.CPU, MemoryMB: t.MemoryMB, DiskMB: t.DiskMB}
		s.templates[t.Name] = as
		if as.Ready {
			s.builds[t.BuildID] = as
		}
	}
	r.shelves = append(r.shelves, s)
	return s
}

// leave forgets a shelf that no session has any more. It may be nil.
func (r *Registry) leave(s *shelf) {
	if s == nil {
		return
	}
	if s.sessions--; s.sessions == 0 {
		r.shelves = slices.DeleteFunc(r.shelves, func(other *shelf) bool { return other == s })
	}
}

// alike reports whether two templates differ in nothing but when they came to their hosts
// and what they take there.
func alike(a, b hostapi.TemplateState) bool {
	a.CreatedAt, a.SizeBytes = b.CreatedAt, b.SizeBytes
	return a == b
}
